"""Sessions that go on where one was interrupted, and sessions that run one case at a time in turn."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fixtures.turns import turn
from selftests.plugin_fakes import CASE, OTHER, Suite, assert_usage_error

JUDGED = """
@both
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).losses)))
"""


def launched(tester: pytest.Pytester) -> list[str]:
    """The cases that were launched, in order."""
    return [line.split()[0] for line in (tester.path / "launched.txt").read_text().splitlines() if line != "closed"]


def test_a_session_goes_on_where_one_ended(suite: Suite) -> None:
    """What is recorded is judged again and not run again."""
    tester = suite(JUDGED)
    tester.runpytest_inprocess("--run-dir=done", "-k", CASE.id)
    result = tester.runpytest_inprocess("--run-dir=done", "--continue")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 claims judged over 2 of 2 gated cases"])
    assert launched(tester) == [CASE.id, OTHER.id]


def test_going_on_needs_a_folder(suite: Suite) -> None:
    """A new folder holds nothing to go on with."""
    assert_usage_error(suite(JUDGED).runpytest_inprocess("--continue"), "--continue", "--run-dir")


def test_a_session_waits_for_its_turn(suite: Suite) -> None:
    """While another one runs a case, no case of this one begins."""
    tester = suite(JUDGED)
    with turn(tester.path / "turns"):
        waiting = tester.popen(
            [sys.executable, "-m", "pytest", "--run-dir=done", "--turns=turns"], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not list(tester.path.glob("done/.llama*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not launched(tester)
    assert waiting.wait(60) == 0
    assert launched(tester) == [CASE.id, OTHER.id]


def test_two_sessions_never_run_at_once(tmp_path: Path) -> None:
    """A turn belongs to one, and both get theirs."""
    inside: list[str] = []
    seen: list[tuple[str, ...]] = []

    def session(name: str) -> None:
        for _ in range(5):
            with turn(tmp_path / "turns"):
                inside.append(name)
                time.sleep(0.005)
                seen.append(tuple(inside))
                inside.remove(name)
            time.sleep(0.005)  # judging

    both = [threading.Thread(target=session, args=(name,)) for name in ("pinned", "candidate")]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(seen) == [("candidate",)] * 5 + [("pinned",)] * 5


def test_a_killed_session_gives_its_turn_back(tmp_path: Path) -> None:
    """The kernel does."""
    code = (
        "import sys, time; from pathlib import Path; from fixtures.turns import turn\n"
        "with turn(Path(sys.argv[1])):\n    print('mine', flush=True); time.sleep(60)"
    )
    root = Path(__file__).resolve().parent.parent
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "turns")], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    holder.kill()
    with turn(tmp_path / "turns"):
        pass
    holder.wait()
    holder.stdout.close()
