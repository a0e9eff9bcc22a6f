"""What is claimed of schedules, of checkpoints, and of runs that continue from one. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conformance.tolerances import ROUNDING, reported_norm, tolerance
from fixtures import corpus, schedules, verdict
from fixtures.observation import Observation, Step
from fixtures.spec import Case
from fixtures.tables import ENGINES, MODELS, PRECISIONS
from fixtures.verdict import EPSILON, Claim, Finding, Tolerance

FORMULA = Tolerance(relative=1e-12, reason="a formula in fp64, in another order")
EXACT = Tolerance(relative=0.0, reason="bit for bit: the same arithmetic on the same state")


def rates(seen: Observation) -> Iterator[Finding]:
    """Rung ``schedule``: in each step, each parameter group has the rate that the formula gives."""
    case = seen.case
    due = [schedules.rates(case, step) for step in range(case.first_step, case.steps + 1)]
    for rank in seen.ranks:
        used = [step.learning_rates for step in rank.steps]
        for group in range(2):
            claim = Claim(
                subject=case.id, rung="schedule", reference=f"formula of {case.schedule}",
                metric=f"learning rate, group {group + 1}, rank {rank.rank}",
            )
            found = [step[group] if len(step) == 2 else None for step in used]
            yield verdict.curve(claim, found, [step[group] for step in due], FORMULA)


def logged_loss(seen: Observation, due: Observation) -> Iterator[Finding]:
    """Rungs ``loss`` and ``curve``: the loss that the Trainer tells its user is the loss, in step 1 and in all.

    In fp32 the oracle's; in low precision, where that lies further off, the one of the run's own logits.
    """
    exact = seen.case.precision == "fp32"
    losses, reference = (due.losses, f"plain oracle {due.case.id}") if exact else (seen.losses, "its own logits")
    rounding = Tolerance(relative=6e-5 / min(losses), reason="half of the fourth decimal, the last in some logs")
    if not exact and ENGINES[seen.case.engine].family == "fsdp":
        rounding = Tolerance(relative=EPSILON["bfloat16"], reason="the dtype in which FSDP hands on a loss")
    told = seen.model_losses
    for rung, metric in (("loss", "logged loss, step 1"), ("curve", "logged loss, every step")):
        claim = Claim(subject=seen.case.id, rung=rung, metric=metric, reference=reference)
        if rung == "loss":
            yield verdict.close(claim, told[0] if told else None, losses[0], rounding)
        else:
            yield verdict.curve(claim, told, losses, rounding)


def averaged_over(seen: Observation) -> Iterator[Finding]:
    """Rung ``loss``: the number of tokens that the model is told to average over is that of the step's labels."""
    case, seed = seen.case, int(seen.provenance["seed"])
    due = [[float(corpus.labelled_tokens_of(case, step, seed))] for step in range(1, case.steps + 1)]
    for rank in seen.ranks:
        claim = Claim(
            subject=case.id, rung="loss", metric=f"tokens averaged over, rank {rank.rank}", reference="labels counted"
        )
        yield verdict.sequence(claim, rank.engaged["local"].get("averaged_over", []), due)


def _claim(case: Case, metric: str) -> Claim:
    assert case.source is not None  # noqa: S101 - claims of resumed cases only
    return Claim(subject=case.id, rung="checkpoint", metric=metric, reference=f"uninterrupted {case.source.id}")


def restored(seen: Observation, due: Observation) -> Iterator[Finding]:
    """Each part of each rank's state is after loading what it was before saving."""
    saved = [rank.checkpoint.get("saved", {}) for rank in due.ranks]
    loaded = [rank.checkpoint.get("loaded", {}) for rank in seen.ranks]
    parts = sorted({part for told in (*saved, *loaded) for part in told})
    yield verdict.holds(
        _claim(seen.case, "parts of the state"), len(parts) >= 6 and len(saved) == len(loaded),
        observed=", ".join(parts) or "none", allowed="all six, on every rank",
    )
    for part in parts:
        was, now = [told.get(part) for told in saved], [told.get(part) for told in loaded]
        wrong = [rank for rank, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1] or None in pair]
        ranks = ", ".join(map(str, wrong))
        told = f"another on rank {ranks}{_shown(was[wrong[0]], now[wrong[0]])}" if wrong else "equal"
        yield verdict.holds(_claim(seen.case, f"{part} after loading"), not wrong, observed=told, allowed="as saved")


def restored_whole(seen: Observation, due: Observation) -> Iterator[Finding]:
    """On another number of ranks: what all hold together is after loading what it was before saving."""
    saved = due.ranks[0].checkpoint.get("whole", {})
    for part in ("weights", "moments", "steps counted"):
        found = [rank.checkpoint.get("whole", {}).get(part) for rank in seen.ranks]
        equal = saved.get(part) is not None and all(one == saved[part] for one in found)
        yield verdict.holds(
            _claim(seen.case, f"{part} of all ranks after loading"), equal,
            observed="equal" if equal else f"{found}, saved {saved.get(part)}", allowed="as saved, to the bit",
        )


def goes_on(seen: Observation, oracle: Observation, kind: str) -> Iterator[Finding]:
    """On another number of ranks: rows, loss and norm of every step after are the uninterrupted oracle's."""
    case, skipped = seen.case, seen.case.checkpoint_step
    due_rows = [list(corpus.rows_of(case, step)) for step in range(case.first_step, case.steps + 1)]
    yield verdict.sequence(_claim(case, "rows left"), [sorted(rows) for rows in seen.rows], due_rows)
    platform = str(seen.provenance.get("platform", "cpu"))
    yield verdict.curve(
        _claim(case, "loss, every step after"), seen.losses, oracle.losses[skipped:],
        tolerance(case, "loss_curve", kind, platform=platform),
    )
    yield verdict.curve(
        _claim(case, "reported gradient norm, every step after"), [step[0] for step in seen.grad_norms],
        [step[0] for step in oracle.grad_norms[skipped:]], reported_norm(case, platform=platform),
    )


def _shown(was: Any, now: Any) -> str:
    """Both values, unless they are digests."""
    return "" if isinstance(was, str) else f" ({now}, saved {was})"


def continued(seen: Observation, due: Observation) -> Iterator[Finding]:
    """Every step after loading is the uninterrupted run's: loss, norm, rates, rows and random numbers."""
    case, skipped = seen.case, seen.case.checkpoint_step
    yield verdict.curve(
        _claim(case, "loss, every step after"), seen.losses, due.losses[skipped:], _allowed(seen, "loss_curve")
    )
    norms, due_norms = seen.grad_norms, due.grad_norms[skipped:]
    if any(norm is not None for step in due_norms for norm in step):
        yield verdict.curve(
            _claim(case, "reported gradient norm, every step after"), [step[0] for step in norms],
            [step[0] for step in due_norms], _allowed(seen, "norm_curve"),
        )
    for name in ("learning_rates", "rows", "draws"):
        observed, expected = (
            [[getattr(rank.steps[at], name) for rank in one.ranks] for at in range(start, len(one.ranks[0].steps))]
            for one, start in ((seen, 0), (due, skipped))
        )
        yield verdict.sequence(_claim(case, f"{_WORDS[name]} after"), observed, expected)
    due_rows = [list(corpus.rows_of(case, step)) for step in range(case.first_step, case.steps + 1)]
    yield verdict.sequence(_claim(case, "rows left"), [sorted(rows) for rows in seen.rows], due_rows)


_WORDS = {"learning_rates": "learning rates", "rows": "rows of each rank", "draws": "random numbers of each rank"}


def rewound(seen: Observation) -> Iterator[Finding]:
    """Loaded back into the live objects, a checkpoint gives what was saved, and the same steps after it once more."""
    told = [rank.checkpoint.get("again", {"error": "nothing was loaded back"}) for rank in seen.ranks]
    errors = sorted({str(one["error"]) for one in told if "error" in one})
    claim = Claim(subject=seen.case.id, rung="checkpoint", metric="loading back", reference="the same process")
    yield verdict.holds(claim, bool(told) and not errors, observed="; ".join(errors) or "loaded", allowed="no error")
    if errors:
        return
    ranks = tuple(
        dataclasses.replace(rank, steps=tuple(map(Step.from_json, one["steps"])), checkpoint={"loaded": one["loaded"]})
        for rank, one in zip(seen.ranks, told, strict=True)
    )
    again = dataclasses.replace(seen, case=seen.case.with_(resumed=True), ranks=ranks)
    for finding in (*restored(again, seen), *continued(again, seen)):
        yield dataclasses.replace(
            finding, subject=seen.case.id, metric=f"{finding.metric}, loaded back", reference="the first time",
        )


def same_end(seen: Observation, due: Observation) -> Iterator[Finding]:
    """The weights after the last step are the uninterrupted run's."""
    expected = due.group("parameters")
    scale = {name: math.hypot(*values) for name, values in expected.items()}
    claim = _claim(seen.case, "parameters after the last step")
    yield verdict.tensors(claim, seen.group("parameters"), expected, _allowed(seen, "parameters"), scale=scale)


def _allowed(seen: Observation, metric: str) -> Tolerance:
    """On a CPU sums come in one order, and a repeated run repeats; elsewhere, what benign changes do."""
    platform = str(seen.provenance.get("platform", "cpu"))
    return EXACT if platform == "cpu" else tolerance(seen.case, metric, "peer", platform=platform)


def exported(seen: Observation) -> Iterator[Finding]:
    """What was written for others is the live model: its numbers, dtype and tying."""
    case, told = seen.case, _told(seen, "export")
    compute = PRECISIONS[case.precision].compute

    def claim(metric: str, reference: str = "the live model") -> Claim:
        return Claim(subject=case.id, rung="checkpoint", metric=f"export, {metric}", reference=reference)

    yield verdict.same(claim("dtypes", f"{case.precision} promises"), told.get("dtypes"), [exported_dtype(case)])
    tied = MODELS[case.model].config["tie_word_embeddings"]
    yield verdict.same(claim("head tied to embedding", "the model's config"), told.get("tied"), tied)
    size = told.get("size", math.nan)
    off = told.get("logits", math.nan) / size if size else math.nan
    allowed = ROUNDING * EPSILON[compute]
    yield verdict.holds(
        claim("logits of from_pretrained"), off <= allowed,
        observed=f"off by {off:.3g}", allowed=f"{allowed:.2g} of the largest: {ROUNDING} x epsilon({compute})",
    )
    yield verdict.same(claim("difference of save_model", "save_pretrained"), told.get("save_model"), 0.0)
    # Of two tied names a file needs only one.
    allowed_missing = ([], ["lm_head.weight"], ["transformer.wte.weight"]) if tied else ([],)
    missing = told.get("save_model lacks")
    yield verdict.holds(
        claim("weights that save_model lacks", "save_pretrained"), missing in allowed_missing,
        observed=str(missing), allowed="none but a tied name",
    )


def exported_dtype(case: Case) -> str:
    """DeepSpeed exports the weights that forward uses, the others those that the optimizer steps on."""
    precision = PRECISIONS[case.precision]
    return precision.compute if ENGINES[case.engine].family == "deepspeed" else precision.master


def merged(seen: Observation) -> Iterator[Finding]:
    """The documented tool makes of the checkpoint the weights that were saved: the masters, to the bit."""
    case, told = seen.case, _told(seen, "merged")

    def claim(metric: str) -> Claim:
        return Claim(
            subject=case.id, rung="checkpoint", metric=f"merged checkpoint, {metric}",
            reference="gathered when it was saved",
        )

    error = told.get("error")
    yield verdict.holds(claim("tool"), not error, observed=error or "ran", allowed="no error")
    if error:
        return
    yield verdict.same(claim("missing weights"), told.get("missing"), [])
    yield verdict.same(claim("largest difference"), told.get("difference"), 0.0)
    yield verdict.same(claim("dtypes"), told.get("dtypes"), [PRECISIONS[case.precision].master])


def on_record(seen: Observation) -> dict[str, Any]:
    """For a baseline: how the export looks, and what transformers makes of it if it is told no dtype."""
    told = _told(seen, "export")
    return {name: told.get(name) for name in ("dtypes", "loaded dtype", "names")}


def let_go(seen: Observation) -> Iterator[Finding]:
    """Rung ``memory``: after the engine is closed, nobody holds what it prepared."""
    alive: Sequence[Any] = [rank.checkpoint.get("alive") for rank in seen.ranks]
    for name in ("model", "optimizer", "scheduler", "loader"):
        claim = Claim(
            subject=seen.case.id, rung="memory", metric=f"prepared {name}, engine closed", reference="weak references"
        )
        ranks = [rank for rank, names in enumerate(alive) if names is None or name in names]
        told = f"alive on rank {', '.join(map(str, ranks))}" if ranks else "gone"
        yield verdict.holds(claim, bool(alive) and not ranks, observed=told, allowed="gone")


def _told(seen: Observation, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = seen.ranks[0].checkpoint.get(name, {}) if seen.ranks else {}
    return found
