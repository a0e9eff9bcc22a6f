"""Proof that the gate sees: the table of real regressions is whole, and its figures count what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.spec import Case
from gate import power, regressions
from gate.problems import UsageError
from gate.regressions import Regression, judge
from selftests.gate_fakes import FSDP2, FakePip, FakeRuns, Versions, sound, world

ROW = Regression(
    name="lost", what="The upcast is lost", package="accelerate", bad="1.13.0", good="1.12.0", rung="dtypes",
    link="https://example.org/1", keyword="fsdp2",
)


def quiet(line: str) -> None:
    """Hears nothing."""


def shows(rung: str, metric: str, *releases: str) -> Any:
    """Breaks this claim under these releases of accelerate."""
    def told(versions: Versions, case: Case) -> Mapping[str, Any]:
        return {"fails": ((rung, metric),)} if versions["accelerate"] in releases and case == FSDP2 else {}

    return told


@pytest.mark.parametrize(
    ("told", "flagged", "passed"),
    [
        (shows("dtypes", "dtype, at_rest", "1.13.0"), True, True),
        (sound, False, True),
        (shows("curve", "loss, every step", "1.13.0"), False, True),
        (shows("dtypes", "dtype, at_rest", "1.12.0", "1.13.0"), False, False),
        (shows("dtypes", "dtype, at_rest", "1.12.0"), False, False),
    ],
)
def test_a_regression_is_seen_on_its_rung_alone(tmp_path: Path, told: Any, flagged: bool, passed: bool) -> None:
    """Not on another rung, not where nothing breaks, and not where the good release breaks as well."""
    (row,) = power.detect([ROW], tmp_path / "power", quiet, world(tmp_path, runs=FakeRuns(told)))
    seen = judge(ROW, json.loads((tmp_path / "power" / "lost" / "gate.json").read_text()))
    assert (seen.flagged, seen.passed, row.passed) == (flagged, passed, flagged and passed)


@pytest.mark.parametrize(("clip", "seen"), [(0.0, True), (1.0, False)])
def test_an_intended_change_must_be_listed(tmp_path: Path, clip: float, seen: bool) -> None:
    """It need break nothing."""
    def told(versions: Versions, case: Case) -> Mapping[str, Any]:
        return {"settings": {"clip": clip if versions["accelerate"] == "1.13.0" else 1.0}}

    changed = Regression(**{**vars(ROW), "change": "clip", "rung": "settings"})
    (row,) = power.detect([changed], tmp_path / "power", quiet, world(tmp_path, runs=FakeRuns(told)))
    assert row.passed is seen


def test_what_no_case_covers_is_missed(tmp_path: Path) -> None:
    """It is run by nobody and counted as not seen."""
    uncovered = Regression(**{**vars(ROW), "keyword": "", "uncovered": "no case resumes"})
    (row,) = power.detect([uncovered], tmp_path, quiet, world(tmp_path))
    assert not row.passed
    assert "no case resumes" in row.told


def test_a_release_that_cannot_be_had_is_missed(tmp_path: Path) -> None:
    """And the reason is told."""
    gone = Regression(**{**vars(ROW), "bad": "9.9"})
    (row,) = power.detect([gone], tmp_path, quiet, world(tmp_path))
    assert not row.passed
    assert "no such release" in row.told


def test_the_table_is_whole() -> None:
    """Every row has a link and a keyword, or says why it is uncovered; and both sides are named."""
    rows = regressions.read()
    assert len(rows) >= 18
    assert all(row.link.startswith("https://") for row in rows)
    assert ROW.sides == (["accelerate==1.12.0"], ["accelerate==1.13.0"])


@pytest.mark.parametrize("change", [{"keyword": ""}, {"rung": "nonsense"}, {"uncovered": "why", "keyword": "k"}])
def test_a_row_that_is_not_whole_is_refused(change: dict[str, str]) -> None:
    """It would be passed over, or never be seen."""
    with pytest.raises(UsageError, match="lost"):
        Regression(**{**vars(ROW), **change})


def test_an_environment_equals_itself(tmp_path: Path) -> None:
    """Each run is compared with the one before; a second command reads what is recorded."""
    runs = FakeRuns()
    here = world(tmp_path, runs=runs)
    rows = list(power.repeat(tmp_path / "same", 3, "k", quiet, here))
    assert [row.passed for row in rows] == [True, True, True]
    assert list(power.repeat(tmp_path / "same", 3, "k", quiet, here)) == rows
    assert len(runs.runs) == 4


def test_a_run_that_differs_from_itself_is_a_false_alarm(tmp_path: Path) -> None:
    """A gate that trips over nothing is no gate."""
    calls: list[int] = []

    def told(versions: Versions, case: Case) -> Mapping[str, Any]:
        calls.append(1)
        return {"fails": (("curve", "loss, every step"),)} if len(calls) == 4 else {}

    rows = list(power.repeat(tmp_path / "same", 2, "k", quiet, world(tmp_path, runs=FakeRuns(told))))
    assert [row.passed for row in rows] == [False, True]


def test_figures_count_what_they_say() -> None:
    """Detected regressions and faults, and false alarms."""
    def row(part: str, *, passed: bool) -> power.Row:
        return power.Row(part=part, name="n", told="t", passed=passed)

    told = power.figures([
        row("regressions", passed=True), row("regressions", passed=False), row("faults", passed=True),
        row("same", passed=True), row("same", passed=False),
    ])
    assert told["regressions"] == {"detected": 1, "of": 2}
    assert told["faults"] == {"detected": 1, "of": 1}
    assert told["same"] == {"false_alarms": 1, "of": 2}
    assert "1 in 2 runs" in power.page(told)


def test_the_readme_gets_the_figures_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of it changes."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{power.BEGIN}\nold\n{power.END}\nafter\n")
    monkeypatch.setattr(power, "README", readme)
    monkeypatch.setattr(power, "PAGE", tmp_path / "power.md")
    power.write(power.figures([power.Row(part="faults", name="n", told="t", passed=True)]))
    text = readme.read_text()
    assert text.startswith(f"before\n{power.BEGIN}\n| proof | figure |")
    assert text.endswith(f"{power.END}\nafter\n")
    assert "old" not in text


def test_power_ends_with_1_where_something_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """And with 0 where all is seen."""
    monkeypatch.setattr(regressions, "read", lambda: [ROW])
    words = ["--only", "regressions", "--run-dir"]
    here = world(tmp_path, runs=FakeRuns(shows("dtypes", "dtype, at_rest", "1.13.0")), pip=FakePip())
    assert power.main([*words, str(tmp_path / "seen")], here) == 0
    assert power.main([*words, str(tmp_path / "missed")], world(tmp_path)) == 1
    assert "0 of 1" in capsys.readouterr().out


def test_a_part_that_tries_nothing_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word that names no regression leaves an empty table, and that is not all of it."""
    words = ["--only", "regressions", "-k", "nonsense", "--run-dir", str(tmp_path / "power")]
    assert power.main(words, world(tmp_path)) == 1
    assert "proves nothing" in capsys.readouterr().err
