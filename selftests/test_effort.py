"""An engine's own work, counted in calls: the claims from made-up counts, and a fault in real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance import effort
from conformance.catalogue import EFFORTS, at_depths
from fixtures.calls import CallCounter
from fixtures.launch import Launcher
from fixtures.observation import Observation
from fixtures.spec import Case
from selftests.records import observation
from selftests.replayed import assert_breaks, assert_sound, judge, record

ZERO2 = next(case for case in EFFORTS if case.engine == "zero2")


def counted(tmp_path: Path, *calls: Any) -> list[Observation]:
    """Runs at 2, 4 and 8 layers with so many calls on each rank."""
    return [
        observation(case, tmp_path / case.id, throughput={} if number is None else {"calls": number})
        for case, number in zip(at_depths(ZERO2), calls, strict=True)
    ]


@pytest.mark.parametrize(
    ("calls", "passes"),
    [
        ((1000, 1800, 3400), True), ((1000, 1800, 3501), True), ((1000, 1800, 3503), False), ((100, 400, 1600), False),
        ((1000, 1800, 3000), True), ((1000, 900, 0), False), ((1000, 1800, None), False), ((None, 1800, 3400), False),
        ((1000, 1800, 3400.0), False), ((1000, 1800, -3400), False),
    ],
)
def test_work_may_grow_with_the_layers_and_no_faster(calls: Any, passes: bool, tmp_path: Path) -> None:
    """On the line, just above it or below it; the square of the depth, and what is not on record, fail."""
    finding = effort.grows_in_line(counted(tmp_path, *calls))
    assert finding.passed is passes
    assert finding.subject == ZERO2.id


def test_every_call_counts_once() -> None:
    """Functions of Python and of C, and each value that a generator is asked for."""
    def three() -> int:
        return sum(number for number in (1, 2))

    with CallCounter() as empty:
        pass
    with CallCounter() as counter:
        three()
    assert counter.calls - empty.calls == 1 + 1 + 3  # three, sum, and the generator: two values and the end


@pytest.mark.parametrize("engine", ["ddp", "zero2"])
@pytest.mark.parametrize("fault", [None, "slow_hooks"])
def test_a_fault_of_hooks_that_look_at_all_parameters_is_seen(
    engine: str, fault: str | None, launcher: Launcher, tmp_path: Path,
) -> None:
    """Without it the counts lie on a line and on their baseline; with it the gate fails on this rung."""
    case = ZERO2.with_(engine=engine)
    for one in at_depths(case):
        record(launcher, tmp_path, one, fault)
    judged = judge(tmp_path, case)
    if fault is None:
        assert_sound(judged)
    else:
        assert_breaks(judged, case, "throughput")


def test_cases_have_one_recipe_and_three_depths() -> None:
    """They differ in their number of layers alone, and the lower two are equally far from each other as 1 to 2."""
    cases: list[Case] = at_depths(ZERO2)
    assert [case.architecture.layers for case in cases] == [2, 4, 8]
    assert len({case.architecture.at_depth(1).config["hidden_size"] for case in cases}) == 1
    assert cases[-1] == ZERO2
