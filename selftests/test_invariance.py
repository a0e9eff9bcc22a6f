"""Other ranks, other architectures, dropout: a fault under each breaks the rung that it should."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.catalogue import ARCHITECTURES, DROPOUT, RANKS
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Request
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent
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
    """The cases without a fault, and what they are compared with."""
    folder = tmp_path_factory.mktemp("sound")
    cases = {HYBRID, EXPERTS, MASKED, MASKED.with_(engine="ddp"), MASKED.oracle.with_(model="gpt2-tiny")}
    for case in cases | {HYBRID.oracle, EXPERTS.oracle, MASKED.oracle}:
        record(launcher, folder, case)
    return folder


def judge(folder: Path, case: Case) -> subprocess.CompletedProcess[str]:
    """What the gate says of ``case``, from the records in ``folder``."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--replay={folder}"]
    return subprocess.run(
        [*command, "-k", f"[{case.id}]"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )


@pytest.mark.parametrize("case", [HYBRID, EXPERTS, MASKED], ids=lambda case: case.id)
def test_a_sound_run_passes(case: Case, sound: Path) -> None:
    """Without a fault all holds."""
    judged = judge(sound, case)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """The lowest rung that breaks is the fault's."""
    folder = tmp_path / "run"
    shutil.copytree(sound, folder, ignore=shutil.ignore_patterns(case.id))
    record(launcher, folder, case, fault)
    judged = judge(folder, case)
    assert judged.returncode == 1, judged.stdout
    lowest = re.search(rf"^ *\[(\w+)\] {re.escape(case.id)}[ ~]", judged.stdout, re.MULTILINE)
    assert lowest is not None, judged.stdout
    assert lowest.group(1) == rung, judged.stdout
