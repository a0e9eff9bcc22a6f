"""ZeRO-3 adds the last step's gradient to a weight that the first micro-batch does not use (deepspeed 0.19.8).

    ACCELERATE_TORCH_DEVICE=cpu torchrun --nproc-per-node 2 -m docs.reproductions.zero3_unused_first

``partition_grads`` copies into a weight's gradient buffer where ``micro_step_id`` is 0, and adds to it later. A weight
that has no gradient in the first micro-batch is only ever added to, and its buffer still holds the step before.
Two steps on the same data, rate 0, so both must print one gradient; ZeRO-2 does.
"""

from __future__ import annotations

import os

import deepspeed
import torch
from deepspeed.utils import safe_get_full_grad


class Model(torch.nn.Module):
    """Two layers; the second is left out on demand, as layer drop does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, value: torch.Tensor, both: bool) -> torch.Tensor:
        """The sum of what comes out."""
        hidden = self.first(value)
        out: torch.Tensor = self.second(hidden) if both else hidden
        return out.sum()


def main() -> None:
    """The norm of the second layer's gradient, right before each of two equal steps."""
    for stage in (2, 3):
        torch.manual_seed(0)
        model = Model()
        engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
        })
        for step in (1, 2):
            for both in (False, True):
                engine.backward(engine(torch.ones(1, 4), both))
                if both:
                    norm = float(safe_get_full_grad(model.second.weight).norm())
                    if engine.global_rank == 0:
                        print(f"ZeRO-{stage}, step {step}: gradient norm {norm:.4f}", flush=True)
                engine.step()
    torch.distributed.barrier()
    os._exit(0)  # destructors of process groups may hang


if __name__ == "__main__":
    main()
