"""The published experiment: at a low learning rate, bf16 weights without an upcast stay behind, whatever rate they get.

Source: Hugging Face and IBM, "From DeepSpeed to FSDP and Back Again with Hugging Face Accelerate" (June 2024): Mistral
7B, loaded in bf16, trained at 1e-5. An update below half the spacing of bf16 numbers is lost when the weights
themselves are bf16; fp32 masters collect it. Multiplying the learning rate by the number of ranks only looked like a
remedy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from conformance.catalogue import EXPERIMENT, params
from conformance.tolerances import tolerance
from fixtures import plots, verdict
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim, Finding

Curves = Mapping[str, Sequence[float]]
Artifact = Callable[[str], Path | None]

TAIL = 20
"""Steps at the end whose mean loss is compared: rows differ from step to step by more than the modes do."""


@pytest.fixture
def curves(trained: Trained) -> Curves:
    """The losses of the five runs by their name in :data:`conformance.catalogue.EXPERIMENT`."""
    return {name: trained(run).losses for name, run in EXPERIMENT.items()}


@pytest.mark.parametrize("case", params([EXPERIMENT["constrained"]]))
def test_bf16_weights_stay_behind(case: Case, curves: Curves, judge: Judge, artifact: Artifact) -> None:
    """Memory-constrained FSDP stays above aligned FSDP, at the same rate and at that rate times the number of ranks."""
    margin = 10 * tolerance(EXPERIMENT["aligned"], "loss_curve", "oracle").relative * tail(curves["aligned"])
    picture = artifact("published-experiment.png")
    if picture:
        plots.curves(picture, curves, title="bf16 load, learning rate 1e-5: with and without an upcast", smooth=TAIL)
    judge(
        behind("constrained", curves, margin),
        behind("constrained, rate times ranks", curves, margin),
    )


@pytest.mark.parametrize("case", params([EXPERIMENT["aligned"]]))
def test_aligned_modes_coincide(case: Case, curves: Curves, judge: Judge) -> None:
    """With the upcast, FSDP and DeepSpeed give one curve at one learning rate."""
    allowed = tolerance(case, "loss_curve", "peer")
    claim = Claim(subject=case.id, rung="experiment", metric="loss, aligned FSDP", reference="aligned DeepSpeed")
    judge(verdict.curve(claim, curves["aligned"], curves["aligned DeepSpeed"], allowed))


@pytest.mark.parametrize("case", params([EXPERIMENT["constrained DeepSpeed"]]))
def test_bf16_masters_are_the_twin(case: Case, curves: Curves, judge: Judge) -> None:
    """DeepSpeed with bf16 master weights stays behind just as memory-constrained FSDP does."""
    allowed = tolerance(case, "loss_curve", "peer")
    claim = Claim(subject=case.id, rung="experiment", metric="loss, bf16 masters", reference="constrained FSDP")
    judge(verdict.curve(claim, curves["constrained DeepSpeed"], curves["constrained"], allowed))


def tail(losses: Sequence[float]) -> float:
    """Mean loss of the last :data:`TAIL` steps."""
    return math.fsum(losses[-TAIL:]) / TAIL


def behind(name: str, curves: Curves, margin: float) -> Finding:
    """The claim that the run ``name`` ends above the aligned one by more than ``margin`` nats."""
    gap = tail(curves[name]) - tail(curves["aligned"])
    claim = Claim(
        subject=EXPERIMENT[name].id, rung="experiment", metric="stays behind", reference=f"{EXPERIMENT['aligned'].id}"
    )
    return verdict.holds(
        claim, gap >= margin, observed=f"{gap:.5f} nats above {tail(curves['aligned']):.5f}",
        allowed=f"at least {margin:.5f}, 10 x tolerance",
    )
