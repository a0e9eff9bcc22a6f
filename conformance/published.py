"""GPT-2 Large and XL on two 24 GB cards, as published, and what rehearsals say of the same table. Pytest circle.

[Note: the published tables]
https://huggingface.co/blog/pytorch-fsdp (April 2022) gives the largest batch per GPU on two Titan RTX (24 GB) for GPT-2
Large, and for GPT-2 XL on one card and on two. AdamW, causal language modelling on wikitext-2, no accumulation, no
activation checkpointing. What it does not say is assumed here, and :func:`sensitivity` says how much hangs on that:

``sequence_length``  128. The text names no length, and its example's 12 tokens cannot fill a card.
``attention``        eager: transformers of that year had no other.
``fp16``             bf16 is rehearsed: autocast keeps as many bytes of the one as of the other.
``tying``            size-based units take embedding and head apart, so there they are two weights.
``card``             23.65 GiB, and what of it no tensor may have: :data:`fixtures.rehearsal.cards.ASSUMED`.

A rehearsal runs today's transformers, whose blocks keep other intermediates than those of 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from fixtures.max_batch import evidence
from fixtures.max_batch.search import Probe, Search, search
from fixtures.max_batch.subject import Subject
from fixtures.observation import Observation
from fixtures.rehearsal.cards import ASSUMED, GIB, TITAN_RTX_GIB, Assumptions
from fixtures.spec import Case
from fixtures.tables import PLATFORMS
from fixtures.verdict import Claim, Finding

TOKENS = 128
CARD_MIB = int(TITAN_RTX_GIB * 1024)
FACTOR = 2.0
"""How far a predicted batch may lie from the published one, either way: what an unstated row length of half or twice
as many tokens would do. Tighter is the order, which no assumption moves."""


CLOSE = 0.1
"""Published batches that are no further apart may come out equal."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a published table: ``published`` rows per GPU, 0 where one did not fit."""

    label: str
    published: int
    case: Case

    @property
    def subject(self) -> Subject:
        """Its search, from the published batch on."""
        return Subject(case=self.case)


def _row(label: str, model: str, published: int, *, devices: int = 2, **words: Any) -> Row:
    if "min_num_params" in words:
        model += "-untied"
    case = Case(
        model=model, world_size=devices, rows_per_step=max(1, published) * devices, sequence_length=TOKENS,
        attention="eager", **{"precision": "fp32", **words},
    )
    return Row(label=label, published=published, case=case.rehearsal.with_(budget_mib=CARD_MIB))


_SHARDED: Mapping[str, Any] = {"engine": "fsdp1", "min_num_params": 1_000_000}
_FINELY: Mapping[str, Any] = {"engine": "fsdp1", "min_num_params": 2_000}

LARGE = (
    _row("DDP fp32", "gpt2-large", 7, engine="ddp"),
    _row("DDP fp16", "gpt2-large", 7, engine="ddp", precision="bf16-mixed"),
    _row("SHARD_GRAD_OP", "gpt2-large", 11, engine="fsdp1-grad-op", min_num_params=1_000_000),
    _row("FULL_SHARD 1M", "gpt2-large", 15, **_SHARDED),
    _row("FULL_SHARD 2K", "gpt2-large", 15, **_FINELY),
    _row("FULL_SHARD 1M, offload", "gpt2-large", 20, offload="parameters", **_SHARDED),
    _row("FULL_SHARD 2K, offload", "gpt2-large", 22, offload="parameters", **_FINELY),
)
XL = (
    _row("DDP fp32, 1 GPU", "gpt2-xl", 0, devices=1, engine="ddp"),
    _row("DDP fp32, 2 GPUs", "gpt2-xl", 0, engine="ddp"),
    _row("DDP fp16, 1 GPU", "gpt2-xl", 0, devices=1, engine="ddp", precision="bf16-mixed"),
    _row("FSDP 2K, 2 GPUs", "gpt2-xl", 5, **_FINELY),
    _row("FSDP 2K, offload, 1 GPU", "gpt2-xl", 10, devices=1, offload="parameters", **_FINELY),
    _row("FSDP 2K, offload, 2 GPUs", "gpt2-xl", 14, offload="parameters", **_FINELY),
)
TABLES: Mapping[str, Sequence[Row]] = {"GPT-2 Large": LARGE, "GPT-2 XL": XL}


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What rehearsals found for a row: its search, and bytes (without what :class:`Assumptions` adds) over batch."""

    row: Row
    found: Search
    peaks: Mapping[int, int]

    @property
    def batch(self) -> int | None:
        """Rows per GPU; ``None`` where the search has no answer."""
        return {"found": self.found.fits.batch if self.found.fits else None, "none fits": 0}.get(self.found.end)

    def under(self, assumed: Assumptions = ASSUMED, *, tokens: int = TOKENS) -> int | None:
        """The batch under other assumptions, from the line through the two probes nearest the answer.

        Bytes of a row are taken to grow with its tokens; the part of eager attention that grows with their square, a
        tenth at 128, is not told apart.
        """
        if len(self.peaks) < 2 or self.batch is None:
            return None
        one, other = sorted(sorted(self.peaks, key=lambda batch: abs(batch - self.batch))[:2])  # type: ignore[operator]
        each = (self.peaks[other] - self.peaks[one]) / (other - one)
        fixed = self.peaks[one] - each * one
        room = (CARD_MIB / 1024 - assumed.outside_gib) / assumed.allocator_factor * GIB
        return max(0, int((room - fixed) / (each * tokens / TOKENS)))


def predict(row: Row, observe: Callable[[Case], Observation]) -> Predicted:
    """Search the row's largest batch by rehearsals."""
    peaks: dict[int, int] = {}

    def probe(batch: int) -> Probe:
        one = evidence.probe(batch, observe(row.subject.at(batch)))
        if one.in_use_bytes is not None:
            peaks[batch] = round((one.in_use_bytes - ASSUMED.outside_gib * GIB) / ASSUMED.allocator_factor)
        return one

    found = search(probe, start=row.subject.start, most=row.subject.most)
    return Predicted(row=row, found=found, peaks=peaks)


OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "64 tokens": {"tokens": 64},
    "256 tokens": {"tokens": 256},
    "nothing lost": {"assumed": Assumptions(outside_gib=0.0, allocator_factor=1.0)},
    "lost twice": {"assumed": Assumptions(
        outside_gib=2 * ASSUMED.outside_gib, allocator_factor=2 * ASSUMED.allocator_factor - 1
    )},
}
"""What else could be assumed."""


def sensitivity(told: Predicted) -> dict[str, int | None]:
    """The row's batch under each of :data:`OTHERWISE`."""
    return {name: told.under(**words) for name, words in OTHERWISE.items()}


def near(told: Predicted) -> Finding:
    """The predicted batch is within :data:`FACTOR` of the published one; where none fitted, none does."""
    row, batch = told.row, told.batch
    claim = Claim(
        subject=row.case.id, rung="memory", metric=f"largest batch, {row.label}",
        reference="published for 24 GB cards; rehearsed, not run",
    )
    if batch is None:
        return claim.found(observed=f"no answer: {told.found.end}", allowed=f"{row.published}", passed=False)
    if row.published == 0 or batch == 0:
        return claim.found(
            observed=f"{batch} rows", allowed=f"{row.published} rows", passed=batch == row.published == 0
        )
    ratio = batch / row.published
    other = ", ".join(f"{value} {name}" for name, value in sensitivity(told).items())
    return claim.found(
        observed=f"{batch} rows, {ratio:.2f} of the published ({other})",
        allowed=f"{row.published} rows, up to {FACTOR:g} times as many or as few",
        passed=1 / FACTOR <= ratio <= FACTOR, used=max(ratio, 1 / ratio) / FACTOR,
    )


def ordered(all_told: Sequence[Predicted]) -> Iterator[Finding]:
    """Of two rows, the one with the larger published batch has the larger predicted one.

    Equal ones say nothing; ones within :data:`CLOSE` of each other may come out equal, not the other way round.
    """
    for place, one in enumerate(all_told):
        for other in all_told[place + 1:]:
            less, more = sorted((one, other), key=lambda told: told.row.published)
            if less.row.published == more.row.published:
                continue
            close = more.row.published <= (1 + CLOSE) * less.row.published
            claim = Claim(
                subject=f"{less.row.case.id} ~ {more.row.case.id}", rung="memory", metric="order of largest batches",
                reference="the published order, rehearsed",
            )
            yield claim.found(
                observed=f"{less.row.label} {less.batch}, {more.row.label} {more.batch}",
                allowed=f"{'not more' if close else 'less'}, as {less.row.published} and {more.row.published}",
                passed=less.batch is not None and more.batch is not None
                and (less.batch < more.batch or (close and less.batch == more.batch)),
            )


GPUS = [getattr(pytest.mark, name) for name in PLATFORMS if name != "cpu"]
"""The card is emulated, so the platform does not matter."""

PARTNERS: Mapping[str, str] = {
    "FULL_SHARD 1M": "DDP fp32", "FULL_SHARD 2K": "DDP fp32", "FULL_SHARD 1M, offload": "FULL_SHARD 1M",
    "FULL_SHARD 2K, offload": "FULL_SHARD 2K", "FSDP 2K, 2 GPUs": "DDP fp32, 2 GPUs",
    "FSDP 2K, offload, 2 GPUs": "FSDP 2K, 2 GPUs",
}
"""By row, another row whose way of training cannot take this one's batch: what the row is chosen for."""


def _rows() -> dict[str, Row]:
    return {row.label: row for rows in TABLES.values() for row in rows}


def partner(row: Row) -> Case | None:
    """The rehearsal of what must not fit at the row's batch on the same card; ``None`` where none is named."""
    label = PARTNERS.get(row.label)
    if label is None:
        return None
    other = _rows()[label].case
    return other.with_(rows_per_step=row.published * other.world_size)


def real(case: Case) -> Case:
    """The run that a rehearsal foretells, on a card made as small."""
    return case.with_(measure="fit", steps=3)


def partners() -> list[Case]:
    """All of them, once each."""
    return list({case.id: case for row in _rows().values() if (case := partner(row)) is not None}.values())


def too_large(seen: Observation) -> Finding:
    """The rehearsal of a partner: it does not fit on the published card."""
    one = evidence.probe(seen.case.rows_per_micro_batch, seen)
    claim = Claim(subject=seen.case.id, rung="memory", metric="a batch too large for it",
                  reference="rehearsed for one card, not run")
    needed = "not foretold" if one.in_use_bytes is None else f"{one.in_use_bytes / GIB:.1f} GiB"
    return claim.found(observed=needed, allowed=f"more than {CARD_MIB / 1024:.1f} GiB", passed=one.outcome == "oom")


def rehearsed_partners() -> list[Any]:
    """Parameters ``case``, one for each partner."""
    return [pytest.param(case, id=case.id, marks=[*GPUS, pytest.mark.rehearsed]) for case in partners()]


def rehearsed_rows() -> list[Any]:
    """Parameters ``case, row``, one set per row."""
    marks = [*GPUS, pytest.mark.rehearsed]
    return [pytest.param(row.case, row, id=row.case.id, marks=marks) for rows in TABLES.values() for row in rows]


def rehearsed_tables() -> list[Any]:
    """Parameters ``name, cases``, one set per table."""
    marks = [*GPUS, pytest.mark.rehearsed]
    return [
        pytest.param(name, [row.case for row in rows], id=name.replace(" ", "-"), marks=marks)
        for name, rows in TABLES.items()
    ]


def real_rows() -> list[Any]:
    """Parameters ``case, fits``, one set per row: a real run on a card made as small."""
    found = [(real(row.case), row.published > 0) for row in _rows().values()]
    found += [(real(case), False) for case in partners()]
    return [pytest.param(case, fits, id=case.id, marks=GPUS) for case, fits in found]


def table(name: str, all_told: Sequence[Predicted]) -> str:
    """The table as Markdown: published and predicted batch, their ratio, and the batch under other assumptions."""
    head = ["", "published", "predicted", "ratio", *OTHERWISE]
    lines = [f"## {name}, 24 GB cards, rows per GPU", "", _line(head), _line(["---"] * len(head))]
    for told in all_told:
        ratio = f"{told.batch / told.row.published:.2f}" if told.batch and told.row.published else ""
        shown = [told.row.published, told.batch, ratio, *sensitivity(told).values()]
        lines.append(_line([told.row.label, *("-" if value is None else str(value) for value in shown)]))
    return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
