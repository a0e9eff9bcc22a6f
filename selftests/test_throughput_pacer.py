"""Turns and the timing of steps: who works when, what is counted, what is left out."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.catalogue import RACE
from fixtures import extensions
from fixtures.launch import Launcher, Progress
from fixtures.observation import Observation, Request
from fixtures.throughput.heats import run_heat
from fixtures.throughput.plan import rounds_of, steps_for
from fixtures.throughput.turns import Turns, ring

ROOT = Path(__file__).resolve().parent.parent

PACED = """
import json
from fixtures.throughput import pacer
from fixtures.throughput.plan import steps_for
from fixtures.throughput.turns import Turns

said = []
class Device:
    "Queues its work: a mark's time is known once it is synchronised, half a second per step."
    now, done = 0.0, 0.0
    def synchronize(self): said.append("synchronize"); self.done = self.now
    def mark(self): said.append("mark"); return self.now
    def between(self, earlier, later):
        assert later <= self.done, "read before it was synchronised"
        return later - earlier
device = Device()
def step(): said.append("step"); device.now += 0.5
paced = pacer.Pacer(steps=steps_for(2), turns=Turns(None, 0, 0), device=device, step=step,
                    settle=lambda: said.append("settle"), waited=lambda: 0.0)
paced.run()
print(json.dumps({"said": said, **paced.to_json()}))
"""


def ran(code: str) -> Any:
    """What ``code`` prints, as JSON, in a process that may import torch."""
    command = [sys.executable, "-c", code]
    return json.loads(subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    ).stdout)


def test_blocks_begin_and_end_synchronised() -> None:
    """On a device that queues: synchronised at both borders of a block and nowhere inside; warm-up is in no block."""
    told = ran(PACED)
    assert told["said"].count("step") == steps_for(2)
    block = ["synchronize", "mark", *["step", "mark"] * 4, "synchronize"]
    words = " ".join(told["said"])
    assert words.count(" ".join(block)) == 2
    assert words.index("mark") > words.index(" ".join(["step"] * 8))
    assert [one["step_seconds"] for one in told["blocks"]] == [[0.5] * 4] * 2


@pytest.mark.parametrize(("spans", "length"), [([], 0), ([(0, 2), (1, 3), (5, 6)], 4), ([(0, 9), (1, 2)], 9)])
def test_overlapping_collectives_count_once(spans: list[tuple[float, float]], length: float) -> None:
    """Communication is the time in which at least one is under way."""
    assert ran(f"from fixtures.throughput.pacer import covered; print(covered({spans}))") == length


@pytest.mark.parametrize("rounds", [1, 14, 60])
def test_steps_and_rounds_agree(rounds: int) -> None:
    """One is the inverse of the other, and a number that cannot be dealt out is refused."""
    assert rounds_of(steps_for(rounds)) == rounds
    with pytest.raises(ValueError, match="cannot be dealt out"):
        rounds_of(steps_for(rounds) + 1)


def test_only_one_case_has_its_turn() -> None:
    """Three cases, one of them with two ranks: each waits for the one before, round by round."""
    order: list[int] = []
    with ring([1, 2, 1]) as folder:

        def work(place: int, rank: int, barrier: threading.Barrier) -> None:
            turns = Turns(folder, place, rank)
            for _ in range(3):
                turns.wait()
                order.append(place)
                barrier.wait()
                turns.pass_on()

        barriers = [threading.Barrier(size) for size in (1, 2, 1)]
        threads = [threading.Thread(target=work, args=(place, rank, barriers[place]))
                   for place, size in enumerate((1, 2, 1)) for rank in range(size)]
        for thread in reversed(threads):  # the last first: who comes early waits, who comes late finds his turn
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join(10)
    assert order == [0, 1, 1, 2] * 3
    assert not folder.exists()


def test_alone_it_is_always_ones_turn() -> None:
    """By hand, under torchrun, nobody else is there to wait for."""
    turns = Turns(None, 0, 0)
    for _ in range(2):
        turns.wait()
        turns.pass_on()


SHORT = [case.with_(steps=steps_for(3)) for case in RACE if case.engine in ("ddp", "zero2", "fsdp2")]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """One launcher for all races of this module."""
    extensions.ensure_built()
    with Launcher() as launcher:
        yield launcher


def raced(launcher: Launcher, folder: Path, **faults: str) -> tuple[list[Observation], list[Progress]]:
    """A short race of real engines; ``faults`` by engine."""
    folders = [folder / case.id for case in SHORT]
    for one in folders:
        one.mkdir()
    heard: list[Progress] = []
    by_case = {case.id: faults[case.engine] for case in SHORT if case.engine in faults}
    seen = run_heat(launcher, SHORT, folders, platform="cpu", nvml=None, deadline_seconds=120,
                    on_progress=heard.append, faults=by_case)
    return seen, heard


def test_real_engines_take_turns(launcher: Launcher, tmp_path: Path) -> None:
    """No block of one case overlaps with another's; all train; the record says beside whom, where, under what load."""
    seen, heard = raced(launcher, tmp_path)
    assert [one.outcome for one in seen] == ["ok"] * len(SHORT), [one.error for one in seen]
    blocks = sorted((block["began"], block["began"] + block["seconds"], one.case.id)
                    for one in seen for block in one.ranks[0].throughput["blocks"])
    assert len(blocks) == 3 * len(SHORT)
    assert all(end <= begin for (_, end, _), (begin, _, _) in itertools.pairwise(blocks))
    order = [case_id for _, _, case_id in blocks]
    assert order == [case.id for case in SHORT] * 3
    assert {tuple(Request.read(one.folder).beside) for one in seen} == {tuple(case.id for case in SHORT)}
    first = seen[0]
    assert first.provenance["machine_identity"]["cores"] == os.cpu_count()
    assert set(first.provenance["conditions"]) == {"load_average", "other_busy_cores"}
    assert first.ranks[0].throughput["apart"]["communication_seconds"] > 0
    assert heard[-1].steps == sum(case.steps for case in SHORT)
    assert any(progress.tokens_per_second and progress.seconds_left is not None for progress in heard)


def test_a_rank_that_dies_ends_the_race(launcher: Launcher, tmp_path: Path) -> None:
    """The case at fault says why; the others, which waited for it, say beside whom they ended."""
    case = next(case for case in SHORT if case.engine == "zero2")
    seen, _ = raced(launcher, tmp_path, zero2="rank_killed_in_a_turn")
    told = {one.case.id: one for one in seen}
    assert all(one.outcome == "crashed" for one in seen)
    assert "SIGKILL" in (told[case.id].error or {})["message"]
    others = {(one.error or {})["message"] for one in seen if one.case != case}
    assert others == {f"ended because {case.id} crashed beside it"}


SLOWER = """
import time, json
from dataclasses import replace
from pathlib import Path
from fixtures import faults
from fixtures.observation import Request
from fixtures.spec import Case
request = Request(case=Case(model="llama-tiny", engine="ddp", precision="fp32"), settings={})
took = {}
for fault in (None, "slow_step", "stalled_step"):
    wall, cpu = time.perf_counter(), time.process_time()
    faults.slow(replace(request, fault=fault), 2.0)
    took[str(fault)] = [time.perf_counter() - wall, time.process_time() - cpu]
print(json.dumps(took))
"""


def test_the_injected_slowdown_is_a_tenth() -> None:
    """Of two seconds, at least 0.2 are added, by work or by waiting; nothing without the fault."""
    took = ran(SLOWER)
    assert took["None"][0] < 0.1
    assert all(0.2 <= took[fault][0] < 2 for fault in ("slow_step", "stalled_step"))
    assert took["stalled_step"][1] < 0.1


def test_a_request_names_its_race() -> None:
    """What stands in request.json is what a rank is asked."""
    request = Request(case=RACE[0], settings={}, beside=("a", "b"))
    assert replace(request, beside=()) != request
    assert request.to_json()["beside"] == ("a", "b")
