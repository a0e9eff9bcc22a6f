"""Compiled on equals off: capture and kernels are another order of the same arithmetic, if they are there at all."""

import pytest

from conformance import claims, promises
from conformance.catalogue import COMPILED, params
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(COMPILED))
def test_compiled_training_is_the_same(case: Case, trained: Trained, judge: Judge) -> None:
    """Graphs were captured; rows, loss, gradients, curve and weights are the oracle's, and the uncompiled engine's.

    Kernels of another make are what the tolerance was measured on: eager attention is one of its benign changes.
    """
    seen, oracle, off = trained(case), trained(case.oracle), trained(case.with_(compiled="none"))
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        claims.rows(seen),
        claims.training(seen, oracle, "oracle"),
        claims.training(seen, off, "oracle", scale=oracle),
    )
