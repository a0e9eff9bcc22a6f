"""What a program does with a model, and does wrongly, breaks the rung that it should. As in ``test_faults.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.catalogue import EVALUATED, FRUGAL, GRAPHS, LATE
from fixtures.launch import Launcher
from fixtures.spec import Case
from selftests.replayed import assert_breaks, assert_sound, judge, record, without


def one(cases: list[Case], engine: str, **wanted: object) -> Case:
    """The first of ``cases`` on ``engine`` with these fields."""
    return next(c for c in cases if c.engine == engine and all(getattr(c, k) == v for k, v in wanted.items()))


SEEN = [
    ("first_pass_lost", one(GRAPHS, "zero3", graph="twice"), "gradients"),
    ("first_pass_lost", one(GRAPHS, "fsdp2", graph="twice"), "gradients"),
    ("last_micro_step_only", one(GRAPHS, "fsdp2", graph="skips"), "gradients"),
    ("checkpointing_off", one(GRAPHS, "zero3", graph="reentrant"), "engaged"),
    ("evaluation_repeats", one(EVALUATED, "fsdp2"), "curve"),
    ("wait_forgotten", one(LATE, "fsdp2"), "loss"),
    ("wait_forgotten", one(LATE, "zero3"), "loss"),
    ("weight_not_read", one(FRUGAL, "fsdp2"), "loss"),
    ("weight_not_read", one(FRUGAL, "zero3"), "loss"),
]
"""Fault, the case it is put into, and the lowest rung that must break."""

SOUND = sorted({case for _, case, _ in SEEN}, key=lambda case: case.id)


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, without a fault, of every case here and its oracle."""
    folder = tmp_path_factory.mktemp("sound")
    for case in dict.fromkeys([*(case.oracle for case in SOUND), *SOUND]):
        assert record(launcher, folder, case).outcome == "ok"
    return folder


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in SOUND])
def test_a_sound_run_passes(case: Case, sound: Path) -> None:
    """Without a fault all rungs hold: what fails below fails for its fault."""
    assert_sound(judge(sound, case))


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """With the fault the gate fails, and the report names this rung as the lowest that breaks."""
    folder = without(sound, tmp_path / "run", case.id)
    record(launcher, folder, case, fault)
    assert_breaks(judge(folder, case), case, rung)
