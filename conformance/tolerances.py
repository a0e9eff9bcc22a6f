"""How far apart two runs may be: derived, never picked. Pure.

[Note: where a tolerance comes from]
``allowed = max(ROUNDING x epsilon(dtype) x f, MARGIN x noise)``. The first part is what rounding in the dtype a number
is reported in can do even where no noise was measured; ``f`` counts how often it can. The second is what benign changes
did to the same training on this platform: another order of rows, other micro-batches, eager attention, two threads,
another world size, other buckets and units. ``tox run -e calibrate`` measures it and writes the evidence to
``baselines/<platform>/noise.json``; the injected faults of the self-tests hold it from the other side.

There are three kinds. ``oracle``: against one plain process over the whole batch, where sums are split differently and
low precision rounds elsewhere. ``autocast``: the same for DDP under mixed precision, which alone keeps norms and
residuals in fp32 and so lies further from all others than they from each other. ``peer``: between engines of the same
arithmetic (``catalogue.same_arithmetic``), where only the order of fp32 sums may differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fixtures.files import RecordError
from fixtures.spec import Case
from fixtures.tables import ENGINES, PLATFORMS, PRECISIONS
from fixtures.verdict import EPSILON, Tolerance

BASELINES = Path(__file__).resolve().parent.parent / "baselines"

ROUNDING = 8
"""Roundings that a reported fp32 number may differ by: products, a log-sum-exp and sums over tokens, ranks and steps
round a handful of times where each result is kept."""

MARGIN = 4
"""The noise is the largest of a few dozen benign runs; another machine, library or seed may do somewhat more."""

METRICS = ("loss", "loss_curve", "norm", "norm_curve", "gradients", "parameters")


class EvidenceError(RecordError):
    """The noise of this platform has not been measured, or not for this kind of case."""


def tolerance(case: Case, metric: str, kind: str, *, platform: str = "cpu") -> Tolerance:
    """The relative tolerance of ``metric`` for ``case`` against its ``kind`` of reference.

    :raises EvidenceError: if the platform's evidence does not hold it; the message says how to measure it.
    """
    noise = _noise(platform, key(case, kind), metric)
    floor = fp32_rounding(case, metric)
    if MARGIN * noise > floor:
        return Tolerance(
            relative=MARGIN * noise, reason=f"{MARGIN} x benign noise {noise:.2g} ({key(case, kind)}, {metric})"
        )
    return Tolerance(relative=floor, reason=f"{floor / EPSILON['float32']:.0f} x epsilon(float32)")


def fp32_rounding(case: Case, metric: str) -> float:
    """What rounding to fp32 alone can do to ``metric``, relative."""
    return ROUNDING * EPSILON["float32"] * _roundings(case, metric)


def reference_kind(case: Case) -> str:
    """The kind of tolerance that ``case`` has against its oracle."""
    mixed = PRECISIONS[case.precision].mixed_precision != "no"
    return "autocast" if mixed and ENGINES[case.engine].family == "ddp" else "oracle"


def reported_norm(case: Case, *, platform: str = "cpu") -> Tolerance:
    """Tolerance of the norm that an engine reports, which FSDP and DDP compute in the gradient's own dtype."""
    allowed = tolerance(case, "norm_curve", reference_kind(case), platform=platform)
    rounding = EPSILON["bfloat16"]
    if case.precision != "bf16-true" or allowed.relative >= rounding:
        return allowed
    return Tolerance(relative=rounding, reason="1 x epsilon(bfloat16), the dtype in which it is summed and reported")


def key(case: Case, kind: str) -> str:
    """The group of cases that share evidence: precision, optimizer and kind of reference."""
    return f"{case.precision} {case.optimizer} {kind}"


def _roundings(case: Case, metric: str) -> float:
    """``f(depth, steps)``: how often a rounding can enter before the number is read."""
    config: Mapping[str, Any] = case.architecture.config
    # Matrix multiplications in a row, forward and back: attention in and out, MLP up and down, per layer.
    depth = 2 * 4 * int(config.get("num_hidden_layers", config.get("n_layer", 0)))
    if metric == "gradients":
        return float(depth)
    if metric == "parameters":
        return float(depth * case.steps**0.5)
    return 1.0


def _noise(platform: str, group: str, metric: str) -> float:
    evidence = read_evidence(platform)
    try:
        noise = float(evidence["noise"][group][metric]["relative"])
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"no noise measured on {platform} for {group}, {metric}: {measure(platform)}") from error
    if not 0 <= noise < math.inf:
        raise EvidenceError(f"noise of {noise} on {platform} for {group}, {metric} is no evidence: {measure(platform)}")
    return noise


def measure(platform: str) -> str:
    """What to run, in words."""
    return "run tox run -e calibrate" + (f" -- --platform {platform}" if platform in PLATFORMS[1:] else "")


@lru_cache
def read_evidence(platform: str) -> dict[str, Any]:
    """The content of ``baselines/<platform>/noise.json``.

    :raises EvidenceError: if there is none, or it is not readable.
    """
    path = BASELINES / platform / "noise.json"
    try:
        evidence: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path} holds no evidence ({error}): {measure(platform)}") from error
    return evidence
