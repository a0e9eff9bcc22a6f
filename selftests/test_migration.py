"""A move from one engine to another that loses something is seen: each fault breaks the rung that it should."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.catalogue import MIGRATION
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Request
from fixtures.spec import Case, SpecError

ROOT = Path(__file__).resolve().parent.parent
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
def launcher() -> Iterator[Launcher]:
    """The gate's own."""
    extensions.ensure_built()
    with Launcher() as launcher:
        yield launcher


def record(launcher: Launcher, folder: Path, case: Case, fault: str | None = None) -> None:
    """Run ``case`` as the plugin does."""
    (folder / case.id).mkdir(parents=True)
    request = Request(case=case, settings=settings(case), fault=fault)
    seen = launcher.run(request, folder / case.id, deadline_seconds=180)
    assert seen.outcome == "ok", seen.error


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cases without a fault, and their oracles."""
    folder = tmp_path_factory.mktemp("sound")
    for case in {TO_FSDP, TO_ZERO, TO_FSDP.oracle, TO_ZERO.oracle}:
        record(launcher, folder, case)
    return folder


def judge(folder: Path, case: Case) -> subprocess.CompletedProcess[str]:
    """What the gate says of ``case``, from the records in ``folder``."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "conformance/test_migration.py"]
    return subprocess.run(
        [*command, f"--replay={folder}", "-k", f"[{case.id}]"], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )


@pytest.mark.parametrize("case", [TO_FSDP, TO_ZERO], ids=lambda case: case.id)
def test_a_sound_move_passes(case: Case, sound: Path) -> None:
    """Without a fault all holds: what fails below fails for its fault."""
    judged = judge(sound, case)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_lossy_move_is_seen(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """What does not arrive shows in the curve, or, where rounding would hide it there, in the weights."""
    folder = tmp_path / "run"
    shutil.copytree(sound, folder, ignore=shutil.ignore_patterns(case.id, "export-*"))
    record(launcher, folder, case, fault)
    judged = judge(folder, case)
    assert judged.returncode == 1, judged.stdout
    lowest = re.search(rf"^ *\[(\w+)\] {re.escape(case.id)}  ", judged.stdout, re.MULTILINE)
    assert lowest is not None, judged.stdout
    assert lowest.group(1) == rung, judged.stdout


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
