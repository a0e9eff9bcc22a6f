"""What a rank must hold when it is about to step, byte by byte: the arithmetic of sharding, engine by engine. Pure.

[Note: where the formulas come from]
ZeRO (Rajbhandari et al., 2020, https://arxiv.org/abs/1910.02054, section 3.1) counts, for Adam under mixed precision,
2 bytes of weight, 2 of gradient and 12 of optimizer per parameter: an fp32 master, a momentum and a variance. Stage 1
divides the 12 by the ranks, stage 2 the gradients too, stage 3 everything. FSDP "aligned" has no low-precision copy at
rest: weight, gradient and two moments in fp32 are 16 bytes per parameter over the ranks; "memory-constrained" is half.

The engines keep more than the paper counts, and say so in their source. By name, as the tested stack does it:

``reducer buckets``    DDP copies gradients into buckets of its own unless ``gradient_as_bucket_view`` is set.
``second copy``        ZeRO steps on masters of its own even where the weights are fp32 already, or where the masters
                       are bf16 too: what the paper counts once is there twice.
``fp32 gradients``     with ``grad_accum_dtype`` fp32 ZeRO accumulates in 4 bytes, not 2; ZeRO-1's BF16_Optimizer keeps
                       them whole on every rank, beside the bf16 gradients that backward has just made.
``buckets``            ZeRO-3 allocates its reduce bucket once and keeps it.
``cut``                where the cut between two ranks' partitions goes through a parameter, ZeRO-1 and ZeRO-2 keep that
                       parameter's whole gradient: at most one parameter more.

``held`` and ``kept`` are lower bounds to the byte; :func:`slack` is what may come on top, padding and the like.
"""

from __future__ import annotations

from dataclasses import dataclass

from fixtures.dialects import BUCKET_ELEMENTS
from fixtures.spec import Case
from fixtures.tables import ENGINES, PRECISIONS

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on each rank, AdamW, ready to step; ``kept`` is the part of ``gradients`` that outlives the step.

    ``unseen`` is what no engine attribute shows, so that only the allocator's total can hold it.
    """

    parameters: float
    masters: float
    gradients: float
    optimizer_state: float
    kept: float = 0.0
    buffers: float = 0.0
    unseen: float = 0.0

    @property
    def live(self) -> float:
        """All of it."""
        return (
            self.parameters + self.masters + self.gradients + self.optimizer_state + self.buffers + self.unseen
        )


def due(case: Case, elements: int) -> Footprint:
    """The bytes that a model of ``elements`` parameters needs on each rank of ``case``.

    Frozen weights are there, in the dtype that they were handed over in, and cost nothing else.
    """
    engine, precision = ENGINES[case.engine], PRECISIONS[case.precision]
    if engine.family == "deepspeed":
        return _deepspeed(case, elements)
    frozen = frozen_elements(case)
    master = BYTES[precision.master] * (elements - frozen)
    if engine.family == "ddp":
        return Footprint(
            parameters=BYTES[precision.master] * elements, masters=0, gradients=master, optimizer_state=2 * master,
            unseen=master,  # reducer buckets
        )
    ranks = 1 if engine.sharding_strategy == "NO_SHARD" else case.world_size
    part = master / ranks
    return Footprint(
        parameters=part + BYTES[precision.load] * frozen / ranks, masters=0, gradients=part, optimizer_state=2 * part,
        # FSDP1's flat parameters keep their gradients until the next backward, whatever zero_grad does to their views.
        kept=part if engine.fsdp_version == 1 else 0,
    )


def _deepspeed(case: Case, elements: int) -> Footprint:
    precision, stage = PRECISIONS[case.precision], ENGINES[case.engine].zero_stage
    trained = elements - frozen_elements(case)
    low, master = BYTES[precision.compute] * elements, BYTES[precision.master] * trained
    share = master / case.world_size
    if stage == 0:
        apart = case.precision == "bf16-mixed"
        return Footprint(
            parameters=low, masters=master if apart else 0, gradients=BYTES[precision.compute] * trained,
            optimizer_state=2 * master,
        )
    if stage == 1 and case.precision == "bf16-mixed":
        # BF16_Optimizer: fp32 gradients whole on every rank, and the bf16 ones that backward has just made.
        return Footprint(
            parameters=low, masters=share, gradients=master + BYTES[precision.compute] * trained,
            optimizer_state=2 * share, kept=master,
        )
    if stage == 3:
        return Footprint(
            parameters=low / case.world_size, masters=share, gradients=share, optimizer_state=2 * share, kept=share,
            buffers=4 * BUCKET_ELEMENTS,
        )
    return Footprint(parameters=low, masters=share, gradients=share, optimizer_state=2 * share)


def spared(case: Case, count: int) -> float:
    """Bytes that the engine may do without: ZeRO-2 kept averaged gradients in bf16 up to DeepSpeed 0.19.7.

    Aligned mode promises fp32 masters and leaves the gradients' dtype to the engine; the settings baseline tells which.
    """
    kept_low = case.engine == "zero2" and case.precision == "bf16-mixed"
    trained = count - frozen_elements(case)
    return (BYTES["float32"] - BYTES["bfloat16"]) * trained / case.world_size if kept_low else 0.0


def slack(case: Case, part: str) -> int:
    """What may come on top of ``part``: padding to a multiple of the ranks, step counters, the parameter at a cut."""
    engine, tensors = ENGINES[case.engine], _tensors(case)
    # Shards are padded to a multiple of twice the ranks (ZeRO) or of the ranks (FSDP), at most once per parameter.
    padding = tensors * 4 * 2 * case.world_size if engine.family in ("fsdp", "deepspeed") else 0
    counters = tensors * 4 if part == "optimizer_state" else 0
    cut = _largest(case) * BYTES[PRECISIONS[case.precision].master] if engine.zero_stage in (1, 2) else 0
    found = {
        "parameters": padding, "masters": padding, "gradients": padding + cut,
        "optimizer_state": 2 * padding + counters,
    }
    if part != "live":
        return found.get(part, 0)
    return sum(slack(case, name) for name in found) + _beside(case)


def _beside(case: Case) -> int:
    """The batch in hand and the next one (ids and labels, int64), rotary frequencies, losses and flags."""
    rows = 2 * 2 * 8 * case.sequence_length * case.rows_per_micro_batch
    return rows + 1024


def frozen_elements(case: Case) -> int:
    """Weights of a Llama that do not train."""
    if case.frozen == "none":
        return 0
    config = case.architecture.config
    embeddings = int(config["vocab_size"]) * int(config["hidden_size"])
    return embeddings + ((case.architecture.layers - 1) * _block(case) if case.frozen == "lower" else 0)


def _block(case: Case) -> int:
    """Weights of a Llama's block: queries and output, keys and values, the MLP's three matrices, two norms."""
    config = case.architecture.config
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    key_value = hidden * int(config["num_key_value_heads"]) // int(config["num_attention_heads"])
    return 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * inner + 2 * hidden


def inside_blocks(case: Case) -> int:
    """The least that the blocks of a Llama keep for their backward on each rank, in bytes.

    In the compute dtype, per token: what its matrices multiply (the two normed inputs, the attention's output, the
    MLP's product), the queries, keys and values, and of the MLP's activation its input, its output and its partner.
    Whatever a norm or a cast keeps beside comes on top.
    """
    config, precision = case.architecture.config, PRECISIONS[case.precision]
    hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    key_value = hidden * int(config["num_key_value_heads"]) // int(config["num_attention_heads"])
    per_token = 4 * hidden + 2 * key_value + 4 * inner
    tokens = case.rows_per_micro_batch * case.sequence_length
    return case.architecture.layers * tokens * per_token * BYTES[precision.compute]


def _tensors(case: Case) -> int:
    """Parameters of a Llama: seven matrices and two norms per layer; two embeddings and a norm beside."""
    return 9 * int(case.architecture.config["num_hidden_layers"]) + 3


def _largest(case: Case) -> int:
    config = case.architecture.config
    return int(config["hidden_size"]) * max(int(config["intermediate_size"]), int(config["vocab_size"]))


def per_parameter(value: float, elements: int) -> str:
    """``15,123,456 bytes (16.46 per parameter)``."""
    return f"{value:,.0f} bytes ({value / elements:.2f} per parameter)"
