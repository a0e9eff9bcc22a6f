"""From DeepSpeed to FSDP and back: a run in three legs goes on as if nothing had happened.

Weights go over by way of a folder that ``from_pretrained`` reads, Adam's state by parameter name. With both, the oracle
is the uninterrupted run; with the weights alone, it starts a new optimizer where they do.
"""

import pytest

from conformance import claims, promises
from conformance.catalogue import MIGRATION, params
from conformance.tolerances import reference_kind
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(MIGRATION))
def test_every_leg_has_its_engine(case: Case, trained: Trained, judge: Judge) -> None:
    """The first, the second and the first again are really there, with their sharding."""
    engaged = trained(case).in_force()["engaged"]
    moves = engaged.get("moves", [])
    legs = [engaged, *(move.get("engaged", {}) for move in moves)]
    engines = (case.engine, case.moves_to, case.engine)
    judge(
        verdict.same(Claim(subject=case.id, rung="engaged", metric="legs", reference="three"), len(legs), len(engines)),
        [
            promises.engagement(case.with_(engine=engine, moves_to=None), found, leg=f", leg {number} of {case.id}")
            for number, (engine, found) in enumerate(zip(engines, legs, strict=False), 1)
        ],
    )


@pytest.mark.parametrize("case", params(MIGRATION))
def test_weights_arrive_exactly(case: Case, trained: Trained, judge: Judge) -> None:
    """After each move, not one element of the weights that the optimizer steps on is another."""
    moves = trained(case).in_force()["engaged"].get("moves", [])
    claim = Claim(subject=case.id, rung="parameters", metric="elements that differ after a move", reference="before it")
    judge(verdict.same(claim, [move.get("differing_elements") for move in moves], [0, 0]))


@pytest.mark.parametrize("case", params(MIGRATION))
def test_training_goes_on(case: Case, trained: Trained, judge: Judge) -> None:
    """Rows, losses and last weights are the oracle's; Adam has counted the steps that its state has seen."""
    seen, due, kind = trained(case), trained(case.oracle), reference_kind(case)
    steps = case.steps if case.carries == "state" else case.steps // 3
    counted = [rank.engaged["local"]["optimizer_steps"] for rank in seen.ranks]
    judge(
        claims.rows(seen),
        claims.loss_curve(seen, due, kind),
        claims.falling(seen),
        claims.last_parameters(seen, due, due, kind),
        verdict.same(
            Claim(subject=case.id, rung="parameters", metric="steps the optimizer counted", reference=case.carries),
            counted, [[steps]] * case.world_size,
        ),
    )
