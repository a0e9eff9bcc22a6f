"""Which tests a session runs, and what it refuses to run."""

from __future__ import annotations

import pytest

from selftests.plugin_fakes import CASE, Suite, assert_usage_error

JUDGED = """
@both
def test_loss(case, observe, judge):
    judge(finding(case, observed=str(observe(case).wall_seconds)))

@one
def test_cpu_only(case, judge):
    judge(finding(case))
"""


@pytest.mark.parametrize(("arguments", "words"), [
    (["-m", "a100"], ["ERROR: -m a100 needs an NVIDIA A100; this machine has no NVIDIA GPU (NVML counts none)"]),
    (["-m", "h100 and not cpu"], ["-m h100 and not cpu needs an NVIDIA H100;"]),
    (["--platform", "h200"], ["--platform h200 needs an NVIDIA H200;"]),
    (["--platform", "a10"], ["unknown platform 'a10'; did you mean 'a100'?"]),
    (["-m", "a10 or cpu"], ["unknown marker 'a10'", "known: cpu, a100, h100, h200"]),
    (["-m", "a100 or h100"], ["names a100 and h100", "--platform"]),
    (["-m", "h100", "--platform", "a100"], ["different platforms"]),
    (["-m", "cpu and"], ["-m 'cpu and' is no marker expression"]),
    (["--deadline", "soon"], ["--deadline soon: not a positive number of seconds"]),
    (["--deadline", "-1"], ["--deadline -1: not a positive number of seconds"]),
])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_unmet_wish_is_a_usage_error(suite: Suite, arguments: list[str], words: list[str], processes: str) -> None:
    """One line, exit status 4, nothing launched: also with several processes."""
    tester = suite(JUDGED)
    assert_usage_error(tester.runpytest_inprocess("-n", processes, *arguments), *words)
    assert not (tester.path / "launched.txt").read_text()
    assert not (tester.path / "runs").exists()


def test_collecting_needs_no_hardware(suite: Suite) -> None:
    """What would run on a GPU can be listed anywhere."""
    result = suite(JUDGED).runpytest_inprocess("--collect-only", "-q", "-m", "a100")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_loss*", "2/3 tests collected (1 deselected)*"])


def test_platform_deselects_what_is_not_for_it(suite: Suite) -> None:
    """On an A100 the CPU's own test is deselected, and the judging command names the platform."""
    failing = JUDGED.replace("finding(case, ", "finding(case, passed=False, ")
    tester = suite(failing, 'nvml=lambda: FakeNvml("NVIDIA A100", "NVIDIA A100")')
    result = tester.runpytest_inprocess("-m", "a100")
    result.assert_outcomes(failed=2, deselected=1)
    result.stdout.fnmatch_lines(["shardgate: platform a100,*", "judge again: *pytest --replay=* --platform a100 *"])


@pytest.mark.parametrize("arguments", [[], ["-m", "cpu"], ["-m", "cpu and not (h100 or h200)"]])
def test_default_platform_is_the_cpu(suite: Suite, arguments: list[str]) -> None:
    """Plain pytest, -m cpu and a GPU that is only excluded all mean the CPU."""
    suite(JUDGED).runpytest_inprocess(*arguments).assert_outcomes(passed=3)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_case_that_cannot_be_is_a_usage_error(suite: Suite, processes: str) -> None:
    """An unknown engine in the catalogue is one line, not a module's traceback."""
    result = suite('CASE.with_(engine="zero4")\n').runpytest_inprocess("-n", processes)
    assert_usage_error(result, "conformance/test_small.py: unknown engine 'zero4'; did you mean 'zero")


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(("version", "words"), [
    ("None", ["torch is not installed", "deepspeed is not installed", 'pip install "torch>=2.6"']),
    ("'0.1'", ["torch 0.1 is below 2.6", 'pip install "torch>=2.6" "transformers>=4.45"']),
])
def test_packages_under_test_must_be_there(suite: Suite, version: str, words: list[str], processes: str) -> None:
    """A missing package and one below its bound are told before anything runs."""
    tester = suite(JUDGED, f"version_of=lambda package: {version}")
    assert_usage_error(tester.runpytest_inprocess("-n", processes), *words)


def test_collecting_needs_no_packages(suite: Suite) -> None:
    """The catalogue can be listed without the packages under test."""
    tester = suite(JUDGED, "version_of=lambda package: None")
    result = tester.runpytest_inprocess("--collect-only", "-q", "-k", CASE.id)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["2/3 tests collected*"])


REHEARSED = JUDGED + """
@pytest.mark.rehearsed
@pytest.mark.parametrize("case", [pytest.param(CASE, id=CASE.id, marks=pytest.mark.a100)])
def test_full_size(case, observe, judge):
    judge(finding(case, observed=str(observe(case).wall_seconds), passed=False, reference="rehearsed, not run"))
"""


def test_rehearsing_needs_no_hardware(suite: Suite) -> None:
    """With --rehearse what is marked so is judged, alone, anywhere; the summary tells it, and how to judge it again."""
    result = suite(REHEARSED).runpytest_inprocess("-m", "a100", "--rehearse")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["judge again: *--rehearse --platform a100*", "rehearsed, not run:", "  FAIL llama-tiny*"]
    )


def test_what_is_rehearsed_waits_for_the_word(suite: Suite) -> None:
    """Without --rehearse it is not judged, with the hardware or without; and its platform is a usage error as ever."""
    tester = suite(REHEARSED, 'nvml=lambda: FakeNvml("NVIDIA A100", "NVIDIA A100")')
    tester.runpytest_inprocess("-m", "a100").assert_outcomes(passed=2, deselected=2)
    tester.runpytest_inprocess("--run-dir=other").assert_outcomes(passed=3, deselected=1)


def test_nothing_to_rehearse_is_no_pass(suite: Suite) -> None:
    """A rehearsal that selects nothing fails: nothing was judged."""
    result = suite(REHEARSED).runpytest_inprocess("--rehearse")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*nothing was judged*"])
