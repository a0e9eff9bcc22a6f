"""A move from one engine to another that loses something is seen: each fault breaks the rung that it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.catalogue import MIGRATION
from fixtures.launch import Launcher
from fixtures.spec import Case
from fixtures.tables import SpecError
from selftests.replayed import assert_breaks, assert_sound, judge, record, without

TO_FSDP = next(case for case in MIGRATION if (case.engine, case.precision) == ("zero3", "fp32"))
TO_ZERO = next(case for case in MIGRATION if (case.engine, case.precision) == ("fsdp2", "bf16-mixed"))

SEEN = [
    ("moments_lost", TO_FSDP, "curve"),
    ("step_count_lost", TO_FSDP, "curve"),
    ("masters_forgotten", TO_ZERO, "parameters"),
    ("exported_in_bf16", TO_FSDP, "curve"),
    ("exported_in_bf16", TO_ZERO, "parameters"),
]
"""Fault, the case it is put into, and the lowest rung that must break."""


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cases without a fault, and their oracles."""
    folder = tmp_path_factory.mktemp("sound")
    for case in {TO_FSDP, TO_ZERO, TO_FSDP.oracle, TO_ZERO.oracle}:
        assert record(launcher, folder, case).outcome == "ok"
    return folder


@pytest.mark.parametrize("case", [TO_FSDP, TO_ZERO], ids=lambda case: case.id)
def test_a_sound_move_passes(case: Case, sound: Path) -> None:
    """Without a fault all holds: what fails below fails for its fault."""
    assert_sound(judge(sound, case, "conformance/test_migration.py"))


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_of_a_move_is_seen(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """What does not arrive shows in the curve, or, where rounding would hide it there, in the weights."""
    folder = without(sound, tmp_path / "run", case.id, "export-*")
    assert record(launcher, folder, case, fault).outcome == "ok"
    assert_breaks(judge(folder, case, "conformance/test_migration.py"), case, rung)


def test_the_oracle_starts_anew_where_the_optimizer_does() -> None:
    """With the optimizer's state it is uninterrupted; with the weights alone it makes the same three starts."""
    assert TO_FSDP.oracle.moves_to is None
    restarted = TO_FSDP.with_(carries="weights").oracle
    assert (restarted.engine, restarted.moves_to) == ("plain", "plain")
    assert restarted.id != TO_FSDP.oracle.id


def test_legs_are_equal() -> None:
    """Steps that three legs cannot share are the user's to mend."""
    with pytest.raises(SpecError, match="10 steps cannot be made in three legs"):
        TO_FSDP.with_(steps=10)


@pytest.mark.parametrize(
    "changes", [{"engine": "zero3"}, {"sharding_degree": 1}, {"sharding_degree": 3}, {"world_size": 2}]
)
def test_a_degree_must_divide_the_ranks(changes: dict[str, object]) -> None:
    """Hybrid sharding is FSDP's, over some of the ranks."""
    hybrid = {"engine": "fsdp2", "world_size": 4, "sharding_degree": 2, "moves_to": None, "precision": "fp32"}
    assert TO_FSDP.with_(**hybrid).id.endswith("-deg2")
    with pytest.raises(SpecError, match="needs fsdp1 or fsdp2 and a part of"):
        TO_FSDP.with_(**{**hybrid, **changes})
