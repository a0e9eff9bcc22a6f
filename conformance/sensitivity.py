"""How small a slowdown the gate on speed still sees: measured heats, made slower by a known amount. Pytest circle.

Heats of unchanged races are dealt anew into races, one engine's times in them multiplied, and judged by the gate's code
as any race is. So the noise is that of this machine, and the amounts are exact.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.throughput import judged
from fixtures.throughput.floor import Stored
from fixtures.throughput.judged import Pace
from fixtures.throughput.race import MOST_HEATS, Race
from fixtures.throughput.ratio import Heat

AMOUNTS = (0.06, 0.07, 0.08, 0.09, 0.10, 0.11, 0.12, 0.13, 0.14, 0.15, 0.20)
"""By how much an engine is slowed, from the least."""

RACES = 120
"""Dealt for each engine and amount."""

LEAST_HEATS = 2 * MOST_HEATS
"""Fewer would be dealt over and over, and would not differ as heats do."""


def slowed(heat: Heat, case_id: str, by: float) -> dict[str, Observation]:
    """The heat, with every block of ``case_id`` longer by this share (0.1 is 10 %)."""
    seen = heat[case_id]
    ranks = tuple(
        replace(rank, throughput={**rank.throughput, "blocks": [
            {**block, "seconds": block["seconds"] * (1 + by)} for block in rank.throughput["blocks"]
        ]}) for rank in seen.ranks
    )
    return {**heat, case_id: replace(seen, ranks=ranks)}


def caught(pool: Sequence[Heat], cases: Sequence[Case], pace: Pace, stored: Stored, by: float) -> int:
    """In how many of :data:`RACES` races the slowed case of ``pace`` is named as slower.

    :raises ValueError: with fewer than :data:`LEAST_HEATS` heats.
    """
    if len(pool) < LEAST_HEATS:
        raise ValueError(f"{len(pool)} heats, wanted at least {LEAST_HEATS}")
    dice, found = random.Random(0), 0
    for _ in range(RACES):
        heats = [slowed(heat, pace.case.id, by) for heat in dice.sample(list(pool), MOST_HEATS)]

        def run(cases: Sequence[Case], number: int, heats: Sequence[Heat] = heats) -> list[Observation]:
            return [heats[number - 1][case.id] for case in cases]

        finding = judged.judge(Race(cases=cases, run=run), pace, stored, reference="")
        found += finding.observed.startswith("slower")
    return found


def smallest(
    pool: Sequence[Heat], cases: Sequence[Case], paces: Mapping[str, tuple[Pace, Stored]], wanted: int,
) -> dict[str, float | None]:
    """By name, the least of :data:`AMOUNTS` that is caught in ``wanted`` races; ``None`` if not even the last is."""
    return {
        name: next((by for by in AMOUNTS if caught(pool, cases, pace, stored, by) >= wanted), None)
        for name, (pace, stored) in paces.items()
    }
