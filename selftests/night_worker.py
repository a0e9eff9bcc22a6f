"""A worker that holds its GPU as long as its case took once, and writes down when: for a night that is played.

``NIGHT_SECONDS`` in the environment is a JSON object, seconds by case id; ``NIGHT_LOG`` a file that gets a line for
each rank: case, device, from, until (seconds, by the machine's one monotonic clock).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from fixtures.files import write_json
from fixtures.observation import RankRecord, Request, Step


def environment(platform: str) -> Mapping[str, str]:
    """Nothing to set: there is no framework to be told."""
    return {}


def run_rank(run_dir: Path, *, rank: int, world_size: int) -> int:
    """Be busy, and record a step."""
    began = time.monotonic()
    request = Request.read(run_dir)
    device = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[rank]  # as torch.cuda.set_device(rank) would choose it
    seconds: Mapping[str, float] = json.loads(os.environ["NIGHT_SECONDS"])
    time.sleep(seconds[request.case.id])
    step = Step(loss=0.5, model_loss=None, grad_norm=1.0, measured_grad_norm=None, learning_rates=(1e-3,),
                rows=(rank,), seconds=0.0)
    record = RankRecord(rank=rank, outcome="ok", steps=(step,) * request.case.steps)
    write_json(run_dir / f"rank{rank}.json", record.to_json())
    line = json.dumps([request.case.id, int(device), began, time.monotonic()]) + "\n"
    log = os.open(os.environ["NIGHT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())  # one write of a short line is whole
    os.close(log)
    return 0
