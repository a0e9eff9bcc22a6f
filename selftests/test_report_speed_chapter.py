"""The chapter on speed shows what the history holds of this run, and is not there where there is no history."""

from __future__ import annotations

from pathlib import Path

from fixtures.report.facts import Ending, Facts, gather
from fixtures.report.speed import figures
from selftests.reports import FSDP, ZERO, Session, claims, history


def facts(tmp_path: Path) -> Facts:
    """Two judged cases."""
    session = Session(root=tmp_path)
    session.gate([FSDP, ZERO])
    for case in (FSDP, ZERO):
        session.judge(*claims(case))
    return gather(session.tally, session.hearing.tests, Ending(exit_status=0), began=0.0, seconds=1.0)


def test_this_run_is_shown_with_its_past(tmp_path: Path) -> None:
    """Value and interval of this run, and as many runs as there were before it; later ones and other machines do not
    count.
    """
    path = history(
        tmp_path / "history.sqlite", ("runs/a", "cpu", {FSDP.id: 100.0}), ("runs/b", "h200", {FSDP.id: 9999.0}),
        ("runs/c", "cpu", {FSDP.id: 110.0, ZERO.id: 90.0}), ("runs/d", "cpu", {FSDP.id: 1.0}),
    )
    (told,) = figures(facts(tmp_path), path, "runs/c")
    first, second = told.rows
    assert (told.metric, told.unit) == ("tokens_per_second", "tokens/s/device")
    assert (first.case_id, first.value, first.low, first.high, first.runs) == (FSDP.id, 110.0, 105.0, 115.0, 2)
    assert first.past is not None
    assert (second.value, second.runs, second.past) == (90.0, 1, None)
    assert first.interval is not None
    assert first.interval[0] + first.interval[1] == 100.0


def test_no_history_is_no_chapter(tmp_path: Path) -> None:
    """A file that is not there, that is no history, or that does not know this run is as good as none."""
    told = facts(tmp_path)
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"not a database at all" * 100)
    other = history(tmp_path / "other.sqlite", ("runs/a", "cpu", {FSDP.id: 100.0}))
    for path in (tmp_path / "missing.sqlite", broken, other):
        assert figures(told, path, "runs/c") == []
    assert broken.read_bytes() == b"not a database at all" * 100


def test_page_has_the_chapter(tmp_path: Path) -> None:
    """The history beside the runs is found by itself."""
    history(tmp_path / "history.sqlite", ("runs/a", "cpu", {FSDP.id: 100.0}), ("runs/first", "cpu", {FSDP.id: 1234.5}))
    session = Session(root=tmp_path)
    session.gate([FSDP])
    session.judge(*claims(FSDP))
    page = session.end(0)
    assert '<h2 id="h-speed">Speed</h2>' in page
    assert "1,234" in page
    assert "over 2 runs" in page
