"""Full size, without its hardware: what each case will need of a card. Only with ``--rehearse``; nothing is run."""

import pytest

from conformance import rehearsal
from conformance.full_size import params
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize(("case", "platform", "fits"), params())
def test_full_size_fits_where_it_should(case: Case, platform: str, fits: bool, trained: Trained, judge: Judge) -> None:
    """The rehearsed peak fits on the platform's card, or does not, as the case says; and its line is straight."""
    rehearsed = trained(case)
    judge(rehearsal.verdict_of(rehearsed, platform, fits=fits), rehearsal.straight(rehearsed))
