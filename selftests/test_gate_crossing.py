"""What one side saved, the other loads: forward and backward, judged by the tests of resumed cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fixtures.verdict import Finding
from gate.crossing import Crossed, cross
from gate.environments import Environment
from gate.records import Judged, Side
from gate.runs import Ended, Selection
from selftests.gate_fakes import FSDP2, finding

TEST = "conformance/test_checkpoints.py::test_resumed_run_continues[run-resumed]"
PINNED, CANDIDATE = Environment(versions={"accelerate": "1.12.0"}), Environment(versions={"accelerate": "1.13.0"})


def judged(*, passed: bool) -> Judged:
    """The claim that a resumed run goes on as if it had not been interrupted."""
    return Judged(nodeid=TEST, finding=finding(FSDP2, "curve", "loss after resuming", passed=passed))


def side(folder: Path) -> Side:
    """A run, saved, and its resumed twin, which loaded it."""
    run = SimpleNamespace(id="run", source=None)
    resumed = SimpleNamespace(id="run-resumed", source=run)
    seen = {case.id: SimpleNamespace(case=case, outcome="ok", folder=folder / case.id) for case in (run, resumed)}
    for name in seen:
        (folder / name).mkdir(parents=True)
    return Side(judged=(judged(passed=True),), observations=cast("Any", seen), warned={})


class Runs:
    """Notes who ran what where; ``fails`` is the environment that cannot read the other's checkpoints."""

    def __init__(
        self, fails: Environment | None = None, *, silent: bool = False, status: int = 0,
        failing: Finding | None = None,
    ) -> None:
        self.fails, self.silent, self.status = fails, silent, status
        self.failing = failing or judged(passed=False).finding
        self.ran: dict[str, tuple[Environment, list[str]]] = {}
        self.tests: tuple[str, ...] = ()

    def __call__(
        self, sides: Mapping[str, tuple[Environment, Path]], selection: Selection, *, tell: Callable[[str], None],
    ) -> dict[str, Ended]:
        """As :func:`gate.runs.run`."""
        self.tests = selection.tests
        for way, (environment, folder) in sides.items():
            self.ran[way] = (environment, sorted(path.name for path in folder.iterdir()))
            if not self.silent:
                self._write(folder, self.failing if environment == self.fails else judged(passed=True).finding)
        return {way: Ended(status=self.status, last_words="as told") for way in sides}

    def _write(self, folder: Path, found: Finding) -> None:
        from fixtures.summary import Note, Tally

        Tally(journal=folder / "findings.jsonl").add(Note(nodeid=TEST, findings=(found,)))


def crossed(tmp_path: Path, runs: Runs) -> Crossed:
    """Both ways between two such sides."""
    sides = {"pinned": (PINNED, side(tmp_path / "pinned")), "candidate": (CANDIDATE, side(tmp_path / "candidate"))}
    return cross(sides, tmp_path, Selection(keyword="k"), runs, lambda line: None)


def test_each_side_resumes_from_what_the_other_saved(tmp_path: Path) -> None:
    """Its folder holds the other's runs, and no resumed one: that is run there."""
    runs = Runs()
    found = crossed(tmp_path, runs)
    assert (found.breaks, found.problems, found.judged) == ((), (), 2)
    assert runs.ran == {"forward": (CANDIDATE, ["run"]), "backward": (PINNED, ["run"])}
    assert (tmp_path / "forward" / "run").resolve() == tmp_path / "pinned" / "run"
    assert runs.tests == (TEST,)


@pytest.mark.parametrize(
    ("fails", "told"), [(CANDIDATE, "of the pinned side, loaded by the candidate"),
                        (PINNED, "of the candidate, loaded by the pinned side")],
)
def test_a_checkpoint_that_does_not_cross_is_told(tmp_path: Path, fails: Environment, told: str) -> None:
    """With its direction."""
    (one,) = crossed(tmp_path, Runs(fails)).breaks
    assert told in one.finding.reference


def test_what_is_claimed_to_the_last_bit_is_not_owed(tmp_path: Path) -> None:
    """Two releases may round in other places; whether a number is beyond noise is asked apart."""
    exact = replace(judged(passed=False).finding, tolerance=0.0)
    assert crossed(tmp_path, Runs(CANDIDATE, failing=exact)).breaks == ()


def test_what_was_not_judged_cannot_be_told(tmp_path: Path) -> None:
    """A way that judged nothing is no good one."""
    assert len(crossed(tmp_path, Runs(silent=True)).problems) == 2
    assert "as told" in crossed(tmp_path / "again", Runs(status=4)).problems[0]


def test_sides_without_checkpoints_cross_nothing(tmp_path: Path) -> None:
    """And run nothing."""
    runs = Runs()
    empty = Side(judged=(), observations={}, warned={})
    assert cross({"a": (PINNED, empty), "b": (CANDIDATE, empty)}, tmp_path, Selection(), runs, print) == Crossed()
    assert not runs.ran
