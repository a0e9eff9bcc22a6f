"""What is compared with what: each deviation breaks the claim that it should, and no other."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conformance import claims, test_curves
from conformance.catalogue import CURVE, DISTRIBUTED
from conformance.tolerances import METRICS, key
from fixtures.observation import Observation, Step
from fixtures.spec import Case
from fixtures.verdict import Finding
from selftests.records import observation, ranks

CASE = Case(model="llama-tiny", engine="zero3", precision="fp32", steps=4)
NOISE = 2.0**-12
LIMIT = 2.0**-10
"""Four times the noise: what every claim here allows."""

LOSSES = (4.0, 3.0, 2.0, 1.0)
TENSORS = {
    "gradients/head": [3.0, 4.0], "gradients/embed": [6.0, 8.0],
    "parameters/head": [1.0, 1.0], "parameters/embed": [2.0, 0.0],
    "initial/head": [0.0, 1.0], "initial/embed": [0.0, 0.0],
}
GRADIENTS, NORM_1, NORM_2 = "gradients of step 1, by parameter", "gradient norm, step 1", "gradient norm, step 2"
REPORTED, BY_RANK = "reported gradient norm", "reported gradient norm, ranks"
FIRST, OWN, EVERY, FALLS = "loss, step 1", "the model's own loss", "loss, every step", "loss falls"
PARAMETERS = "parameters after the last step"


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A folder, and a platform of its own on which all noise is the same."""

    folder: Path

    def seen(self, name: str = "seen", case: Case = CASE, **changes: Any) -> Observation:
        """A sound run, or one with other ``losses``, ``tensors`` or fields of the rank records."""
        said = {"losses": LOSSES, "tensors": TENSORS, **changes}
        return observation(case, self.folder / name, provenance={"platform": str(self.folder)}, **said)

    def oracle(self, **changes: Any) -> Observation:
        """A sound run of the oracle."""
        return self.seen("oracle", CASE.oracle, **changes)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A fresh one: what its runs are compared with is written into the test's own folder."""
    kinds = [key(CASE.with_(precision=p), k) for p in ("fp32", "bf16-mixed", "bf16-true") for k in ("oracle", "peer")]
    noise = {kind: {metric: {"relative": NOISE} for metric in METRICS} for kind in kinds}
    (tmp_path / "noise.json").write_text(json.dumps({"noise": noise}))
    return Lab(folder=tmp_path)


def ladder(seen: Observation, oracle: Observation) -> Iterator[Finding]:
    """Every claim about a run that compares numbers."""
    yield from claims.own_loss(seen)
    yield from claims.first_loss(seen, oracle, "oracle")
    yield from claims.first_gradients(seen, oracle, "oracle")
    yield from claims.later_norms(seen, oracle, "oracle")
    yield from claims.reported_norms(seen, oracle)
    yield from claims.loss_curve(seen, oracle, "oracle")
    yield from claims.falling(seen)
    yield from claims.last_parameters(seen, oracle, oracle, "oracle")


def broken(seen: Observation, oracle: Observation) -> set[str]:
    """The metrics of the claims that fail."""
    return {finding.metric for finding in ladder(seen, oracle) if not finding.passed}


def test_a_sound_run_breaks_nothing(lab: Lab) -> None:
    """All ten claims hold, and on every rung that compares numbers there is one."""
    found = list(ladder(lab.seen(), lab.oracle()))
    assert [finding.sentence for finding in found if not finding.passed] == []
    assert {finding.metric for finding in found} == {
        GRADIENTS, NORM_1, NORM_2, REPORTED, BY_RANK, FIRST, OWN, EVERY, FALLS, PARAMETERS
    }
    assert {finding.rung for finding in found} == {"loss", "gradients", "curve", "parameters"}


@pytest.mark.parametrize(
    ("name", "values", "metrics"),
    [
        ("gradients/head", [3.0, 4.0 + 5 * LIMIT], set()),
        ("gradients/head", [3.0, 4.0 + 5.1 * LIMIT], {GRADIENTS}),
        ("gradients/embed", [8.0, 6.0], {GRADIENTS}),
        ("gradients/embed", [-6.0, -8.0], {GRADIENTS}),
        ("gradients/embed", [math.nan, 8.0], {GRADIENTS}),
        ("gradients/embed", [6.0, 8.0, 0.0], {GRADIENTS}),
        ("gradients/other", [1.0], {GRADIENTS}),
        ("parameters/head", [1.0 + LIMIT, 1.0], set()),
        ("parameters/head", [1.0 + 1.1 * LIMIT, 1.0], {PARAMETERS}),
        ("parameters/embed", [0.0, 0.0], {PARAMETERS}),
        ("parameters/other", [1.0], {PARAMETERS}),
    ],
)
def test_one_number_off_breaks_its_own_claim(lab: Lab, name: str, values: list[float], metrics: set[str]) -> None:
    """A gradient is judged by its reference's size, a parameter by the way it has come; within the limit both hold."""
    assert broken(lab.seen(tensors={**TENSORS, name: values}), lab.oracle()) == metrics


@pytest.mark.parametrize(("group", "metric"), [("gradients", GRADIENTS), ("parameters", PARAMETERS)])
def test_names_count(lab: Lab, group: str, metric: str) -> None:
    """Two parameters under each other's name, one under a new name and one left out are three failures."""
    head, embed = TENSORS[f"{group}/head"], TENSORS[f"{group}/embed"]
    rest = {name: values for name, values in TENSORS.items() if not name.startswith(group)}
    for torn in (
        {f"{group}/head": embed, f"{group}/embed": head}, {f"{group}/head": head, f"{group}/emb": embed},
        {f"{group}/head": head}, {},
    ):
        assert broken(lab.seen(tensors={**rest, **torn}), lab.oracle()) == {metric}


@pytest.mark.parametrize(
    ("losses", "metrics"),
    [
        ((4.0 + 4 * LIMIT, 3.0, 2.0, 1.0), set()),
        ((4.0 + 5 * LIMIT, 3.0, 2.0, 1.0), {FIRST, EVERY}),
        ((4.0, 3.0, 2.0 + 2.1 * LIMIT, 1.0), {EVERY}),
        ((4.0, 3.0, math.nan, 1.0), {EVERY, OWN, FALLS}),
        ((4.0, 3.0, 2.0), {EVERY, REPORTED}),
        ((4.0, 3.0, 2.0, 1.0, 0.5), {EVERY, REPORTED}),
    ],
)
def test_a_loss_off_breaks_the_curve(lab: Lab, losses: Sequence[float], metrics: set[str]) -> None:
    """At its step, and the rung below only if that is the first step; a curve of another length agrees with none."""
    assert broken(lab.seen(losses=losses), lab.oracle()) == metrics


def test_a_curve_that_does_not_fall_breaks_although_all_agree(lab: Lab) -> None:
    """A model that learns nothing trains the same on every engine: that is not enough."""
    flat = (4.0, 3.0, 2.0, 4.0)
    assert broken(lab.seen(losses=flat), lab.oracle(losses=flat)) == {FALLS}


def stepped(seen: Observation, step: int, *, rank: int | None = None, **changes: Any) -> Observation:
    """The run with fields of one step changed, on one rank or on all."""

    def steps(number: int, made: Sequence[Step]) -> tuple[Step, ...]:
        hit = rank in (None, number)
        return tuple(replace(s, **changes) if hit and i == step else s for i, s in enumerate(made, 1))

    return replace(seen, ranks=tuple(replace(r, steps=steps(r.rank, r.steps)) for r in seen.ranks))


@pytest.mark.parametrize(
    ("changes", "metrics"),
    [
        ({"step": 3, "rank": 1, "grad_norm": math.nextafter(2.0, 3.0)}, {BY_RANK}),
        ({"step": 3, "rank": 1, "grad_norm": None}, {BY_RANK}),
        ({"step": 3, "grad_norm": 2.0 + 2.1 * LIMIT}, {REPORTED}),
        ({"step": 3, "grad_norm": None}, {REPORTED}),
        ({"step": 3, "grad_norm": math.nan}, {REPORTED, BY_RANK}),
        ({"step": 1, "measured_grad_norm": 2.0 + 2.1 * LIMIT}, {NORM_1}),
        ({"step": 2, "measured_grad_norm": 2.0 + 2.1 * LIMIT}, {NORM_2}),
        ({"step": 2, "measured_grad_norm": None}, {NORM_2}),
        ({"step": 4, "rank": 0, "model_loss": 0.5 + 1.1 * LIMIT}, {OWN}),
        ({"step": 4, "rank": 0, "model_loss": None}, {OWN}),
    ],
)
def test_a_norm_off_breaks_its_claim(lab: Lab, changes: dict[str, Any], metrics: set[str]) -> None:
    """Reported or measured, on all ranks or on one, off or missing: each is told from the others."""
    assert broken(stepped(lab.seen(), **changes), lab.oracle()) == metrics


def test_no_norm_at_all_after_the_first_is_a_failure(lab: Lab) -> None:
    """Two records that both measured nothing do not agree on it."""
    silent = stepped(lab.seen(), 2, measured_grad_norm=None)
    assert broken(silent, stepped(lab.oracle(), 2, measured_grad_norm=None)) == {NORM_2}


def test_bf16_weights_may_differ_by_what_their_spacing_hides(lab: Lab) -> None:
    """There a weight moves a whole step or not at all, so its length counts beside its way; in fp32 it does not."""
    moved = {"initial/w": [1000.0], "parameters/w": [1001.0]}
    low = lab.seen("low", CASE.oracle.with_(precision="bf16-true"), tensors=moved)
    assert claims.parameter_scale(low) == {"w": math.hypot(1.0, 2.0**-7 * 1001.0)}
    assert claims.parameter_scale(lab.oracle(tensors=moved)) == {"w": 1.0}


@pytest.mark.parametrize(("off", "metrics"), [(1.5, set()), (2.5, {PARAMETERS}), (math.nan, {PARAMETERS})])
def test_bf16_weights_are_judged_as_one(lab: Lab, off: float, metrics: set[str]) -> None:
    """Relative to the way of all of them, since one weight that rounds the other way outweighs its own."""
    case = CASE.with_(precision="bf16-true")
    seen = lab.seen(case=case, tensors={**TENSORS, "parameters/head": [1.0 + off * LIMIT, 1.0]})
    assert broken(seen, lab.seen("oracle", case.oracle)) == metrics


@pytest.mark.parametrize(
    ("head", "word"),
    [
        ([3.0, 4.0], "to fp32 rounding"), ([3.0, 4.0 + 5 * 2.0**-17], "to fp32 rounding"),
        ([3.0, 4.0 + 5 * 2.0**-15], "to bf16 rounding"), ([3.0, 4.0 + 5 * LIMIT], "to bf16 rounding"),
        ([3.0, 4.0 + 6 * LIMIT], "no"), ([4.0, 3.0], "no"),
        ([3.0, math.nan], "cannot be compared"), ([3.0, math.inf], "cannot be compared"),
        ([3.0], "cannot be compared"), ([], "cannot be compared"),
    ],
)
@pytest.mark.parametrize("guilty", ["gradients/head", "gradients/embed"])
def test_agreement_is_told_in_a_word(lab: Lab, guilty: str, head: list[float], word: str) -> None:
    """By the worst parameter, whichever it is; NaN and other sizes are no disagreement that could be on record."""
    tensors = {"gradients/head": [3.0, 4.0], "gradients/embed": [3.0, 4.0]}
    peer = lab.seen("peer", tensors=tensors)
    seen = lab.seen(case=CASE.with_(engine="fsdp2", precision="bf16-mixed"), tensors={**tensors, guilty: head})
    assert claims.agreement(seen, peer) == word


def test_gradients_under_other_names_cannot_be_compared(lab: Lab) -> None:
    """Neither more nor fewer of them, nor none on both sides."""
    one, two = ({name: [1.0] for name in names} for names in (["gradients/a"], ["gradients/a", "gradients/b"]))
    for seen, peer in ((one, two), (two, one), ({}, {})):
        assert claims.agreement(lab.seen(tensors=seen), lab.seen("peer", tensors=peer)) == "cannot be compared"


def test_a_difference_that_is_not_a_number_is_infinite() -> None:
    """The calibration takes maxima, in which a NaN would be lost behind any number."""
    assert claims.relative([(2.0, 2.0), (2.5, 2.0), (-3.0, -4.0)]) == 0.25
    assert claims.relative([(2.0, 2.0), (math.nan, 2.0)]) == math.inf
    assert claims.relative([]) == 0.0


@pytest.mark.parametrize(("off", "passed"), [(0.0, True), (0.9e-6, True), (1.1e-6, False), (-1.1e-6, False)])
@pytest.mark.parametrize("engine", ["ddp", "zero3"])
def test_all_engines_lie_within_a_millionth_of_each_other(
    lab: Lab, engine: str, off: float, passed: bool,
) -> None:
    """One engine off in one step is enough, whichever it is; all of the distributed ones are looked at."""
    found: list[Finding] = []

    def judge(*findings: Finding) -> None:
        found.extend(findings)

    def trained(case: Case) -> Observation:
        losses = [1.0] * 19 + [1.0 + off * (case.engine == engine)]
        return replace(lab.seen(case=CASE), ranks=ranks(case, losses))

    (case,) = [case for case in CURVE if (case.engine, case.precision) == ("zero3", "fp32")]
    test_curves.test_all_engines_lie_within_a_millionth(case, trained, judge)
    assert [finding.passed for finding in found] == [passed]
    assert f"{len(DISTRIBUTED)} engines" in found[0].metric


@pytest.mark.parametrize(
    ("engine", "moved", "passed"),
    [
        # four parameters in all, over two ranks: an all-reduce moves 4 elements, a reduce-scatter 4 + 2
        ("ddp", {"allreduce": {"float32": {"calls": 1, "elements": 4}}}, True),
        ("ddp", {"allreduce": {"float32": {"calls": 4, "elements": 16}}}, False),
        ("fsdp2", {"reduce_scatter_base": {"bfloat16": {"calls": 3, "elements": 6}}}, True),
        ("fsdp2", {"reduce_scatter_base": {"bfloat16": {"calls": 12, "elements": 24}}}, False),
        ("fsdp2", {"allgather_base": {"float32": {"calls": 3, "elements": 6}}}, False),
        ("zero2", {"allreduce": {"float32": {"calls": 4, "elements": 16}}}, True),
        ("zero2", {"allreduce": {"float32": {"calls": 1, "elements": 4}}}, False),
        ("zero3", {}, False),
    ],
)
def test_gradients_are_reduced_as_often_as_promised(lab: Lab, engine: str, moved: Any, passed: bool) -> None:
    """Once per optimizer step, by ZeRO-2 and ZeRO-3 after each of four micro-batches; never not at all."""
    case = replace(CASE, engine=engine, accumulation_steps=4)
    (finding,) = claims.reductions(lab.seen(case=case, collectives=moved))
    assert finding.passed is passed, finding.sentence
    assert finding.rung == "settings"
