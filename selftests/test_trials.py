"""What is claimed at full size, on records made by hand: each claim passes where it should, and fails beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import trials
from conformance.full_size import GRANITE_TRIAL, MISTRAL_TRIAL
from fixtures.observation import Observation
from fixtures.rehearsal.cards import GIB
from fixtures.spec import Case
from selftests.records import STEP, observation, rank

FSDP, DEEPSPEED, CUT = GRANITE_TRIAL.three
FALLING = [5.0 - 0.1 * step for step in range(16)]


def seen(case: Case, folder: Path, losses: list[float], seconds: float = 10.0, **changes: Any) -> Observation:
    """A run with these losses whose steps took ``seconds``, the first ones longer."""
    steps = [
        replace(STEP, loss=loss / case.world_size, seconds=seconds * (3 if step < trials.WARM_UP_STEPS else 1))
        for step, loss in enumerate(losses)
    ]
    ranks = tuple(rank(n, *steps, **changes) for n in range(case.world_size))
    return replace(observation(case, folder), ranks=ranks)


def moved(losses: list[float], by: float) -> list[float]:
    """Each loss a little larger."""
    return [loss * (1 + by) for loss in losses]


@pytest.mark.parametrize(("other", "cut", "passes"), [
    (0.0, 1e-4, True), (3e-4, 1e-4, True), (5e-4, 1e-4, False), (0.0, 0.0, True), (1e-4, 0.0, False),
    (0.0, 1e-1, False), (math.nan, 1e-4, False), (0.0, math.nan, False), (0.0, math.inf, False),
])
def test_engines_agree_up_to_this_models_noise(tmp_path: Path, other: float, cut: float, passes: bool) -> None:
    """Four times what cutting the batch did; where that is a hundredth of the loss nothing can be told."""
    run = seen(FSDP, tmp_path / "a", FALLING)
    found = trials.one_curve(
        run, seen(DEEPSPEED, tmp_path / "b", moved(FALLING, other)), seen(CUT, tmp_path / "c", moved(FALLING, cut))
    )
    assert all(finding.passed for finding in found) is passes


def test_a_shorter_curve_fails(tmp_path: Path) -> None:
    """On either side."""
    run, cut = seen(FSDP, tmp_path / "a", FALLING), seen(CUT, tmp_path / "c", moved(FALLING, 1e-4))
    short = seen(DEEPSPEED, tmp_path / "b", FALLING[:5])
    assert not all(finding.passed for finding in trials.one_curve(run, short, cut))
    assert not all(finding.passed for finding in trials.one_curve(run, run, short))


@pytest.mark.parametrize(("seconds", "passes"), [(10.2, True), (10.4, True), (10.8, False), (9.0, False)])
def test_engines_are_as_fast_as_each_other(tmp_path: Path, seconds: float, passes: bool) -> None:
    """Published: 2 % apart. Within 5 % either way; beyond, one of them is slow."""
    one, other = seen(FSDP, tmp_path / "a", FALLING), seen(DEEPSPEED, tmp_path / "b", FALLING, seconds)
    assert trials.as_fast(one, other, elements=6.74e9).passed is passes


def test_the_published_figure_is_found(tmp_path: Path) -> None:
    """Batch 8 per device, 4096 tokens, 10.4 s: 3150 tokens per second and device, 0.41 of an A100's peak."""
    card = {"card": {"in_use": 46 * GIB, "name": "NVIDIA A100-SXM4-80GB"}}
    run = seen(FSDP, tmp_path / "a", FALLING, 10.4, memory=card)
    assert trials.tokens_per_second(run) == pytest.approx(3158.7, rel=0.01)
    told = trials.as_fast(run, seen(DEEPSPEED, tmp_path / "b", FALLING, 10.6), elements=6.74e9)
    assert "MFU 0.41" in told.observed
    assert trials.milliseconds([run]) == {"step, fsdp2": 10400}


def test_a_ratio_of_nothing_fails(tmp_path: Path) -> None:
    """No timed step, or no time: no figure is as good as another's."""
    run = seen(FSDP, tmp_path / "a", FALLING)
    for other in (seen(DEEPSPEED, tmp_path / "b", FALLING[:3]), seen(DEEPSPEED, tmp_path / "c", FALLING, 0.0)):
        assert not trials.as_fast(run, other, elements=1.0).passed
        assert not trials.as_fast(other, run, elements=1.0).passed
        assert not trials.timed(other).passed
    assert not trials.steady(seen(DEEPSPEED, tmp_path / "d", FALLING[:5])).passed


def test_unsteady_steps_fail(tmp_path: Path) -> None:
    """A machine that others use gives another figure every night."""
    run = seen(FSDP, tmp_path / "a", FALLING)
    assert trials.steady(run).passed
    steps = [replace(step, seconds=10.0 + (n % 4)) for n, step in enumerate(run.ranks[0].steps)]
    assert not trials.steady(replace(run, ranks=tuple(replace(one, steps=tuple(steps)) for one in run.ranks))).passed


@pytest.mark.parametrize(("gap", "passes"), [(0.1, True), (0.001, False), (-0.1, False), (math.nan, False)])
def test_bf16_weights_must_stay_behind(tmp_path: Path, gap: float, passes: bool) -> None:
    """By ten times what rounding does; below it, or under the aligned curve, the finding is not there."""
    aligned, cut = seen(FSDP, tmp_path / "a", FALLING), seen(CUT, tmp_path / "c", moved(FALLING, 1e-4))
    low = seen(FSDP.with_(precision="bf16-true"), tmp_path / "b", [loss + gap for loss in FALLING])
    assert trials.stays_behind(low, aligned, cut).passed is passes
    assert not trials.stays_behind(low, aligned, seen(CUT, tmp_path / "d", [])).passed


@pytest.mark.parametrize(("most", "passes"), [(40.0, True), (43.9, True), (44.1, False), (0.0, False), (None, False)])
def test_a_card_holds_what_was_foretold(tmp_path: Path, most: float | None, passes: bool) -> None:
    """And a tenth; a rank without a record is none that fits."""
    told = {} if most is None else {"card": {"in_use": round(most * GIB)}}
    assert trials.within(seen(FSDP, tmp_path, FALLING, memory=told), 40.0).passed is passes


def test_the_experiment_is_the_published_one() -> None:
    """Mistral 7B on four devices at 1e-5: both modes, the rate times the ranks, both of DeepSpeed's twins."""
    runs = MISTRAL_TRIAL.runs
    assert {(case.model, case.world_size) for case in runs.values()} == {("mistral-7b", 4)}
    assert {(case.engine, case.precision, case.learning_rate) for case in runs.values()} == {
        ("fsdp2", "bf16-mixed", 1e-5), ("zero3", "bf16-mixed", 1e-5), ("fsdp2", "bf16-true", 1e-5),
        ("fsdp2", "bf16-true", 4e-5), ("zero3", "bf16-true", 1e-5),
    }


def test_granite_is_as_published() -> None:
    """Four devices, batch 8 per device, 4096 tokens, FULL_SHARD and ZeRO-3, aligned."""
    for case in GRANITE_TRIAL.three[:2]:
        assert (case.world_size, case.rows_per_micro_batch, case.sequence_length) == (4, 8, 4096)
        assert (case.model, case.precision) == ("granite-7b", "bf16-mixed")
    assert GRANITE_TRIAL.three[2] == FSDP.with_(accumulation_steps=2)
