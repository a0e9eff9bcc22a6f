"""Buffers: counted on each rank, never cast, handed out where the engine says so, saved and given back."""

import pytest

from conformance import buffers, claims, promises
from conformance.catalogue import BUFFERS, params
from conformance.tolerances import reference_kind
from fixtures.judging import Judge, Trained
from fixtures.spec import Case

RESUMED = [case.with_(resumed=True) for case in BUFFERS]


@pytest.mark.parametrize("case", params(BUFFERS))
def test_a_model_with_buffers_trains_as_the_oracle(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients, curve and weights; a buffer that is not saved is part of its forward."""
    seen, due = trained(case), trained(case.oracle)
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        claims.rows(seen),
        claims.training(seen, due, reference_kind(case)),
    )


@pytest.mark.parametrize("case", params(BUFFERS))
def test_buffers_hold_what_the_ranks_saw(case: Case, trained: Trained, judge: Judge) -> None:
    """Running means, a counter and a constant have their values and dtypes on each rank."""
    seen = trained(case)
    judge(buffers.dtypes(seen), buffers.values(seen, None))


@pytest.mark.parametrize("case", params(RESUMED))
def test_buffers_are_restored(case: Case, trained: Trained, judge: Judge) -> None:
    """A resumed run counts on where the one that saved had stopped."""
    assert case.source is not None
    seen = trained(case)
    judge(buffers.dtypes(seen), buffers.values(seen, trained(case.source)))
