"""What is claimed of fp16's loss scale: its way is a formula, and overflows are left out alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fixtures import verdict
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.tables import ENGINES
from fixtures.verdict import Claim, Finding


def due(case: Case, skipped: Sequence[int]) -> list[float]:
    """The loss scale of every step, from the steps (from 1) that were left out.

    Half after an overflow, twice as much after ``scale_window`` steps without one. Sources: torch's GradScaler, and
    DeepSpeed's ``DynamicLossScaler.update_scale``, which begins to count one step later.
    """
    late = int(ENGINES[case.engine].family == "deepspeed")
    scale, stable, found = 2.0**case.scale_power, 0, []
    for step in range(1, case.steps + 1):
        found.append(scale)
        stable = 0 if step in skipped else stable + 1
        if step in skipped:
            scale /= 2
        elif stable > late and (stable - late) % case.scale_window == 0:
            scale *= 2
    return found


def way(seen: Observation) -> Iterator[Finding]:
    """Every rank's scale is the formula's in every step, and the optimizer has counted the steps that were made."""
    skipped = seen.skipped_steps
    claim = _claim(seen.case, "loss scale of every step", "the formula, from the steps left out")
    if skipped is None:
        yield verdict.holds(claim, False, observed="not recorded", allowed="on every rank")
        return
    expected = due(seen.case, skipped)
    wrong = [n for n, told in enumerate(seen.loss_scales) if any(scale != expected[n] for scale in told)]
    observed = f"step {wrong[0] + 1}: {seen.loss_scales[wrong[0]]}" if wrong else _shown(expected)
    allowed = f"step {wrong[0] + 1}: {expected[wrong[0]]:g}" if wrong else "these"
    yield verdict.holds(claim, not wrong and len(seen.loss_scales) == seen.case.steps, observed=observed,
                        allowed=allowed)
    if seen.case.optimizer == "adamw":
        counted = [list(rank.engaged.get("local", {}).get("optimizer_steps", ())) for rank in seen.ranks]
        made = [seen.case.steps - len(skipped)]
        claim = _claim(seen.case, "steps that the optimizer counted", "steps that were not left out")
        yield verdict.same(claim, counted, [made] * len(counted))


def none_left_out(seen: Observation) -> Finding:
    """Not one update is left out where the scale is moderate."""
    claim = _claim(seen.case, "steps left out", "a moderate loss scale")
    return verdict.same(claim, seen.skipped_steps, [])


def grows(seen: Observation) -> Finding:
    """The scale has moved at all: else its way would prove nothing."""
    scales = [told[0] for told in seen.loss_scales]
    moved = len(scales) > 1 and None not in scales and max(map(_number, scales)) > _number(scales[0])
    return verdict.holds(_claim(seen.case, "loss scale grows", "its first"), moved, observed=_shown(scales),
                         allowed="larger in the end")


def left_out_alike(seen: Observation, other: Observation) -> Iterator[Finding]:
    """The first steps are left out, some of them and no other, as by ``other``.

    By an engine of the same arithmetic to the step; by the oracle, which has no ranks whose gradients are larger than
    their average, up to one step more or fewer.
    """
    claim = _claim(seen.case, "steps left out for an overflow", other.case.id)
    mine, due_ = seen.skipped_steps, other.skipped_steps
    if mine is None or due_ is None:
        yield verdict.holds(claim, False, observed="not recorded", allowed="on both sides")
        return
    room = int(other.case.engine == "plain" or seen.case.engine == "ddp")
    first = mine == list(range(1, len(mine) + 1)) and 0 < len(mine) < seen.case.steps
    passed = first and abs(len(mine) - len(due_)) <= room
    yield verdict.holds(claim, passed, observed=f"{mine}", allowed=f"{due_}" + " +/- 1 step" * room)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _shown(scales: Sequence[float | None]) -> str:
    turns = [n for n, scale in enumerate(scales) if n == 0 or scale != scales[n - 1]]
    return ", ".join(f"{scales[n]:g} from step {n + 1}" for n in turns)


def _claim(case: Case, metric: str, reference: str) -> Claim:
    return Claim(subject=case.id, rung="settings", metric=metric, reference=reference)
