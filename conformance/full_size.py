"""The cases of GPUs at full size: what each needs of which card, and what is claimed of them. Pytest circle.

They run for minutes on hardware that costs; ``pytest -m a100 --rehearse`` says beforehand what each will need. The 7B
models checkpoint activations: without it, 32 layers at 4096 tokens keep more than any card has.

[Note: no oracle at full size]
One process would need 16 bytes per parameter and more: no card has that. So engines are compared with each other, and
what rounding alone does to this model is measured beside it: FSDP2 once more with each batch cut in two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from conformance.stand_ins import stand_in
from fixtures.rehearsal.cards import CARD_GIB
from fixtures.spec import Case
from fixtures.tables import PLATFORMS

ENGINES = ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
ALL = frozenset(CARD_GIB)
NONE: frozenset[str] = frozenset()
H200 = frozenset({"h200"})


@dataclass(frozen=True, kw_only=True)
class FullSize:
    """A rehearsed case and the platforms on whose cards it must fit; on the others it must not.

    :param gib: what it needs of a card, as rehearsed on the tested stack. A rehearsal that finds another need fails.
    """

    case: Case
    fits_on: frozenset[str]
    gib: float


def _case(model: str, *, devices: int, rows_each: int, tokens: int, checkpointing: bool, rate: float = 1e-3) -> Case:
    return Case(
        model=model, engine="ddp", precision="bf16-mixed", world_size=devices, rows_per_step=rows_each * devices,
        sequence_length=tokens, activation_checkpointing=checkpointing, learning_rate=rate,
    )


def _booked(case: Case, fits_on: Iterable[tuple[str, frozenset[str], float]]) -> list[FullSize]:
    return [
        FullSize(case=case.with_(engine=engine).rehearsal, fits_on=cards, gib=gib) for engine, cards, gib in fits_on
    ]


LOW_RATE = 1e-5
"""The published experiment's: an update far below the spacing of bf16 weights."""

GPT2_LARGE = _case("gpt2-large", devices=2, rows_each=8, tokens=1024, checkpointing=False)
GPT2_XL = _case("gpt2-xl", devices=2, rows_each=4, tokens=1024, checkpointing=False)
MISTRAL = _case("mistral-7b", devices=4, rows_each=2, tokens=4096, checkpointing=True, rate=LOW_RATE)
GRANITE = _case("granite-7b", devices=4, rows_each=8, tokens=4096, checkpointing=True, rate=LOW_RATE)

FULL_SIZE = [
    *_booked(GPT2_LARGE, [
        ("ddp", ALL, 52.7), ("fsdp1", ALL, 44.0), ("fsdp2", ALL, 33.9), ("zero1", ALL, 38.2),
        ("zero2", ALL, 35.3), ("zero3", ALL, 36.0),
    ]),
    *_booked(GPT2_XL, [
        ("ddp", ALL, 57.5), ("fsdp1", ALL, 39.9), ("fsdp2", ALL, 31.5), ("zero1", ALL, 40.2),
        ("zero2", ALL, 34.4), ("zero3", ALL, 35.8),
    ]),
    *_booked(MISTRAL, [
        ("ddp", NONE, 166.3), ("fsdp1", ALL, 35.4), ("fsdp2", ALL, 35.4), ("zero1", H200, 83.6), ("zero2", ALL, 50.2),
        ("zero3", ALL, 38.9),
    ]),
    *_booked(MISTRAL.with_(precision="bf16-true"), [
        ("ddp", H200, 83.6), ("fsdp1", ALL, 18.1), ("fsdp2", ALL, 18.6), ("zero1", ALL, 41.8), ("zero2", ALL, 33.0),
        ("zero3", ALL, 24.5),
    ]),
    *_booked(GRANITE, [
        ("ddp", NONE, 154.8), ("fsdp1", ALL, 45.9), ("fsdp2", ALL, 45.7), ("zero1", H200, 83.9), ("zero2", ALL, 58.3),
        ("zero3", ALL, 55.1),
    ]),
    *_booked(MISTRAL.with_(accumulation_steps=2), [("fsdp2", ALL, 52.6)]),
    *_booked(MISTRAL.with_(precision="bf16-true", learning_rate=LOW_RATE * 4), [("fsdp2", ALL, 18.6)]),
    *_booked(GRANITE.with_(accumulation_steps=2), [("fsdp2", ALL, 58.7)]),
]

NEED: Mapping[Case, float] = {one.case: one.gib for one in FULL_SIZE}
"""GiB of a card, by rehearsal."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Runs at full size that are compared with each other.

    :param runs: by name. The first is what the claims are about.
    :param cut: the name of the run whose distance to the first is what rounding does to this model.
    :param minutes: expected, of each run: building the model on the host (3 or 4), then its steps. Never measured.
    """

    runs: Mapping[str, Case]
    cut: str
    minutes: float

    @property
    def case(self) -> Case:
        """The first."""
        return next(iter(self.runs.values()))

    @property
    def three(self) -> tuple[Case, Case, Case]:
        """FSDP2, ZeRO-3 and the cut one."""
        first, second = list(self.runs.values())[:2]
        return first, second, self.runs[self.cut]

    @property
    def rehearsed(self) -> Trial:
        """The same runs scaled down to what a CPU trains in seconds."""
        return Trial(runs={name: stand_in(case) for name, case in self.runs.items()}, cut=self.cut, minutes=0.2)


def _run(case: Case, engine: str, steps: int, **changes: Any) -> Case:
    return case.with_(engine=engine, steps=steps, measure="alone", **changes)


PUBLISHED_STEPS = 16
"""Of Granite: four to warm up and twelve that are timed, at 10.4 and 10.6 s each as published."""
EXPERIMENT_STEPS = 100

GRANITE_TRIAL = Trial(cut="cut", minutes=8.0, runs={
    "fsdp": _run(GRANITE, "fsdp2", PUBLISHED_STEPS),
    "deepspeed": _run(GRANITE, "zero3", PUBLISHED_STEPS),
    "cut": _run(GRANITE, "fsdp2", PUBLISHED_STEPS, accumulation_steps=2),
})
MISTRAL_TRIAL = Trial(cut="cut", minutes=12.0, runs={
    "aligned": _run(MISTRAL, "fsdp2", EXPERIMENT_STEPS),
    "aligned DeepSpeed": _run(MISTRAL, "zero3", EXPERIMENT_STEPS),
    "constrained": _run(MISTRAL, "fsdp2", EXPERIMENT_STEPS, precision="bf16-true"),
    "constrained, rate times ranks": _run(
        MISTRAL, "fsdp2", EXPERIMENT_STEPS, precision="bf16-true", learning_rate=LOW_RATE * 4
    ),
    "constrained DeepSpeed": _run(MISTRAL, "zero3", EXPERIMENT_STEPS, precision="bf16-true"),
    "cut": _run(MISTRAL, "fsdp2", EXPERIMENT_STEPS, accumulation_steps=2),
})
TRIALS = (GRANITE_TRIAL, MISTRAL_TRIAL)
CARDS = [getattr(pytest.mark, platform) for platform in PLATFORMS if platform in CARD_GIB]
"""Platforms whose card is known. A trial needs four of them."""


def need(case: Case) -> float:
    """GiB of a card that a run needs, by its rehearsal."""
    return NEED[case.rehearsal]


def params() -> list[Any]:
    """Parameters ``case, platform, row``, one for each rehearsed case and platform."""
    return [
        pytest.param(
            one.case, platform, one, id=f"{one.case.id}-{platform}",
            marks=[getattr(pytest.mark, platform), pytest.mark.rehearsed],
        )
        for one in FULL_SIZE for platform in CARD_GIB
    ]


def runs() -> list[Any]:
    """Parameters ``case``: every run of every trial, for real."""
    cases = {case.id: case for trial in TRIALS for case in trial.runs.values()}
    return [pytest.param(case, id=name, marks=CARDS) for name, case in cases.items()]


def trial(one: Trial) -> list[Any]:
    """Parameters ``case, trial``: the trial for real, and with ``--rehearse`` scaled down, on the CPU."""
    small = one.rehearsed
    return [
        pytest.param(one.case, one, id=one.case.id, marks=CARDS),
        pytest.param(small.case, small, id=f"{one.case.id}-stand_in", marks=[*CARDS, pytest.mark.rehearsed]),
    ]
