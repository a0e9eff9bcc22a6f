"""Ratios of step times and the verdict on them: exact where they can be, measured where they must be."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from conformance import sensitivity
from conformance.catalogue import RACE
from fixtures.throughput import floor
from fixtures.throughput.floor import Stored
from fixtures.throughput.judged import judge
from fixtures.throughput.ratio import Ratio, median_interval, ratio, student
from selftests.races import DDP, FSDP2, MACHINE, PACE, Noise, throughput, timed

STORED = Stored(value=3.0, spread=0.005, recorded={"machine": MACHINE})
"""FSDP2 is the third of the race, and DDP the first: three hundredths of a second against one."""


def test_the_interval_of_a_median_is_exact() -> None:
    """Of 14 values at 94.3 %: from the fourth to the fourth last; of 20 at 88.5 %, from the seventh."""
    assert median_interval(list(range(1, 15))) == (7.5, 4, 11)
    assert median_interval(list(range(1, 21))) == (10.5, 7, 14)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """Also of a skewed noise: 94.3 % of simulated heats, to the accuracy of two thousand."""
    dice = random.Random(1)
    held = 0
    for _ in range(2000):
        _, low, high = median_interval([dice.expovariate(1) for _ in range(14)])
        held += low <= math.log(2) <= high
    assert held / 2000 == pytest.approx(0.943, abs=0.015)


@pytest.mark.parametrize("values", [[], [1.0] * 7, [1.0] * 20 + [math.nan], [math.inf] * 20])
def test_too_few_or_no_numbers_are_no_ratio(values: list[float]) -> None:
    """An interval of nothing would hold anything."""
    with pytest.raises(ValueError, match="rounds, wanted at least 8"):
        median_interval(values)


def test_student_is_that_of_the_tables() -> None:
    """To one per cent, where it is used."""
    for freedom, due in ((1, 6.314), (5, 2.015), (10, 1.812), (35, 1.690), (10**6, 1.645)):
        assert student(freedom) == pytest.approx(due, rel=0.01)


def test_a_block_is_as_slow_as_its_slowest_rank() -> None:
    """And NaN where a rank lacks it."""
    seen = timed(DDP, [0.5, 0.25])
    slower = replace(seen, ranks=(seen.ranks[0], replace(seen.ranks[1], throughput=throughput([0.25, 0.75]))))
    assert slower.block_seconds == [0.5, 0.75]
    shorter = replace(seen, ranks=(seen.ranks[0], replace(seen.ranks[1], throughput=throughput([0.25]))))
    assert shorter.block_seconds[0] == 0.5
    assert math.isnan(shorter.block_seconds[1])


def test_drift_common_to_all_cancels() -> None:
    """A machine that halves its speed during a heat changes no ratio."""
    weather = [1 + number / 14 for number in range(14)]
    heat = {case.id: timed(case, [w * place for w in weather]) for place, case in enumerate(RACE, 1)}
    found = ratio([heat, heat], FSDP2.id, [DDP.id])
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))
    mean = ratio([heat, heat], DDP.id, [case.id for case in RACE[1:3]])
    assert mean.value == pytest.approx(1 / math.sqrt(6))


def test_a_race_that_is_not_whole_is_no_ratio() -> None:
    """A missing case, a case with fewer rounds, a NaN, a single heat."""
    heat = {case.id: timed(case, [0.1] * 14) for case in RACE}
    short, gone = {**heat, DDP.id: timed(DDP, [0.1] * 13)}, {FSDP2.id: heat[FSDP2.id]}
    lost = {**heat, DDP.id: timed(DDP, [0.1] * 13 + [math.nan])}
    for heats in ([heat], [heat, short], [heat, gone], [heat, lost]):
        with pytest.raises(ValueError, match=r"heats|rounds|side by side"):
            ratio(heats, FSDP2.id, [DDP.id])


@pytest.mark.parametrize(("value", "spread", "heats", "verdict"), [
    (3.0, 0.01, 2, "held"), (3.1, 0.01, 2, "held"), (2.0, 0.01, 2, "held"),
    (3.1, 0.05, 2, "open"), (3.3, 0.01, 2, "open"), (3.3, 0.01, 4, "slow"), (3.3, 0.06, 8, "open"),
    (3.18, 0.005, 2, "open"), (3.18, 0.005, 4, "slow"), (3.18, 0.01, 3, "held"), (3.2, 0.02, 12, "open"),
])
def test_the_verdict_is_the_intervals(value: float, spread: float, heats: int, verdict: str) -> None:
    """All of it beyond what fails and confirmed, else all of it below what holds, or open."""
    now = Ratio(value=value, low=value * math.exp(-spread), high=value * math.exp(spread), heats=heats)
    assert floor.decide(now, STORED, floor.HERE) == verdict


def test_another_machine_has_a_wide_floor_and_says_so() -> None:
    """Half as slow again passes against a foreign baseline, four times as slow does not; both name what differs."""
    foreign = replace(STORED, recorded={"machine": {**MACHINE, "cores": 64}})
    for factor, passed in ((1.5, True), (4.0, False)):
        found = judge(Noise(1, slow={FSDP2.id: factor}).race(), PACE, foreign, reference="it")
        assert found.passed is passed
        assert found.widened == "baseline of another machine (cores: 64 there, 2 here), so only 100% more fails"


def verdicts(repeats: int, **noise: object) -> Counter[str]:
    """How many races of FSDP2 against DDP end how."""
    found: Counter[str] = Counter()
    for seed in range(repeats):
        one = judge(Noise(seed, **noise).race(), PACE, STORED, reference="")  # type: ignore[arg-type]
        found["held" if one.passed else one.observed.partition(" ")[0]] += 1
    return found


@pytest.mark.parametrize("noise", [{}, {"block": 0.05, "process": 0.01}, {"block": 0.005, "process": 0.001}])
def test_unchanged_races_hold(noise: dict[str, float]) -> None:
    """Thirty races on machines of moderate and of little noise: none is slow, none unstable."""
    assert verdicts(30, **noise) == {"held": 30}


def test_a_machine_that_is_a_little_other_is_no_alarm() -> None:
    """Ratios of unchanged code were seen 3.5 % apart on two machines of one name: held, on a noisy one, too."""
    assert verdicts(30, block=0.06, process=0.02, slow={FSDP2.id: 1.035})["slower"] == 0
    assert verdicts(30, slow={FSDP2.id: 1.035}) == {"held": 30}


def test_a_tenth_is_seen() -> None:
    """On the same machine a slowdown of 10 % is named as slow in at least 28 of 30 races, and never holds."""
    found = verdicts(30, slow={FSDP2.id: 1.1})
    assert found["slower"] >= 28
    assert found["held"] == 0


def test_too_much_noise_is_unstable_never_a_pass_of_what_is_slow() -> None:
    """Where one block is off by 40 %, and one process by 10 %, a tenth more is held in at most a tenth of all races."""
    found = verdicts(30, block=0.4, process=0.1, slow={FSDP2.id: 1.1})
    assert found["unstable"] >= 10
    assert found["held"] <= 3


def test_the_smallest_slowdown_is_that_of_the_heats_own_noise() -> None:
    """Little noise: just beyond what fails. Much: more. And too few heats tell nothing."""
    def least(block: float, process: float) -> float | None:
        machine = Noise(1, block=block, process=process)
        pool = [{one.case.id: one for one in machine.heat(RACE, number)} for number in range(sensitivity.LEAST_HEATS)]
        return sensitivity.smallest(pool, RACE, {"": (PACE, STORED)}, 112)[""]

    assert least(block=0.005, process=0.001) == 0.06
    assert 0.07 <= (least(block=0.06, process=0.02) or 0) <= 0.1
    assert least(block=0.4, process=0.1) is None
    with pytest.raises(ValueError, match="0 heats, wanted at least 32"):
        sensitivity.caught([], RACE, PACE, STORED, 0.1)


def test_faster_is_offered_and_passes() -> None:
    """Ten per cent faster: the finding passes and holds the command."""
    found = judge(Noise(3, slow={FSDP2.id: 0.9}).race(), PACE, STORED, reference="", offer="take it: here")
    assert found.passed
    assert found.observed.endswith("; faster, take it: here")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_baseline_is_a_number(value: float) -> None:
    """A stored NaN would allow everything."""
    with pytest.raises(ValueError, match="not a ratio"):
        Stored(value=value, spread=0.01, recorded={})
