"""A GPU night is within its budget, loses no case, and every case of it can be rehearsed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import nightly, published
from conformance.catalogue import DROPOUT, EXPERIMENT
from conformance.full_size import FULL_SIZE, TRIALS, need
from conformance.nightly import Booking, bookings, device_hours
from fixtures.pretrained import FULL_SIZE as FULL_SIZE_MODELS
from fixtures.rehearsal.cards import CARD_GIB
from fixtures.tables import PLATFORMS

ROOT = Path(__file__).resolve().parent.parent
GPUS = [platform for platform in PLATFORMS if platform != "cpu"]


@pytest.mark.parametrize("platform", GPUS)
def test_the_night_is_within_its_budget(platform: str) -> None:
    """Devices times minutes of all cases together: no more than is stated, and no less, or it has lost cases."""
    least, most = nightly.hours(platform)
    assert least <= device_hours(bookings(platform)) <= most


@pytest.mark.parametrize("platform", GPUS)
def test_a_night_that_lost_its_large_cases_is_noticed(platform: str) -> None:
    """Without the full-size runs, or with one that takes hours more, the budget does not hold."""
    booked = bookings(platform)
    small = [one for one in booked if not one.case.architecture.full_size]
    longer = [*booked, dataclasses.replace(booked[0], minutes=nightly.hours(platform)[1] * 60)]
    assert not nightly.hours(platform)[0] <= device_hours(longer) <= nightly.hours(platform)[1]
    if platform in CARD_GIB:
        assert device_hours(small) < nightly.hours(platform)[0]


@pytest.mark.parametrize("platform", GPUS)
def test_every_booking_is_whole(platform: str) -> None:
    """Devices, memory and minutes of each case, once; none needs more than its card has, nor more than eight cards."""
    booked = bookings(platform)
    assert len({one.case.id for one in booked}) == len(booked)
    for one in booked:
        assert 1 <= one.devices <= 8
        assert 0 < one.gib < CARD_GIB.get(platform, 24.0)
        assert 0 < one.minutes <= 30
    assert [one.devices for one in booked] == sorted((one.devices for one in booked), reverse=True)


def collected(platform: str, *words: str) -> set[str]:
    """The parameter ids of the tests that pytest collects there."""
    command = [sys.executable, "-m", "pytest", "-m", platform, "--full", "--collect-only", "-q",
               "-p", "no:cacheprovider", *words]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    return {line.rpartition("[")[2].rstrip("]") for line in told.splitlines() if "::" in line}


@pytest.fixture(scope="module")
def on_a100() -> set[str]:
    """The ids of what ``pytest -m a100 --full`` would run."""
    return collected("a100")


def test_every_gpu_case_is_booked(on_a100: set[str]) -> None:
    """What pytest would run and what the night books are the same cases."""
    booked = {one.case.id for one in bookings("a100")}
    assert on_a100 - booked == set()
    # Runs that tests of other cases are compared with.
    beside = {case.id for trial in TRIALS for case in trial.runs.values()}
    beside |= {case.id for case in (*EXPERIMENT.values(), *DROPOUT)}
    assert booked - on_a100 - beside == set()


def test_every_gpu_case_is_rehearsed(on_a100: set[str]) -> None:
    """With ``--rehearse`` each of them has its stand-in, and each of full size its forecast."""
    rehearsed = collected("a100", "--rehearse")
    assert on_a100 - rehearsed == set()
    foretold = {one.case for one in FULL_SIZE}
    assert all(case.rehearsal in foretold for trial in TRIALS for case in trial.runs.values())
    assert all(need(case) > 0 for trial in TRIALS for case in trial.runs.values())


def test_a_booking_counts_all_its_devices() -> None:
    """Four devices for a quarter of an hour are one hour."""
    case = TRIALS[0].case
    assert Booking(case=case, gib=1.0, minutes=15).device_hours == 1.0
    assert device_hours([]) == 0.0


def test_every_target_batch_has_a_partner() -> None:
    """On two small cards, each sharded row names who must not fit at its batch: more memory, the same rows."""
    for row in (*published.LARGE, *published.XL):
        sharded = row.published > 11 or (row.published and "2 GPUs" in row.label)
        other = published.partner(row)
        assert (other is not None) is bool(sharded)
        if other is not None:
            assert other.rows_per_step == row.case.rows_per_step
            assert (other.engine, other.offload) != (row.case.engine, row.case.offload)
            assert other.budget_mib == row.case.budget_mib


def test_weights_are_for_full_size_models() -> None:
    """What ``--weights`` can name are models that a trial runs or a table publishes."""
    assert {trial.case.model for trial in TRIALS} <= set(FULL_SIZE_MODELS)
