"""Rung 5: the learning rate of every step, of every parameter group. Cheaper than a loss, and sharper."""

import pytest

from conformance import continuity
from conformance.catalogue import CONTINUED, SCHEDULED, TRAINER_RESUMED, TRAINER_SCHEDULED, params, references
from conformance.claims import loss_curve
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params([*SCHEDULED, *CONTINUED, *TRAINER_SCHEDULED, *TRAINER_RESUMED]))
def test_rates_follow_the_formula(case: Case, trained: Trained, judge: Judge) -> None:
    """Each optimizer step uses the rates that the schedule's formula gives for it, on any number of ranks."""
    judge(continuity.rates(trained(case)))


@pytest.mark.parametrize("case", params([case for case in SCHEDULED if case.checkpoint == "none"]))
def test_scheduled_curve_agrees(case: Case, trained: Trained, judge: Judge) -> None:
    """Under a schedule, too, every step's loss is the oracle's, which sets its rates by formula."""
    judge(loss_curve(trained(case), trained(due), kind) for due, kind in references(case))
