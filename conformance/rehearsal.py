"""What is claimed of rehearsals: on the CPU, that they foretell what is measured; for a GPU, what fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fixtures import verdict
from fixtures.observation import Observation
from fixtures.rehearsal import forecast
from fixtures.rehearsal.cards import ASSUMED, CARD_GIB, GIB
from fixtures.rehearsal.forecast import PARTS, PHASES, Forecast, ForecastError
from fixtures.spec import Case
from fixtures.tables import ENGINES
from fixtures.verdict import Claim, Finding, Tolerance

ERROR = Tolerance(relative=0.05, reason="a rehearsal foretells a peak within 5 %")

BEND, BEND_CUT = 1e-3, 2.5e-2
"""How far the smallest depth may lie off the line, relative to its peak: the bytes of a row loader and of paddings;
under ZeRO one parameter of four layers, the one at the cut between ranks (ZeRO-1, ZeRO-2) or groups (ZeRO-3)."""


def foretold(seen: Observation, layers: int | None = None) -> Forecast | None:
    """The forecast of a rehearsal, or ``None`` if its record holds none."""
    try:
        return forecast.foretold(seen.case, seen.ranks[0].memory, layers)
    except (ForecastError, IndexError):
        return None


def measured(seen: Observation) -> dict[str, int | None]:
    """The peak of each phase on the rank that is rehearsed; ``None`` where a rank has none on record.

    Where all ranks are alike that is the one that has least: gloo, which lets go of a tensor late on one rank or
    another, only ever adds (by 9 % in small models). Where their parts differ, ZeRO-1 and ZeRO-2, it is the one that
    has most.
    """
    pick = min if len(seen.case.rehearsed["ranks"]) == 1 else max
    found = {phase: [rank.memory.get("peaks", {}).get(phase) for rank in seen.ranks] for phase in PHASES}
    return {
        phase: pick(values) if values and all(isinstance(value, int) for value in values) else None
        for phase, values in found.items()
    }


def agrees(rehearsed: Observation, ran: Observation) -> Iterator[Finding]:
    """The highest peak of a step, and that of each phase, are as measured."""
    told, seen = foretold(rehearsed, ran.case.architecture.layers), measured(ran)
    for phase in PHASES:
        claim = _claim(ran.case, f"rehearsed peak, {phase}", "measured by the allocator")
        yield verdict.close(claim, told.peaks[phase] if told else None, seen[phase], ERROR)
    claim = _claim(ran.case, "rehearsed peak", "measured by the allocator")
    most = None if None in seen.values() else max(value for value in seen.values() if value is not None)
    yield verdict.close(claim, told.peak_bytes if told else None, most, ERROR)


def tells_apart(other: Observation, ran: Observation) -> Finding:
    """The rehearsal of another case misses one of the measured peaks: agreement would mean nothing otherwise."""
    missed = [finding for finding in agrees(other, ran) if finding.used is not None and finding.used > 1]
    lost = [finding.metric for finding in missed if finding.used == math.inf]
    worst = max(missed, key=lambda finding: finding.used or 0.0, default=None)
    claim = _claim(ran.case, "told apart from another's rehearsal", other.case.id)
    observed = f"{worst.metric} {worst.observed}, measured {worst.allowed}" if worst else "foretold by it, too"
    return verdict.holds(claim, bool(missed) and not lost, observed=observed, allowed="off by more than 5 %")


def straight(rehearsed: Observation) -> Finding:
    """The smallest depth lies on the line through the two others: what is told of the full depth follows."""
    told = foretold(rehearsed)
    most = BEND_CUT if ENGINES[rehearsed.case.engine].zero_stage else BEND
    claim = _claim(rehearsed.case, "bend of the line in layers", "the smallest depth, not used for the line")
    if told is None:
        return claim.found(observed="not recorded", allowed=f"{most:.1%}", passed=False, used=math.inf)
    return claim.found(
        observed=f"{told.bend:.3%}", allowed=f"{most:.1%}", passed=told.bend <= most, used=told.bend / most
    )


def verdict_of(rehearsed: Observation, platform: str, *, fits: bool) -> Finding:
    """Whether the case fits on a card of ``platform``, as it is expected to. Rehearsed, not run."""
    told, card = foretold(rehearsed), CARD_GIB[platform]
    claim = _claim(rehearsed.case, "rehearsed peak", f"rehearsed for one {platform.upper()}, not run")
    allowed = f"{'to fit' if fits else 'not to fit'} in {card:.1f} GiB"
    if told is None:
        return verdict.holds(claim, False, observed="not recorded", allowed=allowed)
    needed = ASSUMED.needed_gib(told)
    return claim.found(
        observed=f"{needed:.1f} GiB: {by_part(told)}; headroom {card - needed:+.1f} GiB", allowed=allowed,
        passed=(needed <= card) is fits, used=needed / card if fits else card / needed,
    )


BOOKED = 0.02
"""How far a rehearsal may lie from what is booked for the case."""


def booked(rehearsed: Observation, gib: float) -> Finding:
    """What the rehearsal foretells is what the catalogue says that the case needs."""
    told = foretold(rehearsed)
    claim = _claim(rehearsed.case, "GiB of a card, as booked", "rehearsed, not run")
    needed = ASSUMED.needed_gib(told) if told is not None else None
    return verdict.close(claim, needed, gib, Tolerance(relative=BOOKED, reason="a rehearsal repeats"))


def by_part(told: Forecast) -> str:
    """For instance ``parameters 6.3, gradients 6.3, activations 20.1 (backward)``, in GiB; small parts are left out."""
    shown = [f"{part.replace('_', ' ')} {told.parts[part] / GIB:.1f}" for part in PARTS if told.parts[part] >= GIB / 20]
    return f"{', '.join(shown)} ({told.phase})"


def _claim(case: Case, metric: str, reference: str) -> Claim:
    return Claim(subject=case.id, rung="memory", metric=metric, reference=reference)
