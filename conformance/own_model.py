"""What is claimed of a user's model. No baseline holds its noise: that is measured in the same session. Pure.

The calibration's evidence comes from the suite's own models. A model with other parts (experts that are chosen, key
biases whose gradient is zero but for rounding) may amplify rounding more, so the benign changes that need no other
engine, the oracle's batch cut into 2, 4 and 8 micro-batches, are made on it too, and the wider allowance holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from conformance import claims
from conformance.tolerances import MARGIN, METRICS, reference_kind, tolerance
from fixtures import verdict
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.verdict import Claim, Finding, Tolerance


def cuts(case: Case) -> list[Case]:
    """The oracle of ``case`` with its batch cut into as many micro-batches as it can be, up to 8."""
    return [
        case.oracle.with_(accumulation_steps=steps) for steps in (2, 4, 8) if case.rows_per_step % steps == 0
    ]


def noise(oracle: Observation, cut: Sequence[Observation]) -> dict[str, float]:
    """By metric, the largest relative difference that cutting the batch made; infinite if one is not finite."""
    found = [_differences(seen, oracle) for seen in cut]
    return {metric: max((one[metric] for one in found), default=math.inf) for metric in METRICS if metric in found[0]}


def _differences(seen: Observation, oracle: Observation) -> dict[str, float]:
    by_metric = claims.differences(seen, oracle, oracle)
    observed, expected, way = _whole(seen, oracle)
    return {**by_metric, "parameters": max(verdict.relative_errors(observed, expected, scale=way).values())}


def _whole(seen: Observation, oracle: Observation) -> tuple[claims.Tensors, claims.Tensors, dict[str, float]]:
    """All parameters as one vector: a bias without a gradient goes wherever rounding sends it."""
    observed, expected = claims.joined(seen.group("parameters")), claims.joined(oracle.group("parameters"))
    return observed, expected, {claims.ALL: math.hypot(*claims.parameter_scale(oracle).values())}


def allowed(case: Case, metric: str, measured: float) -> Tolerance:
    """The suite's own tolerance, or :data:`conformance.tolerances.MARGIN` times what was measured here if that is more.

    Never above a tenth: where rounding alone moves a metric that far, nothing can be judged by it.
    """
    stored = tolerance(case, metric, reference_kind(case))
    if not MARGIN * measured > stored.relative:
        return stored
    return Tolerance(
        relative=min(MARGIN * measured, LARGEST), reason=f"{MARGIN} x noise {measured:.2g} of this model, {metric}"
    )


LARGEST = 0.1


def trains_as_oracle(seen: Observation, oracle: Observation, measured: dict[str, float]) -> Iterator[Finding]:
    """Loss and gradients of step 1, the norm of step 2, every loss, and the weights at the end, as one vector."""
    case, reference = seen.case, f"plain oracle {oracle.case.id}"

    def claim(rung: str, metric: str) -> Claim:
        return Claim(subject=case.id, rung=rung, metric=metric, reference=reference)

    def within(metric: str) -> Tolerance:
        return allowed(case, metric, measured[metric])

    # In low precision an engine may round once more on the way: ZeRO-3's linear does before it adds a bias.
    first = "loss" if case.precision == "fp32" else "loss_curve"
    yield verdict.close(claim("loss", "loss, step 1"), seen.losses[0], oracle.losses[0], within(first))
    yield verdict.tensors(
        claim("gradients", "gradients of step 1, by parameter"), seen.group("gradients"), oracle.group("gradients"),
        within("gradients"), scale=claims.gradient_scale(oracle),
    )
    for step, norm in oracle.measured_grad_norms.items():
        observed = seen.measured_grad_norms.get(step)
        yield verdict.close(claim("gradients", f"gradient norm, step {step}"), observed, norm, within("norm"))
    yield verdict.curve(claim("curve", "loss, every step"), seen.losses, oracle.losses, within("loss_curve"))
    least = 10 * within("loss_curve").relative * seen.losses[0]
    yield verdict.falls(claim("curve", "loss falls"), seen.losses, by=least)
    names = claim("parameters", "names of all parameters")
    yield verdict.same(names, sorted(seen.group("parameters")), sorted(oracle.group("parameters")))
    one, other, way = _whole(seen, oracle)
    last = claim("parameters", "parameters after the last step")
    yield verdict.tensors(last, one, other, within("parameters"), scale=way)
