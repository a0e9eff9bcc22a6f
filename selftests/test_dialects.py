"""What each engine is told. Written out, so that a change of meaning is a change of this file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.catalogue import DISTRIBUTED, EXPERIMENT, MATCHED, ORACLE, STOCK
from conformance.promises import look
from fixtures.dialects import settings
from fixtures.spec import Case
from fixtures.tables import ENGINES

CASE = Case(model="llama-tiny", engine="zero3", precision="fp32")
EVERY = (*MATCHED, *STOCK, *ORACLE.values(), *EXPERIMENT.values())
ZERO = tuple(name for name in DISTRIBUTED if name.startswith("zero"))
SHARDED_ZERO = ("zero1", "zero2", "zero3")
FSDP1 = ("fsdp1", "fsdp1-grad-op", "fsdp1-no-shard")
FSDP2 = ("fsdp2", "fsdp2-no-reshard")
LOW = ("bf16-mixed", "bf16-true")
ALL = ("fp32", *LOW)

BF16_POLICY_1 = {"param_dtype": "bfloat16", "reduce_dtype": "float32", "buffer_dtype": "float32"}
BF16_POLICY_2 = {
    "param_dtype": "bfloat16", "reduce_dtype": "float32", "output_dtype": None, "cast_forward_inputs": True
}
BF16_MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}

MATCHED_SETTINGS: list[tuple[tuple[str, ...], tuple[str, ...], str, Any]] = [
    # The weights that an engine is handed: low precision in both modes, but fp32 where nothing would upcast them.
    (("ddp",), ("fp32", "bf16-mixed"), "load_dtype", "float32"),
    (("ddp",), ("bf16-true",), "load_dtype", "bfloat16"),
    ((*FSDP1, *FSDP2, *ZERO), ("fp32",), "load_dtype", "float32"),
    ((*FSDP1, *FSDP2, *ZERO), LOW, "load_dtype", "bfloat16"),
    # Accelerate's word.
    (DISTRIBUTED, ("fp32",), "accelerator.mixed_precision", "no"),
    (DISTRIBUTED, ("bf16-mixed",), "accelerator.mixed_precision", "bf16"),
    (("ddp", *FSDP1, *FSDP2, "zero0"), ("bf16-true",), "accelerator.mixed_precision", "no"),
    (SHARDED_ZERO, ("bf16-true",), "accelerator.mixed_precision", "bf16"),
    # Reduction in fp32 on all engines, buffers too.
    (FSDP1, LOW, "fsdp.mixed_precision_policy", BF16_POLICY_1),
    (FSDP2, LOW, "fsdp.mixed_precision_policy", BF16_POLICY_2),
    ((*FSDP1, *FSDP2), ("fp32",), "fsdp.mixed_precision_policy", None),
    (ZERO, ALL, "deepspeed.communication_data_type", "fp32"),
    (SHARDED_ZERO, ("bf16-mixed",), "deepspeed.data_types", {"grad_accum_dtype": "fp32"}),
    (("zero0",), ("bf16-mixed",), "deepspeed.data_types", None),
    (ZERO, ("fp32", "bf16-true"), "deepspeed.data_types", None),
    # Masters: fp32 beside bf16 weights in the one mode, bf16 in the other; ZeRO-0 trains bf16 weights as they are.
    (ZERO, ("fp32",), "deepspeed.bf16", None),
    (ZERO, ("bf16-mixed",), "deepspeed.bf16", {"enabled": True}),
    (SHARDED_ZERO, ("bf16-true",), "deepspeed.bf16", BF16_MASTERS),
    (("zero0",), ("bf16-true",), "deepspeed.bf16", None),
    # Really sharded, however small.
    (("zero3",), ALL, "deepspeed.zero_optimization.stage3_param_persistence_threshold", 0),
    (("zero0", "zero1", "zero2"), ALL, "deepspeed.zero_optimization.stage3_param_persistence_threshold", None),
    ((*FSDP1, *FSDP2), ALL, "fsdp.transformer_cls_names_to_wrap", ["LlamaDecoderLayer"]),
    (("fsdp1",), ALL, "fsdp.sharding_strategy", "FULL_SHARD"),
    (("fsdp1-grad-op",), ALL, "fsdp.sharding_strategy", "SHARD_GRAD_OP"),
    (("fsdp1-no-shard",), ALL, "fsdp.sharding_strategy", "NO_SHARD"),
    (("fsdp2",), ALL, "fsdp.reshard_after_forward", True),
    (("fsdp2-no-reshard",), ALL, "fsdp.reshard_after_forward", False),
    # Clipping and batch are DeepSpeed's own words; elsewhere the loop does it.
    (ZERO, ALL, "deepspeed.gradient_clipping", 0.0),
    (ZERO, ALL, "deepspeed.train_batch_size", 8),
    (ZERO, ALL, "deepspeed.train_micro_batch_size_per_gpu", 4),
    (ZERO, ALL, "deepspeed.zero_optimization.overlap_comm", False),
    (("ddp", *FSDP1, *FSDP2), ALL, "deepspeed", None),
    (("ddp", *ZERO), ALL, "fsdp", None),
]

ROWS = [(engine, precision, path, due) for engines, precisions, path, due in MATCHED_SETTINGS
        for engine in engines for precision in precisions]


@pytest.mark.parametrize(("engine", "precision", "path", "due"), ROWS)
def test_matched_engines_are_told_the_same_meaning(engine: str, precision: str, path: str, due: Any) -> None:
    """Every knob that bears on the numbers is said, in the engine's own words; None: it is not said."""
    assert look(settings(CASE.with_(engine=engine, precision=precision)), path) == due


@pytest.mark.parametrize("engine", DISTRIBUTED)
def test_accumulation_is_told_to_everyone(engine: str) -> None:
    """To Accelerate, whatever it drives."""
    said = settings(CASE.with_(engine=engine, accumulation_steps=4))
    assert said["accelerator"]["gradient_accumulation_steps"] == 4


@pytest.mark.parametrize("engine", ZERO)
def test_accumulation_divides_what_deepspeed_is_fed(engine: str) -> None:
    """The same number, and the micro-batch that is left of a global batch that stays 8 rows."""
    told = settings(CASE.with_(engine=engine, accumulation_steps=4))["deepspeed"]
    assert (told["gradient_accumulation_steps"], told["train_micro_batch_size_per_gpu"]) == (4, 1)
    assert told["train_batch_size"] == 8


@pytest.mark.parametrize("engine", ZERO)
def test_clipping_is_the_cases(engine: str) -> None:
    """DeepSpeed clips itself, and its own default is not the case's."""
    assert settings(CASE.with_(engine=engine, max_grad_norm=0.5))["deepspeed"]["gradient_clipping"] == 0.5


FEATURES: list[tuple[tuple[str, ...], dict[str, Any], str, Any]] = [
    # As users turn it on: FSDP's plugin has a flag, everyone else tells the model.
    ((*FSDP1, *FSDP2), {"activation_checkpointing": True}, "fsdp.activation_checkpointing", True),
    ((*FSDP1, *FSDP2), {"activation_checkpointing": True}, "model", None),
    (("ddp", *ZERO), {"activation_checkpointing": True}, "model.activation_checkpointing", True),
    ((*FSDP1, *FSDP2), {"offload": "parameters"}, "fsdp.cpu_offload", True),
    (SHARDED_ZERO, {"offload": "optimizer"}, "deepspeed.zero_optimization.offload_optimizer", {"device": "cpu"}),
    (SHARDED_ZERO, {"offload": "optimizer"}, "deepspeed.zero_optimization.offload_param", None),
    (("zero3",), {"offload": "parameters"}, "deepspeed.zero_optimization.offload_param", {"device": "cpu"}),
    (("zero3",), {"offload": "parameters"}, "deepspeed.zero_optimization.offload_optimizer", {"device": "cpu"}),
    (FSDP1, {"min_num_params": 7}, "fsdp.auto_wrap_policy", "size_based_wrap"),
    (FSDP1, {"min_num_params": 7}, "fsdp.min_num_params", 7),
    (FSDP1, {"min_num_params": 7}, "fsdp.transformer_cls_names_to_wrap", None),
    # Not said unless it is asked for.
    ((*FSDP1, *FSDP2), {}, "fsdp.activation_checkpointing", None),
    ((*FSDP1, *FSDP2), {}, "fsdp.cpu_offload", None),
    (DISTRIBUTED, {}, "model", None),
    (ZERO, {}, "deepspeed.zero_optimization.offload_optimizer", None),
]


@pytest.mark.parametrize("dialect", ["matched", "stock"])
@pytest.mark.parametrize(("engines", "changes", "path", "due"), FEATURES)
def test_memory_features_are_told(
    engines: tuple[str, ...], changes: dict[str, Any], path: str, due: Any, dialect: str
) -> None:
    """In the engine's own words, whatever the dialect: a feature that was asked for is asked for."""
    said = [look(settings(CASE.with_(engine=name, dialect=dialect, **changes)), path) for name in engines]
    assert said == [due] * len(engines)


PLUGIN = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["LlamaDecoderLayer"]}
STOCK_SETTINGS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp1": {"fsdp": {
        **PLUGIN, "fsdp_version": 1, "sharding_strategy": "FULL_SHARD", "use_orig_params": True
    }},
    "fsdp2": {"fsdp": {**PLUGIN, "fsdp_version": 2, "reshard_after_forward": True}},
    "zero0": {"deepspeed": {"zero_optimization": {"stage": 0}, "gradient_accumulation_steps": 1}},
    "zero3": {"deepspeed": {"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 1}},
}


@pytest.mark.parametrize(("precision", "word"), [("fp32", "no"), ("bf16-mixed", "bf16")])
@pytest.mark.parametrize("engine", STOCK_SETTINGS)
def test_stock_engines_are_told_what_a_user_says(engine: str, precision: str, word: str) -> None:
    """Engine, stage and precision; no dtype, no clipping, no threshold: whatever else is in force is a default."""
    said = settings(CASE.with_(engine=engine, precision=precision, dialect="stock"))
    del said["load_dtype"]
    assert said == {
        "accelerator": {"mixed_precision": word, "gradient_accumulation_steps": 1}, **STOCK_SETTINGS[engine]
    }


def test_stock_masters_in_bf16_are_asked_for() -> None:
    """The memory-constrained mode is DeepSpeed's only when it is said: without it there would be fp32 masters."""
    said = settings(CASE.with_(precision="bf16-true", dialect="stock"))
    assert (said["accelerator"]["mixed_precision"], said["deepspeed"]["bf16"]) == ("bf16", BF16_MASTERS)


def test_the_oracle_is_told_its_dtype_alone() -> None:
    """It has no engine to tell anything, and masters in the dtype that the mode promises."""
    for precision, dtype in (("fp32", "float32"), ("bf16-mixed", "float32"), ("bf16-true", "bfloat16")):
        said = settings(CASE.with_(precision=precision).oracle)
        assert set(said) == {"load_dtype", "accelerator"}
        assert said["load_dtype"] == dtype


def containers(value: Any) -> Iterator[int]:
    """The identities of all lists and dicts in ``value``, itself included."""
    if isinstance(value, (list, dict)):
        yield id(value)
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


def test_settings_are_json() -> None:
    """Every case's settings read back from JSON as they are: a request holds them whole."""
    for case in EVERY:
        assert json.loads(json.dumps(settings(case), allow_nan=False)) == settings(case)


def test_settings_are_fresh() -> None:
    """Two calls give equal words and share no list or dict: who changes one result changes no other."""
    for case in EVERY:
        first, second = settings(case), settings(case)
        assert first == second
        assert not set(containers(first)) & set(containers(second))


def test_every_engine_is_told_something_of_its_own() -> None:
    """No two engines are told the same under either dialect: then one of them would not be what it is called."""
    for dialect in ("matched", "stock"):
        told = [json.dumps(settings(CASE.with_(engine=name, dialect=dialect))) for name in DISTRIBUTED]
        assert len(set(told)) == len(DISTRIBUTED) == len(ENGINES) - 1
