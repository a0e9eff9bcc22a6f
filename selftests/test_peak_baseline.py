"""Baselines of peaks are one-sided: more than the margin fails, a drop passes and offers itself as the new baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selftests.plugin_fakes import CASE, Suite

BODY = """
from fixtures.baseline import no_more

@one
def test_peak(case, judge, snapshot):
    judge(no_more(snapshot, SAID, subject=case.id, rung="memory", margin=0.02))

SAID = {"peak, step": 1000}
"""
FILE = Path("baselines", "cpu", "test_small", f"test_peak[{CASE.id}].json")
NODE = f"conformance/test_small.py::test_peak[{CASE.id}]"


def stored(suite: Suite, now: str) -> pytest.Pytester:
    """A suite with a baseline of 1000 bytes, that observes ``now``."""
    tester = suite(BODY)
    assert tester.runpytest_inprocess("--snapshot-update", "--run-dir", "first").ret == 0
    path = tester.path / "conformance" / "test_small.py"
    path.write_text(path.read_text().replace('{"peak, step": 1000}', now))
    return tester


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        ('{"peak, step": 1021}', "peak, step: 1,021 bytes, allowed 1,000 bytes + 2%"),
        ('{"peak, step": 0}', "peak, step: 0 bytes, allowed 1,000 bytes + 2%"),
        ('{"peak, other": 1000}', "peak, step: (absent), allowed 1,000 bytes + 2%"),
        ('{"peak, step": 1000, "peak, other": 1}', "peak, other: 1 bytes, allowed (absent) + 2%"),
        ('{"peak, step": 1000.0}', "peak, step: 1000.0, allowed 1000"),
        ("{}", "peak bytes: nothing, allowed at least one number"),
    ],
)
def test_more_nothing_or_another_number_fails(suite: Suite, now: str, sentence: str) -> None:
    """A byte over the margin, a number that came or went or is none, and a record of nothing fail."""
    result = stored(suite, now).runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"{CASE.id}  {sentence}*"])


@pytest.mark.parametrize(("peak", "offered"), [(1020, False), (1000, False), (981, False), (979, True), (10, True)])
def test_less_passes_and_a_drop_is_offered(suite: Suite, peak: int, offered: bool) -> None:
    """Within the margin nothing is said; below it the finding holds the command; the stored file stays as it is."""
    tester = stored(suite, f'{{"peak, step": {peak}}}')
    assert tester.runpytest_inprocess("--run-dir", "second").ret == 0
    (line,) = (tester.path / "second" / "findings.jsonl").read_text().splitlines()
    finding = json.loads(line)
    command = f'; take it: pytest --snapshot-update "{NODE}"'
    assert finding["passed"]
    assert finding["observed"].endswith(command) is offered
    assert json.loads((tester.path / FILE).read_text()) == {"peak, step": 1000}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_drop_is_offered_in_the_summary(suite: Suite, processes: str) -> None:
    """One line: the case, and the command that takes its number as the new baseline."""
    result = stored(suite, '{"peak, step": 979}').runpytest_inprocess("-n", processes)
    assert result.ret == 0
    result.stdout.fnmatch_lines([
        "better than the baseline by more than the margin:",
        f'  {CASE.id}; take it: tox run -e rebaseline -- -k "{CASE.id}"',
        "nearest to their limits:",
    ], consecutive=True)


@pytest.mark.parametrize("peak", [981, 1000, 1020])
def test_within_the_margin_nothing_is_offered(suite: Suite, peak: int) -> None:
    """Noise is no news; nor does syrupy call a number within its margin a snapshot that failed."""
    result = stored(suite, f'{{"peak, step": {peak}}}').runpytest_inprocess()
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*better than the baseline*")
    result.stdout.no_fnmatch_line("*snapshot*")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_an_interrupted_session_says_nothing_of_snapshots(
    suite: Suite, processes: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers that did not report their snapshots are nobody's concern: none of theirs is ever deleted."""
    tester = suite(BODY.replace("case, judge, snapshot):", "case, judge, snapshot, observe):\n    observe(case)"))
    monkeypatch.setenv("FAKE_FAULT", "interrupt")
    result = tester.runpytest_subprocess("-n", processes)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("*snapshot report*")
    result.stdout.no_fnmatch_line("Unused snapshot*")


def test_syrupy_tells_what_it_wrote(suite: Suite) -> None:
    """Where baselines are recorded its own summary is wanted."""
    result = suite(BODY).runpytest_inprocess("--snapshot-update")
    result.stdout.fnmatch_lines(["1 snapshot generated."])


def test_a_missing_baseline_fails_with_the_command(suite: Suite) -> None:
    """As every baseline: nothing on record is no pass."""
    result = suite(BODY).runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        f"{CASE.id}  peak bytes: no baseline, allowed a recorded one (record it: pytest --snapshot-update*"
    ])


@pytest.mark.parametrize("peak", [990, 1005, 1500])
def test_an_update_takes_the_number_as_it_is(suite: Suite, peak: int) -> None:
    """Also within the margin: what is on record is what was seen, so that margins do not add up."""
    tester = stored(suite, f'{{"peak, step": {peak}}}')
    assert tester.runpytest_inprocess("--snapshot-update", "--run-dir", "second").ret == 0
    assert json.loads((tester.path / FILE).read_text()) == {"peak, step": peak}
