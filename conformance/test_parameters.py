"""Rung 8: the weights after the last step, gathered, parameter by parameter."""

import pytest

from conformance import claims
from conformance.catalogue import MATCHED, PAIRS, params, peer
from conformance.tolerances import reference_kind


@pytest.mark.parametrize("case", params(MATCHED))
def test_parameters_are_the_oracles(case, trained, judge):
    """Each parameter has gone the way that it goes under the oracle."""
    oracle = trained(case.oracle)
    judge(claims.last_parameters(trained(case), oracle, oracle, reference_kind(case)))


@pytest.mark.parametrize("case", params(PAIRS))
def test_parameters_are_the_peers(case, trained, judge):
    """FSDP and DeepSpeed, compared directly."""
    judge(claims.last_parameters(trained(case), trained(peer(case)), trained(case.oracle), "peer"))
