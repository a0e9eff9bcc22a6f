"""The suite can see where memory goes: real runs with a fault fail the claim about bytes that they should."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import memory
from conformance.catalogue import FITS, LEAKS, MEMORY, partners
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent
FP32 = {case.engine: case for case in MEMORY if case.precision == "fp32" and case.world_size == 2}
ALIGNED = {case.engine: case for case in LEAKS}

SEEN = [
    ("wrong_stage", FP32["zero3"], memory.state, "parameters on rank"),
    ("wrong_stage", FP32["zero1"], memory.state, "optimizer_state on rank"),
    ("gradients_kept", FP32["fsdp2"], memory.state, "gradients on rank 0, after the step"),
    ("gradients_kept", FP32["ddp"], memory.state, "gradients on rank 0, after the step"),
    ("tensor_leaked", ALIGNED["ddp"], memory.steady, "live bytes after each step"),
    ("tensor_leaked", ALIGNED["fsdp1"], memory.steady, "live bytes after each step"),
]
"""Fault, the case it is put into, the claim that must see it, and the words that it must begin with."""

SOUND = sorted({(case.id, case) for _, case, _, _ in SEEN}, key=lambda pair: pair[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Case, str | None], Observation]]:
    """``run(case, fault)``: what it showed, whatever its outcome."""
    extensions.ensure_built()
    with Launcher() as launcher:

        def go(case: Case, fault: str | None = None) -> Observation:
            request = replace(Request.of(case, settings(case)), fault=fault)
            patience = 20 if fault == "rank_hangs" else 120  # in bf16 some processors are thirty times as slow
            return launcher.run(request, tmp_path_factory.mktemp("run"), deadline_seconds=patience)

        yield go


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in SOUND])
def test_a_sound_run_passes_and_repeats(case: Case, run: Callable[..., Observation]) -> None:
    """Without a fault every claim holds; a second run holds the same bytes at rest, to the last one."""
    seen, again = run(case), run(case)
    assert (seen.outcome, again.outcome) == ("ok", "ok")
    failed = [f.sentence for f in (*memory.state(seen), *memory.steady(seen)) if not f.passed]
    assert failed == []
    assert at_rest(seen) == at_rest(again)


def at_rest(seen: Observation) -> list[Any]:
    """The split after a step, and all live bytes after every step, by rank."""
    return [(rank.memory["points"]["step"], rank.memory["after_steps"]) for rank in seen.ranks]


@pytest.mark.parametrize(
    ("fault", "case", "claims", "words"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN]
)
def test_a_fault_is_seen(
    fault: str, case: Case, claims: Any, words: str, run: Callable[..., Observation],
) -> None:
    """With the fault the claim fails, and says where the bytes are."""
    seen = run(case, fault)
    assert seen.outcome == "ok", seen.error
    failed = [finding.metric for finding in claims(seen) if not finding.passed]
    assert any(metric.startswith(words) for metric in failed), failed


def test_the_leak_is_a_thousandth_of_the_peak(run: Callable[..., Observation]) -> None:
    """What the injected leak adds per step is at most 0.1 % of what the case holds at its peak."""
    case = ALIGNED["fsdp1"]
    peak = min(max(rank.memory["peaks"].values()) for rank in run(case).ranks)
    after = run(case, "tensor_leaked").ranks[0].memory["after_steps"]
    assert 0 < after[10] - after[9] <= peak / 1000


FITTING = next(case for case in FITS if case.engine == "fsdp2")


def test_a_rank_out_of_memory_leaves_the_next_case_alone(run: Callable[..., Observation]) -> None:
    """Both partners run out of memory and say where; the target runs right after them, and its losses are its own."""
    before = run(FITTING)
    lost = [run(partner) for partner in partners(FITTING)]
    after = run(FITTING)
    assert [seen.outcome for seen in (before, *lost, after)] == ["ok", "oom", "oom", "ok"]
    assert after.losses == before.losses
    assert all(seen.error and ("allocate" in seen.error["message"] or "left" in seen.error["message"]) for seen in lost)


def test_a_budget_that_does_not_bind_is_seen(run: Callable[..., Observation]) -> None:
    """Ten times the budget holds DDP, too: then the claim about it fails and says why."""
    finding = memory.must_not_fit(run(partners(FITTING)[0].with_(budget_mib=510)))
    assert (finding.passed, finding.observed) == (False, "it fits: the budget is not binding")


@pytest.mark.parametrize(
    ("fault", "outcome"), [("rank_killed", "crashed"), ("rank_raises", "crashed"), ("rank_hangs", "hung")]
)
def test_other_ends_are_not_out_of_memory(fault: str, outcome: str, run: Callable[..., Observation]) -> None:
    """A rank killed by a signal, one that raises and one that hangs under a limit are told apart from one too large."""
    seen = run(FITTING, fault)
    assert seen.outcome == outcome
    assert not memory.must_not_fit(seen).passed
    assert seen.error is not None
    assert ("SIGKILL" in seen.error["message"]) is (fault == "rank_killed")
    assert (seen.error["type"] == "RankKilled") is (fault == "rank_killed")  # it was not the system's memory killer


METERED = """
import json, os, threading, torch
from fixtures.memory import *
meter, kept = Meter(), []
meter.start()
kept.append(torch.zeros(1000))
meter.mark(BUILD, {"parameters": kept})
meter.mark(PREPARE, {"parameters": kept})
for _ in range(4):
    meter.mark(BEFORE, {"parameters": kept})
    seen = torch.zeros(500)
    meter.mark(FORWARD, {"parameters": kept, "gathered": [kept[0][:10]]})
    torch.zeros(7000)
    meter.mark(BACKWARD, {"parameters": kept, "gradients": [seen]})
    del seen
    meter.mark(STEP, {"parameters": kept})
holder = [kept.pop()]
thread = threading.Thread(target=holder.clear)
thread.start(); thread.join()
meter.mark(CLOSED, {})
meter.stop()
print(json.dumps(meter.to_json()))
"""


def test_the_meter_counts_to_the_byte() -> None:
    """Live and peak bytes, the split with shared storages once, and what another thread releases."""
    command = [sys.executable, "-c", METERED]
    told = json.loads(
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    )
    forward, backward = told["points"]["forward"], told["points"]["backward"]
    assert (forward["live"], forward["parameters"], forward["activations"]) == (6000, 4000, 2000)
    assert forward["gathered"] == 0
    assert (backward["live"], backward["gradients"], backward["activations"], backward["rest"]) == (6000, 2000, 0, 0)
    assert told["peaks"]["backward"] == 6000 + 28000
    assert (told["after_steps"], told["after_close"]) == ([4000] * 4, 0)
