"""Rung 7: the loss of every step. Twenty steps under AdamW, six under SGD with accumulation or with clipping."""

import pytest

from conformance import claims
from conformance.catalogue import CURVE, MATCHED, params, references
from fixtures import verdict
from fixtures.verdict import Claim, Tolerance


@pytest.mark.parametrize("case", params(MATCHED))
def test_curve_agrees(case, trained, judge):
    """Every step's loss is the oracle's and the peer's, and the loss falls."""
    seen = trained(case)
    judge(
        [claims.loss_curve(seen, trained(due), kind) for due, kind in references(case)],
        claims.falling(seen),
    )


SPREAD_FP32 = 1e-6
"""The project's headline: in fp32 all engines lie within one part in a million of each other, over 20 steps."""


@pytest.mark.parametrize("case", params([case for case in CURVE if case.engine == "zero3" and case.precision == "fp32"]))
def test_all_engines_lie_within_a_millionth(case, trained, judge):
    """The largest distance of any two engines, on any of 20 steps, relative to the loss."""
    curves = {other.engine: trained(other).losses for other in CURVE if other.precision == case.precision}
    low, high = map(list, zip(*((min(losses), max(losses)) for losses in zip(*curves.values(), strict=True)), strict=True))
    claim = Claim(
        subject=case.id, rung="curve", metric=f"spread of {len(curves)} engines", reference="each other, every step"
    )
    judge(verdict.curve(claim, high, low, Tolerance(relative=SPREAD_FP32, reason="the headline")))
