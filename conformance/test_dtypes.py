"""Rung 3: every dtype is what the precision mode promises. A skipped upcast shows here first, in a loss much later."""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import promises
from conformance.catalogue import MATCHED, STOCK, params
from fixtures import verdict
from fixtures.baseline import unchanged
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(MATCHED))
def test_dtypes_are_as_promised(case: Case, trained: Trained, judge: Judge) -> None:
    """At rest, compute, gradient, reduction, master weights, optimizer state, outputs and buffers."""
    seen = promises.seen_dtypes(trained(case).agreed("dtypes"))
    judge(
        verdict.same(
            Claim(subject=case.id, rung="dtypes", metric=f"dtype, {name}", reference=f"{case.precision} promises"),
            seen.get(name), due,
        )
        for name, due in promises.dtypes(case).items()
    )


@pytest.mark.parametrize("case", params(STOCK))
def test_stock_dtypes_are_on_record(case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """What Accelerate's defaults make of the precision is a baseline: there the difference is the contract."""
    judge(unchanged(snapshot, trained(case).agreed("dtypes"), subject=case.id, rung="dtypes", what="dtypes"))
