"""What is claimed of the bytes that a rank holds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance import footprint
from conformance.footprint import BYTES, per_parameter
from conformance.promises import STATE, look, offloaded
from fixtures import verdict
from fixtures.dialects import settings
from fixtures.observation import Observation, RankRecord
from fixtures.spec import Case
from fixtures.verdict import Claim, Finding

UPDATE, AFTER = "backward", "step"
"""Points of the record: gradients are ready and nothing has changed yet; the step is over."""

GROWING_STEPS = 3
"""Steps in which live bytes may grow: optimizer state and communication buffers come into being."""

RETURNED_BYTES = 1024
"""What may stay when an engine is closed: scalars of a process group, of a loss scaler."""


def elements(rank: RankRecord, case: Case) -> int:
    """Parameters of the model, counted in bytes before the engine got it; 0 if there is no record of it."""
    found = look(rank.memory, "points.build.parameters") or 0
    return int(found) // BYTES[settings(case)["load_dtype"]]


def state(seen: Observation) -> Iterator[Finding]:
    """Every part, and all that the allocator counts, is on every rank what the engine's arithmetic says."""
    for rank in seen.ranks:
        count = elements(rank, seen.case)
        due = footprint.due(seen.case, count)
        for part in ("parameters", "masters", "gradients", "optimizer_state", "buffers", "live"):
            yield _bytes(seen.case, rank, f"{UPDATE}.{part}", getattr(due, part), count)
        yield _bytes(seen.case, rank, f"{AFTER}.gradients", due.kept, count)


_WORDS = {UPDATE: "about to step", AFTER: "after the step"}


def _bytes(case: Case, rank: RankRecord, path: str, due: float, count: int) -> Finding:
    point, _, part = path.partition(".")
    observed = look(rank.memory, f"points.{path}")
    claim = _claim(case, f"{part} on rank {rank.rank}, {_WORDS[point]}", "the engine's arithmetic")
    most = due + footprint.slack(case, part)
    if not isinstance(observed, int) or not count:
        return verdict.holds(claim, False, observed="not recorded", allowed=f"{due:,.0f} bytes")
    least = due - (footprint.spared(case, count) if part in ("gradients", "live") else 0.0)
    allowed = f"{per_parameter(due, count)} and at most {most - due:,.0f} of padding"
    return verdict.holds(claim, least <= observed <= most, observed=per_parameter(observed, count), allowed=allowed)


def update_bytes(seen: Observation) -> int | None:
    """Live bytes when about to step, of the rank that holds most; ``None`` if a rank has none on record."""
    found = [look(rank.memory, f"points.{UPDATE}.live") for rank in seen.ranks]
    return max(found) if found and all(isinstance(value, int) for value in found) else None


def less(seen: Observation, than: Observation) -> Finding:
    """``seen`` holds less than the other when about to step, or would if that one spared nothing."""
    observed, most = update_bytes(seen), update_bytes(than)
    if most is not None:
        most = max(most, int(footprint.due(than.case, elements(than.ranks[0], than.case)).live))
    claim = _claim(seen.case, "live bytes, about to step", f"less than {than.case.engine}")
    passed = observed is not None and most is not None and observed < most
    return verdict.holds(claim, passed, observed=_spelled(observed), allowed=f"less than {_spelled(most)}")


def upcast(aligned: Observation, constrained: Observation) -> Finding:
    """Aligned mode costs as many bytes more than memory-constrained mode as the formulas differ by."""
    count = elements(aligned.ranks[0], aligned.case)
    seen, low = update_bytes(aligned), update_bytes(constrained)
    due = footprint.due(aligned.case, count).live - footprint.due(constrained.case, count).live
    room = footprint.slack(aligned.case, "live")
    claim = _claim(aligned.case, "cost of the upcast", f"{constrained.case.precision}")
    observed = None if seen is None or low is None else seen - low
    least = due - room - footprint.spared(aligned.case, count)
    passed = observed is not None and count > 0 and least <= observed <= due + room
    return verdict.holds(
        claim, passed, observed=_spelled(observed), allowed=f"{due:,.0f} bytes +/- {room:,} of padding"
    )


def checkpointing_saves(seen: Observation, without: Observation) -> Iterator[Finding]:
    """At the end of forward the insides of the blocks are not there: at least their bytes fewer than without."""
    due = footprint.inside_blocks(seen.case)
    for rank, other in zip(seen.ranks, without.ranks, strict=True):
        held, whole = (look(r.memory, "points.forward.activations") for r in (rank, other))
        known = isinstance(held, int) and isinstance(whole, int)
        claim = _claim(
            seen.case, f"activations saved on rank {rank.rank}, end of forward", f"{without.case.id} holds all"
        )
        observed = _spelled(whole - held if known else None)
        passed = known and held > 0 and whole - held >= due
        yield verdict.holds(claim, passed, observed=observed, allowed=f"at least {due:,} bytes, the blocks' insides")


def on_device(seen: Observation) -> Iterator[Finding]:
    """What the engine says it keeps elsewhere is left out; the rest of its state is what must stay with the device.

    On a CPU host and device are one memory. What is claimed there is which tensors the engine's own offload has taken,
    by its own word and its own class (``engaged``), and that no other state is left than the arithmetic says.
    """
    for rank in seen.ranks:
        count = elements(rank, seen.case)
        due = footprint.due(seen.case, count)
        stays = [part for part in STATE if part not in offloaded(seen.case)]
        least = sum(getattr(due, part) for part in stays)
        room = sum(footprint.slack(seen.case, part) for part in stays)
        observed = device_bytes(rank)
        claim = _claim(seen.case, f"state left on the device, rank {rank.rank}", "the engine's arithmetic")
        passed = observed is not None and count > 0 and least <= observed <= least + room
        yield verdict.holds(claim, passed, observed=_spelled(observed), allowed=f"{least:,.0f} bytes and {room:,} more")


def device_bytes(rank: RankRecord) -> int | None:
    """Bytes of a rank's state, about to step, that its engine does not keep in the host's memory."""
    elsewhere = look(rank.engaged, "offload.on") or {}
    found = [look(rank.memory, f"points.{UPDATE}.{part}") for part in STATE if part not in elsewhere]
    return sum(found) if all(isinstance(value, int) for value in found) else None


def offload_is_lower(seen: Observation, without: Observation) -> Iterator[Finding]:
    """Less of the state stays on the device than without offload."""
    for rank, other in zip(seen.ranks, without.ranks, strict=True):
        held, whole = device_bytes(rank), device_bytes(other)
        claim = _claim(seen.case, f"state left on the device, rank {rank.rank}, with offload", without.case.id)
        passed = held is not None and whole is not None and held < whole
        yield verdict.holds(claim, passed, observed=_spelled(held), allowed=f"less than {_spelled(whole)}")


def resumed(seen: Observation) -> Iterator[Finding]:
    """Once its state was saved and loaded again, a run holds what it held before, to the byte."""
    for rank in seen.ranks:
        after: Sequence[int] = look(rank.memory, "after_steps") or ()
        claim = _claim(seen.case, f"live bytes after steps on rank {rank.rank}, resumed", "before the save")
        before, *resumed = _legs(seen.case, after)
        later = resumed[0][:-1] if resumed else ()  # after the last step there is no next batch in hand
        if len(after) != seen.case.steps or not before or not later:
            yield verdict.holds(claim, False, observed=f"{len(after)} steps recorded", allowed="all of them")
            continue
        changed = min(later) - min(before)
        yield verdict.holds(claim, changed == 0, observed=f"{changed:+,} bytes", allowed=f"{min(before):,} as before")


PEAK_MARGIN = 0.05
"""How much a peak may rise over its baseline. It repeats to 0.02 % on an idle machine; on a crowded one (load 5, two
cores) gloo let go of one layer late in every step of one run in six, which added 2.2 %: about twice that."""

PEAK_PHASES = ("forward", "backward", "step")


def peaks(seen: Observation) -> dict[str, int]:
    """The most that was live in each phase of a step, on the rank where it was most; without phases not on record."""
    found = {name: [look(rank.memory, f"peaks.{name}") for rank in seen.ranks] for name in PEAK_PHASES}
    return {f"peak, {name}": max(values) for name, values in found.items() if all(type(v) is int for v in values)}


def steady(seen: Observation) -> Iterator[Finding]:
    """After the first steps nothing is added: the least of a later half is no more than the least of the earlier.

    The least, because a thread that lets go of a tensor a moment late adds to one step, and a leak to all that follow.
    Before a save and after a load each by itself; that one is as the other is for :func:`resumed` to say.
    """
    for rank in seen.ranks:
        after: Sequence[int] = look(rank.memory, "after_steps") or ()
        claim = _claim(seen.case, f"live bytes after each step on rank {rank.rank}", "its own earlier steps")
        allowed = f"no growth from step {GROWING_STEPS + 1} to {seen.case.steps}"
        legs = _legs(seen.case, after)
        if len(after) != seen.case.steps or min(map(len, legs)) < 2:
            yield verdict.holds(claim, False, observed=f"{len(after)} steps recorded", allowed=allowed)
            continue
        grown, within = max((min(leg[len(leg) // 2:]) - min(leg[:len(leg) // 2]), len(leg) // 2 + 1) for leg in legs)
        last = f"grew by {grown:,} bytes within {within} steps" if grown > 0 else f"{min(legs[-1]):,} bytes, steady"
        yield verdict.holds(claim, grown <= 0, observed=last, allowed=allowed)


def _legs(case: Case, after: Sequence[int]) -> list[Sequence[int]]:
    """The steps among which live bytes are to stay: all but the first, and not across a load, nor right after it."""
    if case.measure != "resume":
        return [after[GROWING_STEPS:]]
    middle = case.steps // 2
    return [after[GROWING_STEPS:middle], after[middle + 1:]]


def returned(seen: Observation) -> Iterator[Finding]:
    """When the engine is closed, what it held is free again."""
    for rank in seen.ranks:
        left = look(rank.memory, "after_close")
        claim = _claim(seen.case, f"live bytes on rank {rank.rank}, engine closed", "before the model was built")
        passed = isinstance(left, int) and left <= RETURNED_BYTES
        yield verdict.holds(claim, passed, observed=_spelled(left), allowed=f"at most {RETURNED_BYTES:,} bytes")


def fits(seen: Observation) -> Iterator[Finding]:
    """The case ran to its end under its limit; how much of its budget each rank had in use at the end of a phase."""
    for rank in seen.ranks:
        budget, most = look(rank.memory, "limit.budget_bytes"), look(rank.memory, "limit.most_bytes")
        claim = _claim(seen.case, f"budget in use on rank {rank.rank}", "at the end of a phase")
        due = (seen.case.budget_mib or 0) * 2**20
        passed = isinstance(most, int) and budget == due and 0 < most <= due
        yield verdict.holds(
            claim, seen.outcome == "ok" and passed, observed=_spelled(most), allowed=f"{due:,} bytes, under a limit"
        )


def must_not_fit(seen: Observation) -> Finding:
    """The case runs out of memory under its limit. One that fits shows a budget that does not bind."""
    claim = _claim(seen.case, "outcome under the limit", f"{seen.case.budget_mib} MiB are too little for it")
    error = seen.error or {}
    told = {
        "ok": "it fits: the budget is not binding",
        "oom": f"out of memory in step {max((len(rank.steps) for rank in seen.ranks), default=0) + 1}",
    }
    observed = told.get(seen.outcome, f"{seen.outcome}, not out of memory: {str(error.get('message', ''))[:80]}")
    return verdict.holds(claim, seen.outcome == "oom", observed=observed, allowed="out of memory")


def _claim(case: Case, metric: str, reference: str) -> Claim:
    return Claim(subject=case.id, rung="memory", metric=metric, reference=reference)


def _spelled(value: int | None) -> str:
    return "not recorded" if value is None else f"{value:,} bytes"
