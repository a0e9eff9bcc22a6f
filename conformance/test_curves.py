"""Rung 7: the loss of every step. Twenty steps under AdamW, six under SGD with accumulation or with clipping."""

import pytest

from conformance import claims
from conformance.catalogue import CURVE, MATCHED, params, references
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim, Tolerance


@pytest.mark.parametrize("case", params(MATCHED))
def test_curve_agrees(case: Case, trained: Trained, judge: Judge) -> None:
    """Every step's loss is the oracle's and the peer's, and the loss falls."""
    seen = trained(case)
    judge(
        [claims.loss_curve(seen, trained(due), kind) for due, kind in references(case)],
        claims.falling(seen),
    )


SPREAD_FP32 = 1e-6
"""The project's headline: in fp32 all engines lie within one part in a million of each other, over 20 steps."""


@pytest.mark.parametrize("case", params([c for c in CURVE if c.engine == "zero3" and c.precision == "fp32"]))
def test_all_engines_lie_within_a_millionth(case: Case, trained: Trained, judge: Judge) -> None:
    """The largest distance of any two engines, on any of 20 steps, relative to the loss."""
    curves = {other.engine: trained(other).losses for other in CURVE if other.precision == case.precision}
    steps = list(zip(*curves.values(), strict=True))
    low, high = [min(losses) for losses in steps], [max(losses) for losses in steps]
    claim = Claim(
        subject=case.id, rung="curve", metric=f"spread of {len(curves)} engines", reference="each other, every step"
    )
    judge(verdict.curve(claim, high, low, Tolerance(relative=SPREAD_FP32, reason="the headline")))
