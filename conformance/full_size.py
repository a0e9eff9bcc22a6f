"""The cases of GPUs at full size, and the cards that each fits on: one line per case. Pytest circle.

They run for hours on hardware that costs; ``pytest -m a100 --rehearse`` says beforehand what each will need. The 7B
models checkpoint activations: without it, 32 layers at 4096 tokens keep more than any card has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from fixtures.rehearsal.cards import CARD_GIB
from fixtures.spec import Case

ENGINES = ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
ALL = frozenset(CARD_GIB)
NONE: frozenset[str] = frozenset()
H200 = frozenset({"h200"})


@dataclass(frozen=True, kw_only=True)
class FullSize:
    """A case and the platforms on whose cards it must fit; on the others it must not."""

    case: Case
    fits_on: frozenset[str]


def _case(model: str, *, devices: int, rows_each: int, tokens: int, checkpointing: bool) -> Case:
    return Case(
        model=model, engine="ddp", precision="bf16-mixed", world_size=devices, rows_per_step=rows_each * devices,
        sequence_length=tokens, activation_checkpointing=checkpointing,
    ).rehearsal


def _booked(case: Case, fits_on: Iterable[tuple[str, frozenset[str]]]) -> list[FullSize]:
    return [FullSize(case=case.with_(engine=engine), fits_on=cards) for engine, cards in fits_on]


GPT2_LARGE = _case("gpt2-large", devices=2, rows_each=8, tokens=1024, checkpointing=False)
GPT2_XL = _case("gpt2-xl", devices=2, rows_each=4, tokens=1024, checkpointing=False)
MISTRAL = _case("mistral-7b", devices=4, rows_each=1, tokens=4096, checkpointing=True)
GRANITE = _case("granite-7b", devices=4, rows_each=8, tokens=4096, checkpointing=True)

FULL_SIZE = [
    *_booked(GPT2_LARGE, [(engine, ALL) for engine in ENGINES]),
    *_booked(GPT2_XL, [(engine, ALL) for engine in ENGINES]),
    *_booked(MISTRAL, [
        ("ddp", NONE), ("fsdp1", ALL), ("fsdp2", ALL), ("zero1", H200), ("zero2", ALL), ("zero3", ALL),
    ]),
    *_booked(MISTRAL.with_(precision="bf16-true"), [
        ("ddp", H200), ("fsdp1", ALL), ("fsdp2", ALL), ("zero1", ALL), ("zero2", ALL), ("zero3", ALL),
    ]),
    *_booked(GRANITE, [
        ("ddp", NONE), ("fsdp1", ALL), ("fsdp2", ALL), ("zero1", H200), ("zero2", ALL), ("zero3", ALL),
    ]),
]


def params() -> list[Any]:
    """Parameters ``case, platform, fits``, one for each case and platform."""
    return [
        pytest.param(
            one.case, platform, platform in one.fits_on, id=f"{one.case.id}-{platform}",
            marks=[getattr(pytest.mark, platform), pytest.mark.rehearsed],
        )
        for one in FULL_SIZE for platform in CARD_GIB
    ]
