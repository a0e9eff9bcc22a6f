"""The two commands that prove the launcher: soak and overhead."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import overhead, soak
from fixtures.launch import Launcher
from fixtures.overhead import Timing, report


def timing(*, launcher: float, work: float = 0.5, accelerate: float = 10.0) -> Timing:
    """One case's seconds."""
    return Timing(case_id="a-case", launcher_seconds=launcher, work_seconds=work, accelerate_seconds=accelerate)


def test_soak_takes_the_engines_in_turn() -> None:
    """Every engine gets its share of the launches, with settings of its own."""
    asked = list(itertools.islice(soak.requests(["ddp", "zero3"]), 4))
    assert [request.case.engine for request in asked] == ["ddp", "zero3", "ddp", "zero3"]
    assert asked[0].settings != asked[1].settings


def test_soak_counts_what_it_launched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Good launches are counted, told, and leave nothing behind."""
    with Launcher(worker="selftests.fake_worker", preload=()) as launcher:
        counts = soak.soak(launcher, ["ddp"], launches=3, deadline_seconds=20.0, folder=tmp_path)
    assert counts == Counter(ok=3)
    assert "3 of 3 launches, 3 ok, 0 oom, 0 crashed, 0 hung" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_soak_keeps_what_went_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A launch that is not ok is counted as what it is, and told with the folder that is kept."""
    with Launcher(worker="selftests.no_such_worker", preload=()) as launcher:
        counts = soak.soak(launcher, ["ddp"], launches=1, deadline_seconds=20.0, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    assert counts == Counter(crashed=1)
    assert f"kept in {kept}" in capsys.readouterr().out


@pytest.mark.parametrize("main", [soak.main, overhead.main], ids=["soak", "overhead"])
def test_an_unknown_engine_is_one_clear_line(
    main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 4 and the words that are known, before anything is launched."""
    assert main(["--engines", "zero9"]) == 4
    assert "unknown engine 'zero9'" in capsys.readouterr().err


@pytest.mark.parametrize(("main", "option"), [(soak.main, "--launches"), (overhead.main, "--rounds")])
def test_nothing_to_run_is_no_pass(
    main: Callable[[list[str]], int], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A count of zero would prove nothing: exit status 4."""
    assert main([option, "0"]) == 4
    assert f"{option} must be at least 1" in capsys.readouterr().err


def test_overhead_within_both_limits_passes() -> None:
    """The figures and what is wanted of them are in the text."""
    text, met = report([timing(launcher=1.0), timing(launcher=1.2), timing(launcher=0.8)])
    assert met
    assert "median overhead 0.50 s per case (allowed: 1 s)" in text
    assert "60.0 cases per minute against 6.0 with one accelerate launch each: 10.0 times as many" in text


@pytest.mark.parametrize(
    "slow", [timing(launcher=1.6, accelerate=100.0), timing(launcher=1.0, accelerate=7.9)], ids=["overhead", "times"]
)
def test_overhead_beyond_either_limit_fails(slow: Timing) -> None:
    """More than a second per case fails, and so does less than eight times as many cases."""
    text, met = report([slow])
    assert not met
    assert "overhead FAILED" in text
