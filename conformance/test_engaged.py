"""Rung 1: the asked engine is really there. Without this, parity proves nothing."""

import pytest

from conformance import promises
from conformance.catalogue import (
    CONTINUED,
    LAST_WINDOW,
    MATCHED,
    SCHEDULED,
    STOCK,
    TRAINER,
    TRAINER_RESUMED,
    TRAINER_SCHEDULED,
    params,
)
from fixtures import verdict
from fixtures.freezing import partial, trains
from fixtures.judging import Judge, Trained
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.verdict import Claim, Finding

EVERY_ENGAGED = [
    *MATCHED, *STOCK, *SCHEDULED, *CONTINUED, *LAST_WINDOW, *TRAINER, *TRAINER_SCHEDULED, *TRAINER_RESUMED,
]


@pytest.mark.parametrize("case", params(EVERY_ENGAGED))
def test_engine_is_engaged(case: Case, trained: Trained, judge: Judge) -> None:
    """The live model is wrapped by the asked engine, at the asked stage and sharding, and each rank holds its share."""
    seen = trained(case)
    found = seen.in_force()["engaged"]
    sizes = {name: len(values) for name, values in seen.group("parameters").items()}
    whole, trained_whole = sum(sizes.values()), sum(size for name, size in sizes.items() if trains(case, name))
    judge(
        [
            verdict.same(
                Claim(subject=case.id, rung="engaged", metric=name, reference="what the case asks for"),
                promises.look(found, name), due,
            )
            for name, due in promises.engaged(case).items()
        ],
        _shares(case, seen, whole, "parameter_elements", promises.shards_parameters(case)),
        _shares(case, seen, trained_whole, "stepped_elements", promises.shards_optimizer(case)),
    )


def _shares(case: Case, seen: Observation, whole: int, name: str, sharded: bool) -> Finding:
    """Padding makes the parts a little larger than the whole: at most one row of the widest matrix per parameter."""
    held = [rank.engaged["local"][name] for rank in seen.ranks]
    due = whole if sharded else whole * case.world_size
    largest = max(held) / whole
    claim = Claim(subject=case.id, rung="engaged", metric=f"{name} by rank", reference=f"{whole} parameters")
    # FSDP1 cuts a unit in equal parts, wherever those of its weights that train may lie.
    most = 1.0 if partial(case) and "fsdp1" in case.engine else 1.2 / case.world_size
    allowed = f"{due} to {1.05 * due:.0f} in all" + (f", none above {most:.0%}" if sharded else "")
    fits = due <= sum(held) <= 1.05 * due and (not sharded or largest <= most)
    return verdict.holds(claim, whole > 0 and fits, observed=", ".join(map(str, held)), allowed=allowed)
