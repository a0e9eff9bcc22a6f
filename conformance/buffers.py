"""What is claimed of a model's buffers: dtype and values on each rank, by formula; after a checkpoint, too. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fixtures import buffers, verdict
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.tables import ENGINES
from fixtures.verdict import EPSILON, Claim, Finding, Tolerance

EXACT = Tolerance(relative=0.0, reason="sums of few powers of two: exact in fp32")

OWN = "each rank its own"
FIRST = "rank 0's on all"
ONE = "one rank's on all"


def restored(case: Case) -> str:
    """Whose buffers a checkpoint gives back.

    FSDP's sharded form writes what is not sharded once, by whichever rank has least to write; a full state dict is rank
    0's, as are ZeRO-1's and ZeRO-2's weights. ZeRO-3 keeps a file of each rank.
    """
    if ENGINES[case.engine].zero_stage == 3:
        return OWN
    return ONE if case.checkpoint == "sharded" and ENGINES[case.engine].family == "fsdp" else FIRST


def dtypes(seen: Observation) -> Iterator[Finding]:
    """Rung ``dtypes``: no buffer is cast, whatever the precision of the weights."""
    for name, due in buffers.DTYPES.items():
        found = [_told(rank.engaged, name).get("dtype") for rank in seen.ranks]
        claim = Claim(
            subject=seen.case.id, rung="dtypes", metric=f"dtype of buffer {name}", reference="the model's own"
        )
        yield verdict.same(claim, found, [due] * len(found))


def values(seen: Observation, source: Observation | None) -> Iterator[Finding]:
    """Rung ``parameters``: each rank's running means, counters and constants are what its rows make of them.

    :param source: for a resumed case, the run that saved.
    """
    case, ranks = seen.case, range(seen.case.world_size)
    options = [_starts(source, whose) for whose in _whose(case)] if source is not None else [_nothing(case)]
    due = [_end(seen, start) for start in options]
    for rank in ranks:
        held = _told(seen.ranks[rank].engaged, "frequencies").get("values", [])
        fits = [option for option in due if held == option[rank]]
        due = fits or due
        yield verdict.curve(_claim(case, f"frequencies, rank {rank}"), held, due[0][rank], EXACT)
        counted = _told(seen.ranks[rank].engaged, "batches").get("values")
        yield verdict.same(_claim(case, f"batches, rank {rank}"), counted, [case.steps * case.accumulation_steps])
        yield verdict.curve(
            _claim(case, f"scale, rank {rank}"), _told(seen.ranks[rank].engaged, "scale").get("values", []),
            buffers.scales(case.architecture.hidden_size),
            Tolerance(relative=EPSILON["float32"], reason="rounded to fp32 once"),
        )


def _claim(case: Case, metric: str) -> Claim:
    reference = "the rows that it saw" if not case.resumed else f"the rows that it saw, {restored(case)}"
    return Claim(subject=case.id, rung="parameters", metric=f"buffer {metric}", reference=reference)


def _told(engaged: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = engaged.get("local", {}).get("buffers", {}).get(name, {})
    return found


def _whose(case: Case) -> list[list[int]]:
    """By way to restore, whose buffers each rank begins with."""
    ranks = range(case.world_size)
    ways = {OWN: [list(ranks)], FIRST: [[0] * case.world_size], ONE: [[one] * case.world_size for one in ranks]}
    return ways[restored(case)]


def _nothing(case: Case) -> list[list[float]]:
    return [[0.0] * buffers.VOCABULARY for _ in range(case.world_size)]


def _starts(source: Observation, whose: Sequence[int]) -> list[list[float]]:
    saved = _end(source, _nothing(source.case), steps=source.case.checkpoint_step)
    return [saved[rank] for rank in whose]


def _end(seen: Observation, start: list[list[float]], steps: int | None = None) -> list[list[float]]:
    """``frequencies`` of each rank after ``steps`` of the run (``None``: all of them)."""
    case, seed = seen.case, int(seen.provenance["seed"])
    held = start
    for step in range(len(seen.ranks[0].steps) if steps is None else steps):
        if ENGINES[case.engine].family == "ddp":  # which hands out rank 0's before each forward
            held = [held[0]] * case.world_size
        held = [
            buffers.after(held[rank], seen.ranks[rank].steps[step].rows, seed=seed, length=case.sequence_length)
            for rank in range(case.world_size)
        ]
    return held
