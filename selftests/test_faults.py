"""The suite can see: every kind of fault, put into a real run of a real engine, breaks the rung that it should.

Runs are recorded once with a fault and once without, then judged again as a user would: ``pytest --replay``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.catalogue import ORACLE
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent

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
def launcher() -> Iterator[Launcher]:
    """One launcher for all runs of this module, with DeepSpeed's extensions built."""
    extensions.ensure_built()
    with Launcher() as launcher:
        yield launcher


def record(launcher: Launcher, folder: Path, case: Case, fault: str | None = None) -> Observation:
    """Run ``case`` into ``folder`` as the plugin does."""
    run_dir = folder / case.id
    run_dir.mkdir(parents=True)
    return launcher.run(Request(case=case, settings=settings(case), fault=fault), run_dir, deadline_seconds=120)


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, without a fault, of every case here, its oracle and its peer."""
    folder = tmp_path_factory.mktemp("sound")
    for case in {*SOUND, *(case.oracle for case in SOUND), *(case.with_(engine="zero3") for case in SOUND)}:
        record(launcher, folder, case)
    return folder


def judge(folder: Path, case: Case) -> subprocess.CompletedProcess[str]:
    """Judge all that the gate claims of ``case``, from the records in ``folder``; the headline needs all engines."""
    pytest_command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    command = [*pytest_command, f"--replay={folder}", "-k", f"[{case.id}] and not millionth and not rehearsals"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in SOUND])
def test_a_sound_run_passes(case: Case, sound: Path) -> None:
    """Without a fault, all rungs hold: what fails below fails for its fault."""
    judged = judge(sound, case)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """With the fault, the gate fails, and the report names this rung as the lowest that breaks."""
    folder = tmp_path / "run"
    shutil.copytree(sound, folder, ignore=shutil.ignore_patterns(case.id))
    record(launcher, folder, case, fault)
    judged = judge(folder, case)
    assert judged.returncode == 1, judged.stdout
    lowest = re.search(rf"^ *\[(\w+)\] {re.escape(case.id)}  ", judged.stdout, re.MULTILINE)
    assert lowest is not None, judged.stdout
    assert lowest.group(1) == rung, judged.stdout
