"""The very first night on a GPU platform: one line with the command that calibrates, and nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import tolerances
from fixtures.tables import PLATFORMS
from selftests.plugin_fakes import Suite, assert_usage_error

ROOT = Path(__file__).resolve().parent.parent

JUDGED = """
@both
def test_loss(case, observe, judge):
    judge(finding(case, observed=str(observe(case).wall_seconds)))
"""


def a_suite(suite: Suite, gpu: str) -> pytest.Pytester:
    """A small suite with the conformance folder's own conftest.py, on a machine with this GPU."""
    tester = suite(JUDGED, f'nvml=lambda: FakeNvml("{gpu}")')
    # Under a name of its own: its folder's is taken by the small suite's.
    (tester.path / "checked.py").write_text((ROOT / "conformance" / "conftest.py").read_text())
    tester.makeini("[pytest]\naddopts = --import-mode=importlib -p checked\ntestpaths = conformance\n")
    return tester


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_platform_without_calibration_is_a_usage_error(suite: Suite, processes: str) -> None:
    """Exit status 4 and the command, before the first case."""
    tester = a_suite(suite, "NVIDIA A100")
    said = "holds no evidence"
    assert_usage_error(tester.runpytest_subprocess("-n", processes, "-m", "a100"), said,
                       "run tox run -e calibrate -- --platform a100")
    assert not (tester.path / "launched.txt").read_text()


def test_what_compares_nothing_needs_no_calibration(suite: Suite) -> None:
    """On the CPU, whose noise is measured, and in a rehearsal, nothing is refused."""
    tester = a_suite(suite, "NVIDIA A100")
    tester.runpytest_subprocess().assert_outcomes(passed=2)
    told = tester.runpytest_subprocess("-m", "a100", "--rehearse", "--run-dir=other")
    assert "calibrate" not in told.stderr.str()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_command_names_the_platform(platform: str) -> None:
    """Calibrating the CPU would not mend an A100."""
    words = tolerances.measure(platform)
    assert words.startswith("run tox run -e calibrate")
    assert (f"--platform {platform}" in words) is (platform != "cpu")
