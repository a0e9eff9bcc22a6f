"""What is claimed of an engine's own work in a step, counted in calls, which no noise reaches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.promises import look
from fixtures import verdict
from fixtures.observation import Observation
from fixtures.verdict import Claim, Finding

BEND = 0.03
"""How far above the line the deepest model may lie. On the tested stack DDP, FSDP1, FSDP2 and ZeRO-0 lie on it to the
last call, ZeRO-1 to ZeRO-3 up to 2.2 % below it. DeepSpeed 0.18.5, whose hooks each look at all parameters (#7885),
lies 44 % above it in ZeRO-2 and 13 % in ZeRO-3."""

RISE = 0.25
"""How much a count may rise over its baseline. It repeats to the last call on one stack; another release of Python
counts a few per cent differently (comprehensions are calls of their own up to 3.11), and a release of a framework that
checks its arguments once more is no regression."""


def calls(seen: Observation) -> int | None:
    """Calls of the last step, on the rank that made most; ``None`` if a rank has none on record."""
    found = [look(rank.throughput, "calls") for rank in seen.ranks]
    return max(found) if found and all(type(value) is int and value > 0 for value in found) else None


def grows_in_line(depths: Sequence[Observation]) -> Finding:
    """The deepest of three lies on the line through the two others, or below it.

    :param depths: of one recipe, by rising number of layers.
    """
    low, middle, deep = depths
    claim = Claim(
        subject=deep.case.id, rung="throughput", metric="calls in a step",
        reference=f"the line through {low.case.id} and {middle.case.id}",
    )
    counted = [calls(one) for one in depths]
    if None in counted:
        return verdict.holds(claim, False, observed=f"{counted}: not recorded", allowed="a count at each depth")
    first, second, third = (value for value in counted if value is not None)
    layers = [one.case.architecture.layers for one in depths]
    line = second + (second - first) / (layers[1] - layers[0]) * (layers[2] - layers[1])
    off = third / line - 1 if line > 0 else float("inf")
    return claim.found(
        observed=f"{third:,}, {off:+.1%} off it", allowed=f"{line:,.0f} at {layers[2]} layers, + {BEND:.0%}",
        passed=off <= BEND, used=max(0.0, off) / BEND,
    )
