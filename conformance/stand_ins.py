"""What stands in for a GPU case on a machine without one: the same request, as small as a CPU trains in seconds. Pure.

The same engine, precision, ranks, loop and settings run through the same code, over gloo. What is another, :func:`told`
says in words, and :func:`same_words` holds that nothing else is.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fixtures import verdict
from fixtures.dialects import settings
from fixtures.observation import Observation
from fixtures.recipes.scaling import scaled_down
from fixtures.spec import Case, Recipe
from fixtures.tables import SEQUENCE_LENGTH
from fixtures.throughput.plan import steps_for
from fixtures.verdict import Claim, Finding

STEPS = 3
"""Enough for what a run looks at: gradients in the first two, collectives in the third."""
ROWS_EACH = 2
"""Of each rank, so that a run and the one whose batches are cut in two have one batch here, too."""
COMPILED_STEPS = 2
"""Compiling takes most of the time; in the third step it would be done again, for what looks on there."""
TIMED_STEPS = 6
"""Where steps are timed: some to warm up, and two."""
ROOMY_MIB = 2048
"""A limit that is in force and never met: what fits a card is for a rehearsal to say, not for a small model."""

SIZES = frozenset({
    "deepspeed.train_batch_size", "deepspeed.train_micro_batch_size_per_gpu",
    "deepspeed.zero_optimization.reduce_bucket_size", "accelerator.dynamo_backend", "fsdp.min_num_params",
})
"""Settings that are numbers of the case's own size, or the compiler's backend: the only ones that may differ."""


def stand_in(case: Case) -> Case:
    """The case to be run on a CPU in the place of ``case``; ``case`` itself where it is as small already."""
    changes: dict[str, Any] = {}
    if case.architecture.full_size:
        changes |= _small(case)
    if case.measure == "throughput":
        changes["steps"] = steps_for(1)
    elif case.measure == "alone":
        changes["steps"] = min(case.steps, TIMED_STEPS)
    elif case.compiled != "none":
        changes["steps"] = COMPILED_STEPS
    elif case.scale_power == 8 and case.scale_window == 2000:  # else the way of the scale is what is looked at
        changes["steps"] = min(case.steps, STEPS)
    if case.compiled == "inductor":
        changes["compiled"] = "eager"
    if case.budget_mib is not None:
        changes["budget_mib"] = ROOMY_MIB
    return case.with_(**changes)


def _small(case: Case) -> dict[str, Any]:
    model = case.architecture
    config = {**scaled_down(model.config), "architectures": [model.model_class]}
    named = Recipe(name=case.model, model=json.dumps(config, sort_keys=True), layer=model.layer_class)
    return {
        "recipe": named, "rows_per_step": case.world_size * max(ROWS_EACH, case.accumulation_steps),
        "sequence_length": min(case.sequence_length, SEQUENCE_LENGTH),
        "min_num_params": None if case.min_num_params is None else min(case.min_num_params, 2000),
    }


def told(case: Case) -> str:
    """In words, what is another in the stand-in."""
    small = stand_in(case)
    words = []
    if small.recipe is not None and case.recipe is None:
        words.append(f"{small.architecture.layers} layers of {small.architecture.hidden_size}")
    words += [
        f"{name.replace('_', ' ')} {getattr(small, name)}, not {getattr(case, name)}"
        for name in ("rows_per_step", "sequence_length", "steps", "compiled", "budget_mib", "min_num_params")
        if getattr(small, name) != getattr(case, name)
    ]
    return "; ".join(["stood in for on a CPU, over gloo", *words])


def leaves(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything in nested mappings."""
    if isinstance(found, Mapping):
        for name, value in found.items():
            yield from leaves(value, f"{path}.{name}".removeprefix("."))
    else:
        yield path, found


def same_words(case: Case, small: Case) -> Finding:
    """The stand-in's engine is told what the case's is, but for sizes; and both are JSON, as a request must be."""
    claim = Claim(subject=case.id, rung="settings", metric="words for the engine", reference=told(case))
    due, found = (dict(leaves(json.loads(json.dumps(settings(one))))) for one in (case, small))
    other = sorted(key for key in {*due, *found} if due.get(key) != found.get(key) and key not in SIZES)
    first = other[0] if other else ""
    observed = f"{first}: {found.get(first)}, not {due.get(first)}" if other else f"{len(due)}, as for the case"
    return verdict.holds(claim, bool(due) and not other, observed=observed, allowed="the same but for sizes")


def ran(case: Case, seen: Observation) -> list[Finding]:
    """The stand-in made all its steps, each with a finite loss."""
    claim = Claim(subject=case.id, rung="loss", metric="losses", reference=told(case))
    losses = seen.losses if seen.ranks else []
    finite = [loss for loss in losses if math.isfinite(loss)]
    passed = len(losses) == seen.case.recorded_steps > 0 and len(finite) == len(losses)
    return [verdict.holds(
        claim, passed, observed=f"{len(finite)} finite of {len(losses)}",
        allowed=f"{seen.case.recorded_steps}, all finite",
    )]


def renamed(findings: list[Finding], case: Case) -> list[Finding]:
    """Findings about a stand-in, told of the case that it stands in for."""
    return [dataclasses.replace(finding, subject=case.id, reference=told(case)) for finding in findings]
