"""``pytest --launcher`` on several nodes that are network namespaces: the real engines, torchrun's rendezvous, gloo.

Skipped, with the reason, where namespaces are not permitted; ``selftests/conftest.py`` counts what was skipped.
"""

from __future__ import annotations

import contextlib
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fixtures.dialects import settings
from fixtures.files import read_json
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case
from selftests.nodes import ROOT, Nodes, address, opened
from selftests.test_launchers_ranks import assert_none_left

TORCHRUN = ("torchrun --nnodes {nodes} --nproc-per-node {ranks_per_node} --rdzv-backend c10d "
            f"--rdzv-endpoint {address(0)}:{{port}} -m fixtures.worker {{run_dir}}")
DEADLINE_SECONDS = 20
PATIENCE_SECONDS = 300

DDP = Case(model="gpt2-tiny", engine="ddp", precision="fp32", steps=6)
CASES = (
    DDP,
    Case(model="llama-tiny", engine="zero3", precision="bf16-mixed", steps=6),
    Case(model="llama-tiny", engine="fsdp2", precision="bf16-mixed", steps=6, world_size=4),
)
LONG = replace(DDP, steps=5000)

SUITE = """
import pytest
from fixtures.judging import outcome_finding
from fixtures.spec import Case

CASES = [Case.from_json(one) for one in {cases!r}]

@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_it_ends(case, observe, judge):
    judge(outcome_finding(observe(case)))
"""


@contextlib.contextmanager
def nodes_of_this_machine(count: int) -> Iterator[Nodes]:
    """``count`` nodes, or a skipped test."""
    with opened(count) as found:
        if isinstance(found, str):
            pytest.skip(found)
        yield found


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    """Two nodes for all tests of this module."""
    with nodes_of_this_machine(2) as found:
        yield found


def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, nodes: Nodes, *cases: Case) -> list[str]:
    """A suite of ``cases``, and the command line that runs them on ``nodes``."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib --strict-markers\ntestpaths = conformance\n")
    pytester.makeconftest('pytest_plugins = ["fixtures.plugin"]')
    told = [case.to_json() for case in cases]
    (pytester.mkdir("conformance") / "test_small.py").write_text(textwrap.dedent(SUITE.format(cases=told)))
    return [f"--launcher={nodes.words(TORCHRUN)}", f"--nodes={nodes.count}", "--run-dir=done", "--report=none",
            "--history=off"]


def test_two_nodes_train_as_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, two: Nodes, launcher: Launcher,
) -> None:
    """The same losses, norms and tensors to the last bit, two cases at a time, each rank on the node that it says."""
    words = session(pytester, monkeypatch, two, *CASES)
    result = pytester.runpytest_subprocess(*words, "-n", "2")
    assert result.ret == 0
    for case in CASES:
        seen = Observation.read(pytester.path / "done" / case.id)
        alone = pytester.mkdir(f"alone-{case.id}")
        there = launcher.run(Request.of(case, settings(case)), alone, deadline_seconds=PATIENCE_SECONDS)
        assert (seen.losses, seen.grad_norms) == (there.losses, there.grad_norms)
        assert seen.tensors == there.tensors
        on = [rank.provenance["node"]["address"] for rank in seen.ranks]
        assert on == sorted([address(0), address(1)] * (case.processes // 2))
    assert_none_left(pytester.path)


@pytest.mark.parametrize(("count", "lost"), [(2, 1), (4, 0)])
def test_a_cut_link_names_the_node(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, count: int, lost: int,
) -> None:
    """The case ends within its deadline, only the node behind the cut is called lost, and the next case runs.

    Of four nodes it is the one where rank 0 is, and the rendezvous: the others outnumber it.
    """
    with nodes_of_this_machine(count) as nodes:
        first, then = replace(LONG, world_size=count), replace(DDP, world_size=count)
        words = session(pytester, monkeypatch, nodes, first, then)
        cutter = Meddler(
            pytester.path / "done", first, lambda: nodes.cut(lost), then=lambda: nodes.plug_in(lost))
        cutter.start()
        result = pytester.runpytest_subprocess(*words, f"--deadline={DEADLINE_SECONDS}")
        cutter.join()
    assert result.ret == 1
    seen, after = (Observation.read(pytester.path / "done" / case.id) for case in (first, then))
    assert seen.error is not None
    assert seen.outcome in {"hung", "crashed"}
    assert 0.0 < cutter.seconds < DEADLINE_SECONDS + 15.0
    others = [number for number in range(count) if number != lost]
    told = str(seen.error["message"]).partition("\n")[0]
    assert f"{address(lost)}), rank {lost}, was last heard" in told
    assert not any(f"{address(number)}), rank {number}, was last heard" in told for number in others)
    assert seen.error["rank"] == lost
    assert after.outcome == "ok"
    result.stdout.fnmatch_lines([f"*{first.id}  outcome: {seen.outcome} (rank {lost}: *was last heard*"])
    assert_none_left(pytester.path)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_names_its_node(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, two: Nodes, lost: int,
) -> None:
    """Whichever of both it is: the case crashes long before its deadline, and the other node is not to blame."""
    words = session(pytester, monkeypatch, two, LONG)
    folder = pytester.path / "done"

    def kill() -> None:
        (told,) = folder.glob(f".{LONG.id}.*/nodes/rank{lost}.json")
        psutil.Process(read_json(told)["pid"]).kill()

    meddler = Meddler(folder, LONG, kill)
    meddler.start()
    result = pytester.runpytest_subprocess(*words, "--deadline=200")
    meddler.join()
    assert result.ret == 1
    assert 0.0 < meddler.seconds < 40.0
    result.stdout.fnmatch_lines([
        f"*{LONG.id}  outcome: crashed (rank {lost}: RankLost: rank {lost} on node {lost} (*, {address(lost)})*"])
    assert_none_left(pytester.path)


class Meddler(threading.Thread):
    """Does something once a case makes steps, and something else once that case has ended.

    ``seconds`` is how long the case went on in between; 0 if it never came to that.
    """

    def __init__(
        self, run_dir: Path, case: Case, act: Callable[[], None], then: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.seconds = 0.0
        self._run_dir, self._case, self._act, self._then = run_dir, case, act, then

    def run(self) -> None:
        """Wait, act, wait, act again."""
        if not self._wait(self._makes_steps):
            return
        self._act()
        acted = time.monotonic()
        if self._wait((self._run_dir / self._case.id).exists):
            self.seconds = time.monotonic() - acted
        self._then()

    def _makes_steps(self) -> bool:
        done = [path.read_text().partition("/")[0] for path in self._run_dir.glob(f".{self._case.id}.*/progress")]
        return any(count.isdecimal() and int(count) >= 3 for count in done)

    def _wait(self, true: Callable[[], bool]) -> bool:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.05)
        return True


def test_no_network_of_ones_own_is_a_reason_to_skip() -> None:
    """One line that says what was tried; where the program is missing, too."""
    with opened(2, (("false",), ("no-such-program",))) as found:
        assert found == "no network namespaces here (false: no answer; no-such-program: No such file or directory)"
