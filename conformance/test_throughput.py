"""Rung 10: how long a step takes, measured in steps of another engine of the same session, against its baseline.

The ratios are gated on every platform. Tokens per second as such depend on everything, and are gated on GPUs alone.
"""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import effort
from conformance.catalogue import EFFORTS, PACES, RACE, at_depths, on_gpus, params
from fixtures import verdict
from fixtures.baseline import no_more
from fixtures.judging import Judge, Raced, Trained
from fixtures.spec import Case
from fixtures.throughput.judged import Pace, kept
from fixtures.verdict import Claim


def claimed(test: str) -> pytest.MarkDecorator:
    """Parametrize ``test`` with its cases; each has one pace there."""
    paces = PACES[test]
    return pytest.mark.parametrize(("case", "pace"), [
        pytest.param(pace.case, pace, id=pace.case.id, marks=param.marks)
        for pace, param in zip(paces, params([pace.case for pace in paces]), strict=True)
    ])


@pytest.mark.parametrize("case", params(RACE))
def test_what_is_timed_is_training(case: Case, raced: Raced, judge: Judge) -> None:
    """Every step has a finite loss, and the loss falls: an engine that left work out would be fast, too."""
    seen = raced(RACE).first[case.id]
    claim = Claim(subject=case.id, rung="throughput", metric="loss of the timed steps", reference="its own first steps")
    judge(verdict.falls(claim, seen.losses, by=0.1))


@claimed("test_engine_keeps_its_pace")
def test_engine_keeps_its_pace(
    case: Case, pace: Pace, raced: Raced, judge: Judge, snapshot: SnapshotAssertion,
) -> None:
    """No sharding engine takes longer, in steps of DDP, than it did."""
    judge(kept(snapshot, raced(RACE), pace))


@claimed("test_ddp_keeps_its_pace")
def test_ddp_keeps_its_pace(
    case: Case, pace: Pace, raced: Raced, judge: Judge, snapshot: SnapshotAssertion,
) -> None:
    """DDP takes no longer, in steps of the others, than it did."""
    judge(kept(snapshot, raced(RACE), pace))


@claimed("test_fsdp_keeps_up_with_deepspeed")
def test_fsdp_keeps_up_with_deepspeed(
    case: Case, pace: Pace, raced: Raced, judge: Judge, snapshot: SnapshotAssertion,
) -> None:
    """FSDP2 takes no longer, in steps of ZeRO-3, than it did."""
    judge(kept(snapshot, raced(RACE), pace))


@claimed("test_feature_costs_no_more")
def test_feature_costs_no_more(
    case: Case, pace: Pace, raced: Raced, judge: Judge, snapshot: SnapshotAssertion,
) -> None:
    """A feature takes no more of the engine's own time without it than it did."""
    judge(kept(snapshot, raced(RACE), pace))


@pytest.mark.parametrize("case", on_gpus(RACE))
def test_step_takes_no_longer(case: Case, raced: Raced, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """On a GPU of one's own, seconds are gated as such, and with them tokens per second."""
    judge(kept(snapshot, raced(RACE), Pace(case=case)))


@pytest.mark.parametrize("case", params(EFFORTS))
def test_effort_grows_in_line_with_depth(case: Case, trained: Trained, judge: Judge) -> None:
    """What an engine does of its own in a step, in calls, grows with the number of layers, and no faster."""
    judge(effort.grows_in_line([trained(one) for one in at_depths(case)]))


@pytest.mark.parametrize("case", params(EFFORTS))
def test_effort_is_no_more(case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """A step runs through no more calls than it did, a quarter for other releases left out."""
    counted = effort.calls(trained(case))
    told = {} if counted is None else {"calls in a step": counted}
    judge(no_more(snapshot, told, subject=case.id, rung="throughput", margin=effort.RISE, unit="calls"))
