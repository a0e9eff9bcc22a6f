"""Experts, parameters without a gradient, dropout: what a model may have that the curves of the others do not show."""

import pytest

from conformance import claims, promises
from conformance.catalogue import ARCHITECTURES, DROPOUT, params
from conformance.tolerances import reference_kind, tolerance
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(ARCHITECTURES))
def test_architecture_trains_as_the_oracle(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients where there are any, curve and weights are the oracle's; the engine is really there."""
    seen, due = trained(case), trained(case.oracle)
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        claims.rows(seen),
        claims.training(claims.with_zeros(seen), claims.with_zeros(due), reference_kind(case)),
    )


@pytest.mark.parametrize("case", params([case for case in ARCHITECTURES if case.architecture.unused]))
def test_parameters_without_a_gradient_stay(case: Case, trained: Trained, judge: Judge) -> None:
    """Not one element of a layer that no forward calls is another after the last step, and there is such a layer."""
    start, end = trained(case.oracle).group("initial"), trained(case).group("parameters")
    unused = [name for name in start if name.startswith("unused.")]
    moved = [name for name in unused if list(start[name]) != list(end.get(name, []))]
    claim = Claim(subject=case.id, rung="parameters", metric="unused parameters that moved", reference="the start")
    judge(verdict.holds(claim, bool(unused) and not moved, observed=f"{len(moved)} of {len(unused)}", allowed="0 of 2"))


@pytest.mark.parametrize("case", params([case for case in DROPOUT if case.engine != "ddp"]))
def test_dropout_draws_the_same_masks(case: Case, trained: Trained, judge: Judge) -> None:
    """With one seed, every engine trains as DDP does; and dropout is really on."""
    seen, ddp = trained(case), trained(case.with_(engine="ddp"))
    without = trained(case.oracle.with_(model="gpt2-tiny"))
    gap = abs(seen.losses[0] - without.losses[0]) / without.losses[0]
    least = 100 * tolerance(case, "loss", "oracle").relative
    claim = Claim(subject=case.id, rung="loss", metric="loss of step 1", reference="without dropout")
    judge(
        claims.rows(seen),
        claims.training(seen, ddp, "peer", scale=trained(case.oracle)),
        verdict.holds(claim, gap > least, observed=f"{gap:.3g} away", allowed=f"above {least:.3g}, 100 x tolerance"),
    )
