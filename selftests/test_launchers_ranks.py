"""How a case ends whose ranks a command started, and what is left of it: nothing. With ranks that train nothing."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fixtures.files import read_json
from fixtures.launchers.command import Command
from fixtures.launchers.commanded import CommandLauncher, on_other_cards
from fixtures.observation import Observation, Request
from fixtures.spec import Case
from selftests.plugin_fakes import FakeLauncher, observation

CASE = Case(model="gpt2-tiny", engine="ddp", precision="fp32")
ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 40.0

Run = Callable[..., Observation]


def processes_of(folder: Path) -> list[int]:
    """The processes whose command names ``folder``."""
    return [one.pid for one in psutil.process_iter(["cmdline", "status"])
            if one.info["status"] != psutil.STATUS_ZOMBIE and str(folder) in " ".join(one.info["cmdline"] or ())]


def assert_none_left(folder: Path) -> None:
    """:raises AssertionError: if a process of the run lives on."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while processes_of(folder):
        assert time.monotonic() < give_up, processes_of(folder)
        time.sleep(0.05)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(fault, how="torchrun", nodes=None, ...)``: the case, whose rank 1 does what ``fault`` says."""

    def run_fault(
        fault: str = "none", how: str = "torchrun", *, nodes: int | None = None, deadline_seconds: float = 60.0,
        env: dict[str, str] | None = None, **settings: float,
    ) -> Observation:
        words = ("{python}", "-m", "selftests.fake_ranks", how, fault, "{run_dir}")
        launcher = CommandLauncher(Command(words=words, nodes=nodes), FakeLauncher, **settings)
        seen = launcher.run(Request(case=CASE, settings={}), tmp_path, deadline_seconds=deadline_seconds, env=env)
        assert_none_left(tmp_path)
        return seen

    return run_fault


def error_of(seen: Observation) -> dict[str, Any]:
    """What went wrong, without the machine's own name."""
    assert seen.error is not None
    return {**seen.error, "message": seen.error["message"].replace(f"({socket.gethostname()}, ", "(")}


@pytest.mark.parametrize("how", ["torchrun", "srun"])
def test_good_ranks_give_an_ok_observation(run: Run, how: str) -> None:
    """Each rank's record, with the node that it was on; logs of their own; the same words as on disk."""
    seen = run(how=how)
    assert (seen.outcome, seen.error, seen.rows[0]) == ("ok", None, [0, 1])
    assert [rank.provenance["node"]["number"] for rank in seen.ranks] == [0, 1]
    assert [rank.provenance["node"]["address"] for rank in seen.ranks] == ["127.0.0.1"] * 2
    assert len(seen.provenance["nodes"]) == 2
    assert "rank 1 of 2" in (seen.folder / "rank1.log").read_text()
    assert "rank 0" not in (seen.folder / "rank1.log").read_text()
    assert Observation.read(seen.folder) == seen


def test_an_exception_is_the_ranks_own_account(run: Run) -> None:
    """A rank that dies of an exception without a record, as outside ``fixtures.worker``, is named with its node."""
    error = error_of(run("raises"))
    assert error["rank"] == 1
    assert error["message"].startswith("rank 1 on node 1 (127.0.0.1), rank 0 on node 0 (127.0.0.1) left no record; ")
    assert "in raises" in error["traceback"]
    assert error["message"].endswith("the command ended with exit status 1")


@pytest.mark.parametrize("fault", ["segfaults", "is_killed", "exits_with_3", "leaves_early"])
def test_a_silent_death_is_a_crash(run: Run, fault: str) -> None:
    """A rank that leaves no record is told with its node, however it left, and whatever status the command has."""
    seen = run(fault, deadline_seconds=4.0) if fault == "leaves_early" else run(fault)
    assert seen.outcome == "crashed"
    assert "rank 1 on node 1 (127.0.0.1)" in error_of(seen)["message"]


def test_a_command_that_fails_is_believed(run: Run) -> None:
    """Also where each rank left a good record."""
    seen = run("ends_badly")
    assert seen.outcome == "crashed"
    assert error_of(seen)["message"].startswith("the command ended with exit status 1 though each rank left a record")


def test_a_hang_is_told_with_every_stack(run: Run) -> None:
    """Where all nodes are still there none is called lost."""
    seen = run("hangs", deadline_seconds=3.0)
    error = error_of(seen)
    assert seen.outcome == "hung"
    assert error["message"] == (
        "no end within 3 s: rank 0 on node 0 (127.0.0.1), rank 1 on node 1 (127.0.0.1) still ran, 3 of 20 steps done"
    )
    assert len(error["stacks"]) == 2
    assert all("in hangs" in stack and "pulse.py" not in stack for stack in error["stacks"])
    assert error["log_tail"] == "rank 0 of 2\n"


@pytest.mark.parametrize(("fault", "lost"), [("stops", 1), ("stops_first", 0)])
def test_a_node_that_falls_silent_is_named(run: Run, fault: str, lost: int) -> None:
    """Whichever it is: its rank is the one to blame, and the other is not called lost."""
    seen = run(fault, deadline_seconds=9.0)
    error = error_of(seen)
    assert (seen.outcome, error["rank"]) == ("hung", lost)
    assert f"; node {lost} (127.0.0.1), rank {lost}, was last heard" in error["message"]
    assert error["message"].count("was last heard") == 1


def test_a_rank_that_never_comes_is_named(run: Run) -> None:
    """There is a time for the start, too."""
    seen = run("never_comes", start_seconds=2.0)
    assert seen.outcome == "hung"
    assert error_of(seen)["message"] == "not all ranks were there after 2 s: rank 1 never came"


def test_variables_reach_ranks_by_way_of_the_folder(run: Run) -> None:
    """A command on other machines may hand on nothing."""
    assert "GIVEN is 7" in (run(env={"GIVEN": "7"}).folder / "rank1.log").read_text()


def test_without_variables_ranks_have_none(run: Run) -> None:
    """The line above is not always there."""
    assert "GIVEN" not in (run().folder / "rank1.log").read_text()


@pytest.mark.parametrize(
    ("platform", "names", "words"),
    [
        ("a100", ("NVIDIA A100-SXM4-80GB",) * 2, None),
        ("gpu", ("NVIDIA L4",) * 2, None),
        ("cpu", ("", ""), None),
        ("a100", ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"), "and rank 1 on NVIDIA H100 80GB HBM3"),
        ("a100", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"), "and cards differ: NVIDIA A100-SXM4-40GB, "),
        ("a100", ("NVIDIA A100-SXM4-80GB", None), "and rank 1 on none"),
    ],
)
def test_the_cards_of_other_nodes_must_be_the_asked_ones(
    tmp_path: Path, platform: str, names: tuple[str | None, ...], words: str | None,
) -> None:
    """By each rank's own word, since pytest sees one node's only."""
    seen = observation(Request(case=CASE, settings={}), tmp_path)
    ranks = tuple(replace(rank, provenance={"node": {} if name is None else {"gpu": name}})
                  for rank, name in zip(seen.ranks, names, strict=True))
    problem = on_other_cards(replace(seen, ranks=ranks), platform)
    assert (problem is None) is (words is None)
    assert words is None or words in str(problem)


@pytest.mark.parametrize(("nodes", "outcome"), [(2, "crashed"), (1, "ok"), (None, "ok")])
def test_ranks_must_be_on_as_many_nodes_as_asked(run: Run, nodes: int | None, outcome: str) -> None:
    """A command that starts all ranks here has not tried two nodes."""
    seen = run(nodes=nodes)
    assert seen.outcome == outcome
    if nodes == 2:
        assert error_of(seen)["type"] == "WrongNodes"
        assert error_of(seen)["message"].startswith("was to run on 2 nodes, and its ranks were on 1: rank 0 on node 0")


def test_a_case_of_one_process_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no node but this one: no command is started for it."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    launcher = CommandLauncher(Command(words=("false", "{run_dir}")), FakeLauncher)
    alone = Case(model="gpt2-tiny", engine="plain", precision="fp32", world_size=1)
    assert launcher.run(Request(case=alone, settings={}), tmp_path, deadline_seconds=1).outcome == "ok"
    launcher.close()
    assert (tmp_path / "log").read_text().splitlines()[-1] == "closed"
    assert not (tmp_path / "launch.json").exists()


def test_a_recorded_run_is_never_written_over(run: Run) -> None:
    """The same command by hand, afterwards: its ranks find that nobody waits for them."""
    seen = run()
    before = (seen.folder / "rank0.json").read_bytes()
    again = read_json(seen.folder / "launch.json")
    words = [word.format(**again["values"], run_dir=seen.folder) for word in again["words"]]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "nobody waits for this rank" in ended.stderr
    assert (seen.folder / "rank0.json").read_bytes() == before


DRIVER = """
import sys
from pathlib import Path
from fixtures.launchers.command import Command
from fixtures.launchers.commanded import CommandLauncher
from fixtures.observation import Request
from selftests.test_launchers_ranks import CASE
words = ("{python}", "-m", "selftests.fake_ranks", "torchrun", "has_children_and_hangs", "{run_dir}")
launcher = CommandLauncher(Command(words=words), lambda: None, alone_seconds=3.0)
launcher.run(Request(case=CASE, settings={}), Path(sys.argv[1]), deadline_seconds=60)
"""


@pytest.fixture
def owner(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that runs a case which never ends; its ranks are there, each with a child."""
    owner = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not all((tmp_path / f"waiting{rank}").exists() for rank in range(2)):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return owner


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_its_owner(owner: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals) -> None:
    """Not the command, nor the ranks with sessions of their own, nor what those started."""
    children = [int((tmp_path / f"child{rank}").read_text()) for rank in range(2)]
    owner.send_signal(number)
    owner.wait(PATIENCE_SECONDS)
    assert_none_left(tmp_path)
    assert not any(psutil.pid_exists(child) and psutil.Process(child).is_running() for child in children)


def test_ranks_on_other_machines_end_by_themselves(owner: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Where no signal reaches them, the launcher's silence does: here its guard cannot end anybody either."""
    everybody = psutil.Process(owner.pid).children(recursive=True)
    (guard,) = [one for one in everybody if "fixtures.launchers.guard" in one.cmdline()]
    guard.kill()
    owner.kill()
    owner.wait(PATIENCE_SECONDS)
    assert_none_left(tmp_path)
    for rank in range(2):
        assert "this rank ends: the launcher has been silent" in (tmp_path / f"rank{rank}.log").read_text()
        psutil.Process(int((tmp_path / f"child{rank}").read_text())).kill()  # what such ranks had started is ours


def test_the_command_is_on_record(run: Run) -> None:
    """With everything that its placeholders stood for, so that it can be given again."""
    told = read_json(run().folder / "launch.json")
    assert shlex.join(told["words"]).startswith("'{python}' -m selftests.fake_ranks torchrun none")
    assert {"case", "ranks", "nodes", "ranks_per_node", "host", "port", "python"} == set(told["values"])
