"""Which files a session leaves behind, whatever becomes of it, and that none of them has a say in the verdict."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import fastjsonschema
import pytest

from fixtures.report import journal, pages, write
from fixtures.report.facts import Ending
from selftests import reports
from selftests.plugin_fakes import CASE, OTHER, Suite

ROOT = Path(__file__).resolve().parent.parent
FILES = {"report.html", "report.md", "junit.xml", "findings.jsonl", "session.json"}

PASSING = """
@both
def test_loss(case, trained, judge):
    trained(case)
    judge(finding(case))
"""
FAILING = PASSING.replace("finding(case)", "finding(case, passed=case is not OTHER, used=3.0)")
INTERRUPTED = PASSING.replace("trained(case)", """trained(case)
    if case is OTHER:
        raise KeyboardInterrupt""")


def files(folder: Path) -> set[str]:
    """The names of the files in ``folder``."""
    return {path.name for path in folder.iterdir() if path.is_file()}


def session_of(folder: Path) -> dict[str, object]:
    """What session.json says."""
    told: dict[str, object] = json.loads((folder / "session.json").read_text(encoding="utf-8"))
    return told


def junit(path: Path) -> ET.Element:
    """The root of an XML file that this process has just written."""
    return ET.fromstring(path.read_text(encoding="utf-8").partition("?>")[2])  # noqa: S314 - our own


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(("body", "status", "verdict"), [(PASSING, 0, "passed"), (FAILING, 1, "failed")])
def test_session_leaves_its_report(suite: Suite, processes: str, body: str, status: int, verdict: str) -> None:
    """Passing or failing, in one process or three: one report, of all cases, told in a line before the last."""
    tester = suite(body)
    result = tester.runpytest_inprocess("-n", processes, "--run-dir", "here")
    assert result.ret == status
    assert "report: here/report.html" in result.outlines
    assert result.outlines[-1] == "2 claims judged over 2 of 2 gated cases"
    assert files(tester.path / "here") == FILES
    told = session_of(tester.path / "here")
    assert (told["verdict"], told["exit_status"], told["judged"]) == (verdict, status, 2)
    assert told["cases"] == {CASE.id: "passed", OTHER.id: "passed" if status == 0 else "failed"}


def test_interrupted_session_says_so(suite: Suite) -> None:
    """Ctrl-C leaves a report of what was judged so far, which calls itself partial."""
    tester = suite(INTERRUPTED)
    tester.runpytest_inprocess("--run-dir", "here", no_reraise_ctrlc=True)
    page = (tester.path / "here" / "report.html").read_text(encoding="utf-8")
    assert "Interrupted</h1>" in page
    assert "This report is partial: no case failed so far; 1 of 2 gated cases judged" in page
    assert "interrupted from the keyboard" in page
    assert session_of(tester.path / "here")["verdict"] == "interrupted"


def test_stopped_session_says_why(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that could not go on tells the reason in its report, too."""
    monkeypatch.setenv("FAKE_FAULT", "full")
    tester = suite(PASSING)
    assert tester.runpytest_inprocess("--run-dir", "here").ret == pytest.ExitCode.USAGE_ERROR
    told = session_of(tester.path / "here")
    assert told["verdict"] == "stopped"
    assert "No space left on device" in str(told["reason"])


def test_stop_at_the_first_failure_is_told(suite: Suite) -> None:
    """With -x the page says why half of it is missing."""
    tester = suite(PASSING.replace("finding(case)", "finding(case, passed=False)"))
    tester.runpytest_inprocess("--run-dir", "here", "-x")
    assert session_of(tester.path / "here")["reason"] == "exit status 1: stopping after 1 failures"


def test_test_that_breaks_is_on_the_page(suite: Suite) -> None:
    """A failure without a failing claim is no less one: an error in a test, with or without a case."""
    tester = suite("""
        @one
        def test_breaks(case, judge):
            raise ValueError("upside <down>")

        def test_without_a_case():
            assert False, "nobody's"
    """)
    tester.runpytest_inprocess("--run-dir", "here")
    page = (tester.path / "here" / "report.html").read_text(encoding="utf-8")
    assert "ValueError: upside &lt;down&gt;" in page
    assert "conformance/test_small.py::test_without_a_case" in page
    assert session_of(tester.path / "here")["cases"] == {CASE.id: "failed"}


def test_replay_reports_beside_the_record(suite: Suite) -> None:
    """What was recorded stays as it is; the page goes to runs/replays, under the run's own name."""
    tester = suite(FAILING)
    tester.runpytest_inprocess("--run-dir", "here")
    before = (tester.path / "here" / "report.html").read_bytes()
    result = tester.runpytest_inprocess("--replay", "here")
    assert "report: runs/replays/here/report.html" in result.outlines
    assert files(tester.path / "runs" / "replays" / "here") == FILES
    assert (tester.path / "here" / "report.html").read_bytes() == before
    again = (tester.path / "runs" / "replays" / "here" / "report.html").read_text(encoding="utf-8")
    assert f"-m fixtures.worker here/{OTHER.id}" in again


def test_report_goes_where_it_is_told(suite: Suite) -> None:
    """--report=DIR names the place, --report=none does without, and an empty word is a usage error."""
    tester = suite(PASSING)
    tester.runpytest_inprocess("--run-dir", "one", "--report", "there")
    assert files(tester.path / "there") == FILES
    assert files(tester.path / "one") == {"findings.jsonl"}
    result = tester.runpytest_inprocess("--run-dir", "two", "--report=none")
    assert files(tester.path / "two") == {"findings.jsonl"}
    result.stdout.no_fnmatch_line("report*")
    assert tester.runpytest_inprocess("--report=").ret == pytest.ExitCode.USAGE_ERROR


def test_collecting_reports_nothing(suite: Suite) -> None:
    """Looking at the list of tests is no session to report."""
    tester = suite(PASSING)
    tester.runpytest_inprocess("--collect-only")
    assert not (tester.path / "runs").exists()


@pytest.mark.parametrize(("body", "status"), [(PASSING, 0), (FAILING, 1)])
def test_place_that_cannot_be_written_changes_no_verdict(suite: Suite, body: str, status: int) -> None:
    """One line says why there is no report; exit status and last line are as they would be."""
    result = suite(body).runpytest_inprocess("--report", "launched.txt/here")
    assert result.ret == status
    result.stdout.fnmatch_lines([
        "report not written in *launched.txt/here: Not a directory; choose another folder with --report=DIR",
    ])
    assert result.outlines[-1] == "2 claims judged over 2 of 2 gated cases"


@pytest.mark.parametrize(("fault", "words"), [
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; choose another folder"),
    (ImportError("No module named 'jinja2'"), "No module named 'jinja2'; pip install --group suite"),
    (ValueError("odd record"), "ValueError while it was put together: odd record"),
])
def test_report_that_fails_is_one_line(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, fault: Exception, words: str,
) -> None:
    """A full disk, a missing package and a fault of our own: the verdict stands, and nothing half-written is left."""
    def fail(_: object) -> str:
        raise fault

    monkeypatch.setattr(pages, "page", fail)
    tester = suite(PASSING)
    result = tester.runpytest_inprocess("--run-dir", "here")
    assert result.ret == 0
    (line,) = (line for line in result.outlines if line.startswith("report"))
    assert words in line
    assert files(tester.path / "here") == {"findings.jsonl"}
    result.stdout.no_fnmatch_line("*Traceback*")


def test_file_that_cannot_be_replaced_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while a page is written leaves the page that was there."""
    session = reports.mixed(tmp_path)
    before = session.end(1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    told = write.report(session.orders(), session.tally, session.hearing, Ending(exit_status=1))
    assert "No space left on device" in told
    monkeypatch.undo()
    assert (session.folder / "report.html").read_text(encoding="utf-8") == before
    assert files(session.folder) == FILES


def test_findings_follow_their_schema(tmp_path: Path) -> None:
    """Each line of findings.jsonl is valid, an infinite share and a known failure included."""
    session = reports.mixed(tmp_path)
    session.judge(replace(reports.claims(reports.FSDP)[0], passed=False, used=float("inf")), nodeid="a::b")
    session.end(1)
    validate = fastjsonschema.compile(json.loads(journal.SCHEMA.read_text(encoding="utf-8")))
    rows = [json.loads(line) for line in (session.folder / "findings.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        validate(row)
    assert {row["known_failure"] is None for row in rows} == {True, False}
    assert "inf" in [row["used"] for row in rows]
    spoilt = {"used": "nan", "tolerance": -1, "passed": "yes", "schema": 0, "subject": "", "known_failure": ""}
    for name, value in spoilt.items():
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate({**rows[0], name: value})


def test_each_field_of_the_schema_is_documented() -> None:
    """docs/findings.md names every field, and every field is always there."""
    schema = json.loads(journal.SCHEMA.read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)` \|", text.partition("session.json")[0], re.MULTILINE))
    assert documented == set(schema["properties"]) == set(schema["required"])


def test_each_field_of_the_session_is_documented(tmp_path: Path) -> None:
    """So does it name every field of session.json."""
    session = reports.mixed(tmp_path)
    session.end(1)
    told = json.loads((session.folder / "session.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text.partition("session.json")[2], re.MULTILINE)) == set(told)


def test_junit_holds_sentence_and_rerun(suite: Suite) -> None:
    """The file for CI systems has each test once, with the broken claim as its message and the commands below."""
    tester = suite(FAILING)
    (tester.path / "known_failures.txt").write_text("")
    tester.runpytest_inprocess("--run-dir", "here")
    root = junit(tester.path / "here" / "junit.xml")
    (tests,) = root
    assert (tests.get("tests"), tests.get("failures")) == ("2", "1")
    (failure,) = root.iter("failure")
    assert str(failure.get("message")).startswith(f"{OTHER.id}  loss, step 1: 5.25, allowed 5.24")
    assert "\nre-run: " in str(failure.text)
    assert [one.get("name") for one in root.iter("property")] == ["finding.loss"]


def test_pytests_own_junit_tells_as_much(suite: Suite) -> None:
    """--junitxml goes on working beside ours: sentence and re-run are in its message."""
    tester = suite(FAILING)
    tester.runpytest_inprocess("--junitxml=theirs.xml")
    (failure,) = junit(tester.path / "theirs.xml").iter("failure")
    assert f"{OTHER.id}  loss, step 1: 5.25" in str(failure.get("message"))
    assert "re-run: " in str(failure.get("message"))


def test_junit_survives_any_text(tmp_path: Path) -> None:
    """Markup and control characters in an error message make no broken XML; known failures are told with their link."""
    session = reports.mixed(tmp_path)
    session.end(1)
    root = junit(session.folder / "junit.xml")
    assert any("<script>" in str(failure.get("message")) for failure in root.iter("failure"))
    assert len(list(root.iter("skipped"))) == 1


def test_nothing_heavy_is_loaded_to_collect() -> None:
    """Templates and plotting are imported when a session ends, not when pytest starts."""
    code = "import sys, fixtures.plugin; print(sorted({'jinja2', 'matplotlib', 'numpy', 'torch'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
