"""How the candidate's runs differ from the pinned ones, case by case. Pure.

[Note: beyond noise]
A case repeats to the last bit in one environment, or nearly so. Between two, sums may be taken in another order or
rounded elsewhere, and that is nobody's fault: what counts is a difference beyond the tolerance that the case has
against its oracle, the largest that benign changes can make. What the oracle itself moved by is taken off first: it has
neither accelerate nor deepspeed in it, so that is drift of torch or of the model, the same for all engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance import effort, memory
from conformance.claims import gradient_scale
from conformance.tolerances import EvidenceError, reference_kind, tolerance
from fixtures import verdict
from fixtures.changes import ABSENT, changes
from fixtures.observation import Observation
from gate.records import Side

DIRECTED = "memory"
"""The rung whose differences count in one direction only: less is welcome."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One quantity of one case, candidate against pinned.

    :param size: relative; :param allowed: relative, with its reason in ``why``.
    :param explained: the changed settings of this case that may account for it; empty if there are none.
    """

    case: str
    rung: str
    metric: str
    size: float
    allowed: float
    why: str
    explained: tuple[str, ...] = ()

    @property
    def beyond(self) -> bool:
        """Whether noise cannot have made it; NaN never is noise."""
        return not self.size <= self.allowed

    @property
    def sentence(self) -> str:
        """In one line."""
        by = f" (with {', '.join(self.explained[:3])})" if self.explained else ""
        return f"{self.case}  {self.metric}: off by {self.size:.3g}, noise is up to {self.allowed:.3g}{by}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting, dtype or count that is in force with another value; ``cases`` are those in which it is."""

    part: str
    key: str
    old: str
    new: str
    cases: tuple[str, ...]

    @property
    def replaced(self) -> bool:
        """Whether a value took another's place: a key that comes or goes is a release's way to spell things."""
        return ABSENT not in (self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What moved in the oracle, and so in every engine: the largest relative difference of its losses."""

    oracle: str
    size: float


Pair = tuple[Observation, Observation]
"""Pinned and candidate observation of one case."""


def pairs(pinned: Side, candidate: Side) -> dict[str, Pair]:
    """By case id, what both sides ran to the end."""
    both = {name: (seen, candidate.observations.get(name)) for name, seen in pinned.observations.items()}
    return {name: (a, b) for name, (a, b) in both.items() if b is not None and a.outcome == b.outcome == "ok"}


def drifts(found: Mapping[str, Pair]) -> list[Drift]:
    """The oracles that moved at all, the farthest first."""
    oracles = {name: pair for name, pair in found.items() if pair[0].case.engine == "plain"}
    sizes = {name: _curve(old.losses, new.losses) for name, (old, new) in oracles.items()}
    moved = [Drift(oracle=name, size=size) for name, size in sizes.items() if size != 0]
    return sorted(moved, key=lambda drift: -drift.size)


def changed(found: Mapping[str, Pair]) -> list[Change]:
    """Settings, dtypes, engine and collectives that are in force with other values, replaced ones first."""
    cases: dict[tuple[str, str, str, str], list[str]] = {}
    for name, (old, new) in found.items():
        for part, key, was, now in _changes(old, new):
            cases.setdefault((part, key, was, now), []).append(name)
    listed = [
        Change(part=part, key=key, old=was, new=now, cases=tuple(names))
        for (part, key, was, now), names in cases.items()
    ]
    return sorted(listed, key=lambda one: (not one.replaced, _PARTS.index(one.part), -len(one.cases)))


_PARTS = ("settings", "dtypes", "engaged", "collectives")
"""Of a record, in the order in which changes are told."""


def _changes(old: Observation, new: Observation) -> Iterator[tuple[str, str, str, str]]:
    for part in _PARTS:
        before, after = ({**seen.in_force(), "dtypes": seen.agreed("dtypes")}[part] for seen in (old, new))
        yield from ((part, *row) for row in changes(before, after))


def differences(found: Mapping[str, Pair]) -> list[Difference]:
    """Everything that could be compared, within noise or not, except the oracles, which are drift."""
    listed: list[Difference] = []
    for old, new in found.values():
        if old.case.engine != "plain":
            listed += _of_case(old, new, found.get(old.case.oracle.id))
    return listed


def _of_case(old: Observation, new: Observation, oracle: Pair | None) -> list[Difference]:
    if old.case.measure == "training":
        measured = _numerics(old, new, oracle)
    else:
        measured = _effort(old, new) if old.case.measure == "calls" else _memory(old, new)
    explained = _replaced(old, new) if old.case.dialect != "matched" else ()  # there all settings are made equal
    return [
        Difference(
            case=old.case.id, rung=rung, metric=metric, size=size, allowed=allowed, why=why, explained=explained,
        )
        for rung, metric, size, allowed, why in measured
    ]


def _replaced(old: Observation, new: Observation) -> tuple[str, ...]:
    return tuple(
        f"{key} {was} -> {now}" for part, key, was, now in _changes(old, new)
        if part in ("settings", "dtypes") and ABSENT not in (was, now)
    )


Measured = tuple[str, str, float, float, str]
"""Rung, metric, size, allowed, why."""


def _numerics(old: Observation, new: Observation, oracle: Pair | None) -> Iterator[Measured]:
    moved = [0.0] * len(old.losses)
    if oracle is not None and len(oracle[0].losses) == len(oracle[1].losses) == len(moved):
        moved = [now - was for was, now in zip(oracle[0].losses, oracle[1].losses, strict=True)]
    yield _held(old, "loss", "loss, step 1", _curve(old.losses[:1], new.losses[:1], moved))
    yield _held(old, "loss_curve", "loss, every step", _curve(old.losses, new.losses, moved))
    norms = [[step[0] for step in seen.grad_norms] for seen in (old, new)]
    if not any(norm is None for norm in (*norms[0], *norms[1])):
        yield _held(old, "norm_curve", "reported gradient norm", _curve(norms[0], norms[1]))
    if old.group("gradients") or new.group("gradients"):  # a resumed run has none: step 1 was another's
        yield _held(old, "gradients", "gradients of step 1", _gradients(old, new, oracle))


_RUNG = {"loss": "loss", "loss_curve": "curve", "norm_curve": "gradients", "gradients": "gradients"}


def _held(old: Observation, metric: str, words: str, size: float) -> Measured:
    platform = str(old.provenance.get("platform", "cpu"))
    try:
        held = tolerance(old.case, metric, reference_kind(old.case), platform=platform)
    except EvidenceError as error:
        return _RUNG[metric], words, size, 0.0, str(error)
    return _RUNG[metric], words, size, held.relative, held.reason


def _curve(old: Sequence[float | None], new: Sequence[float | None], moved: Sequence[float] = ()) -> float:
    """The largest relative difference of any step, less what ``moved`` explains; infinite if it cannot be told."""
    if len(old) != len(new) or not old:
        return math.inf
    worst = 0.0
    for step, (was, now) in enumerate(zip(old, new, strict=True)):
        if was is None or now is None or not (math.isfinite(was) and math.isfinite(now)):
            return math.inf
        off = now - was - (moved[step] if step < len(moved) else 0.0)
        worst = max(worst, abs(off) / abs(was) if off else 0.0)
    return worst


def _gradients(old: Observation, new: Observation, oracle: Pair | None) -> float:
    before, after = old.group("gradients"), new.group("gradients")
    if not before or {n: len(v) for n, v in before.items()} != {n: len(v) for n, v in after.items()}:
        return math.inf
    apart = max(verdict.relative_errors(after, before, scale=gradient_scale(old)).values())
    if oracle is None or not apart:
        return apart
    common = max(
        verdict.relative_errors(
            oracle[1].group("gradients"), oracle[0].group("gradients"), scale=gradient_scale(oracle[0])
        ).values()
    )
    return max(0.0, apart - common)


def _effort(old: Observation, new: Observation) -> Iterator[Measured]:
    was, now = effort.calls(old), effort.calls(new)
    size = (now - was) / was if was and now else math.inf
    yield "throughput", "calls in a step", max(0.0, size), effort.RISE, "a release may do a little more"


def _memory(old: Observation, new: Observation) -> Iterator[Measured]:
    before, after = memory.peaks(old), memory.peaks(new)
    why = "peaks repeat to half of this on a crowded machine"
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        size = (now - was) / was if was and now else math.inf
        yield DIRECTED, name, max(0.0, size), memory.PEAK_MARGIN, why
