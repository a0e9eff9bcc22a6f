"""Runs that self-tests record with a fault or without, and judge again as a user would: ``pytest --replay``."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 180.0


def record(launcher: Launcher, folder: Path, case: Case, fault: str | None = None) -> Observation:
    """Run ``case`` into ``folder`` as the plugin does."""
    run_dir = folder / case.id
    run_dir.mkdir(parents=True)
    asked = dataclasses.replace(Request.of(case, settings(case)), fault=fault)
    return launcher.run(asked, run_dir, deadline_seconds=DEADLINE_SECONDS)


def judge(folder: Path, case: Case, *words: str) -> subprocess.CompletedProcess[str]:
    """Judge what the gate claims of ``case`` alone, from the records in ``folder``.

    What compares it with all engines, or with rehearsals, needs records that are not made here.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words, f"--replay={folder}"]
    chosen = f"[{case.id}] and not millionth and not rehearsals"
    return subprocess.run(
        [*command, "-k", chosen], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def without(sound: Path, folder: Path, *patterns: str) -> Path:
    """A copy of the sound runs that lacks what these patterns name."""
    shutil.copytree(sound, folder, ignore=shutil.ignore_patterns(*patterns))
    return folder


def assert_sound(judged: subprocess.CompletedProcess[str]) -> None:
    """All rungs hold."""
    if judged.returncode != 0:
        pytest.fail(judged.stdout)


def assert_breaks(judged: subprocess.CompletedProcess[str], case: Case, rung: str) -> None:
    """The gate fails, and the report names ``rung`` as the lowest that breaks for ``case``."""
    lowest = re.search(rf"^ *\[(\w+)\] {re.escape(case.id)}[ ~]", judged.stdout, re.MULTILINE)
    if judged.returncode != 1 or lowest is None or lowest.group(1) != rung:
        pytest.fail(f"not broken at {rung} first:\n{judged.stdout}")
