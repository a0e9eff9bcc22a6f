"""Rehearsals for real: a pass at full depth agrees, broken settings are caught, and a pretended rank sees all ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import rehearsal
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.judging import outcome_finding
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.rehearsal.forecast import PHASES, forecast
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent
DEEP = Case(model="llama-deep", engine="fsdp2", precision="bf16-mixed", rows_per_step=4).rehearsal


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Observation]]:
    """``rehearse(case, depths, **settings)``: what the rehearsal showed, whatever its outcome."""
    extensions.ensure_built()
    with Launcher() as launcher:

        def go(case: Case, depths: list[int], platform: str = "cpu", **changes: Any) -> Observation:
            request = Request.of(case, settings(case), platform)
            asked = {**request.settings, **changes, "rehearsal": {"platform": platform, "ranks": [0], "depths": depths}}
            folder = tmp_path_factory.mktemp("run")
            return launcher.run(replace(request, settings=asked), folder, deadline_seconds=300)

        yield go


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "zero3"])
def test_a_pass_at_full_depth_agrees(engine: str, rehearse: Callable[..., Observation]) -> None:
    """The line from three small depths ends where a fake pass over all layers is, within a thousandth."""
    seen = rehearse(DEEP.with_(engine=engine), [3, 4, 5, 8])
    memory = seen.ranks[0].memory
    depths = dict(memory["ranks"]["0"])
    whole = depths.pop("8")
    told = forecast({**memory, "ranks": {"0": depths}})
    for phase in PHASES:
        assert told.peaks[phase] == pytest.approx(max(whole[phase]["stretches"]), rel=1e-3)


def test_a_broken_setting_is_caught(rehearse: Callable[..., Observation]) -> None:
    """What Accelerate raises when it prepares the model fails the case with its message."""
    said = settings(DEEP)["fsdp"]
    seen = rehearse(DEEP, [2], fsdp={**said, "transformer_cls_names_to_wrap": ["NoSuchLayer"]})
    finding = outcome_finding(seen)
    assert not finding.passed
    assert "NoSuchLayer" in finding.observed
    assert not rehearsal.straight(seen).passed


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2"])
def test_a_gpu_steps_over_lists_of_tensors(engine: str, rehearse: Callable[..., Observation]) -> None:
    """Rehearsed for a GPU the step needs a temporary as large as all that is stepped on; on the CPU it does not."""
    case = DEEP.with_(engine=engine)
    peaks = {
        platform: max(rehearse(case, [2], platform).ranks[0].memory["ranks"]["0"]["2"]["step"]["stretches"])
        for platform in ("cpu", "a100")
    }
    assert peaks["a100"] > 1.05 * peaks["cpu"]


LOSS = """
import contextlib, json, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from fixtures.memory import FORWARD, Meter
from fixtures.rehearsal import ledger as ledgers
from fixtures.training import token_loss

def loss(mark):
    logits, labels = torch.zeros(8, 64, 256, dtype=torch.bfloat16), torch.zeros(8, 64, dtype=torch.int64)
    mark()
    token_loss(logits, labels)
    mark()

meter, ledger = Meter(), ledgers.Ledger(staging=False)
loss(lambda: None)
meter.start()
loss(lambda: meter.mark(FORWARD, {}))
meter.stop()
if sys.argv[1] == "blind":
    ledgers.INSIDE = ()
told = []
with FakeTensorMode(), ledger:
    loss(lambda: told.append(ledger.turn()))
print(json.dumps([meter._peaks[-1], told[-1]]))
"""


@pytest.mark.parametrize(("sight", "agrees"), [("whole", True), ("blind", False)])
def test_what_a_kernel_takes_inside_is_counted(sight: str, *, agrees: bool) -> None:
    """The loss over many logits takes as much again while it is computed; a ledger that does not know misses it."""
    command = [sys.executable, "-c", LOSS, sight]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    measured, rehearsed = json.loads(done.stdout)
    assert (abs(rehearsed / measured - 1) < 0.01) is agrees
