"""The rungs from loss to parameters, for training through ``transformers.Trainer``."""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import claims, continuity
from conformance.catalogue import LAST_WINDOW, TRAINER, TRAINER_RESUMED, TRAINER_SAVED, params, references
from fixtures.baseline import unchanged
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(TRAINER))
def test_trainer_trains_as_the_oracle(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients of step 1, norms as the Trainer logs them, the curve and the last weights are the oracle's."""
    seen = trained(case)
    for due, kind in references(case):
        judge(
            claims.first_loss(seen, trained(due), kind),
            claims.first_gradients(seen, trained(due), kind),
            claims.later_norms(seen, trained(due), kind),
            claims.reported_norms(seen, trained(due)),
            claims.loss_curve(seen, trained(due), kind),
            claims.last_parameters(seen, trained(due), trained(case.oracle), kind),
        )


@pytest.mark.parametrize("case", params(TRAINER))
def test_trainer_tells_the_loss(case: Case, trained: Trained, judge: Judge) -> None:
    """What the Trainer logs as loss is the loss, in every step and in an incomplete window."""
    judge(continuity.logged_loss(trained(case), trained(case.oracle)))


@pytest.mark.parametrize("case", params([case for case in TRAINER if case.outputs != "mean"]))
def test_trainer_averages_over_all_tokens(case: Case, trained: Trained, judge: Judge) -> None:
    """In every step, and in an incomplete window, the model is told how many labelled tokens all ranks have."""
    judge(continuity.averaged_over(trained(case)))


@pytest.mark.parametrize("case", params([case for case in TRAINER if case.outputs == "logits"]))
def test_trainer_settings_are_on_record(
    case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion
) -> None:
    """What the Trainer makes of its configs, and the defaults of its arguments, are a baseline."""
    judge(unchanged(snapshot, trained(case).in_force(), subject=case.id))


@pytest.mark.parametrize("case", params(TRAINER_RESUMED))
def test_resumed_trainer_continues(case: Case, trained: Trained, judge: Judge) -> None:
    """A fresh process with ``resume_from_checkpoint`` makes the steps after as if nothing had happened, to the bit."""
    seen, due = trained(case), trained(case.with_(resumed=False))
    judge(continuity.continued(seen, due), continuity.same_end(seen, due))


@pytest.mark.parametrize("case", params(TRAINER_SAVED))
def test_trainer_saves_the_live_model(case: Case, trained: Trained, judge: Judge) -> None:
    """``Trainer.save_model`` writes the model that it has, in the promised dtype, tied as it was."""
    judge(continuity.exported(trained(case)))


@pytest.mark.parametrize("case", params(LAST_WINDOW))
def test_incomplete_window_trains_as_the_oracle(case: Case, trained: Trained, judge: Judge) -> None:
    """In Accelerate's own loop, too, the last window is a step of the rows that it has."""
    seen = trained(case)
    for due, kind in references(case):
        judge(
            claims.loss_curve(seen, trained(due), kind),
            claims.reported_norms(seen, trained(due)),
            claims.last_parameters(seen, trained(due), trained(case.oracle), kind),
        )
