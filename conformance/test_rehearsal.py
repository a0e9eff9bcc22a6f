"""Rehearsals are judged themselves: what they foretell is what the allocator then measures, on the CPU."""

import pytest

from conformance import rehearsal
from conformance.catalogue import REHEARSED, REHEARSED_WIDELY, TOLD_APART, rehearsed_at
from fixtures.judging import Judge, Trained
from fixtures.spec import Case

CASES = [
    *(pytest.param(case, id=case.id, marks=pytest.mark.cpu) for case in REHEARSED),
    *(pytest.param(case, id=case.id, marks=[pytest.mark.cpu, pytest.mark.rehearsed]) for case in REHEARSED_WIDELY),
]


@pytest.mark.parametrize("case", CASES)
def test_rehearsals_foretell_the_peak(case: Case, trained: Trained, judge: Judge) -> None:
    """The peak of each phase, foretold from small depths under fake tensors, is within 5 % of the measured one."""
    judge(rehearsal.agrees(trained(rehearsed_at(case)), trained(case)))


@pytest.mark.parametrize(("case", "other"), TOLD_APART)
def test_rehearsals_tell_cases_apart(case: Case, other: Case, trained: Trained, judge: Judge) -> None:
    """The rehearsal of another engine, precision or activation setting does not foretell this case."""
    judge(rehearsal.tells_apart(trained(rehearsed_at(other)), trained(case)))
