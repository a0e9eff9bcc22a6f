"""Other ranks, other architectures, dropout: a fault under each breaks the rung that it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.catalogue import ARCHITECTURES, DROPOUT, RANKS
from fixtures.launch import Launcher
from fixtures.spec import Case
from selftests.replayed import assert_breaks, assert_sound, judge, record, without

HYBRID = next(case for case in RANKS if case.sharding_degree and (case.engine, case.precision) == ("fsdp2", "fp32"))
EXPERTS = next(case for case in ARCHITECTURES if (case.model, case.engine) == ("mixtral-tiny", "zero3"))
MASKED = next(case for case in DROPOUT if case.engine == "fsdp2")

SEEN = [
    ("gradient_not_averaged", HYBRID, "gradients"),
    ("other_ranks_data", HYBRID, "data"),
    ("gradient_not_averaged", EXPERTS, "gradients"),
    ("learning_rate_times_world_size", MASKED, "gradients"),
]
"""Fault, the case it is put into, and the lowest rung that must break."""


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases without a fault, and what they are compared with."""
    folder = tmp_path_factory.mktemp("sound")
    cases = {HYBRID, EXPERTS, MASKED, MASKED.with_(engine="ddp"), MASKED.oracle.with_(model="gpt2-tiny")}
    for case in cases | {HYBRID.oracle, EXPERTS.oracle, MASKED.oracle}:
        assert record(launcher, folder, case).outcome == "ok"
    return folder


@pytest.mark.parametrize("case", [HYBRID, EXPERTS, MASKED], ids=lambda case: case.id)
def test_a_sound_run_passes(case: Case, sound: Path) -> None:
    """Without a fault all holds."""
    assert_sound(judge(sound, case))


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """The lowest rung that breaks is the fault's."""
    folder = without(sound, tmp_path / "run", case.id)
    assert record(launcher, folder, case, fault).outcome == "ok"
    assert_breaks(judge(folder, case), case, rung)
