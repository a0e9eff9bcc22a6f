"""What changed since the run before: found among the runs beside it, and told by case and by claim."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fixtures.report import changes
from fixtures.report.changes import Changes
from fixtures.report.facts import Ending, gather
from fixtures.report.hearing import Hearing
from selftests.reports import FSDP, PACKAGES, ZERO, Session, claims, record


def run(root: Path, name: str, ago: float, **shares: float) -> Session:
    """A finished run: by engine, the share of its tolerance that a case used."""
    session = Session(root=root, name=name, hearing=Hearing(began=time.time() - ago))
    for engine, share in shares.items():
        case = FSDP.with_(engine=engine)
        record(session.folder, case)
        session.judge(*claims(case, share=share))
    session.end(0)
    return session


def compared(session: Session, **versions: str) -> Changes | None:
    """The run against the one before it."""
    hearing = session.hearing
    facts = gather(session.tally, hearing.tests, Ending(exit_status=0), began=hearing.began, seconds=1.0)
    return changes.since(facts, session.folder, {**PACKAGES, **versions}, began=hearing.began)


def test_first_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    """Nor is a run compared with itself, or with one that came after it."""
    first = run(tmp_path, "first", 100, fsdp2=0.1)
    run(tmp_path, "second", 10, fsdp2=0.1)
    assert compared(first) is None


def test_broken_and_mended_cases_are_named(tmp_path: Path) -> None:
    """Newly failing, newly passing, new and gone, each once."""
    run(tmp_path, "before", 100, fsdp2=0.1, zero3=2.0, zero1=0.1, ddp=2.0)
    told = compared(run(tmp_path, "now", 10, fsdp2=2.0, zero3=0.1, zero2=0.1, ddp=2.0))
    assert told is not None
    assert (told.before, told.shared) == ("before", 3)
    assert told.newly_failing == (FSDP.id,)
    assert told.newly_passing == (ZERO.id,)
    assert told.appeared == (ZERO.with_(engine="zero2").id,)
    assert told.vanished == (ZERO.with_(engine="zero1").id,)


def test_moved_margin_is_told_before_it_fails(tmp_path: Path) -> None:
    """A claim that went from a tenth of its allowance to eight is drift; one that went to two tenths is noise."""
    run(tmp_path, "before", 100, fsdp2=0.1, zero3=0.1)
    told = compared(run(tmp_path, "now", 10, fsdp2=0.8, zero3=0.2))
    assert told is not None
    assert {moved.subject for moved in told.moved} == {FSDP.id}
    assert [(round(moved.before, 6), round(moved.now, 6)) for moved in told.moved][:1] == [(0.1, 0.8)]


def test_changed_version_is_named(tmp_path: Path) -> None:
    """Only what differs, then and now; also against a run without session.json."""
    before = run(tmp_path, "before", 100, fsdp2=0.1)
    now = run(tmp_path, "now", 10, fsdp2=0.1)
    for _ in range(2):
        told = compared(now, accelerate="1.16.0")
        assert told is not None
        assert told.versions == {"accelerate": ("1.15.0", "1.16.0")}
        (before.folder / "session.json").unlink(missing_ok=True)
        (now.folder / "session.json").unlink(missing_ok=True)
        now = replace(now, hearing=Hearing(began=time.time() + 10))


def test_narrow_run_in_between_is_passed_over(tmp_path: Path) -> None:
    """A run of one case yesterday does not hide the whole run of the day before; nor do broken files."""
    run(tmp_path, "whole", 1000, fsdp2=0.1, zero3=0.1, zero1=0.1)
    run(tmp_path, "narrow", 100, fsdp2=0.1)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "findings.jsonl").write_bytes(b"\xff{not json\n{}\n[1]\n")
    (tmp_path / "runs" / "broken" / "session.json").write_text('{"began": "yesterday"}')
    told = compared(run(tmp_path, "now", 10, fsdp2=0.1, zero3=0.1, zero1=0.1))
    assert told is not None
    assert told.before == "whole"
