"""``pytest --launcher``: what may be asked, what is run by the command and what here, and what cannot be."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.observation import Observation
from selftests.plugin_fakes import CASE, OTHER, Suite, assert_usage_error
from selftests.test_launchers_ranks import PATIENCE_SECONDS, assert_none_left, processes_of

JUDGED = """
@both
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).losses)))
"""
RACED = """
@one
def test_speed(case, raced, judge):
    judge([finding(seen.case) for seen in raced([case]).run([case], 1)])
"""
INTERRUPTIBLE = """
import signal, sys, pytest
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
sys.exit(pytest.main(sys.argv[1:]))
"""
FAKE = "{python} -m selftests.fake_ranks torchrun %s {run_dir}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--launcher=go {run_dir}"], "there is no program 'go' here"),
        (["--launcher={python} {run_dir} {node}"], "unknown placeholder {node}"),
        (["--launcher=srun", "--nodes=2"], "there is no program 'srun' here"),
        (["--launcher=torchrun", "--nodes=2"], "starts the ranks of one node"),
        (["--nodes=2"], "--nodes says how many nodes a --launcher has"),
        (["--launcher=torchrun", "--replay=old"], "--replay"),
        (["--launcher=torchrun", "-m", "a100"], "-m a100 needs an NVIDIA A100"),
        (["--launcher=torchrun", "-m", "a100", "-n", "2"], "--launcher leases no GPUs"),
    ],
)
def test_a_mistake_is_a_usage_error(suite: Suite, options: list[str], words: str) -> None:
    """Exit status 4 and one line, before anything runs."""
    assert_usage_error(suite(JUDGED).runpytest_inprocess(*options), words)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_command_starts_every_case(suite: Suite, workers: tuple[str, ...]) -> None:
    """Each of two, also of two at once, at a port of its own; the forkserver starts none."""
    tester = suite(JUDGED)
    result = tester.runpytest_subprocess(f"--launcher={FAKE % 'none'}", "--nodes=1", "--run-dir=done", *workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2 claims judged over 2 of 2 gated cases"])
    assert "llama" not in (tester.path / "launched.txt").read_text()
    seen = [Observation.read(tester.path / "done" / case.id) for case in (CASE, OTHER)]
    assert [len(one.provenance["nodes"]) for one in seen] == [2, 2]
    assert all("-m selftests.fake_ranks torchrun none done/" in one.provenance["command"] for one in seen)


def test_without_it_the_forkserver_does(suite: Suite) -> None:
    """As ever."""
    tester = suite(JUDGED)
    assert tester.runpytest_inprocess("--run-dir=done").ret == 0
    assert (tester.path / "launched.txt").read_text().count("llama") == 1
    assert not list(tester.path.glob("done/*/launch.json"))


def test_cases_in_turns_are_not_passed_over(suite: Suite) -> None:
    """They fail with what to do: left out silently they would count as judged."""
    result = suite(RACED).runpytest_inprocess(f"--launcher={FAKE % 'none'}", "--nodes=1", "--run-dir=done")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*cases in turns run on one machine, without --launcher*-k 'not throughput'*"])


def test_a_failure_names_the_node_and_the_command(suite: Suite) -> None:
    """The sentence says where, and the re-run is the same command on the record's own folder."""
    result = suite(JUDGED).runpytest_inprocess(
        f"--launcher={FAKE % 'raises'}", "--nodes=1", "--run-dir=done", "-k", CASE.id)
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        f"{CASE.id}  outcome: crashed (rank 1: RankLost: rank 1 on node 1 (*, 127.0.0.1), rank 0 on node 0 *",
        f"re-run: *-m selftests.fake_ranks torchrun raises done/{CASE.id}",
    ])


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_ctrl_c_leaves_nothing(suite: Suite, workers: tuple[str, ...]) -> None:
    """Neither the command nor its ranks, nor a half record; the session says that it was interrupted."""
    tester = suite(JUDGED)
    session = tester.popen(
        [sys.executable, "-c", INTERRUPTIBLE, f"--launcher={FAKE % 'hangs'}", "--nodes=1", "--run-dir=done", *workers],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    folder = tester.path / "done"
    wait_for_steps(folder, 1 + bool(workers))
    session.send_signal(signal.SIGINT)
    session.communicate(timeout=PATIENCE_SECONDS)
    assert session.returncode == pytest.ExitCode.INTERRUPTED
    assert_none_left(folder)
    assert not list(folder.glob("*/observation.json"))


def wait_for_steps(folder: Path, cases: int) -> None:
    """Return once so many cases make steps."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.glob(".*/progress"))) < cases:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert processes_of(folder)
