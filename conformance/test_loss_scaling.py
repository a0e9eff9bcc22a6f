"""fp16's loss scale: recorded in every step, moved by its formula, and overflows left out by all engines alike."""

import pytest

from conformance import claims, scaling
from conformance.catalogue import MATCHED, OVERFLOWING, SCALED, params, peer
from conformance.tolerances import reference_kind
from fixtures.judging import Judge, Trained
from fixtures.spec import Case

STEADY = [case for case in MATCHED if case.precision == "fp16-mixed"]


@pytest.mark.parametrize("case", params(STEADY))
def test_moderate_scale_leaves_nothing_out(case: Case, trained: Trained, judge: Judge) -> None:
    """On the ladder no update is left out: what is compared there is training alone."""
    judge(scaling.none_left_out(trained(case)))


@pytest.mark.parametrize("case", params(SCALED))
def test_scale_moves_by_its_formula(case: Case, trained: Trained, judge: Judge) -> None:
    """The scale of every step is the formula's, on every rank; it grows, and nothing is left out."""
    seen = trained(case)
    judge(scaling.way(seen), scaling.grows(seen), scaling.none_left_out(seen))


@pytest.mark.parametrize("case", params(SCALED))
def test_scale_does_not_show_in_training(case: Case, trained: Trained, judge: Judge) -> None:
    """A scale that moves is taken off again, whole: losses are the oracle's, step by step."""
    judge(claims.loss_curve(trained(case), trained(case.oracle), reference_kind(case)))


@pytest.mark.parametrize("case", params(OVERFLOWING))
def test_overflows_are_left_out(case: Case, trained: Trained, judge: Judge) -> None:
    """The first steps overflow: each halves the scale and changes no weight, and all engines leave out the same."""
    seen = trained(case)
    others = [trained(case.oracle)] + ([trained(peer(case))] if case.engine not in ("ddp", "zero3") else [])
    judge(scaling.way(seen), [scaling.left_out_alike(seen, other) for other in others])
