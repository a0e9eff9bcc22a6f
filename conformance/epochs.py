"""What is claimed of the rows that a prepared DataLoader hands to the ranks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fixtures import verdict
from fixtures.observation import Observation
from fixtures.tables import EPOCH_ROWS, EPOCH_SKIPPED, EPOCHS_WALKED
from fixtures.verdict import Claim, Finding

EVERY_ROW = list(range(EPOCH_ROWS))
Batches = Sequence[Sequence[int]]


def _claim(seen: Observation, metric: str, reference: str) -> Claim:
    return Claim(subject=seen.case.id, rung="data", metric=metric, reference=reference)


def _walk(seen: Observation, name: str, part: str = "rows") -> list[Any]:
    """What each rank recorded in a walk; ``None`` where it recorded nothing."""
    return [(rank.epochs.get(name) or {}).get(part) for rank in seen.ranks]


def whole(seen: Observation) -> Iterator[Finding]:
    """In order, dispatched, from an iterable and shuffled: the ranks together get the epoch."""
    for name in ("sequential", "dispatched", "iterable"):
        yield _epoch(seen, name, _walk(seen, name))
    for epoch in range(EPOCHS_WALKED):
        by_rank = [_at(epochs, epoch) for epochs in _walk(seen, "shuffled")]
        yield _epoch(seen, f"shuffled, epoch {epoch}", by_rank)
    yield _epoch(seen, "even_batches=False", _walk(seen, "uneven"), padding=0)


def _at(epochs: Any, number: int) -> Any:
    return epochs[number] if isinstance(epochs, list) and len(epochs) > number else None


def _epoch(seen: Observation, name: str, by_rank: Sequence[Batches | None], padding: int | None = None) -> Finding:
    """No row lost, and none twice but those that documented padding adds to the last batches."""
    case = seen.case
    if padding is None:
        padding = (-EPOCH_ROWS) % (case.world_size * case.rows_per_micro_batch)
    claim = _claim(seen, f"rows of an epoch, {name}", f"{EPOCH_ROWS} rows")
    told = [batches or [] for batches in by_rank]
    counted = Counter(row for batches in told for batch in batches for row in batch)
    lost = sorted(set(EVERY_ROW) - set(counted))
    twice = sorted((counted - Counter(EVERY_ROW)).elements())
    early = Counter(row for batches in told for batch in batches[:-1] for row in batch)
    repeated = sorted(row for row, times in early.items() if times > 1)
    passed = not lost and not repeated and len(twice) <= padding
    return verdict.holds(
        claim, passed, observed=f"lost {lost or 'none'}, twice {twice or 'none'}",
        allowed=f"none lost; twice up to {padding}, in last batches" if padding else "each once",
    )


def gathered(seen: Observation) -> Iterator[Finding]:
    """``gather_for_metrics`` gives every rank each row once, in order: what padding added is gone."""
    for rank, rows in enumerate(_walk(seen, "sequential", "gathered")):
        claim = _claim(seen, f"rows of gather_for_metrics, rank {rank}", "the epoch in order")
        yield verdict.same(claim, rows, EVERY_ROW)


def orders(seen: Observation) -> Iterator[Finding]:
    """Each epoch is in another order, and none in the corpus's."""
    epochs = [_walk(seen, "shuffled")[0][epoch] for epoch in range(EPOCHS_WALKED)]
    in_turn = _walk(seen, "sequential")[0]
    distinct = {repr(epoch) for epoch in (*epochs, in_turn)}
    claim = _claim(seen, "orders of shuffled epochs", "each other, and no shuffling")
    yield verdict.holds(
        claim, len(distinct) == EPOCHS_WALKED + 1, observed=f"{len(distinct)} different orders",
        allowed=f"{EPOCHS_WALKED + 1}: each epoch's and the unshuffled",
    )


def resumed(seen: Observation) -> Iterator[Finding]:
    """After ``skip_first_batches`` in a fresh loader each rank gets what it had not seen, in the same order."""
    full = _walk(seen, "shuffled")
    for part, words in (("rows", "rest of epoch"), ("next", "epoch after")):
        found = _walk(seen, "resumed", part)
        for epoch in range(EPOCHS_WALKED - 1):
            due = [epochs[epoch][EPOCH_SKIPPED:] if part == "rows" else epochs[epoch + 1] for epochs in full]
            claim = _claim(seen, f"{words} {epoch}, resumed after {EPOCH_SKIPPED} batches", "uninterrupted epochs")
            yield verdict.sequence(claim, [_at(epochs, epoch) for epochs in found], due)


def stateful(seen: Observation) -> Iterator[Finding]:
    """With torchdata's loader, its own state does the same; where it is not installed there is nothing to claim."""
    told = [rank.epochs.get("stateful") for rank in seen.ranks]
    if any(told):
        claim = _claim(seen, "rest of epoch 0, from the loader's state", "uninterrupted epochs")
        due = [epochs[0] for epochs in _walk(seen, "shuffled")]
        found = [[*one["before"], *one["rows"]] if one else [] for one in told]
        yield verdict.sequence(claim, found, due)


def windows(seen: Observation) -> Iterator[Finding]:
    """Gradients are synchronised after each whole window, and after the last batch: an incomplete window counts."""
    case = seen.case
    batches = -(-EPOCH_ROWS // (case.world_size * case.rows_per_micro_batch))
    due = [(at % case.accumulation_steps == 0) or at == batches for at in range(1, batches + 1)]
    for rank in seen.ranks:
        claim = _claim(seen, f"gradients synchronised, rank {rank.rank}", f"windows of {case.accumulation_steps}")
        yield verdict.same(claim, rank.epochs.get("windows"), due)


def collected(seen: Observation) -> Iterator[Finding]:
    """Rung ``memory``: prepared loaders that nobody uses any more are gone."""
    for rank in seen.ranks:
        claim = Claim(
            subject=seen.case.id, rung="memory", metric=f"of 5 prepared loaders, alive on rank {rank.rank}",
            reference="weak references after free_memory",
        )
        yield verdict.same(claim, rank.epochs.get("alive"), 0)
