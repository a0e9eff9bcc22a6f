"""fp16's loss scale: the formula, what fails, and the engines' own scalers for real, in fp16 on the CPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conformance import scaling
from conformance.catalogue import OVERFLOWING, SCALED
from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case
from fixtures.tables import SpecError
from selftests.records import observation

SCALED_BY = {case.engine: case for case in SCALED}
OVERFLOWS = {case.engine: case for case in OVERFLOWING}


def seen(case: Case, folder: Path, scales: list[Any], skipped: list[int] | None = None) -> Observation:
    """A run of ``case`` whose ranks had these scales and left out these steps."""
    made = [len(scales) - len(skipped or ())]
    told: dict[str, Any] = {"optimizer_steps": made}
    told |= {} if None in scales else {"loss_scales": scales, "skipped_steps": skipped or []}
    return observation(case, folder, [1.0] * len(scales), engaged={"local": told})


@pytest.mark.parametrize(("engine", "first"), [("fsdp2", 5), ("zero2", 6)])
def test_scale_doubles_after_a_window(engine: str, first: int) -> None:
    """After four steps; DeepSpeed begins to count one step later. Then every four."""
    scales = scaling.due(SCALED_BY[engine], [])
    grown = [step for step, (one, other) in enumerate(pairwise(scales), 2) if other == 2 * one]
    assert grown == [first, first + 4, first + 8, first + 12]
    assert set(scales) == {2.0**power for power in range(8, 13)}


def test_scale_halves_after_an_overflow() -> None:
    """At once, and the window begins anew."""
    scales = scaling.due(SCALED_BY["ddp"], [3])
    assert scales[:9] == [256, 256, 256, 128, 128, 128, 128, 256, 256]


def test_the_formula_passes(tmp_path: Path) -> None:
    """A record whose scales are the formula's, with no step left out."""
    case = SCALED_BY["fsdp2"]
    told = seen(case, tmp_path, scaling.due(case, []))
    assert all(finding.passed for finding in (*scaling.way(told), scaling.grows(told), scaling.none_left_out(told)))


@pytest.mark.parametrize("scales", [
    [256.0] * 20, [256.0] * 4 + [1024.0] * 16, [float("nan")] * 20, [256.0] * 3, [None] * 20, [0.0] * 20,
])
def test_another_way_fails(tmp_path: Path, scales: list[Any]) -> None:
    """A scale that stands still, jumps, is no number, ends early or was not recorded."""
    assert not all(finding.passed for finding in scaling.way(seen(SCALED_BY["fsdp2"], tmp_path, scales)))


def test_a_step_too_many_fails(tmp_path: Path) -> None:
    """An update that was left out by word and made all the same."""
    case = SCALED_BY["ddp"]
    told = seen(case, tmp_path, scaling.due(case, [3]), [3])
    local = {**told.ranks[0].engaged["local"], "optimizer_steps": [20]}
    wrong = replace(told, ranks=tuple(replace(one, engaged={"local": local}) for one in told.ranks))
    assert all(finding.passed for finding in scaling.way(told))
    assert [finding.passed for finding in scaling.way(wrong)] == [True, False]
    assert not scaling.none_left_out(told).passed


@pytest.mark.parametrize(("engine", "mine", "theirs", "passes"), [
    ("fsdp2", [1, 2, 3], [1, 2, 3], True), ("fsdp2", [1, 2, 3], [1, 2], False), ("fsdp2", [1, 3], [1, 2], False),
    ("fsdp2", [], [], False), ("fsdp2", list(range(1, 9)), list(range(1, 9)), False), ("ddp", [1, 2], [1, 2, 3], True),
    ("ddp", [1], [1, 2, 3], False),
])
def test_overflows_must_be_alike(
    tmp_path: Path, engine: str, mine: list[int], theirs: list[int], passes: bool,
) -> None:
    """The same first steps, some but not all; DDP may differ by one."""
    case, other = OVERFLOWS[engine], OVERFLOWS["zero3"]
    one = seen(case, tmp_path / "a", scaling.due(case, mine), mine)
    two = seen(other, tmp_path / "b", scaling.due(other, theirs), theirs)
    assert [finding.passed for finding in scaling.left_out_alike(one, two)] == [passes]


def test_an_overflow_without_a_record_fails(tmp_path: Path) -> None:
    """On either side."""
    case = OVERFLOWS["fsdp2"]
    told = seen(case, tmp_path / "a", scaling.due(case, [1]), [1])
    silent = seen(case, tmp_path / "b", [None] * 8)
    for pair in ((told, silent), (silent, told)):
        assert not any(finding.passed for finding in scaling.left_out_alike(*pair))


@pytest.mark.parametrize("words", [
    {"precision": "bf16-mixed", "scale_power": 9}, {"precision": "fp32", "scale_window": 4},
    {"precision": "fp16-mixed", "scale_power": 40}, {"precision": "fp16-mixed", "scale_window": 0},
])
def test_a_scale_without_fp16_is_refused(words: dict[str, Any]) -> None:
    """And one that no fp16 could begin with."""
    with pytest.raises(SpecError, match="scale"):
        Case(model="llama-tiny", engine="fsdp2", **words)


def ran(launcher: Launcher, case: Case, folder: Path, **fp16: Any) -> Observation:
    """The case for real, in fp16 on the CPU; ``fp16`` changes DeepSpeed's words."""
    said = settings(case)
    if fp16:
        said["deepspeed"]["fp16"] |= fp16
    folder.mkdir()
    observed = launcher.run(Request.of(case, said), folder, deadline_seconds=120)
    assert observed.outcome == "ok", observed.error
    return observed


def test_engines_leave_out_the_same_steps(launcher: Launcher, tmp_path: Path) -> None:
    """Torch's scaler under DDP and FSDP2, and DeepSpeed's own: each real, over gloo; and the plain oracle's."""
    runs = {name: ran(launcher, OVERFLOWS[name], tmp_path / name) for name in ("ddp", "fsdp2", "zero2")}
    oracle = ran(launcher, OVERFLOWS["ddp"].oracle, tmp_path / "oracle")
    found = [
        finding for one in runs.values() for finding in (*scaling.way(one), *scaling.left_out_alike(one, oracle))
    ]
    found += scaling.left_out_alike(runs["fsdp2"], runs["zero2"])
    assert [finding.sentence for finding in found if not finding.passed] == []


def test_deepspeeds_default_waits_for_a_second_overflow(launcher: Launcher, tmp_path: Path) -> None:
    """Its hysteresis of two is another way, and is seen: the matched dialect says one."""
    observed = ran(launcher, OVERFLOWS["zero2"], tmp_path / "run", hysteresis=2)
    assert not all(finding.passed for finding in scaling.way(observed))


def test_gradients_are_measured_without_the_scale(launcher: Launcher, tmp_path: Path) -> None:
    """The norm of gathered gradients is the one that the engine reports after it has taken the scale off."""
    for name in ("fsdp2", "zero2"):
        observed = ran(launcher, SCALED_BY[name].with_(steps=2, scale_window=2000), tmp_path / name)
        assert observed.measured_grad_norms[1] == pytest.approx(observed.grad_norms[0][0], rel=1e-3)
