"""Small records made by hand, for self-tests of what reads and judges them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.observation import Observation, RankRecord, Step
from fixtures.spec import Case
from fixtures.tables import ROWS_PER_STEP

STEP = Step(
    loss=0.5, model_loss=0.5, grad_norm=2.0, measured_grad_norm=2.0, learning_rates=(1e-3,), rows=(0, 1), seconds=0.25
)


def rank(number: int, *steps: Step, **changes: Any) -> RankRecord:
    """The record of a rank that made ``steps``."""
    return replace(RankRecord(rank=number, outcome="ok", steps=steps), **changes)


def ranks(case: Case, losses: Sequence[float], **changes: Any) -> tuple[RankRecord, ...]:
    """Records of ranks that share each step's loss and rows evenly; ``changes`` go to all of them.

    Gradients were measured in the first two steps.
    """
    return tuple(
        rank(number, *(_step(case, number, step, loss) for step, loss in enumerate(losses)), **changes)
        for number in range(case.world_size)
    )


def _step(case: Case, number: int, step: int, loss: float) -> Step:
    """What rank ``number`` saw in ``step`` (from 0)."""
    share, rows = loss / case.world_size, ROWS_PER_STEP // case.world_size
    first = step * ROWS_PER_STEP + number * rows
    return replace(
        STEP, loss=share, model_loss=share, rows=tuple(range(first, first + rows)),
        measured_grad_norm=STEP.measured_grad_norm if step < 2 else None,
    )


def observation(
    case: Case, folder: Path, losses: Sequence[float] = (4.0, 3.0, 2.0, 1.0), *,
    tensors: Mapping[str, Sequence[float]] | None = None, provenance: Mapping[str, Any] | None = None, **changes: Any,
) -> Observation:
    """What a run of ``case`` showed whose losses were ``losses``; ``tensors`` are written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is not None:
        (folder / "tensors.safetensors").write_bytes(safetensors(tensors))
    return Observation(
        case=case, outcome="ok", ranks=ranks(case, losses, **changes), error=None, fault=None, wall_seconds=1.5,
        provenance=provenance or {}, folder=folder,
    )


def safetensors(tensors: Mapping[str, Sequence[float]]) -> bytes:
    """A safetensors file of flat float32 tensors."""
    header, data = {}, b""
    for name, values in tensors.items():
        packed = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes) -> bytes:
    """A safetensors file of this header and these data: length (u64, little endian), header, data."""
    return struct.pack("<Q", len(header)) + header + data
