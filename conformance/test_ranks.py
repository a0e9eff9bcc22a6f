"""Invariance: the same global batch on 1, 2 and 4 ranks, and however many of them share one copy."""

import pytest

from conformance import claims, promises
from conformance.catalogue import RANKS, params
from conformance.tolerances import reference_kind
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.verdict import Claim, Finding


@pytest.mark.parametrize("case", params(RANKS))
def test_ranks_do_not_change_training(case: Case, trained: Trained, judge: Judge) -> None:
    """The engine is there at the asked degree; rows, loss, gradients, curve and weights are the oracle's."""
    seen, due, kind = trained(case), trained(case.oracle), reference_kind(case)
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        _share(seen),
        claims.rows(seen),
        claims.training(seen, due, kind),
    )


def _share(seen: Observation) -> Finding:
    """Each rank holds a part of the degree's size; padding adds up to a row per matrix."""
    case = seen.case
    degree = case.sharding_degree or case.world_size
    parts = degree if promises.shards_parameters(case) else 1
    whole = sum(len(values) for values in seen.group("parameters").values())
    held = [rank.engaged["local"]["parameter_elements"] for rank in seen.ranks]
    claim = Claim(subject=case.id, rung="engaged", metric="elements held by rank", reference=f"{whole} / {parts}")
    fits = whole > 0 and all(0.8 * whole / parts <= part <= 1.2 * whole / parts for part in held)
    return verdict.holds(
        claim, fits, observed=", ".join(map(str, held)), allowed=f"{whole // parts} each, a fifth more or less"
    )
