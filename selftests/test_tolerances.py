"""Limits are measured, none is vacuous, and a limit without evidence is none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.calibrate import SEEDS
from conformance.catalogue import EXPERIMENT, MATCHED, platforms, references
from conformance.tolerances import (
    MARGIN,
    METRICS,
    EvidenceError,
    key,
    read_evidence,
    reference_kind,
    reported_norm,
    tolerance,
)
from fixtures.spec import Case
from fixtures.tables import PRECISIONS

CASE = Case(model="llama-tiny", engine="zero3", precision="bf16-mixed", steps=16)
GROUP = "bf16-mixed adamw oracle"
EPSILON = 2.0**-23

USED = sorted({
    (key(case, kind), metric)
    for case in (*MATCHED, *EXPERIMENT.values()) if "cpu" in platforms(case)
    for kind in ("peer", *(kind for _, kind in references(case)))
    for metric in METRICS
})
"""Every figure that a claim of the CPU gate asks for; a model's own loss is held to its peer's limit."""

CEILINGS = {"loss": 0.01, "loss_curve": 0.01, "norm": 0.3, "norm_curve": 0.3, "gradients": 0.3, "parameters": 0.3}
"""Beyond these a limit says nothing: a loss off by a hundredth is a broken run, a tensor by a third another tensor."""

Evidence = Callable[..., str]


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    """``evidence(gradients=1e-3)``: a platform of its own where this noise was measured; a folder is its name."""

    def write(**noise: Any) -> str:
        figures = {metric: {"relative": value} for metric, value in noise.items()}
        (tmp_path / "noise.json").write_text(json.dumps({"noise": {GROUP: figures, key(TRUE, "oracle"): figures}}))
        return str(tmp_path)

    return write


TRUE = CASE.with_(engine="ddp", precision="bf16-true")


@pytest.mark.parametrize(("group", "metric"), USED)
def test_every_limit_of_the_gate_was_measured(group: str, metric: str) -> None:
    """Several benign changes, under every seed, and the one with the largest effect is named beside the figure."""
    measured = read_evidence("cpu")["noise"][group][metric]
    assert measured["samples"] >= 2 * len(SEEDS)
    assert math.isfinite(measured["relative"])
    assert measured["from"]


def test_no_limit_is_vacuous() -> None:
    """No tolerance of the CPU gate is so wide that a broken run could hide in it."""
    wide = {
        f"{key(case, kind)}, {metric}: {allowed:.3g} > {CEILINGS[metric]}"
        for case in (*MATCHED, *EXPERIMENT.values()) if "cpu" in platforms(case)
        for _, kind in references(case) for metric in METRICS
        if (allowed := tolerance(case, metric, kind).relative) > CEILINGS[metric]
    }
    assert sorted(wide) == []


def test_fp32_losses_are_held_to_a_millionth() -> None:
    """The first loss in fp32, on every engine, against the oracle and against the peer."""
    limits = [
        tolerance(case, "loss", kind).relative
        for case in MATCHED if case.precision == "fp32" for _, kind in references(case)
    ]
    assert 0 < max(limits) <= 1e-6


@pytest.mark.parametrize(
    ("metric", "epsilons"),
    [("loss", 8), ("loss_curve", 8), ("norm", 8), ("norm_curve", 8), ("gradients", 128), ("parameters", 512)],
)
def test_rounding_is_allowed_where_no_noise_was_seen(evidence: Evidence, metric: str, epsilons: int) -> None:
    """8 roundings, times 16 for two layers forward and back, times the root of 16 steps: each where it belongs."""
    allowed = tolerance(CASE, metric, "oracle", platform=evidence(**{metric: 0.0}))
    assert (allowed.relative, allowed.reason) == (epsilons * EPSILON, f"{epsilons} x epsilon(float32)")


def test_the_larger_part_counts(evidence: Evidence) -> None:
    """At the floor the floor is the reason; one bit above, four times the noise is, and says whose noise."""
    floor = 8 * EPSILON
    at = tolerance(CASE, "loss", "oracle", platform=evidence(loss=floor / MARGIN))
    assert (at.relative, at.reason) == (floor, "8 x epsilon(float32)")


def test_noise_above_the_floor_counts(evidence: Evidence) -> None:
    """Four times what a benign change did, and the reason says what was measured, and for whom."""
    allowed = tolerance(CASE, "loss", "oracle", platform=evidence(loss=2.0**-10))
    assert (allowed.relative, allowed.reason) == (2.0**-8, f"4 x benign noise 0.00098 ({GROUP}, loss)")


@pytest.mark.parametrize(
    ("noise", "allowed"), [(0.0, 2.0**-7), (2.0**-10, 2.0**-7), (2.0**-9, 2.0**-7), (2.0**-8, 2.0**-6)]
)
def test_a_norm_reported_in_bf16_may_round_to_bf16(evidence: Evidence, noise: float, allowed: float) -> None:
    """One rounding of bf16, unless the noise was larger; a mode with fp32 norms has no such floor."""
    platform = evidence(norm_curve=noise)
    assert reported_norm(TRUE, platform=platform).relative == allowed
    assert reported_norm(CASE, platform=platform) == tolerance(CASE, "norm_curve", "oracle", platform=platform)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2", "zero0", "zero3"])
def test_autocast_alone_has_limits_of_its_own(engine: str, precision: str) -> None:
    """DDP under mixed precision; every other engine, and DDP without it, is held to the oracle's limits."""
    autocast = engine == "ddp" and precision.endswith("mixed")
    assert reference_kind(CASE.with_(engine=engine, precision=precision)) == ("autocast" if autocast else "oracle")


def test_a_platform_that_was_never_measured_has_no_limits() -> None:
    """There is no default to fall back on: the line says what to run."""
    with pytest.raises(EvidenceError, match=r"h200/noise\.json holds no evidence \(.*\): run tox run -e calibrate"):
        tolerance(CASE, "loss", "oracle", platform="h200")


def test_a_figure_that_was_never_measured_is_no_limit(evidence: Evidence) -> None:
    """Another metric or another group of cases does not stand in for it."""
    platform = evidence(loss=0.0)
    words = rf"no noise measured on {platform} for {GROUP}, norm: run tox run -e calibrate"
    with pytest.raises(EvidenceError, match=words):
        tolerance(CASE, "norm", "oracle", platform=platform)
    with pytest.raises(EvidenceError, match="for fp32 adamw oracle, loss"):
        tolerance(CASE.with_(precision="fp32"), "loss", "oracle", platform=platform)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"date": "today"}', '{"noise": []}'])
def test_evidence_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    """Half a file, or another file, allows nothing."""
    (tmp_path / "noise.json").write_text(content)
    with pytest.raises(EvidenceError, match="run tox run -e calibrate"):
        tolerance(CASE, "loss", "oracle", platform=str(tmp_path))


@pytest.mark.parametrize("noise", ["inf", "nan", math.inf, math.nan, -1.0])
def test_noise_without_a_size_is_no_limit(evidence: Evidence, noise: Any) -> None:
    """A change that broke a run was not benign: its effect is neither allowed for nor passed over."""
    with pytest.raises(EvidenceError, match=rf"noise of {float(noise)} on .* is no evidence: run tox run -e calibrate"):
        tolerance(CASE, "loss", "oracle", platform=evidence(loss=noise))
