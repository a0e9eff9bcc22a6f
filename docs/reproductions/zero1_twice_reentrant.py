"""ZeRO-1 loses gradients of a model that is called twice under reentrant checkpointing (deepspeed 0.19.8).

    ACCELERATE_TORCH_DEVICE=cpu torchrun --nproc-per-node 2 -m docs.reproductions.zero1_twice_reentrant

One backward of the sum of two losses, each of a forward of its own whose layers are checkpointed with
``use_reentrant=True``. The gradient norm must not depend on how layers are checkpointed; under ZeRO-1 it does.
"""

from __future__ import annotations

import os

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    """Three layers, each of which is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, value: torch.Tensor, reentrant: bool) -> torch.Tensor:
        """The sum of what comes out."""
        hidden = value.requires_grad_()
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        return hidden.float().sum()


def main() -> None:
    """The norm of all gradients, right before a step, with each way of checkpointing."""
    for stage in (0, 1):
        for reentrant in (False, True):
            torch.manual_seed(0)
            model = Model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
                "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
                "data_types": {"grad_accum_dtype": "fp32"} if stage else {},
                "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
            })
            rows = torch.linspace(-1, 1, 16).reshape(2, 8).bfloat16()
            for _ in range(2):
                engine.backward(engine(rows[:1].clone(), reentrant) + engine(rows[1:].clone(), reentrant))
                if engine.is_gradient_accumulation_boundary():
                    found = [safe_get_full_grad(weight) for weight in model.parameters()]
                    norm = torch.stack([one.float().norm() for one in found if one is not None]).norm()
                    if engine.global_rank == 0:
                        print(f"ZeRO-{stage}, use_reentrant={reentrant}: gradient norm {float(norm):.4f}", flush=True)
                engine.step()
    torch.distributed.barrier()
    os._exit(0)  # destructors of process groups may hang


if __name__ == "__main__":
    main()
