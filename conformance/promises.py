"""What an engine promises for a case: that it is there, what it shards, and which dtype is where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures import verdict
from fixtures.freezing import in_block, partial, trains
from fixtures.spec import Case
from fixtures.tables import ENGINES, PRECISIONS
from fixtures.verdict import Claim, Finding

WRAPPERS = {
    ("plain", None): "none",
    ("ddp", None): "DistributedDataParallel",
    ("fsdp", 1): "FullyShardedDataParallel",
    ("fsdp", 2): "FSDPModule",
    ("deepspeed", None): "DeepSpeedEngine",
}


def engaged(case: Case) -> dict[str, Any]:
    """What the live engine must say of itself: the asked wrapper, ranks, stage, strategy, and every layer a unit."""
    engine = ENGINES[case.engine]
    due: dict[str, Any] = {"wrapper": WRAPPERS[engine.family, engine.fsdp_version], "world_size": case.world_size}
    if engine.fsdp_version == 1:
        hybrid = case.sharding_degree is not None
        strategy = "HYBRID_SHARD" if hybrid else engine.sharding_strategy
        # A single rank has nobody to share with, and FSDP1 says so.
        due |= {"sharding_strategy": ["NO_SHARD" if case.world_size == 1 else strategy]}
        if hybrid:
            due["world_size"] = case.sharding_degree  # of the ranks that divide one copy
    if engine.fsdp_version == 2:
        mesh = "(Shard(dim=0),)" if case.sharding_degree is None else "(Replicate(), Shard(dim=0))"
        due |= {"placements": [mesh], "whole_parameters": 0}
    due |= _units(case)
    if engine.zero_stage is not None:
        due["zero_stage"] = engine.zero_stage
    if engine.zero_stage == 3:
        due["whole_parameters"] = 0
        # By default ZeRO-3 leaves parameters below 100,000 elements whole on every rank: all of ours.
        if case.dialect == "matched":
            due["persistent_parameters"] = 0
    if case.activation_checkpointing:
        due[f"checkpointed.{case.architecture.layer_class}"] = case.architecture.layers
    if case.compiled != "none":
        # Accelerate puts torch's wrapper around the model; DeepSpeed compiles the module in its place.
        due |= {"compiled.by": ["call" if engine.zero_stage is not None else "wrapper"], "compiled.graphs": True}
    if case.offload != "none":
        due["offload"] = _offload(case)
    return due


def _units(case: Case) -> dict[str, Any]:
    """Every layer is a unit, where its class is known; of units by size the settings baseline tells which."""
    engine, layer = ENGINES[case.engine], case.architecture.layer_class
    if engine.family != "fsdp" or not layer or case.min_num_params is not None:
        return {}
    due: dict[str, Any] = {f"units.{layer}": case.architecture.layers}
    if engine.fsdp_version == 2:
        due[f"reshard_after_forward.{layer}"] = [engine.reshard_after_forward]
    return due


def engagement(case: Case, found: Mapping[str, Any], leg: str = "") -> list[Finding]:
    """What the live engine says of itself, against :func:`engaged`."""
    return [
        verdict.same(
            Claim(subject=case.id, rung="engaged", metric=f"{name}{leg}", reference="what the case asks for"),
            look(found, name), due,
        )
        for name, due in engaged(case).items()
    ]


STATE = ("parameters", "masters", "gradients", "optimizer_state")


def offloaded(case: Case) -> tuple[str, ...]:
    """The parts of a rank's state that the engine keeps in the host's memory; FSDP's shards are their own masters."""
    if case.offload == "none":
        return ()
    if ENGINES[case.engine].family == "fsdp":
        return ("parameters", "gradients", "optimizer_state")
    return STATE[1:] if case.offload == "optimizer" else STATE


def _offload(case: Case) -> dict[str, Any]:
    """What an engine must say of its offload, read after a step: by which class, and on which device each part is."""
    engine = ENGINES[case.engine]
    on = {part: ["cpu"] for part in offloaded(case)}
    if engine.family == "fsdp":
        # Users let gradients go after the step; with them on another device than the weights there would be no step.
        return {"units": ["CPUOffloadPolicy" if engine.fsdp_version == 2 else "True"], "on": {**on, "gradients": []}}
    return {"optimizer": True, "parameters": case.offload != "optimizer", "stepped_by": "DeepSpeedCPUAdam", "on": on}


def crosses(case: Case, name: str) -> bool:
    """Whether the gradient of the weight ``name`` is reduced over the ranks.

    All that train; on FSDP1 also those that share a unit with one that does: its flat gradient is reduced as a whole.
    """
    beside = in_block(name) if case.adapters != "none" else not trains(case.with_(frozen="embeddings"), name)
    return trains(case, name) or (ENGINES[case.engine].fsdp_version == 1 and beside)


def numbers(case: Case) -> dict[str, Any]:
    """Numbers that the live engine's settings must repeat, by dotted path; clipping is a setting on DeepSpeed only."""
    due: dict[str, Any] = {"accelerate.gradient_accumulation_steps": case.accumulation_steps}
    if ENGINES[case.engine].family == "deepspeed":
        due |= {
            "deepspeed.gradient_accumulation_steps": case.accumulation_steps,
            "deepspeed.train_batch_size": case.rows_per_step,
            "engine_gradient_clipping": case.max_grad_norm or 0.0,
        }
    return due


def reductions_per_step(case: Case) -> int:
    """How often every gradient is reduced over the ranks in one optimizer step.

    Once, after the last micro-batch; ZeRO-2 and ZeRO-3 after each, since no rank keeps a whole gradient.
    """
    return case.accumulation_steps if ENGINES[case.engine].zero_stage in (2, 3) else 1


def look(found: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted ``path``; ``None`` where there is none."""
    value: Any = found
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def shards_parameters(case: Case) -> bool:
    """Whether each rank holds only its part of the weights between steps."""
    engine = ENGINES[case.engine]
    by_fsdp1 = engine.sharding_strategy in ("FULL_SHARD", "SHARD_GRAD_OP")
    return engine.zero_stage == 3 or engine.fsdp_version == 2 or by_fsdp1


def shards_optimizer(case: Case) -> bool:
    """Whether each rank steps only its part of the weights."""
    return shards_parameters(case) or ENGINES[case.engine].zero_stage in (1, 2)


def dtypes(case: Case) -> dict[str, list[str]]:
    """Which dtype must be where, under the matched dialect; the published comparison's table, as a function.

    ``compute`` is that of the matrix multiplications. Source of the rows: Hugging Face and IBM, "A Hugging Face
    Accelerate Story of Multiple Backends: FSDP and DeepSpeed" (June 2024), and the engines' own documentation.
    """
    engine, precision = ENGINES[case.engine], PRECISIONS[case.precision]
    sharded_by_deepspeed = engine.family == "deepspeed"
    due = {
        # DeepSpeed keeps the working weights at the compute dtype and the masters beside them.
        "at_rest": precision.compute if sharded_by_deepspeed else precision.master,
        "compute": precision.compute,
        "gradient": precision.master,
        "reduction": "float32",
        "master": precision.master,
        "optimizer_state": precision.master,
        "outputs": "float32",
        "buffers": "float32",
    }
    if engine.family == "ddp":
        due["reduction"] = precision.master
    if case.outputs == "logits" and _hands_on_compute_dtype(case):
        due["outputs"] = precision.compute
    wanted = {name: [dtype] for name, dtype in due.items()}
    if partial(case):
        wanted["frozen"] = _frozen(case)
    if case.optimizer == "sgd":
        wanted["optimizer_state"] = []
    if case.model.startswith("gpt2"):
        wanted["buffers"] = []
    if engine.family == "plain":
        wanted["reduction"] = []
    return wanted


def _frozen(case: Case) -> list[str]:
    """Nothing upcasts frozen weights; FSDP1 does with those that share a unit with one that trains.

    Its outermost unit holds embeddings and head together; frozen blocks are units of their own. Adapters are in every
    block, and not in the outermost unit.
    """
    engine, precision = ENGINES[case.engine], PRECISIONS[case.precision]
    if not engine.fsdp_version and not engine.zero_stage:
        return [precision.master]
    if engine.fsdp_version == 1:
        return sorted({precision.master, precision.load} if case.frozen != "embeddings" else {precision.master})
    return [precision.load]


def _hands_on_compute_dtype(case: Case) -> bool:
    """Accelerate converts autocast outputs to fp32, for DDP and FSDP1; the others hand on what they computed."""
    engine = ENGINES[case.engine]
    autocast = engine.family == "ddp" or engine.fsdp_version == 1
    return not (autocast and case.precision != "bf16-true")


MATMULS = ("Linear", "Conv1D")
"""Layer classes that multiply matrices: the compute dtype is theirs."""


def seen_dtypes(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The record's dtypes in the shape of :func:`dtypes`."""
    compute = {dtype for name in MATMULS for dtype in recorded.get("compute", {}).get(name, [])}
    return {**recorded, "compute": sorted(compute)}
