"""What is compared with what: the quantities that the tests judge and the calibration measures. Pure."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence

from conformance.promises import crosses, reductions_per_step
from conformance.tolerances import fp32_rounding, reference_kind, reported_norm, tolerance
from fixtures import corpus, verdict
from fixtures.freezing import trains
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.tables import PRECISIONS
from fixtures.verdict import EPSILON, Claim, Finding


def subject(observation: Observation, reference: Observation, kind: str) -> tuple[str, str]:
    """The subject of a claim and the words for its reference."""
    if kind != "peer":
        return observation.case.id, f"plain oracle {reference.case.id}"
    return f"{observation.case.id} ~ {reference.case.id}", f"direct comparison with {reference.case.engine}"


def first_loss(seen: Observation, due: Observation, kind: str) -> Iterator[Finding]:
    """Rung ``loss``: the first step's loss, before any update."""
    who, reference = subject(seen, due, kind)
    claim = Claim(subject=who, rung="loss", metric="loss, step 1", reference=reference)
    yield verdict.close(claim, seen.losses[0], due.losses[0], tolerance(seen.case, "loss", kind, platform=_on(seen)))


def reductions(seen: Observation) -> Iterator[Finding]:
    """Rung ``settings``: gradients cross the network as often as the engine promises, and no oftener.

    What one reduction of all gradients moves is known: an all-reduce takes them whole, a reduce-scatter takes them
    whole and gives a share back. Padding adds a little.
    """
    whole = sum(len(values) for name, values in seen.group("parameters").items() if crosses(seen.case, name))
    moved = 0.0
    for operation, by_dtype in seen.agreed("collectives").items():
        elements = sum(counted["elements"] for counted in by_dtype.values())
        if operation.startswith("allreduce"):
            moved += elements / whole
        elif operation.startswith("reduce_scatter"):
            moved += elements / (whole + whole / seen.case.world_size)
    due = reductions_per_step(seen.case)
    claim = Claim(
        subject=seen.case.id, rung="settings", metric="gradient reductions per optimizer step",
        reference=f"accumulation over {seen.case.accumulation_steps}",
    )
    fits = 0.99 * due <= moved <= 1.1 * due
    yield verdict.holds(claim, fits, observed=f"{moved:.3g}", allowed=f"{due} to {1.1 * due:.3g}")


def own_loss(seen: Observation) -> Iterator[Finding]:
    """Rung ``loss``: where the model hands back logits and a loss, its own loss is the loss of its logits."""
    claim = Claim(
        subject=seen.case.id, rung="loss", metric="the model's own loss",
        reference="cross-entropy of its logits in fp32",
    )
    if seen.case.outputs == "logits":
        yield verdict.curve(
            claim, seen.model_losses, seen.losses, tolerance(seen.case, "loss", "peer", platform=_on(seen))
        )


def first_gradients(seen: Observation, due: Observation, kind: str) -> Iterator[Finding]:
    """Rung ``gradients``: each parameter's gradient of step 1, and the norm of all of them."""
    who, reference = subject(seen, due, kind)
    claim = Claim(subject=who, rung="gradients", metric="gradients of step 1, by parameter", reference=reference)
    yield verdict.tensors(
        claim, seen.group("gradients"), due.group("gradients"),
        tolerance(seen.case, "gradients", kind, platform=_on(seen)), scale=gradient_scale(due),
    )
    yield _norm(seen, due, kind, step=1)


def rounding(seen: Observation, peers: Sequence[Observation]) -> dict[str, str]:
    """For the settings baseline: where an engine rounds gradients is its own affair, that it changed is not."""
    return {f"gradients agree with {peer.case.engine}'s": agreement(seen, peer) for peer in peers}


def agreement(seen: Observation, peer: Observation) -> str:
    """How closely two runs agree on the gradients of step 1: to fp32 rounding, to bf16 rounding, or not at all.

    Gradients that cannot be compared are no kind of disagreement, which a baseline could hold: they are told apart.
    """
    observed, expected = seen.group("gradients"), peer.group("gradients")
    if not expected or {name: len(v) for name, v in observed.items()} != {name: len(v) for name, v in expected.items()}:
        return "cannot be compared"
    worst = max(verdict.relative_errors(observed, expected, scale=gradient_scale(peer)).values())
    if not math.isfinite(worst):
        return "cannot be compared"
    if worst <= fp32_rounding(seen.case, "gradients"):
        return "to fp32 rounding"
    bf16 = tolerance(seen.case, "gradients", reference_kind(seen.case), platform=_on(seen)).relative
    return "to bf16 rounding" if worst <= bf16 else "no"


def later_norms(seen: Observation, due: Observation, kind: str) -> Iterator[Finding]:
    """Rung ``gradients``: norms of gathered gradients after the first update."""
    for step in sorted({2, *seen.measured_grad_norms, *due.measured_grad_norms} - {1}):
        yield _norm(seen, due, kind, step=step)


def _norm(seen: Observation, due: Observation, kind: str, *, step: int) -> Finding:
    who, reference = subject(seen, due, kind)
    claim = Claim(subject=who, rung="gradients", metric=f"gradient norm, step {step}", reference=reference)
    allowed = tolerance(seen.case, "norm", kind, platform=_on(seen))
    return verdict.close(claim, seen.measured_grad_norms.get(step), due.measured_grad_norms.get(step), allowed)


def reported_norms(seen: Observation, due: Observation) -> Iterator[Finding]:
    """Rung ``gradients``: the norm that the engine reports before clipping, every step, the same on every rank."""
    who, reference = subject(seen, due, reference_kind(seen.case))
    claim = Claim(subject=who, rung="gradients", metric="reported gradient norm", reference=reference)
    if not reports_norm(seen.case):
        return
    by_rank = seen.grad_norms
    allowed = reported_norm(seen.case, platform=_on(seen))
    yield verdict.curve(claim, [norms[0] for norms in by_rank], [norms[0] for norms in due.grad_norms], allowed)
    claim = Claim(subject=who, rung="gradients", metric="reported gradient norm, ranks", reference="each other")
    agree = all(norm == norms[0] for norms in by_rank for norm in norms)
    yield verdict.holds(claim, agree, observed="equal" if agree else f"{by_rank}", allowed="equal on every rank")


def reports_norm(case: Case) -> bool:
    """All engines report a norm, but ZeRO-0 has none to report unless it keeps masters apart."""
    return not (case.engine == "zero0" and case.precision != "bf16-mixed")


def loss_curve(seen: Observation, due: Observation, kind: str) -> Iterator[Finding]:
    """Rung ``curve``: the loss of every step."""
    who, reference = subject(seen, due, kind)
    claim = Claim(subject=who, rung="curve", metric="loss, every step", reference=reference)
    yield verdict.curve(claim, seen.losses, due.losses, tolerance(seen.case, "loss_curve", kind, platform=_on(seen)))


def falling(seen: Observation) -> Iterator[Finding]:
    """Rung ``curve``: the loss falls by far more than any tolerance, so that a model that learns nothing fails."""
    claim = Claim(subject=seen.case.id, rung="curve", metric="loss falls", reference="its own first steps")
    noise = tolerance(seen.case, "loss_curve", reference_kind(seen.case), platform=_on(seen)).relative
    yield verdict.falls(claim, seen.losses, by=10 * noise * seen.losses[0])


def last_parameters(seen: Observation, due: Observation, oracle: Observation, kind: str) -> Iterator[Finding]:
    """Rung ``parameters``: each parameter after the last step, relative to the way it has come."""
    who, reference = subject(seen, due, kind)
    claim = Claim(subject=who, rung="parameters", metric="parameters after the last step", reference=reference)
    allowed = tolerance(seen.case, "parameters", kind, platform=_on(seen))
    observed, expected, scale = comparable_parameters(seen, due, oracle)
    yield verdict.tensors(claim, observed, expected, allowed, scale=scale)


Tensors = Mapping[str, Sequence[float]]


def comparable_parameters(
    seen: Observation, due: Observation, oracle: Observation
) -> tuple[Tensors, Tensors, dict[str, float]]:
    """The parameters of both runs and what their distance is relative to, as they are compared.

    With fp32 weights each by itself. With bf16 weights as one vector: a norm has 32 weights near 1, and a single one
    that rounds the other way outweighs all that training did to it.
    """
    observed, expected, scale = seen.group("parameters"), due.group("parameters"), parameter_scale(oracle)
    if _weights_dtype(oracle.case) == "float32" or set(observed) != set(expected):
        return observed, expected, scale
    return joined(observed), joined(expected), {ALL: math.hypot(*scale.values())}


ALL = "all parameters"


def joined(group: Mapping[str, array[float]]) -> dict[str, array[float]]:
    """All tensors as one vector, in the order of their names."""
    whole = array("f")
    for name in sorted(group):
        whole.extend(group[name])
    return {ALL: whole}


def _weights_dtype(case: Case) -> str:
    return PRECISIONS[case.precision].master


def rows(seen: Observation) -> Finding:
    """Rung ``data``: in every step the ranks together train on the corpus' next rows, each once."""
    case = seen.case
    due = [list(corpus.rows_of_step(step, case.rows_per_step)) for step in range(1, case.steps + 1)]
    claim = Claim(subject=case.id, rung="data", metric="rows of every step", reference="the corpus in order")
    return verdict.sequence(claim, [sorted(step) for step in seen.rows], due)


def training(seen: Observation, due: Observation, kind: str, scale: Observation | None = None) -> Iterator[Finding]:
    """Rungs ``loss`` to ``parameters`` in one: what has no settings baseline of its own is judged by them.

    :param scale: the oracle, where ``due`` is another engine: it says how far parameters have come.
    """
    yield from first_loss(seen, due, kind)
    yield from first_gradients(seen, due, kind)
    yield from later_norms(seen, due, kind)
    yield from loss_curve(seen, due, kind)
    yield from falling(seen)
    yield from last_parameters(seen, due, scale or due, kind)


def with_zeros(seen: Observation) -> Observation:
    """``seen`` with zeros for parameters that have no gradient: some engines reduce zeros there, some nothing."""
    found = dict(seen.tensors)
    for name, value in seen.group("parameters").items():
        found.setdefault(f"gradients/{name}", array("f", bytes(4 * len(value))))
    same = dataclasses.replace(seen)
    same.__dict__["tensors"] = found
    return same


def unmoved(seen: Observation, oracle: Observation) -> Iterator[Finding]:
    """Rung ``parameters``: frozen weights end as they began, to the last bit, and have no gradient."""
    began, ended = oracle.group("initial"), seen.group("parameters")
    frozen = [name for name in began if not trains(seen.case, name)]
    moved = [name for name in frozen if name not in ended or ended[name] != began[name]]
    with_gradient = [name for name in frozen if name in seen.group("gradients")]
    for metric, found in (("frozen weights that moved", moved), ("frozen weights with a gradient", with_gradient)):
        claim = Claim(subject=seen.case.id, rung="parameters", metric=metric, reference="the weights it was handed")
        observed = ", ".join(found[:3]) or f"none of {len(frozen)}"
        yield verdict.holds(claim, bool(frozen) and not found, observed=observed, allowed="none, to the last bit")


def counted_steps(seen: Observation) -> Iterator[Finding]:
    """Rung ``parameters``: Adam has counted as many steps as were made: one too many or too few bends its averages."""
    due = [seen.case.steps] if seen.case.optimizer == "adamw" else []
    counted = {tuple(rank.engaged["local"]["optimizer_steps"]) for rank in seen.ranks}
    claim = Claim(
        subject=seen.case.id, rung="parameters", metric="steps that the optimizer counted", reference="steps made"
    )
    yield verdict.same(claim, [list(steps) for steps in counted], [due])


def gradient_scale(reference: Observation) -> dict[str, float]:
    """By parameter, the norm of the reference's gradient of step 1."""
    return {name: reference.norms[f"gradients/{name}"] for name in reference.group("gradients")}


def parameter_scale(oracle: Observation) -> dict[str, float]:
    """By parameter, how far the oracle has moved it; with bf16 weights, at least what their spacing can hide.

    A weight that moves by less than half the spacing of bf16 numbers does not move at all, or a whole step, so there
    the distance travelled alone says nothing.
    """
    low = _weights_dtype(oracle.case)
    hidden = EPSILON[low] if low != "float32" else 0.0
    return {
        name: math.hypot(way, hidden * oracle.norms[f"parameters/{name}"]) for name, way in oracle.travelled.items()
    }


def _on(seen: Observation) -> str:
    return str(seen.provenance.get("platform", "cpu"))


def differences(seen: Observation, due: Observation, oracle: Observation) -> dict[str, float]:
    """By metric of :data:`conformance.tolerances.METRICS`, the relative difference that a tolerance is held against."""
    norms = [(seen.measured_grad_norms.get(step, math.nan), norm) for step, norm in due.measured_grad_norms.items()]
    reported = zip([n[0] for n in seen.grad_norms], [n[0] for n in due.grad_norms], strict=True)
    gradients = due.group("gradients")
    observed, expected, scale = comparable_parameters(seen, due, oracle)
    return {
        "loss": relative([(seen.losses[0], due.losses[0])]),
        "loss_curve": relative(list(zip(seen.losses, due.losses, strict=True))),
        "norm": relative(norms),
        "norm_curve": relative([(a, b) for a, b in reported if a is not None and b is not None]),
        "gradients": max(
            verdict.relative_errors(seen.group("gradients"), gradients, scale=gradient_scale(due)).values()
        ),
        "parameters": max(verdict.relative_errors(observed, expected, scale=scale).values()),
    }


def relative(pairs: Sequence[tuple[float, float]]) -> float:
    """The largest relative difference of pairs (observed, reference); 0 for none, infinite if one is not finite."""
    found = [abs(seen - due) / abs(due) for seen, due in pairs]
    return max(found, default=0.0) if all(map(math.isfinite, found)) else math.inf
