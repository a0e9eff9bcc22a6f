"""known_failures.txt: linked, strict, never stale."""

from __future__ import annotations

import pytest

from selftests.plugin_fakes import CASE, Suite, assert_usage_error

LINK = "https://github.com/huggingface/accelerate/issues/1"
BODY = """
@both
def test_loss(case, judge):
    judge(finding(case, passed=case is OTHER))

@both
def test_gradients(case, judge):
    judge(finding(case))
"""


METRIC = '"loss, step 1"'


def listed(suite: Suite, *entries: str) -> pytest.Pytester:
    """A suite with one failing test and these lines in its known_failures.txt."""
    tester = suite(BODY)
    (tester.path / "known_failures.txt").write_text("# why\n\n" + "\n".join(entries) + "\n")
    return tester


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("pattern", [
    f"test_loss[{CASE.id}]", f"conformance/test_small.py::test_loss[{CASE.id}]", "test_loss[llama-*]",
])
def test_listed_failure_is_reported_and_passes(suite: Suite, pattern: str, processes: str) -> None:
    """The session passes, names the failure with its link, and still counts the claim."""
    result = listed(suite, f"{pattern}  {METRIC}  {LINK}  upcast is a no-op").runpytest_inprocess("-n", processes)
    result.assert_outcomes(passed=3, xfailed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines([
        "known failures:", f"  1 test  {LINK}",
        "4 claims judged over 2 of 2 gated cases",
    ])
    result.stdout.no_fnmatch_line("failed, lowest rung first:")


def test_a_listed_test_that_breaks_itself_fails(suite: Suite) -> None:
    """Only a judged failure is known: an error in the test or in what it reads is not hidden behind the link."""
    tester = suite("""
        @one
        def test_loss(case, judge):
            judge(finding(case))
            raise KeyError("optimizer_steps")
    """)
    (tester.path / "known_failures.txt").write_text(f"test_loss[{CASE.id}]  {METRIC}  {LINK}  known\n")
    result = tester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    assert result.ret == 1


def test_mended_failure_must_leave_the_list(suite: Suite) -> None:
    """A listed test that passes fails, and says which line to remove."""
    tester = listed(
        suite, f"test_loss[{CASE.id}]  {METRIC}  {LINK}  known", f"test_gradients[{CASE.id}]  {METRIC}  {LINK}  known"
    )
    result = tester.runpytest_inprocess()
    result.assert_outcomes(passed=2, xfailed=1, failed=1)
    result.stdout.fnmatch_lines([
        f'known_failures.txt:4: test_gradients[[]{CASE.id}[]] "loss, step 1" passes now: *remove the line*',
    ])


TWO_CLAIMS = """
@one
def test_loss(case, judge):
    judge(finding(case, passed=False, metric="loss, step 1"), finding(case, passed={second}, metric="loss, step 2"))
"""


def with_entries(suite: Suite, body: str, *metrics: str) -> pytest.RunResult:
    """A run of ``body`` with an entry for each of these metrics of its one test."""
    tester = suite(body)
    lines = [f'test_loss[{CASE.id}]  "{metric}"  {LINK}  known\n' for metric in metrics]
    (tester.path / "known_failures.txt").write_text("".join(lines))
    return tester.runpytest_inprocess()


def test_another_claim_of_a_listed_test_still_counts(suite: Suite) -> None:
    """An entry is about one claim: a second one that fails in the same test fails the test, and is reported."""
    result = with_entries(suite, TWO_CLAIMS.format(second=False), "loss, step 1")
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["failed, lowest rung first:"])


def test_each_listed_claim_is_known(suite: Suite) -> None:
    """Two entries for one test cover both of its claims."""
    result = with_entries(suite, TWO_CLAIMS.format(second=False), "loss, step 1", "loss, step 2")
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0


def test_each_listed_claim_must_fail(suite: Suite) -> None:
    """Of two entries for one test, the one whose claim holds again must leave the list."""
    result = with_entries(suite, TWO_CLAIMS.format(second=True), "loss, step 1", "loss, step 2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['known_failures.txt:2: * "loss, step 2" passes now: *'])


def test_an_entry_without_a_metric_is_about_a_crash(suite: Suite) -> None:
    """It covers a case that does not run to its end, and no number of one that does."""
    tester = suite(TWO_CLAIMS.format(second=True))
    (tester.path / "known_failures.txt").write_text(f"test_loss[{CASE.id}]  {LINK}  crashes\n")
    tester.runpytest_inprocess().assert_outcomes(failed=1)


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("arguments", [[], ["-m", "cpu"], ["conformance"]])
def test_stale_entry_fails_the_session(suite: Suite, arguments: list[str], processes: str) -> None:
    """An entry that matches no test of a whole collection fails, also under -m."""
    tester = listed(suite, f"test_loss[{CASE.id}]  {METRIC}  {LINK}  known", f"test_gone  {LINK}  known")
    result = tester.runpytest_inprocess("-n", processes, *arguments)
    result.assert_outcomes(passed=3, xfailed=1)
    assert result.ret == 1
    assert "known_failures.txt:4: test_gone matches no test: remove the line" in result.outlines


def test_part_of_the_suite_calls_nothing_stale(suite: Suite) -> None:
    """One file or one test says nothing about entries for others."""
    tester = listed(suite, f"test_gone  {LINK}  known")
    for argument in ("conformance/test_small.py", f"conformance/test_small.py::test_gradients[{CASE.id}]"):
        result = tester.runpytest_inprocess("--run-dir", f"run{len(argument)}", argument)
        result.stdout.no_fnmatch_line("*matches no test*")


@pytest.mark.parametrize("line", [
    "test_loss", f"test_loss  {LINK}", "test_loss  known for long", "test_loss  http://example.org  known",
])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_entry_needs_a_link_and_a_reason(suite: Suite, line: str, processes: str) -> None:
    """A line that is no entry is a usage error that quotes it."""
    assert_usage_error(listed(suite, line).runpytest_inprocess("-n", processes), "known_failures.txt:3", line)
