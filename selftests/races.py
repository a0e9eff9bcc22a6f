"""Races made by hand: cases with the step times that a test says, for self-tests of what judges them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.catalogue import PACES, RACE, ROUNDS
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.throughput.judged import Pace
from fixtures.throughput.plan import BLOCK_STEPS
from fixtures.throughput.race import Race
from selftests.records import observation

MACHINE = {"cpu": "a processor", "cores": 2}
FSDP2, ZERO3 = (next(case for case in RACE if case.engine == name) for name in ("fsdp2", "zero3"))
DDP = RACE[0]
PACE: Pace = next(pace for pace in PACES["test_engine_keeps_its_pace"] if pace.case == FSDP2)
"""FSDP2 in steps of DDP."""


def throughput(blocks: Sequence[float]) -> dict[str, Any]:
    """A rank's record whose blocks took these seconds per step."""
    return {
        "blocks": [
            {"began": float(number), "seconds": seconds * BLOCK_STEPS, "step_seconds": [seconds] * BLOCK_STEPS,
             "cpu_seconds": [seconds] * BLOCK_STEPS, "data_seconds": [seconds / 10] * BLOCK_STEPS}
            for number, seconds in enumerate(blocks)
        ],
        "apart": {"steps": 3, "seconds": 1.0, "communication_seconds": 0.25}, "model_elements": 1000,
        "cpu_seconds": 1.0,
    }


def timed(case: Case, blocks: Sequence[float], **provenance: Any) -> Observation:
    """What ``case`` showed, both ranks alike."""
    told = {"machine_identity": MACHINE, "date": "2026-01-02", **provenance}
    return observation(case, Path(), throughput=throughput(blocks), provenance=told)


class Noise:
    """A machine whose every block, and every process, is off by so much (standard deviations of a logarithm)."""

    def __init__(
        self, seed: int, *, block: float = 0.03, process: float = 0.01, slow: Mapping[str, float] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._block, self._process, self._slow = block, process, slow or {}

    def heat(self, cases: Sequence[Case], number: int) -> list[Observation]:
        """A heat of ``cases``; the ``place``-th takes so many hundredths of a second per step."""
        gauss = self._random.gauss
        weather = [gauss(0, 3 * self._block) for _ in range(ROUNDS)]  # what is there for all of them
        found = []
        for place, case in enumerate(cases, 1):
            typical = place / 100 * self._slow.get(case.id, 1.0) * math.exp(gauss(0, self._process))
            found.append(timed(case, [typical * math.exp(common + gauss(0, self._block)) for common in weather]))
        return found

    def race(self) -> Race:
        """A race of the gate's cases on this machine."""
        return Race(cases=RACE, run=self.heat)
