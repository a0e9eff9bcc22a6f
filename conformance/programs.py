"""What is claimed of evaluations between steps, and of weights that are loaded by one rank for all. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.tolerances import tolerance
from fixtures import verdict
from fixtures.observation import Observation
from fixtures.tables import EVALUATION_ROWS
from fixtures.verdict import Claim, Finding


def evaluations(seen: Observation, due: Observation) -> Iterator[Finding]:
    """Rung ``curve``: each rank's list of losses, by step and row, is as long as the oracle's and agrees with it."""
    expected = [loss for step in due.ranks[0].engaged["local"].get("evaluations", []) for loss in step]
    wanted = seen.case.steps * EVALUATION_ROWS
    platform = str(seen.provenance.get("platform", "cpu"))
    for rank in seen.ranks:
        claim = Claim(subject=seen.case.id, rung="curve", metric=f"losses of rows held out, rank {rank.rank}",
                      reference=f"plain oracle {due.case.id}")
        found = [loss for step in rank.engaged["local"].get("evaluations", []) for loss in step]
        yield verdict.holds(claim, len(found) == len(expected) == wanted, observed=f"{len(found)} losses",
                            allowed=f"{wanted}: {EVALUATION_ROWS} rows after each of {seen.case.steps} steps")
        yield verdict.curve(claim, found, expected, tolerance(seen.case, "loss_curve", "oracle", platform=platform))


PADDING = 0.1
"""Of a rank's share: ZeRO-3 cuts each tensor by itself, and fills its last part up."""


def loaded_once(seen: Observation) -> Iterator[Finding]:
    """Rung ``engaged``: with FSDP rank 0 alone reads weights from the file; ZeRO-3 keeps each rank's share."""
    case = seen.case
    whole = sum(map(len, seen.group("parameters").values()))
    for rank in seen.ranks:
        read = rank.engaged["local"].get("read_elements")
        if case.engine == "zero3":
            low, high = whole / case.world_size, (1 + PADDING) * whole / case.world_size
        else:
            low = high = whole if rank.rank == 0 else 0
        done = "holds" if case.engine == "zero3" else "read"
        claim = Claim(subject=case.id, rung="engaged", metric=f"weights that rank {rank.rank} {done}",
                      reference=f"{whole} elements, once for all")
        yield verdict.holds(claim, read is not None and low <= read <= high, observed=str(read),
                            allowed=f"{low:.0f} to {high:.0f}")
