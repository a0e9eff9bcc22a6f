"""What a program does with a model must not change its training: other graphs, evaluations, loading once for all."""

import pytest

from conformance import claims, continuity, programs, promises
from conformance.catalogue import EVALUATED, FRUGAL, LATE, PROGRAMS, params
from conformance.tolerances import reference_kind
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(PROGRAMS))
def test_program_trains_as_the_oracle(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients, curve and weights are those of one process that does nothing of the kind."""
    seen, due = trained(case), trained(case.oracle)
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        claims.rows(seen),
        claims.training(seen, due, reference_kind(case)),
    )


@pytest.mark.parametrize("case", params([case for case in LATE if case.checkpoint != "none"]))
def test_late_collectives_do_not_show_in_what_is_saved(case: Case, trained: Trained, judge: Judge) -> None:
    """Exports and merged checkpoints are the live model, and loading back repeats."""
    judge(continuity.exported(trained(case)), continuity.merged(trained(case)), continuity.rewound(trained(case)))


@pytest.mark.parametrize("case", params(EVALUATED))
def test_evaluation_agrees(case: Case, trained: Trained, judge: Judge) -> None:
    """After each step every rank knows the loss of each row that was held out, once, and it is the oracle's."""
    judge(programs.evaluations(trained(case), trained(case.oracle)))


@pytest.mark.parametrize("case", params(FRUGAL))
def test_weights_are_loaded_once_for_all(case: Case, trained: Trained, judge: Judge) -> None:
    """All ranks together hold the weights once, before the engine gets them."""
    judge(programs.loaded_once(trained(case)))
