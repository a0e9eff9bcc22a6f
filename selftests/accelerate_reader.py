"""Not a test: reads recipes with Accelerate's own classes, in a process that may import the frameworks.

``python -m selftests.accelerate_reader FILE...`` prints one JSON object per file: the neutral settings that
Accelerate's plugins hold once its launcher has read the file, or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update({"ACCELERATE_TORCH_DEVICE": "cpu", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""})

STRATEGIES = {"FULL_SHARD": "everything", "SHARD_GRAD_OP": "gradients", "NO_SHARD": "nothing",
              "HYBRID_SHARD": "hybrid", "_HYBRID_SHARD_ZERO2": "hybrid gradients"}
STAGES = {0: "nothing", 1: "optimizer", 2: "gradients", 3: "everything"}
FORMS = {"FULL_STATE_DICT": "full", "SHARDED_STATE_DICT": "sharded", "LOCAL_STATE_DICT": "local"}


def held(path: Path) -> dict[str, Any]:
    """The settings in force for one file."""
    if path.suffix == ".json":
        return _deepspeed({"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(path), "ACCELERATE_MIXED_PRECISION": "no"})
    from fixtures.engines.launched import environment

    said = environment(path)
    found = _fsdp(said) if "ACCELERATE_USE_FSDP" in said else _deepspeed(said)
    return {**found, "mixed_precision": said["ACCELERATE_MIXED_PRECISION"]}


def _fsdp(said: dict[str, str]) -> dict[str, Any]:
    from accelerate.utils import FullyShardedDataParallelPlugin

    os.environ.update(said)
    # A CPU has nothing to broadcast to; what the file says of it is in the variables.
    os.environ |= {"FSDP_SYNC_MODULE_STATES": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}
    plugin = FullyShardedDataParallelPlugin()
    if plugin.fsdp_version == 1:
        sharding = STRATEGIES[plugin.sharding_strategy.name]
        prefetch = plugin.backward_prefetch
        only = {
            "forward_prefetch": plugin.forward_prefetch, "original_parameters": plugin.use_orig_params,
            "backward_prefetch": "none" if prefetch is None else prefetch.name.removeprefix("BACKWARD_"),
            "broadcast_weights": said["FSDP_SYNC_MODULE_STATES"] == "true",
        }
        only["backward_prefetch"] = {"PRE": "before", "POST": "after"}.get(only["backward_prefetch"], "none")
    else:
        sharding = "everything" if plugin.reshard_after_forward else "gradients"
        only = {"activation_offload": plugin.activation_checkpointing_offload}
    policy = getattr(plugin.auto_wrap_policy, "__name__", "")
    offload = getattr(plugin.cpu_offload, "offload_params", type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy")
    return {
        **only, "sharding": sharding, "parameter_offload": "cpu" if offload else "none",
        "optimizer_offload": "cpu" if offload else "none",
        "checkpoint_form": FORMS[plugin.state_dict_type.name],
        "activation_checkpointing": plugin.activation_checkpointing,
        "wrap_policy": "layers" if "transformer" in policy else "size" if "size" in policy else "nothing",
        "efficient_loading": said["FSDP_CPU_RAM_EFFICIENT_LOADING"].lower() == "true",
    }


def _deepspeed(said: dict[str, str]) -> dict[str, Any]:
    import deepspeed.runtime.config as parsed
    from accelerate.utils import DeepSpeedPlugin

    os.environ.update(said)
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(said["ACCELERATE_MIXED_PRECISION"])
    config = plugin.deepspeed_config
    zero, bf16 = config["zero_optimization"], config.get("bf16", {})
    on = [name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled") is True]
    said = {key: value for key, value in config.items() if (key, value) != ("gradient_clipping", "auto")}
    clipping = parsed.get_gradient_clipping(said)
    return {
        "sharding": STAGES[zero["stage"]], "mixed_precision": on[0] if on else "no",
        "parameter_offload": zero.get("offload_param", {}).get("device", "none"),
        "optimizer_offload": zero.get("offload_optimizer", {}).get("device", "none"),
        "checkpoint_form": "full" if zero.get("stage3_gather_16bit_weights_on_model_save") is True else "sharded",
        "gradient_accumulation_steps": {"auto": "script"}.get(*[config["gradient_accumulation_steps"]] * 2),
        "gradient_clipping": clipping, "efficient_loading": plugin.zero3_init_flag,
        "partition_size": zero.get("zero_hpz_partition_size", 1),
        "masters": "bf16" if bf16.get("bf16_master_weights_and_grads") else "fp32",
    }


def main(paths: list[str]) -> None:
    """One line of JSON per file; what one file puts into the environment is taken out again."""
    before = dict(os.environ)
    for path in paths:
        try:
            told: dict[str, Any] = held(Path(path))
        except Exception as error:  # noqa: BLE001 - a file that Accelerate refuses is an answer
            told = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(told) + "\n")
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main(sys.argv[1:])
