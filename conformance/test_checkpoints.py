"""Rung 10: a fresh process that loads a checkpoint goes on as if nothing had happened; an export is the live model."""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import claims, continuity, promises
from conformance.catalogue import BUFFERS, CHECKPOINTS, CONTINUED, ELSEWHERE, params, references
from conformance.tolerances import reference_kind
from fixtures.baseline import unchanged
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(CHECKPOINTS))
def test_saving_changes_nothing(case: Case, trained: Trained, judge: Judge) -> None:
    """A run that saves in its middle trains as the oracle, which saves nothing."""
    judge(claims.loss_curve(trained(case), trained(due), kind) for due, kind in references(case))


@pytest.mark.parametrize("case", params(CONTINUED))
def test_state_is_restored(case: Case, trained: Trained, judge: Judge) -> None:
    """Weights, masters, optimizer state, step counters, scheduler and random generators are as saved, on each rank."""
    judge(continuity.restored(trained(case), trained(case.with_(resumed=False))))


@pytest.mark.parametrize("case", params(CONTINUED))
def test_resumed_run_continues(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradient norm, rates, rows and random numbers of every step after, and the last weights, are the same."""
    seen, due = trained(case), trained(case.with_(resumed=False))
    judge(continuity.continued(seen, due), continuity.same_end(seen, due))


@pytest.mark.parametrize("case", params([*CHECKPOINTS, *BUFFERS]))
def test_loading_back_repeats(case: Case, trained: Trained, judge: Judge) -> None:
    """In the process that saved it: whoever takes a step back makes the same steps again."""
    judge(continuity.rewound(trained(case)))


@pytest.mark.parametrize("case", params(ELSEWHERE))
def test_other_ranks_continue(case: Case, trained: Trained, judge: Judge) -> None:
    """From DeepSpeed's universal checkpoint, four ranks or one go on where two have stopped, as the oracle does."""
    seen, oracle, kind = trained(case), trained(case.oracle), reference_kind(case)
    assert case.source is not None
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        continuity.restored_whole(seen, trained(case.source)),
        continuity.goes_on(seen, oracle, kind),
        claims.counted_steps(seen),
    )


@pytest.mark.parametrize("case", params([case for case in ELSEWHERE if case.model == "llama-tiny"]))
def test_other_ranks_come_to_the_same_end(case: Case, trained: Trained, judge: Judge) -> None:
    """The weights after the last step are the oracle's. (Adam makes noise of GPT-2's key biases, which do nothing.)"""
    oracle = trained(case.oracle)
    judge(claims.last_parameters(trained(case), oracle, oracle, reference_kind(case)))


@pytest.mark.parametrize("case", params(CHECKPOINTS))
def test_export_is_the_live_model(case: Case, trained: Trained, judge: Judge) -> None:
    """``save_pretrained`` and ``save_model`` write one model, in the promised dtype, tied as it was."""
    judge(continuity.exported(trained(case)))


@pytest.mark.parametrize("case", params(CHECKPOINTS))
def test_merged_checkpoint_holds_the_masters(case: Case, trained: Trained, judge: Judge) -> None:
    """``merge_fsdp_weights`` and ``zero_to_fp32`` give the weights that the optimizer held, none missing."""
    judge(continuity.merged(trained(case)))


@pytest.mark.parametrize("case", params(CHECKPOINTS))
def test_export_is_on_record(case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """Which dtype is written, and which one is loaded where none is asked for, is a baseline."""
    judge(unchanged(snapshot, continuity.on_record(trained(case)), subject=case.id, what="export"))


@pytest.mark.parametrize("case", params(CHECKPOINTS))
def test_closed_engines_are_collected(case: Case, trained: Trained, judge: Judge) -> None:
    """Model, optimizer, scheduler and loader are gone once the engine is closed."""
    judge(continuity.let_go(trained(case)))
