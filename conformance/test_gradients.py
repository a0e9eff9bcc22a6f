"""Rung 6: the gradients of step 1, parameter by parameter, and their norms. Most silent bugs show here, in no loss."""

import pytest

from conformance import claims
from conformance.catalogue import MATCHED, params, references
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(MATCHED))
def test_gradients_agree(case: Case, trained: Trained, judge: Judge) -> None:
    """What is about to be applied in step 1 is the gradient of the whole batch, as the oracle and the peer find it."""
    seen = trained(case)
    judge(claims.first_gradients(seen, trained(due), kind) for due, kind in references(case))


@pytest.mark.parametrize("case", params(MATCHED))
def test_norms_agree(case: Case, trained: Trained, judge: Judge) -> None:
    """The norms of later gradients agree, and the norm that the user is told before clipping is the true one."""
    seen = trained(case)
    judge(
        [claims.later_norms(seen, trained(due), kind) for due, kind in references(case)],
        claims.reported_norms(seen, trained(case.oracle)),
    )
