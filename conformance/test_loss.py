"""Rung 5: the loss of step 1, before anything was updated."""

import pytest

from conformance import claims
from conformance.catalogue import MATCHED, PAIRS, params, peer
from conformance.tolerances import reference_kind


@pytest.mark.parametrize("case", params(MATCHED))
def test_first_loss_is_the_oracles(case, trained, judge):
    """The global batch has the loss that one plain process finds for it; the model's own loss function agrees."""
    seen = trained(case)
    judge(claims.first_loss(seen, trained(case.oracle), reference_kind(case)), claims.own_loss(seen))


@pytest.mark.parametrize("case", params(PAIRS))
def test_first_loss_is_the_peers(case, trained, judge):
    """FSDP and DeepSpeed, compared directly."""
    judge(claims.first_loss(trained(case), trained(peer(case)), "peer"))
