"""What a session judges, and what it says."""

from __future__ import annotations

import json

import pytest

from selftests.plugin_fakes import CASE, OTHER, Suite

PASSING = """
@both
def test_loss(case, trained, judge):
    assert trained(case).losses == [2.5 * case.world_size]
    judge(finding(case), [finding(case, used=0.98)])

@both
def test_gradients(case, observe, judge):
    judge(finding(case, rung="gradients", used=observe(case).wall_seconds))
"""

ONE_PASSES = """
@both
def test_loss(case, observe, judge):
    observe(case)
    judge(finding(case))
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_green_session_ends_with_its_count(suite: Suite, processes: str) -> None:
    """The last line says how many claims were judged over how many gated cases, however many processes judged them."""
    result = suite(PASSING).runpytest_inprocess("-n", processes)
    assert result.ret == 0
    assert result.outlines[-1] == "6 claims judged over 2 of 2 gated cases"
    nearest = "* 98%  *loss, step 1: 5.25, allowed 5.24 +/- 0.04 (plain oracle)"
    result.stdout.fnmatch_lines([nearest, "run folder: runs/*"])


@pytest.mark.parametrize("processes", ["0", "2"])
def test_each_case_runs_once(suite: Suite, processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tests in two processes that ask for one case at the same time share one run of it."""
    monkeypatch.setenv("FAKE_SECONDS", "0.3")
    tester = suite(PASSING)
    tester.runpytest_inprocess("-n", processes, "--deadline", "7").assert_outcomes(passed=4)
    launched = [line for line in (tester.path / "launched.txt").read_text().splitlines() if line != "closed"]
    assert sorted(launched) == sorted([f"{CASE.id} 7", f"{OTHER.id} 7"])


def test_failing_claim_says_how_to_run_again(suite: Suite) -> None:
    """The failure is the claim in one line, the command that runs the case, and the one that judges it."""
    result = suite("""
        @one
        def test_loss(case, observe, judge):
            observe(case)
            judge(finding(case), finding(case, passed=False, used=3.0))
    """).runpytest_inprocess("--run-dir", "here")
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        f"{CASE.id}  loss, step 1: 5.25, allowed 5.24 +/- 0.04 (plain oracle)",
        f"re-run: *torchrun --nproc-per-node 2 -m fixtures.worker here/{CASE.id}",
        f'judge again: *pytest --replay=* "conformance/test_small.py::test_loss[[]{CASE.id}[]]"',
    ], consecutive=True)
    result.stdout.no_re_match_line(r".*test_small\.py:\d+: ")


def test_run_that_did_not_end_well_fails_with_its_last_words(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crashed case fails a test that asked for a trained one, and counts as judged, on the lowest rung."""
    monkeypatch.setenv("FAKE_FAULT", "crash")
    result = suite(PASSING).runpytest_inprocess("-k", CASE.engine)
    result.assert_outcomes(failed=1, passed=1, deselected=2)
    result.stdout.fnmatch_lines([
        f"{CASE.id}  outcome: crashed (rank 1: ValueError: weights are upside down), allowed ok (the run itself)",
        "-- traceback:", "*the guilty line", "-- last lines of the log:", "   line a", "   line b",
        "re-run: *torchrun*", "judge again: *",
        "claims by rung:", "  engaged 1 (1 failed), gradients 1",
    ])
    assert result.outlines[-1] == "2 claims judged over 1 of 1 gated cases"


def test_hung_run_shows_where_each_rank_stood(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stacks of all ranks, once, and the end of the log."""
    monkeypatch.setenv("FAKE_FAULT", "hang")
    result = suite(PASSING).runpytest_inprocess("-k", f"test_loss and {CASE.engine}")
    result.stdout.fnmatch_lines([
        f"{CASE.id}  outcome: hung (rank 0: DeadlineExpired: no end within 7 s), allowed ok (the run itself)",
        "-- stacks of rank 0:", "   File a.py", "-- stacks of rank 1:", "   File b.py",
        "-- last lines of the log:", "   waiting", "re-run: *torchrun*",
    ], consecutive=True)


@pytest.mark.parametrize("body", [
    "judge()", "judge([], ())", "pass", "pytest.skip('no time')", "pytest.xfail('I know')",
    "request.applymarker(pytest.mark.xfail(strict=False))", "request.applymarker(pytest.mark.xfail); assert False",
])
def test_looking_at_nothing_is_a_failure(suite: Suite, body: str) -> None:
    """No finding, a skip and an unlisted xfail each fail the test, and the case counts as not judged."""
    result = suite(f"""
        @one
        def test_nothing(case, observe, judge, request):
            {body}
    """).runpytest_inprocess()
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    assert result.outlines[-2:] == [f"not judged: {CASE.id}", "0 claims judged over 0 of 1 gated cases"]


def test_skip_mark_is_a_failure(suite: Suite) -> None:
    """A test that is skipped before it starts fails with the skip's reason."""
    result = suite("@pytest.mark.skip(reason='flaky')\n" + ONE_PASSES.strip()).runpytest_inprocess()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["skipped, and a skipped claim is not judged: flaky"])


def test_unjudged_case_fails_a_session_whose_tests_all_passed(suite: Suite) -> None:
    """Where something swallows a case's tests, pytest alone would exit 0."""
    tester = suite(ONE_PASSES)
    conftest = (tester.path / "conftest.py").read_text()
    tester.makeconftest(conftest + f"""
def pytest_runtest_protocol(item):
    return True if {CASE.engine!r} in item.name else None
""")
    result = tester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    assert result.outlines[-2:] == [f"not judged: {CASE.id}", "1 claims judged over 1 of 2 gated cases"]


@pytest.mark.parametrize("processes", ["0", "2"])
def test_nothing_selected_is_no_pass(suite: Suite, processes: str) -> None:
    """Where every conformance test was deselected, other tests cannot make the session pass."""
    tester = suite(ONE_PASSES)
    tester.makepyfile(test_other="def test_other(): pass")
    result = tester.runpytest_inprocess("-n", processes, "-k", "test_other", ".")
    result.assert_outcomes(passed=1, deselected=2 if processes == "0" else 0)
    assert result.ret == 1
    assert "no conformance test was selected: nothing was judged" in result.outlines


def test_other_tests_need_no_conformance(suite: Suite) -> None:
    """A session that never went near conformance/ passes as pytest says, makes no folder and prints no account."""
    tester = suite(ONE_PASSES, changes="version_of=lambda package: None")
    tester.makepyfile(test_other="def test_other(): pass")
    result = tester.runpytest_inprocess("test_other.py")
    assert result.ret == 0
    assert not (tester.path / "runs").exists()
    result.stdout.no_fnmatch_line("*claims judged*")


def test_early_stop_counts_what_was_judged(suite: Suite) -> None:
    """With -x the last line is the truthful count."""
    result = suite(ONE_PASSES.replace("finding(case)", "finding(case, passed=False)")).runpytest_inprocess("-x")
    assert result.ret == 1
    assert result.outlines[-1] == "1 claims judged over 1 of 2 gated cases"


def test_summary_names_the_lowest_broken_rung(suite: Suite) -> None:
    """Cases come in the order of their lowest broken rung, equal changes of a setting in one line."""
    result = suite("""
        WRONG = {CASE: ["curve", "loss", "loss"], OTHER: ["parameters", "dtypes", "settings"]}

        @both
        def test_all(case, judge):
            changed = {"metric": "clip", "allowed": "0.0", "observed": "1.0", "reference": "baseline cpu/a/b.json"}
            judge(finding(case, rung=rung, passed=False, **changed) for rung in WRONG[case])
    """).runpytest_inprocess()
    result.stdout.fnmatch_lines([
        "changed against the baselines:",
        f"  clip: 0.0 -> 1.0  in {OTHER.id}",
        "failed, lowest rung first:",
        f"  [[]dtypes] {OTHER.id}  clip: 1.0*", "      and 1 on parameters",
        f"  [[]loss] {CASE.id}  clip: 1.0*", "      and 1 more on loss, 1 on curve",
    ])


def test_findings_are_kept(suite: Suite) -> None:
    """Each finding is a line of findings.jsonl, an infinite share included."""
    tester = suite("""
        @one
        def test_loss(case, judge):
            judge(finding(case, passed=False, used=float("inf")))
    """)
    tester.runpytest_inprocess("--run-dir", "here")
    (row,) = map(json.loads, (tester.path / "here" / "findings.jsonl").read_text().splitlines())
    assert row["subject"] == CASE.id
    assert row["used"] == "inf"
    assert row["nodeid"] == f"conformance/test_small.py::test_loss[{CASE.id}]"


def test_judge_takes_findings_only(suite: Suite) -> None:
    """A forgotten verdict function shows as an error, not as a pass."""
    result = suite("""
        @one
        def test_loss(case, judge):
            judge("fine")
    """).runpytest_inprocess()
    result.stdout.fnmatch_lines(["*TypeError: judge() takes findings, not 'fine'"])


def test_pair_of_cases_gates_both(suite: Suite) -> None:
    """A test about two cases judges two."""
    result = suite("""
        @pytest.mark.parametrize("pair", [pytest.param((CASE, OTHER), id="a-b")])
        def test_pair(pair, judge):
            judge(finding(pair[0]))
    """).runpytest_inprocess()
    assert result.outlines[-1] == "1 claims judged over 2 of 2 gated cases"
