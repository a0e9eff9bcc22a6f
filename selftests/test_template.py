"""The template with the real frameworks: what makes its forks sound. Takes as long as importing them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.launchers.surroundings import environment
from fixtures.template import PRELOAD, cuda_marks

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    """What a template reports that imports everything and then has no launcher any more."""
    done = subprocess.run([sys.executable, "-m", "fixtures.template"], cwd=ROOT, env=environment(), check=True,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_template_has_one_thread(events: list[dict[str, Any]]) -> None:
    """A second thread would be missing in every rank, with the locks it held."""
    assert (events[-1]["event"], events[-1]["threads"]) == ("ready", 1)


def test_the_template_imports_what_it_lists(events: list[dict[str, Any]]) -> None:
    """Each module of the list is announced, in order, so that a death at import has a culprit."""
    assert [event["module"] for event in events[:-1]] == list(PRELOAD)


def test_the_template_prints_nothing_of_its_own(events: list[dict[str, Any]]) -> None:
    """What frameworks print while they are imported does not get between its reports."""
    assert {event["event"] for event in events} == {"importing", "ready"}


def test_the_template_has_no_cuda_context(events: list[dict[str, Any]]) -> None:
    """After all imports torch has not initialised CUDA, and the driver's memory device is not open."""
    assert events[-1]["cuda"] == []


@pytest.mark.parametrize(
    ("device", "marks"),
    [("nvidia-uvm", ["/dev/nvidia-uvm is open"]), ("nvidiactl", []), ("null", [])],
)
def test_a_cuda_context_is_seen_by_its_device(tmp_path: Path, device: str, marks: list[str]) -> None:
    """What only counts GPUs, or has nothing to do with them, is no context."""
    (tmp_path / "7").symlink_to(f"/dev/{device}")
    assert cuda_marks(tmp_path) == marks
