"""What is claimed of runs at full size, which no oracle can follow: see [Note: no oracle at full size]. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from conformance.tolerances import MARGIN, fp32_rounding
from fixtures import verdict
from fixtures.observation import Observation
from fixtures.rehearsal.cards import GIB
from fixtures.spec import Case
from fixtures.throughput.figures import mfu, peak_flops, quantile
from fixtures.verdict import Claim, Finding, Tolerance

WARM_UP_STEPS = 4
"""Not timed: allocators fill, NCCL makes its buffers, ZeRO-3 traces."""
STEADY = 0.02
"""Half of the timed steps lie this close together, or the figure says nothing: a step takes seconds."""
APART = 0.05
"""How far the two engines' tokens per second may lie apart. Published: 2 % (3158.7 and 3094.5 per A100, Granite 7B)."""
PUBLISHED_RATIO = 3158.7 / 3094.5
LARGEST_NOISE = 1e-2
"""Where rounding alone moves a loss that far, nothing can be judged by it."""
BEHIND = 10
"""Times what rounding does: how far a curve must stay above another to be told from it."""
TAIL = 20
"""Steps at the end whose mean loss is compared."""
BEYOND = 0.1
"""What a run may need more than its rehearsal foretold: fragments, work spaces of kernels that were not rehearsed."""


def noise(run: Observation, cut: Observation) -> float:
    """The largest relative difference that cutting each batch in two made to any step's loss; infinite if unknown."""
    one, other = run.losses, cut.losses
    if not one or len(one) != len(other) or not all(map(math.isfinite, (*one, *other))):
        return math.inf
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


def one_curve(run: Observation, other: Observation, cut: Observation) -> Iterator[Finding]:
    """Two engines of one arithmetic give one curve, up to what rounding does to this very model."""
    measured = noise(run, cut)
    yield usable(run.case, measured)
    floor = fp32_rounding(run.case, "loss_curve")
    allowed = Tolerance(
        relative=min(max(floor, MARGIN * measured), LARGEST_NOISE),
        reason=f"{MARGIN} x {measured:.2g}, which cutting each batch in two did",
    )
    claim = Claim(subject=f"{run.case.id} ~ {other.case.id}", rung="curve", metric="loss, every step",
                  reference=f"direct comparison with {other.case.engine}")
    yield verdict.curve(claim, run.losses, other.losses, allowed)


def usable(case: Case, measured: float) -> Finding:
    """Rounding alone does not move this model's loss so far that nothing could be told by it."""
    claim = Claim(subject=case.id, rung="curve", metric="noise of this model", reference="each batch cut in two")
    passed = 0 <= MARGIN * measured <= LARGEST_NOISE
    return claim.found(observed=f"{measured:.2g}", allowed=f"{MARGIN} times it at most {LARGEST_NOISE:g}",
                       passed=passed, used=MARGIN * measured / LARGEST_NOISE if passed else math.inf)


def learns(seen: Observation) -> Finding:
    """The loss falls."""
    claim = Claim(subject=seen.case.id, rung="curve", metric="loss falls", reference="its own first steps")
    return verdict.falls(claim, seen.losses, by=0.0)


def timed(seen: Observation) -> Finding:
    """Each step has its seconds on record, and some of them are left to be timed."""
    claim = Claim(subject=seen.case.id, rung="throughput", metric="tokens per second", reference="the record")
    rate = tokens_per_second(seen)
    return verdict.holds(claim, math.isfinite(rate), observed=f"{rate:,.0f} per device", allowed="a number")


def tail(seen: Observation) -> float:
    """Mean loss of the last steps; NaN where there are none."""
    last = seen.losses[-TAIL:]
    return math.fsum(last) / len(last) if last else math.nan


def stays_behind(low: Observation, aligned: Observation, cut: Observation) -> Finding:
    """bf16 weights without an upcast end above the aligned curve by far more than rounding explains."""
    gap, margin = tail(low) - tail(aligned), BEHIND * noise(aligned, cut) * tail(aligned)
    claim = Claim(subject=low.case.id, rung="experiment", metric="stays behind", reference=aligned.case.id)
    return verdict.holds(claim, gap >= margin > 0, observed=f"{gap:.5f} nats above {tail(aligned):.5f}",
                         allowed=f"at least {margin:.5f}, {BEHIND} x noise")


def within(seen: Observation, gib: float) -> Finding:
    """The card had to hold no more than the rehearsal foretold, and a tenth."""
    found = [rank.memory.get("card", {}).get("in_use") for rank in seen.ranks]
    claim = Claim(subject=seen.case.id, rung="memory", metric="most of the card in use", reference="its rehearsal")
    known = [value for value in found if type(value) is int and value > 0]
    if not known or len(known) != len(found):
        return verdict.holds(claim, False, observed="not recorded", allowed="on every rank")
    most = max(known) / GIB
    return claim.found(observed=f"{most:.1f} GiB", allowed=f"{gib:.1f} GiB + {BEYOND:.0%}",
                       passed=most <= gib * (1 + BEYOND), used=most / (gib * (1 + BEYOND)))


def step_seconds(seen: Observation) -> list[float]:
    """Seconds of each timed step, of the rank that took longest."""
    by_rank = [[step.seconds for step in rank.steps] for rank in seen.ranks]
    return [max(values) for values in zip(*by_rank, strict=True)][WARM_UP_STEPS:]


def tokens_per_second(seen: Observation) -> float:
    """Per device, by the median step; NaN where nothing was timed."""
    seconds = step_seconds(seen)
    if not seconds or min(seconds) <= 0:
        return math.nan
    return seen.case.tokens_per_step / seen.case.world_size / statistics.median(seconds)


def steady(seen: Observation) -> Finding:
    """The middle half of the timed steps lies close together: else the figure is of the hour, not of the engine."""
    seconds = step_seconds(seen)
    claim = Claim(subject=seen.case.id, rung="throughput", metric="spread of step seconds", reference="its own median")
    if len(seconds) < 2:
        return verdict.holds(claim, False, observed=f"{len(seconds)} timed steps", allowed="two at least")
    spread = (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / statistics.median(seconds)
    return claim.found(observed=f"{spread:.1%}", allowed=f"{STEADY:.0%} between the quarters; else unstable",
                       passed=spread <= STEADY, used=spread / STEADY)


def as_fast(run: Observation, other: Observation, *, elements: float) -> Finding:
    """Neither engine is slower than the other by more than :data:`APART`."""
    mine, theirs = tokens_per_second(run), tokens_per_second(other)
    ratio = mine / theirs if theirs else math.nan
    device = str(run.ranks[0].memory.get("card", {}).get("name", "")) if run.ranks else ""
    part = mfu(round(elements), mine, peak_flops(device, "bfloat16")) if math.isfinite(mine) else None
    claim = Claim(
        subject=f"{run.case.id} ~ {other.case.id}", rung="throughput", metric="tokens per second, of the other's",
        reference=f"published {PUBLISHED_RATIO:.3f} on four A100",
    )
    passed = math.isfinite(ratio) and 1 - APART <= ratio <= 1 / (1 - APART)
    shown = f", MFU {part:.2f}" if part is not None else ""
    return claim.found(
        observed=f"{ratio:.3f} ({mine:,.0f} and {theirs:,.0f} per device{shown})",
        allowed=f"{1 - APART:.2f} to {1 / (1 - APART):.2f}", passed=passed,
        used=abs(ratio - 1) / APART if math.isfinite(ratio) else math.inf,
    )


def milliseconds(runs: Sequence[Observation]) -> dict[str, int]:
    """Median step, in whole milliseconds, by engine: what a baseline holds."""
    return {
        f"step, {seen.case.engine}": round(1000 * statistics.median(step_seconds(seen)))
        for seen in runs if step_seconds(seen)
    }
