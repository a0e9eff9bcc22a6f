"""Rung 6: the gradients of step 1, parameter by parameter, and their norms. Most silent bugs show here and in no loss."""

import pytest

from conformance import claims
from conformance.catalogue import MATCHED, PAIRS, params, peer
from conformance.tolerances import reference_kind


@pytest.mark.parametrize("case", params(MATCHED))
def test_gradients_are_the_oracles(case, trained, judge):
    """What is about to be applied is the gradient of the whole batch; the norms of steps 1 and 2 are its norms."""
    judge(claims.first_gradients(trained(case), trained(case.oracle), reference_kind(case)))


@pytest.mark.parametrize("case", params(PAIRS))
def test_gradients_are_the_peers(case, trained, judge):
    """FSDP and DeepSpeed, compared directly."""
    judge(claims.first_gradients(trained(case), trained(peer(case)), "peer"))


@pytest.mark.parametrize("case", params([case for case in MATCHED if claims.reports_norm(case)]))
def test_reported_norms_are_the_oracles(case, trained, judge):
    """The norm that the engine tells its user is the true global norm before clipping, in every step."""
    judge(claims.reported_norms(trained(case), trained(case.oracle)))
