"""The cases of the gate. To add one, add a line here; its id, its run folder and its baseline follow from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from conformance.tolerances import reference_kind
from fixtures.spec import Case
from fixtures.tables import ENGINES, PLATFORMS, PRECISIONS
from fixtures.throughput.judged import Pace
from fixtures.throughput.plan import steps_for

DISTRIBUTED = tuple(name for name, engine in ENGINES.items() if engine.distributed)

ORACLE = {
    # A curve of 20 steps under AdamW, from logits, embeddings not tied: Granite 7B's architecture.
    "curve": Case(model="llama-tiny", engine="plain", precision="fp32", world_size=1),
    # Accumulation over four uneven micro-batches, the model hands back its loss only, embeddings tied. SGD without
    # momentum and without clipping, so that a gradient of the wrong size moves the weights by the wrong amount.
    "accumulate": Case(
        model="gpt2-tiny", engine="plain", precision="fp32", world_size=1, optimizer="sgd", learning_rate=0.1, steps=6
    ),
    # A clipping norm that bites in every step (gradient norms are 1.5 to 3 here); grouped-query attention and a
    # sliding window.
    "clip": Case(
        model="mistral-tiny", engine="plain", precision="fp32", world_size=1, optimizer="sgd", learning_rate=0.5,
        steps=6, max_grad_norm=0.5,
    ),
}
"""What each training recipe is in one process and fp32; the cases below change engine, precision and little else."""

FEATURES: dict[str, dict[str, Any]] = {
    "curve": {},
    "accumulate": {"accumulation_steps": 4, "outputs": "loss"},
    "clip": {},
}
"""What each recipe asks of an engine beyond its oracle."""


def spread(oracle: Case, engines: Iterable[str], precisions: Iterable[str], **changes: Any) -> list[Case]:
    """``oracle`` on each engine and precision, on two ranks."""
    return [
        oracle.with_(engine=engine, precision=precision, world_size=2, **changes)
        for precision in precisions for engine in engines
    ]


ALL = tuple(PRECISIONS)
ALL_CPU = tuple(name for name, row in PRECISIONS.items() if "cpu" in row.platforms)

CURVE, ACCUMULATE, CLIP = (spread(ORACLE[name], DISTRIBUTED, ALL, **FEATURES[name]) for name in ORACLE)
EVERYTHING = [
    # AdamW, accumulation and clipping together, as recipes have them.
    *spread(
        ORACLE["curve"], ("fsdp1", "fsdp2", "zero2", "zero3"), ("fp32", "bf16-mixed"), accumulation_steps=4,
        max_grad_norm=0.5, steps=8,
    ),
    # GPT-2 with untied embeddings: FSDP may then put embedding and head into units of their own.
    *spread(ORACLE["accumulate"].with_(model="gpt2-tiny-untied"), ("ddp", "fsdp1", "fsdp2", "zero3"), ("fp32",)),
]

FIVE = ("ddp", "fsdp1", "fsdp2", "zero2", "zero3")

SAVING = [
    *spread(ORACLE["curve"], FIVE, ("bf16-mixed",), activation_checkpointing=True),
    *spread(ORACLE["curve"], ("fsdp1", "fsdp2", "zero3"), ("bf16-mixed",), offload="parameters"),
    *spread(ORACLE["curve"], ("zero2",), ("bf16-mixed",), offload="optimizer"),
    *spread(ORACLE["curve"], ("fsdp1",), ("bf16-mixed",), min_num_params=2000),
]
"""The same training with less memory: oracle and peer are those of the curve above."""

FROZEN = [
    *spread(ORACLE["curve"], FIVE, ("bf16-mixed",), frozen="lower", steps=8),
    # In FSDP1 the frozen embeddings share a unit with the head, which trains; in FSDP2 they do not.
    *spread(ORACLE["curve"], ("fsdp1", "fsdp2"), ("bf16-mixed",), frozen="embeddings", steps=8, sequence_length=96),
]
ADAPTED = spread(ORACLE["curve"].with_(learning_rate=1e-2, steps=8), FIVE, ("bf16-mixed",), adapters="lora")
"""LoRA as users of peft do it: the model loaded in bf16 and frozen, adapters beside attention's projections."""
MATCHED = [*CURVE, *ACCUMULATE, *CLIP, *EVERYTHING, *SAVING, *FROZEN, *ADAPTED]

SIX = ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
SCALED = spread(ORACLE["curve"], SIX, ("fp16-mixed",), scale_window=4)
"""fp16 whose loss scale doubles every few steps: its way is a formula, and must not show in the training."""
OVERFLOWING = spread(ORACLE["curve"].with_(steps=8), SIX, ("fp16-mixed",), scale_power=20)
"""fp16 that begins far too large: the first updates are left out, and those alone."""

KERNELS = [
    *spread(ORACLE["curve"], ("ddp", "fsdp2", "zero3"), ("bf16-mixed",), compiled="inductor"),
    *spread(ORACLE["curve"], ("ddp", "fsdp2", "zero3"), ("bf16-mixed",), attention="flash"),
    *spread(ORACLE["curve"], ("ddp", "fsdp1", "fsdp2", "zero2", "zero3"), ("bf16-mixed",), fused=True),
]
"""The same training with other kernels: torch.compile, flash attention, fused AdamW. On GPUs, where they pay."""

STOCK = [
    # What a user gets who names an engine and a precision and nothing else; the model returns its own loss.
    *spread(
        ORACLE["curve"], DISTRIBUTED, ("fp32", "bf16-mixed"), dialect="stock", outputs="loss", steps=3,
    ),
    # What a user gets whose DeepSpeed config file names a stage and nothing else: Accelerate fills in no more then, so
    # all the rest, clipping too, is DeepSpeed's own default.
    *spread(ORACLE["curve"], ("zero1", "zero3"), ("fp32",), dialect="config", outputs="loss", steps=3),
]

STOCK += [
    # A checkpoint in bf16, loaded by who names its folder and no dtype: which dtype trains then is on record.
    *spread(ORACLE["curve"], ("ddp",), ("bf16-true",), dialect="stock", outputs="loss", steps=3,
            loading="pretrained"),
    *spread(ORACLE["curve"], ("fsdp2", "zero3"), ("bf16-mixed",), dialect="stock", outputs="loss", steps=3,
            loading="pretrained"),
]

_SAVED = Case(
    model="gpt2-tiny", engine="plain", precision="fp32", world_size=1, steps=6, learning_rate=3e-3, schedule="linear"
)
FORMS = {
    "ddp": ("full",), "fsdp1": ("sharded", "full"), "fsdp2": ("sharded", "full"), "zero1": ("sharded",),
    "zero2": ("sharded",), "zero3": ("sharded",),
}
"""The forms in which each engine saves a checkpoint."""
CHECKPOINTS = [
    *(case for engine, forms in FORMS.items() for form in forms
      for case in spread(_SAVED, (engine,), ("fp32",), accumulation_steps=2, checkpoint=form)),
    *(case for engine, forms in FORMS.items() for form in forms[-1:] if engine != "ddp"
      for case in spread(_SAVED, (engine,), ("bf16-mixed",), accumulation_steps=2, checkpoint=form)),
]
"""Six steps under a schedule, the state saved after three: tied embeddings, AdamW, two micro-batches per step."""
CONTINUED = [case.with_(resumed=True) for case in CHECKPOINTS]

_UNIVERSAL = [
    case.with_(model=model, schedule="constant", accumulation_steps=2, checkpoint="universal")
    for model, precision, engines in (
        ("llama-tiny", "fp32", ("zero3", "zero1")), ("llama-tiny", "bf16-mixed", ("zero1", "zero3")),
        ("gpt2-tiny", "fp32", ("zero2",)),  # with tied embeddings
    )
    for case in spread(_SAVED, engines, (precision,))
]
ELSEWHERE = [
    case.with_(world_size=ranks, saved_on=case.world_size, resumed=True) for case in _UNIVERSAL for ranks in (4, 1)
]
"""Continued on other ranks than saved. At a constant rate: Accelerate's scheduler counts steps times ranks, and a
checkpoint of it is right on as many ranks alone."""

SCHEDULED = [
    *CHECKPOINTS,
    # The scheduler's steps are counted in steps of one rank: another number of ranks, and no accumulation.
    *(case.with_(world_size=4) for case in spread(_SAVED, ("ddp", "fsdp2", "zero2"), ("fp32",))),
    # DeepSpeed's own, from its config.
    *spread(_SAVED.with_(schedule="warmup-lr"), ("zero2", "zero3"), ("fp32",)),
]

_TRAINER = ORACLE["curve"].with_(optimizer="sgd", learning_rate=0.1, steps=4, last_rows=4)
_BY_TRAINER = {"loop": "trainer", "accumulation_steps": 4}
TRAINER = [
    # Uneven label counts, an incomplete last window, plain SGD.
    *spread(_TRAINER, ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"), ("fp32",), **_BY_TRAINER),
    # Models that return only their loss, and models that cannot be told over how many tokens to average.
    *spread(_TRAINER, ("ddp", "zero3"), ("fp32",), outputs="loss", **_BY_TRAINER),
    *spread(_TRAINER, ("ddp", "fsdp2", "zero2"), ("fp32",), outputs="mean", **_BY_TRAINER),
    # No incomplete window, so that a fault of windows hides no other.
    *(case for outputs in ("logits", "mean")
      for case in spread(_TRAINER.with_(last_rows=None), ("ddp",), ("fp32",), outputs=outputs, **_BY_TRAINER)),
    # A norm that the Trainer clips to, by itself and by DeepSpeed's own config.
    *spread(_TRAINER.with_(max_grad_norm=0.5), ("fsdp2", "zero2"), ("fp32",), **_BY_TRAINER),
    # In mixed precision, as most train: its argument ``bf16``, a model that was loaded in bf16.
    *spread(_TRAINER.with_(last_rows=None), FIVE, ("bf16-mixed",), **_BY_TRAINER),
]
"""The same training through ``transformers.Trainer``, with its own FSDP and DeepSpeed configs."""
TRAINER_SCHEDULED = spread(
    _TRAINER.with_(schedule="linear", steps=6, last_rows=None), ("ddp", "zero2"), ("fp32",), loop="trainer"
)
"""With the Trainer's own scheduler. Its second parameter group has the first one's rate: no oracle of ours has that."""

TRAINER_SAVED = [
    case for engine, form in (("ddp", "full"), ("fsdp2", "sharded"), ("zero2", "sharded"), ("zero3", "sharded"),
                              ("fsdp1", "full"), ("fsdp2", "full"))
    for case in spread(_SAVED, (engine,), ("fp32",), accumulation_steps=2, checkpoint=form, loop="trainer")
]
"""The Trainer's own checkpoints, every half of the steps, and its ``save_model`` at the end."""
TRAINER_RESUMED = [case.with_(resumed=True) for case in TRAINER_SAVED]

LAST_WINDOW = spread(_TRAINER, ("ddp", "fsdp1", "fsdp2", "zero2", "zero3"), ("fp32",), accumulation_steps=4)
"""The incomplete last window in Accelerate's own loop."""

_EPOCHS = Case(model="llama-tiny", engine="plain", precision="fp32", world_size=1, steps=1, measure="data")
EPOCHS = [
    *spread(_EPOCHS, ("ddp", "fsdp2", "zero2"), ("fp32",), accumulation_steps=2),
    _EPOCHS.with_(engine="ddp", world_size=4, accumulation_steps=2, rows_per_step=16),
]
"""Which rows ranks are handed: Accelerate's own doing, but each family prepares its loader in another place."""

_MEMORY = Case(
    model="llama-small", engine="plain", precision="fp32", world_size=1, rows_per_step=2, steps=5, measure="memory"
)
LEAKS = spread(
    _MEMORY, ("ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"), ("bf16-mixed",), steps=16, measure="resume"
)
"""In aligned mode, long enough for a leak to show: half of the steps, saved and loaded again, and the other half."""

CHECKPOINTED = spread(_MEMORY, FIVE, ("bf16-mixed",), activation_checkpointing=True)
OFFLOADED = [
    *spread(_MEMORY, ("fsdp2", "zero3"), ("bf16-mixed",), offload="parameters"),
    *spread(_MEMORY, ("zero2",), ("bf16-mixed",), offload="optimizer"),
]
MEMORY = [
    *LEAKS,
    *CHECKPOINTED,
    # Not FSDP1: how many of a unit's weights each rank steps on depends on where its cut falls between frozen ones.
    *spread(_MEMORY, ("fsdp2", "zero3"), ("bf16-mixed",), frozen="lower"),
    *spread(_MEMORY, DISTRIBUTED, ("fp32",)),
    *spread(_MEMORY, ("fsdp1", "fsdp2", "zero2", "zero3"), ("bf16-true",)),
    # Another degree: what is divided by the ranks is really divided by four.
    *(case.with_(world_size=4, rows_per_step=4) for case in spread(_MEMORY, ("fsdp2", "zero2", "zero3"), ("fp32",))),
]
"""One row per rank and a larger model, so that state outweighs activations. On a GPU too: the bytes are the same."""


BUDGET_MIB = {"fsdp1": 48, "fsdp2": 51, "zero3": 63}
"""What each rank may allocate beyond the loaded frameworks. The target batch needs 40, 44 and 55 MiB on a processor
that multiplies in bf16, and half as many rows again 56, 58 and 71; on one that does not, oneDNN takes less room, and 28
rows fit, 32 do not. DDP needs 83 for the target batch."""

FITS = [
    Case(
        model="llama-medium", engine=engine, precision="bf16-mixed", rows_per_step=16, steps=3, measure="fit",
        budget_mib=budget,
    )
    for engine, budget in BUDGET_MIB.items()
]
"""Target batches, each under its budget. What it takes comes in the first two steps; the third shows that it stays."""


ROUNDS = 12
"""Of one heat, which takes eight seconds or so on two idle cores. More heats tell more than more rounds:
fresh processes differ by 3 %, and ten rounds tell a process's own pace as well as twenty."""

_RACE = Case(
    model="llama-tiny", engine="ddp", precision="fp32", outputs="loss", measure="throughput", steps=steps_for(ROUNDS),
)
RIVALS = [_RACE.with_(engine=engine) for engine in ("fsdp1", "fsdp2", "zero2", "zero3")]
FEATURES_ON = {
    "zero2 without accumulation": (_RACE.with_(engine="zero2", accumulation_steps=4), RIVALS[2]),
    "fsdp2 without checkpointing": (_RACE.with_(engine="fsdp2", activation_checkpointing=True), RIVALS[1]),
}
RACE = [_RACE, *RIVALS, *(case for case, _ in FEATURES_ON.values())]
"""Side by side, in turns: so small that an engine's own work, not arithmetic, takes most of a step."""

DEPTHS = ("llama-tiny", "llama-4-layers", "llama-8-layers")
"""One model at 2, 4 and 8 layers."""
EFFORTS = spread(
    Case(model=DEPTHS[-1], engine="plain", precision="fp32", world_size=1, measure="calls", steps=3),
    ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"), ("fp32",),
)
"""An engine's own work, counted; the third step is like all later ones."""


def at_depths(case: Case) -> list[Case]:
    """``case`` at each of :data:`DEPTHS`."""
    return [case.with_(model=model) for model in DEPTHS]


PACES: dict[str, list[Pace]] = {
    "test_engine_keeps_its_pace": [Pace(case=case, others=(_RACE,), against="ddp") for case in RIVALS],
    # Else a slower DDP would only make all others look faster.
    "test_ddp_keeps_its_pace": [Pace(case=_RACE, others=tuple(RIVALS), against="the sharding engines")],
    "test_fsdp_keeps_up_with_deepspeed": [Pace(case=RIVALS[1], others=(RIVALS[3],), against="zero3")],
    "test_feature_costs_no_more": [
        Pace(case=case, others=(off,), against=name) for name, (case, off) in FEATURES_ON.items()
    ],
}
"""By test, what is claimed: whose step takes no longer, measured in steps of which others."""


def without(case: Case) -> Case:
    """The same training on the same engine with none of what only saves memory."""
    return case.with_(activation_checkpointing=False, offload="none", min_num_params=None)


def kept_whole(case: Case) -> Case:
    """The case of :data:`LEAKS` that a case which saves memory is measured against."""
    return next(other for other in LEAKS if other.engine == case.engine)


def constrained(case: Case) -> Case | None:
    """In memory-constrained mode, the twin of a case of :data:`LEAKS`; ``None`` if its engine has none."""
    return next((c for c in MEMORY if (c.engine, c.precision) == (case.engine, "bf16-true")), None)


_ACTIVE = _MEMORY.with_(rows_per_step=16)
"""Enough rows for activations to show."""
_SHARDED = ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")

REHEARSED = [
    *(case for case in LEAKS if case.engine != "zero1"),  # which does what ZeRO-2 does, and less
    # Twice as deep as what is rehearsed.
    *spread(_ACTIVE.with_(model="llama-deep"), ("fsdp2",), ("bf16-mixed",), activation_checkpointing=True),
]
"""In the gate: engines in aligned mode, and another depth and batch with checkpointing."""

REHEARSED_WIDELY = [
    case
    for case in [
        *spread(_MEMORY, ("fsdp1-grad-op", "fsdp1-no-shard", "fsdp2-no-reshard", "zero0"), ("fp32",)),
        *(case for case in MEMORY if case.world_size == 4),
        *(
            case
            for model in ("llama-small", "llama-deep") for recipe in (_MEMORY, _ACTIVE) for ckpt in (False, True)
            for case in spread(recipe.with_(model=model), _SHARDED, ALL_CPU, activation_checkpointing=ckpt)
        ),
    ]
    if case not in REHEARSED
]
"""With ``--rehearse``: engines x precisions x two batches x activation checkpointing x two depths."""


def rehearsed_at(case: Case) -> Case:
    """The rehearsal that foretells ``case``: that of the small model serves the deep one, which is as wide."""
    return case.with_(model=case.model.replace("-deep", "-small")).rehearsal


def _told_apart() -> list[Any]:
    aligned = {case.engine: case for case in LEAKS}
    low = _MEMORY.with_(engine="fsdp2", precision="bf16-true", world_size=2)
    checkpointed = next(case for case in CHECKPOINTED if case.engine == "fsdp2")
    pairs = [
        *((aligned[one], aligned[other]) for one, other in (
            ("zero1", "zero2"), ("zero2", "ddp"), ("zero3", "zero2"), ("fsdp1", "zero3"), ("fsdp2", "zero3"),
        )),
        (low, aligned["fsdp2"]),
        (checkpointed, aligned["fsdp2"]),
    ]
    return [pytest.param(*pair, id=f"{pair[0].id}~{pair[1].id}", marks=pytest.mark.cpu) for pair in pairs]


TOLD_APART = _told_apart()
"""A case and another whose rehearsal must not foretell it."""


def partners(case: Case) -> list[Case]:
    """What must not fit in the budget of ``case``, or the budget would not bind."""
    return [case.with_(engine="ddp"), case.with_(rows_per_step=case.rows_per_step * 2)]


def params(cases: Iterable[Case]) -> list[Any]:
    """Parameters for ``pytest.mark.parametrize("case", ...)``: ids and the platforms that each case can run on."""
    return [pytest.param(case, id=case.id, marks=_marks(case)) for case in cases]


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.full] if case.id in FULL else []
    return [*slow, *(getattr(pytest.mark, platform) for platform in platforms(case))]


def on_gpus(cases: Iterable[Case]) -> list[Any]:
    """As :func:`params`, for what a CPU that others use too cannot be asked."""
    return [pytest.param(case, id=case.id, marks=[getattr(pytest.mark, p) for p in GPUS]) for case in cases]


GPUS = tuple(name for name in PLATFORMS if name != "cpu")


def platforms(case: Case) -> tuple[str, ...]:
    """Platform markers of ``case``: GPUs train everything, the CPU all but fp16 and FSDP1's offload.

    FSDP1 tells an offloaded gradient from others by its device. On a CPU, where host and device are one, it takes that
    of the last step for one to add to. Budgets are the CPU's own; rows and states are compared there.
    """
    own = case.checkpoint != "none" or case.schedule != "constant" or case.offload == "nvme"
    if own or case.measure in ("fit", "data", "calls"):
        return ("cpu",)
    gpus = GPUS
    if case in KERNELS:
        return gpus
    apart = ENGINES[case.engine].fsdp_version == 1 and case.offload != "none"
    return gpus if apart or "cpu" not in PRECISIONS[case.precision].platforms else ("cpu", *gpus)


def peer(case: Case) -> Case:
    """The same training under DeepSpeed ZeRO-3, plain and simple, which all others are compared with directly.

    With adapters it is ZeRO-2: see :func:`same_arithmetic`.
    """
    return without(case).with_(engine="zero3" if case.adapters == "none" else "zero2")


def references(case: Case) -> list[tuple[Case, str]]:
    """What ``case`` is compared with, and the kind of tolerance.

    Its oracle; its peer if the arithmetic is one; itself without what only saves memory.
    """
    found = [(case.oracle, reference_kind(case))]
    direct = [peer(case)] if same_arithmetic(case) and case.checkpoint == "none" else []
    direct += [without(case)] if without(case) not in direct else []
    return found + [(other, "peer") for other in direct if other != case and other in MATCHED]


def rounds_like(case: Case) -> list[Case]:
    """In low precision, the peer: it is on record how closely the gradients of ``case`` agree with it."""
    other = peer(case)
    apart = other.engine != case.engine
    return [other] if case.precision != "fp32" and other in MATCHED and apart else []


def same_arithmetic(case: Case) -> bool:
    """Whether ``case`` rounds where its ZeRO-3 peer rounds, so that only the order of sums may differ.

    Not so for DDP under mixed precision (autocast keeps norms in fp32), nor for ZeRO-0 there (it keeps averaged
    gradients in bf16), nor where micro-batches are summed in bf16, as FSDP1 and all of bf16-true do, nor where all but
    ZeRO-1 to 3 clip by a norm that they sum in bf16. Nor for ZeRO-3 with adapters: where a layer and its adapter meet
    in backward, it adds their bf16 gradients up in another order than all others.
    """
    if case.precision == "fp32":
        return True
    mixed = case.precision.endswith("-mixed")
    if mixed and ENGINES[case.engine].family == "ddp":
        return False
    if case.adapters != "none" and case.engine == "zero3":
        return False
    if mixed and case.engine == "zero0":
        return False
    if case.precision == "bf16-true" and case.max_grad_norm is not None and case.engine not in ("zero1", "zero2"):
        return False
    fp32_sums = mixed and case.engine.startswith(("fsdp2", "zero"))
    return case.accumulation_steps == 1 or fp32_sums


_LOW_RATE = Case(model="llama-tiny", engine="fsdp2", precision="bf16-true", learning_rate=1e-5, steps=100)

EXPERIMENT = {
    "constrained": _LOW_RATE,
    "constrained, rate times ranks": _LOW_RATE.with_(learning_rate=_LOW_RATE.learning_rate * _LOW_RATE.world_size),
    "constrained DeepSpeed": _LOW_RATE.with_(engine="zero3"),
    "aligned": _LOW_RATE.with_(precision="bf16-mixed"),
    "aligned DeepSpeed": _LOW_RATE.with_(precision="bf16-mixed", engine="zero3"),
}
"""The published experiment at our size: FSDP "memory-constrained" and "aligned", and DeepSpeed's two twins."""


_MOVING = ORACLE["curve"].with_(engine="zero3", world_size=2, steps=9)

MIGRATION = [
    *(
        _MOVING.with_(engine=one, moves_to=other, precision=precision)
        for one, other in (("zero3", "fsdp2"), ("fsdp2", "zero3"), ("zero3", "fsdp1"), ("fsdp1", "zero3"))
        for precision in ("fp32", "bf16-mixed")
    ),
    _MOVING.with_(engine="zero3", moves_to="fsdp2", precision="bf16-mixed", carries="weights"),
]
"""From one engine to the other and back, a third of the steps each."""

RANKS = [
    *(
        case.with_(world_size=ranks, steps=6)
        for case in spread(ORACLE["curve"], ("ddp", "fsdp1", "fsdp2", "zero2", "zero3"), ("fp32",))
        for ranks in (1, 4)
    ),
    *(
        case.with_(world_size=4, sharding_degree=2, steps=6)
        for case in spread(ORACLE["curve"], ("fsdp1", "fsdp2"), ("fp32", "bf16-mixed"))
    ),
    # Copies that share nothing: what is left to do is to average gradients over them.
    *spread(ORACLE["curve"].with_(steps=6), ("fsdp1",), ("fp32",), sharding_degree=1),
]
"""The gate runs on two ranks; here the same batch on one and on four, and on four that hold two copies."""

ARCHITECTURES = [
    *spread(ORACLE["curve"].with_(model="mixtral-tiny", steps=6), FIVE, ("fp32",)),
    *spread(ORACLE["curve"].with_(model="llama-tiny-unused", steps=6), FIVE, ("fp32",)),
]
"""Mixture of experts; parameters that never have a gradient. In fp32: which expert is chosen hangs by a rounding."""

DROPOUT = spread(ORACLE["curve"].with_(model="gpt2-tiny-dropout", steps=6), FIVE, ("fp32",))
"""Every rank draws the masks of its own seed: they have no oracle in one process, and are DDP's on every engine."""

_PROGRAM = ORACLE["curve"].with_(steps=6)
GRAPHS = [
    *spread(_PROGRAM, SIX, ("bf16-mixed",), graph="twice", accumulation_steps=2),
    *spread(_PROGRAM.with_(optimizer="sgd", learning_rate=0.1), SIX, ("fp32",), graph="skips", accumulation_steps=2),
    *spread(_PROGRAM, ("ddp", "zero1", "zero2", "zero3"), ("bf16-mixed",), graph="reentrant",
            activation_checkpointing=True),
    # The others refuse: a weight may be ready once.
    *spread(_PROGRAM, ("zero1",), ("bf16-mixed",), graph="twice_reentrant",
            activation_checkpointing=True, accumulation_steps=2),
]
"""Losses whose graph is another than one pass through the whole model (``fixtures/graphs.py``)."""
EVALUATED = spread(_PROGRAM, FIVE, ("fp32",), evaluates=True)
"""An evaluation after each step."""
FRUGAL = [
    case for oracle, precision in ((_PROGRAM, "bf16-mixed"), (ORACLE["accumulate"], "fp32"))
    for case in spread(oracle, ("fsdp1", "fsdp2", "zero3"), (precision,), loading="ram_efficient")
]
"""Loaded from a checkpoint by one rank for all, with tied embeddings and without."""
LATE = [
    *spread(_PROGRAM, ("fsdp1", "fsdp2", "zero1", "zero2", "zero3"), ("bf16-mixed",), late=True),
    *spread(ORACLE["accumulate"], ("fsdp2", "zero3"), ("fp32",), loading="ram_efficient", late=True),
    # Layers that have a bias: ZeRO-3 gathers a layer's own parameters at once when it exports.
    *spread(ORACLE["accumulate"], ("fsdp2", "zero3"), ("fp32",), checkpoint="sharded", late=True),
]
"""On a network at its slowest: training, loading, saving."""
PROGRAMS = [*GRAPHS, *EVALUATED, *FRUGAL, *LATE]
"""What a program does with a model beyond training it step by step."""

_COMPILED = ORACLE["curve"].with_(steps=6)
COMPILED = [
    *spread(_COMPILED, ("ddp",), ("fp32",), compiled="eager"),
    *spread(_COMPILED, ("ddp", "fsdp2", "zero3"), ("fp32",), compiled="inductor"),
]
"""Under ``torch.compile``, as Accelerate's ``dynamo_backend`` turns it on."""

BUFFERS = [
    case for engine, form in (
        ("ddp", "full"), ("fsdp2", "sharded"), ("zero2", "sharded"), ("fsdp1", "full"), ("fsdp2", "full"),
        ("zero3", "sharded"),
    )
    for case in spread(
        ORACLE["curve"].with_(model="llama-tiny-buffers", steps=6), (engine,), ("bf16-mixed",), checkpoint=form
    )
]
"""Buffers that are saved, and one that is not, on each way to save them."""

SWAPPED = Case(
    model="llama-medium", engine="zero3", precision="bf16-mixed", offload="nvme", steps=3, rows_per_step=8,
)
"""State in files: what is smaller than a MiB stays in memory, so that the model is larger than others."""

_SLOW = [
    SWAPPED,
    *(case for case in ADAPTED if case.engine == "fsdp1"),
    *(case for case in STOCK if case.loading == "pretrained" and case.engine == "zero3"),
    *(case for case in TRAINER if case.precision != "fp32" and case.engine not in ("fsdp2", "zero3")),
    *(case for case in COMPILED if case.compiled == "inductor"),
    *(case for case in PROGRAMS if case.engine in ("ddp", "fsdp1") and not case.evaluates),
    *(case for case in GRAPHS if case.engine == "zero2" and case.graph != "skips"),
    *(case for case in GRAPHS if case.engine == "zero1" and case.graph == "skips"),
    *(case for case in EVALUATED if case.engine in ("fsdp1", "zero2")),
    *(case for case in FRUGAL if case.engine == "fsdp2" and case.model == "gpt2-tiny"),
    *(case for case in LATE if case.loading != "built" or case.engine == "zero2" or "fsdp2-fp32" in case.id),
    *ELSEWHERE[2:],
    *TRAINER_SAVED[4:], *TRAINER_RESUMED[4:],
    *BUFFERS[2:],
    *(case.with_(resumed=True) for case in BUFFERS if case != BUFFERS[1]),
    *(case for case in MIGRATION if "fsdp1" in (case.engine, case.moves_to)),
    *(case for case in (*ARCHITECTURES, *DROPOUT, *RANKS) if case.world_size == 1),
    *(case for case in (*ARCHITECTURES, *DROPOUT, *RANKS) if case.engine == "fsdp1" and case.sharding_degree is None),
    *(case for case in RANKS if case.sharding_degree is not None and case.precision != "fp32"),
]
FULL = {case.id for case in _SLOW}
"""Only with ``--full``: what the gate sees in a cheaper case."""
