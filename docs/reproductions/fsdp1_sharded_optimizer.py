"""FSDP1 loses Adam's state when a fresh process loads a sharded checkpoint (accelerate 1.6.0 to 1.15.0 at least).

    ACCELERATE_TORCH_DEVICE=cpu torchrun --nproc-per-node 2 -m docs.reproductions.fsdp1_sharded_optimizer

``load_fsdp_optimizer`` asks the optimizer which state is to be loaded; a fresh one has none, so nothing is. For FSDP2
this was mended in 1.13.0 (https://github.com/huggingface/accelerate/issues/3904).
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist

from fixtures.engines.cpu import present_cpu_as_device


def prepared(accelerator: Any) -> tuple[Any, Any]:
    """A small model and its Adam, always the same at first."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    made: tuple[Any, Any] = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    return made


def main() -> None:
    """Save after one step, load into fresh objects, and count the optimizer's entries."""
    dist.init_process_group("gloo")
    present_cpu_as_device()
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=1, state_dict_type="SHARDED_STATE_DICT", use_orig_params=True, cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    model, optimizer = prepared(accelerator)
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    accelerator.save_state(folder[0])
    saved = len(optimizer.optimizer.state)
    accelerator.free_memory()
    model, optimizer = prepared(accelerator)
    accelerator.load_state(folder[0])
    print(f"rank {dist.get_rank()}: {saved} entries saved, {len(optimizer.optimizer.state)} loaded", flush=True)
    dist.barrier()
    os._exit(0)  # destructors of process groups may hang


if __name__ == "__main__":
    main()
