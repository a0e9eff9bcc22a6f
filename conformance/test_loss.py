"""Rung 5: the loss of step 1, before anything was updated."""

import pytest

from conformance import claims
from conformance.catalogue import MATCHED, params, references
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(MATCHED))
def test_first_loss_agrees(case: Case, trained: Trained, judge: Judge) -> None:
    """The global batch has the loss that the oracle and the peer find for it; the model's own loss function agrees."""
    seen = trained(case)
    judge(
        claims.own_loss(seen),
        [claims.first_loss(seen, trained(due), kind) for due, kind in references(case)],
    )
