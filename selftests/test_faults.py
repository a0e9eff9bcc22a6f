"""The suite can see: every kind of fault, put into a real run of a real engine, breaks the rung that it should.

Runs are recorded once with a fault and once without, then judged again as a user would: ``pytest --replay``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.catalogue import ORACLE
from fixtures.launch import Launcher
from fixtures.spec import Case
from selftests.replayed import assert_breaks, assert_sound, judge, record, without

CURVE = ORACLE["curve"].with_(world_size=2, precision="bf16-mixed", engine="zero3")
ACCUMULATE = ORACLE["accumulate"].with_(world_size=2, engine="zero3", accumulation_steps=4, outputs="loss")
CLIP = ORACLE["clip"].with_(world_size=2, engine="zero3")

SEEN = [
    ("upcast_skipped", CURVE.with_(engine="fsdp1"), "dtypes"),
    ("upcast_skipped", CURVE.with_(engine="fsdp2"), "dtypes"),
    ("upcast_skipped", CURVE, "dtypes"),
    ("wrong_stage", CURVE, "engaged"),
    ("wrong_stage", CURVE.with_(engine="zero2"), "engaged"),
    ("wrong_stage", CURVE.with_(engine="fsdp1"), "engaged"),
    ("wrong_stage", CURVE.with_(engine="fsdp2"), "engaged"),
    ("quiet_ddp", CURVE.with_(engine="fsdp1", precision="fp32"), "engaged"),
    ("quiet_ddp", CURVE.with_(engine="fsdp2", precision="fp32"), "engaged"),
    ("quiet_ddp", CURVE.with_(precision="fp32"), "engaged"),
    ("gradient_not_averaged", ACCUMULATE.with_(engine="ddp"), "gradients"),
    ("gradient_not_averaged", ACCUMULATE.with_(engine="fsdp2"), "gradients"),
    ("gradient_not_averaged", CURVE.with_(engine="zero2"), "gradients"),
    ("gradient_not_averaged", CLIP.with_(engine="fsdp1"), "gradients"),
    ("last_micro_step_only", ACCUMULATE.with_(engine="zero2"), "gradients"),
    ("other_ranks_data", CURVE.with_(engine="fsdp2"), "data"),
    ("clipping_forgotten", CLIP.with_(engine="fsdp2"), "gradients"),
    ("clipping_forgotten", CLIP.with_(engine="ddp"), "gradients"),
    ("clipping_forgotten", CLIP, "settings"),
    ("learning_rate_times_world_size", CURVE.with_(engine="fsdp2"), "settings"),
    ("rank_reports_nan", CURVE.with_(engine="fsdp2"), "loss"),
    ("rank_raises", CURVE.with_(engine="fsdp2", precision="fp32"), "engaged"),
    ("rank_killed", CURVE.with_(engine="ddp", precision="fp32"), "engaged"),
]
"""Fault, the case it is put into, and the lowest rung that must break."""

SOUND = sorted({case for _, case, _ in SEEN}, key=lambda case: case.id)


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, without a fault, of every case here, its oracle and its peer."""
    folder = tmp_path_factory.mktemp("sound")
    for case in {*SOUND, *(case.oracle for case in SOUND), *(case.with_(engine="zero3") for case in SOUND)}:
        record(launcher, folder, case)
    return folder


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in SOUND])
def test_a_sound_run_passes(case: Case, sound: Path) -> None:
    """Without a fault, all rungs hold: what fails below fails for its fault."""
    assert_sound(judge(sound, case))


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """With the fault, the gate fails, and the report names this rung as the lowest that breaks."""
    folder = without(sound, tmp_path / "run", case.id)
    record(launcher, folder, case, fault)
    assert_breaks(judge(folder, case), case, rung)
