"""Rung 1: the asked engine is really there. Without this, parity proves nothing."""

import pytest

from conformance import promises
from conformance.catalogue import MATCHED, STOCK, params
from fixtures import verdict
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params([*MATCHED, *STOCK]))
def test_engine_is_engaged(case, trained, judge):
    """The live model is wrapped by the asked engine, at the asked stage and sharding, over all ranks."""
    found = trained(case).in_force()["engaged"]
    judge(
        verdict.same(
            Claim(subject=case.id, rung="engaged", metric=name, reference="what the case asks for"),
            promises.look(found, name), due,
        )
        for name, due in promises.engaged(case).items()
    )


@pytest.mark.parametrize("case", params(MATCHED))
def test_each_rank_holds_its_share(case, trained, judge):
    """Where an engine shards, no rank holds or steps much more than its share, and together they have everything."""
    seen = trained(case)
    whole = sum(len(values) for values in seen.group("parameters").values())
    judge(
        _shares(case, seen, whole, "parameter_elements", promises.shards_parameters(case)),
        _shares(case, seen, whole, "stepped_elements", promises.shards_optimizer(case)),
    )


def _shares(case, seen, whole, name, sharded):
    """Padding makes the parts a little larger than the whole: at most one row of the widest matrix per parameter."""
    held = [rank.engaged["local"][name] for rank in seen.ranks]
    due = whole if sharded else whole * case.world_size
    largest = max(held) / whole
    claim = Claim(subject=case.id, rung="engaged", metric=f"{name} by rank", reference=f"{whole} parameters")
    allowed = f"{due} to {1.05 * due:.0f} in all" + (f", none above {1.2 / case.world_size:.0%}" if sharded else "")
    fits = due <= sum(held) <= 1.05 * due and (not sharded or largest <= 1.2 / case.world_size)
    return verdict.holds(claim, whole > 0 and fits, observed=", ".join(map(str, held)), allowed=allowed)
