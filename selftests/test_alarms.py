"""Whoever counts false alarms can count: on simulated machines, whose noise and slowness are known."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from conformance.alarms import ROOT, AlarmsError, Bench, count, fresh, options_of, stored
from conformance.catalogue import RACE
from fixtures.files import RecordError
from fixtures.launch import Launcher
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.throughput.floor import HEATS_TO_RECORD, Stored
from selftests.races import FSDP2, Noise

NONE = cast("Launcher", None)


@dataclass(kw_only=True)
class Simulated(Bench):
    """Heats of a simulated machine on which the slowed engine takes ``by`` times as long, and FSDP2 ``always``."""

    launcher: Launcher = NONE
    by: float = 1.1
    always: float = 1.0
    ends_after: int = 10_000
    heats: itertools.count[int] = field(default_factory=itertools.count)

    def _run(self, cases: Sequence[Case], folder: Path) -> list[Observation]:
        number = next(self.heats)
        if number >= self.ends_after:
            raise KeyboardInterrupt
        slow = {FSDP2.id: self.always}
        if self.slowed is not None:
            slow[self.slowed.id] = self.by * slow.get(self.slowed.id, 1.0)
        return Noise(number, slow=slow).heat(cases, number)


@pytest.fixture(scope="module")
def baselines() -> dict[str, Stored]:
    """Of the machine as it is."""
    return fresh(Simulated(), HEATS_TO_RECORD)


def test_a_tenth_is_caught_and_nothing_is_not(
    baselines: dict[str, Stored], capsys: pytest.CaptureFixture[str],
) -> None:
    """Both figures are as wanted, each engine was slow once, and no other is blamed."""
    assert count(Simulated(), baselines, options_of(["--repeats", "5"])) == 0
    told = capsys.readouterr().out
    assert "false alarms: 0 of 5 unchanged repeats\n" in told
    assert "caught: 5 of 5 with slow_step in one engine (wanted: 5)\n" in told
    assert "in those, wrongly failed claims: 0\n" in told
    assert told.endswith("alarms passed\n")


def test_a_machine_that_changed_is_a_false_alarm(
    baselines: dict[str, Stored], capsys: pytest.CaptureFixture[str],
) -> None:
    """It is counted, and the command fails."""
    assert count(Simulated(always=1.2), baselines, options_of(["--repeats", "3", "--only", "unchanged"])) == 1
    told = capsys.readouterr().out
    assert "false alarms: 3 of 3 unchanged repeats (" in told
    assert told.endswith("alarms FAILED\n")


def test_what_is_too_small_is_missed(baselines: dict[str, Stored], capsys: pytest.CaptureFixture[str]) -> None:
    """A gate that sleeps is told by the engines it missed."""
    assert count(Simulated(by=1.02), baselines, options_of(["--repeats", "2", "--only", "faulty"])) == 1
    told = capsys.readouterr().out
    assert "caught: 0 of 2 with slow_step in one engine (wanted: 2); missed: 1 x ddp, 1 x fsdp1\n" in told


def test_interrupted_tells_what_ended_and_does_not_pass(
    baselines: dict[str, Stored], capsys: pytest.CaptureFixture[str],
) -> None:
    """Hours are not lost to Ctrl-C; before the first repeat ended there is nothing to tell."""
    assert count(Simulated(ends_after=20), baselines, options_of([])) == 1
    told = capsys.readouterr().out
    assert "false alarms: 0 of " in told
    assert told.endswith("alarms interrupted: too few repeats to pass\n")
    with pytest.raises(AlarmsError, match="before the first repeat"):
        count(Simulated(ends_after=1), baselines, options_of([]))


def test_what_was_kept_is_not_run_again(
    baselines: dict[str, Stored], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    """Interrupted and called again, it goes on; the figures are those of a command that was never interrupted."""
    asked = options_of(["--repeats", "3"])
    assert count(Simulated(keep=tmp_path / "whole"), baselines, asked) == 0
    whole = capsys.readouterr().out
    half = tmp_path / "half"
    assert count(Simulated(keep=half, ends_after=8), baselines, asked) == 1
    kept = len(list(half.glob("*/heat*")))
    assert kept == 8
    rest = Simulated(keep=half, heats=itertools.count(kept))
    capsys.readouterr()
    assert count(rest, baselines, asked) == 0
    assert _figures(capsys.readouterr().out) == _figures(whole)
    assert count(Simulated(keep=half, ends_after=0), baselines, asked) == 0, "nothing was left to run"


def _figures(told: str) -> list[str]:
    """Without what took how long."""
    return [line for line in told.splitlines() if " from the baseline: " in line or "caught: " in line]


def test_kept_heats_that_are_not_theirs_are_refused(baselines: dict[str, Stored], tmp_path: Path) -> None:
    """A damaged record, or one of other cases, is named; it is not measured anew over it."""
    once = options_of(["--repeats", "1", "--only", "unchanged"])
    assert count(Simulated(keep=tmp_path), baselines, once) == 0
    record = tmp_path / "01-unchanged" / "heat1" / RACE[0].id / "observation.json"
    text = record.read_text(encoding="utf-8")
    record.write_text(text[:100], encoding="utf-8")
    with pytest.raises(RecordError, match="heat1"):
        count(Simulated(keep=tmp_path), baselines, once)
    shutil.rmtree(record.parent)
    with pytest.raises(AlarmsError, match="other cases"):
        count(Simulated(keep=tmp_path), baselines, once)


def test_baselines_of_another_machine_are_refused() -> None:
    """Against them the gate judges widely, and every slowdown would count as missed."""
    with pytest.raises(AlarmsError, match=r"another machine's .*cores: 2 there, 64 here.* --fresh 16"):
        stored(ROOT, "cpu", {"cpu": "another", "cores": 64})
    with pytest.raises(AlarmsError, match="missing or stale"):
        stored(ROOT, "no-such-platform", {})
