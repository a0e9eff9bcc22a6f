"""Rung 8: the weights after the last step, gathered, parameter by parameter."""

import pytest

from conformance import claims
from conformance.catalogue import ADAPTED, FROZEN, MATCHED, params, references
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(MATCHED))
def test_parameters_agree(case: Case, trained: Trained, judge: Judge) -> None:
    """Each parameter has gone the way that it goes under the oracle and the peer."""
    seen, oracle = trained(case), trained(case.oracle)
    judge(
        claims.counted_steps(seen),
        [claims.last_parameters(seen, trained(due), oracle, kind) for due, kind in references(case)],
    )


@pytest.mark.parametrize("case", params([*FROZEN, *ADAPTED]))
def test_frozen_weights_stay(case: Case, trained: Trained, judge: Judge) -> None:
    """Not one bit of a frozen weight changes, and none has a gradient."""
    judge(claims.unmoved(trained(case), trained(case.oracle)))
