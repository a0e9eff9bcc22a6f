"""Under FSDP's bf16 mixed precision, the Trainer's count of tokens arrives rounded (transformers 5.24.0; not 5.6.2).

    ACCELERATE_TORCH_DEVICE=cpu torchrun --nproc-per-node 2 -m docs.reproductions.trainer_token_count

``_get_num_items_in_batch`` divides the count by the parallel degrees, which makes a floating tensor of it. FSDP casts
floating inputs to its ``param_dtype``, and bf16 has no 333: loss and gradients are divided by 332. From 256 tokens on
every other count is wrong, by up to 0.4 %.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
from torch.distributed.fsdp import MixedPrecisionPolicy as Policy

TOKENS = 333


class Told(torch.nn.Linear):
    """Says what it is told."""

    def forward(self, inputs: torch.Tensor, num_items_in_batch: torch.Tensor | None = None) -> torch.Tensor:
        """As a model that averages over ``num_items_in_batch`` tokens."""
        print(f"rank {dist.get_rank()}: {TOKENS} tokens became {num_items_in_batch}", flush=True)
        return super().forward(inputs)


def main() -> None:
    """What the Trainer hands over, through FSDP2 and FSDP1."""
    dist.init_process_group("gloo")
    count = torch.tensor(TOKENS) / (1 * 1 * 1)  # trainer.py: / (get_tp_size() * get_cp_size() * get_sp_size())
    two = Told(4, 4)
    fully_shard(two, mesh=dist.init_device_mesh("cpu", (2,)), mp_policy=Policy(param_dtype=torch.bfloat16))
    two(torch.ones(2, 4), num_items_in_batch=count)
    policy = MixedPrecision(param_dtype=torch.bfloat16)
    one = FullyShardedDataParallel(Told(4, 4), mixed_precision=policy, device_id=torch.device("cpu"))
    one(torch.ones(2, 4), num_items_in_batch=count)
    dist.barrier()
    os._exit(0)  # destructors of process groups may hang


if __name__ == "__main__":
    main()
