"""The claims about bytes: each passes on a record that is as derived, and fails on one that is off in one place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import footprint, memory, promises
from conformance.catalogue import (
    CHECKPOINTED,
    DISTRIBUTED,
    FITS,
    LEAKS,
    MEMORY,
    OFFLOADED,
    kept_whole,
)
from conformance.footprint import BYTES
from fixtures.dialects import settings
from fixtures.observation import Observation
from fixtures.spec import Case
from selftests.records import observation

ELEMENTS = 918_656
ZERO2 = next(case for case in LEAKS if case.engine == "zero2")


def recorded(case: Case) -> dict[str, Any]:
    """The memory of a rank that holds exactly what is derived, as ``fixtures/memory.py`` writes it."""
    due = footprint.due(case, ELEMENTS)
    held = {
        part: int(getattr(due, part)) for part in
        ("parameters", "masters", "gradients", "optimizer_state", "buffers", "live")
    }
    return {
        "points": {
            "build": {"parameters": ELEMENTS * BYTES[settings(case)["load_dtype"]]},
            "backward": held,
            "step": {**held, "gradients": int(due.kept)},
        },
        "peaks": {"backward": 2 * held["live"], "step": held["live"]},
        "after_steps": [1, 2, 3, *[4] * (case.steps - 3)],
        "after_close": 0,
    }


def seen(case: Case, folder: Path, told: Any) -> Observation:
    """An observation whose ranks all told ``told``."""
    return observation(case, folder, memory=told)


def changed(told: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """``told`` with one value at a dotted path put in or, for ``None``, taken away."""
    *parents, name = path.split(".")
    inner = told
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    if value is None:
        del inner[name]
    return told


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in MEMORY])
def test_what_is_derived_passes(case: Case, tmp_path: Path) -> None:
    """A rank that holds the formula to the byte passes, on every engine, at every precision and degree."""
    findings = list(memory.state(seen(case, tmp_path, recorded(case))))
    assert [finding.sentence for finding in findings if not finding.passed] == []
    assert len(findings) == 7 * case.world_size


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in MEMORY])
@pytest.mark.parametrize("part", ["parameters", "gradients", "optimizer_state", "live"])
def test_five_per_cent_more_fails(case: Case, part: str, tmp_path: Path) -> None:
    """What a part may have on top is padding: below a twentieth of it, except for a whole parameter at ZeRO's cut."""
    share = 0.25 if part == "gradients" and case.engine in ("zero1", "zero2") else 0.05
    told = recorded(case)
    more = int(told["points"]["backward"][part] * (1 + share))
    findings = memory.state(seen(case, tmp_path, changed(told, f"points.backward.{part}", more)))
    assert {f.metric.partition(" ")[0] for f in findings if not f.passed} == {part}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("points.backward.parameters", 0), ("points.backward.optimizer_state", 1), ("points.backward.live", None),
        ("points.backward.live", "nan"), ("points.build.parameters", None), ("points", {}), ("points.step", {}),
        ("points.step.gradients", 4 * ELEMENTS), ("points.backward.buffers", 1),
    ],
)
def test_less_more_or_nothing_fails(path: str, value: Any, tmp_path: Path) -> None:
    """Bytes that are too few, that nobody expects, or that are not on record never pass."""
    findings = list(memory.state(seen(ZERO2, tmp_path, changed(recorded(ZERO2), path, value))))
    assert findings
    assert not all(finding.passed for finding in findings)


@pytest.mark.parametrize("claims", [memory.state, memory.steady, memory.returned])
def test_a_record_without_memory_fails(claims: Any, tmp_path: Path) -> None:
    """A run that measured nothing proves nothing: every claim about it fails."""
    findings = list(claims(seen(ZERO2, tmp_path, {})))
    assert findings
    assert not any(finding.passed for finding in findings)


@pytest.mark.parametrize(
    ("after", "passes"),
    [
        ([1, 2, 3, *[4] * 13], True), ([9, 9, 9, *[4] * 13], True), ([1, 2, 3, *[4] * 12, 3], True),
        ([1, 2, 3, 4, 9, *[4] * 11], True), ([1, 2, 3, *[4] * 8, *[5] * 5], False), ([*range(16)], False),
        ([1, 2, 3, 4, 4, *[5] * 3, *[4] * 8], False), ([4] * 15, False), ([], False),
    ],
)
def test_one_byte_more_is_a_leak(after: list[int], passes: bool, tmp_path: Path) -> None:
    """After the first steps nothing may be added for good; a late release in one step is none; all steps are there."""
    findings = list(memory.steady(seen(ZERO2, tmp_path, changed(recorded(ZERO2), "after_steps", after))))
    assert [finding.passed for finding in findings] == [passes, passes]


@pytest.mark.parametrize(("left", "passes"), [(0, True), (1024, True), (1025, False), (None, False)])
def test_what_stays_after_closing_fails(left: int | None, passes: bool, tmp_path: Path) -> None:
    """Scalars may stay, weights may not."""
    findings = memory.returned(seen(ZERO2, tmp_path, changed(recorded(ZERO2), "after_close", left)))
    assert [finding.passed for finding in findings] == [passes, passes]


@pytest.mark.parametrize(("by", "passes"), [(-1, True), (0, False), (1, False), (None, False)])
def test_less_is_strictly_less(by: int | None, passes: bool, tmp_path: Path) -> None:
    """The same number of bytes saves nothing."""
    told = recorded(ZERO2)
    live = told["points"]["backward"]["live"]
    other = changed(recorded(ZERO2), "points.backward.live", None if by is None else live + by)
    assert memory.less(seen(ZERO2, tmp_path, other), seen(ZERO2, tmp_path, told)).passed is passes


@pytest.mark.parametrize(("extra", "passes"), [(0, True), (100_000, False), (-100_000, False)])
def test_the_upcast_has_its_price(extra: int, passes: bool, tmp_path: Path) -> None:
    """FSDP over two ranks: aligned mode costs 8 - 4 bytes per parameter more, give or take padding."""
    aligned = next(case for case in LEAKS if case.engine == "fsdp2")
    low = aligned.with_(precision="bf16-true")
    told = recorded(aligned)
    told = changed(told, "points.backward.live", told["points"]["backward"]["live"] + extra)
    finding = memory.upcast(seen(aligned, tmp_path, told), seen(low, tmp_path, recorded(low)))
    assert finding.passed is passes
    assert f"allowed {4 * ELEMENTS:,} bytes" in finding.sentence


INSIDE = 4 * 64 * 2 * (4 * 128 + 2 * 128 + 4 * 384)
"""Of four blocks over 64 tokens in bf16, by hand: four inputs of matrices, keys and values, the MLP's activation."""


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CHECKPOINTED])
@pytest.mark.parametrize(
    ("held", "whole", "passes"),
    [
        (9, 9 + INSIDE, True), (9, 10 + INSIDE, True), (9, 8 + INSIDE, False), (9, 9, False),
        (9, 9 + INSIDE // 2, False),
        (0, INSIDE, False), (None, INSIDE, False), (9, None, False),
    ],
    ids=["all", "more", "a byte less", "nothing", "every other block", "no forward", "no record", "no other record"],
)
def test_all_insides_of_blocks_must_go(
    case: Case, held: int | None, whole: int | None, passes: bool, tmp_path: Path,
) -> None:
    """Less than the blocks' insides is checkpointing that is off, or on for some blocks alone."""
    told, other = ({"points": {"forward": {"activations": value}}} for value in (held, whole))
    claims = memory.checkpointing_saves(seen(case, tmp_path, told), seen(kept_whole(case), tmp_path, other))
    assert [finding.passed for finding in claims] == [passes, passes]


def offloading(case: Case, folder: Path, told: Any, on: dict[str, Any]) -> Observation:
    """As :func:`seen`, of an engine that says it keeps the parts ``on`` elsewhere."""
    return observation(case, folder, memory=told, engaged={"local": {}, "offload": {"on": on}})


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in OFFLOADED])
def test_what_stays_on_the_device_is_derived(case: Case, tmp_path: Path) -> None:
    """With every part that was promised elsewhere the rest is as derived, and lower; with one of them here it isn't."""
    told, plain = recorded(case.with_(offload="none")), recorded(kept_whole(case))
    on = {part: ["cpu"] for part in promises.offloaded(case)}
    run = offloading(case, tmp_path, told, on)
    other = seen(kept_whole(case), tmp_path, plain)
    assert all(finding.passed for finding in (*memory.on_device(run), *memory.offload_is_lower(run, other)))
    for part in on:
        torn = offloading(case, tmp_path, told, {name: on[name] for name in on if name != part})
        wrong = told["points"]["backward"][part] > 0
        assert [finding.passed for finding in memory.on_device(torn)] == [not wrong] * 2
    assert not any(finding.passed for finding in memory.on_device(seen(case, tmp_path, told)))
    assert not any(finding.passed for finding in memory.offload_is_lower(seen(case, tmp_path, told), other))
    assert not any(finding.passed for finding in memory.on_device(offloading(case, tmp_path, {}, on)))


@pytest.mark.parametrize(
    ("after", "passes"),
    [
        ([1, 2, 3, *[4] * 5, 9, *[4] * 6, 3], True), ([1, 2, 3, *[4] * 5, 4, *[5] * 6, 4], False),
        ([1, 2, 3, *[4] * 5, 4, *[3] * 6, 2], False), ([1, 2, 3, *[4] * 4, *[5] * 9], False), ([4] * 15, False),
        ([], False),
    ],
    ids=["as before", "a byte more", "a byte less", "a byte more before it", "a step too few", "no record"],
)
def test_a_resumed_run_holds_the_same(after: list[int], passes: bool, tmp_path: Path) -> None:
    """More is a leak, less is state that was lost; the step right after may differ, and the last has no next batch."""
    for case in LEAKS:
        findings = memory.resumed(seen(case, tmp_path, {"after_steps": after}))
        assert [finding.passed for finding in findings] == [passes, passes]


@pytest.mark.parametrize(
    ("engine", "trained", "frozen"), [("ddp", 20, 4), ("fsdp2", 8, 1), ("zero2", 10, 2), ("zero3", 9, 1)]
)
def test_frozen_weights_cost_their_own_bytes(engine: str, trained: int, frozen: int) -> None:
    """By hand: 672,512 of 918,656 lie below the last block; in aligned mode each kind has its bytes per parameter."""
    case = ZERO2.with_(engine=engine, frozen="lower")
    below = 3 * (4 * 128 * 128 + 3 * 128 * 384 + 2 * 128) + 256 * 128
    due = footprint.due(case, ELEMENTS)
    assert footprint.frozen_elements(case) == below == 672_512
    assert due.live - due.buffers == trained * (ELEMENTS - below) + frozen * below
    assert footprint.frozen_elements(case.with_(frozen="embeddings")) == 256 * 128
    assert footprint.frozen_elements(ZERO2) == 0


@pytest.mark.parametrize(
    ("engine", "precision", "ranks", "bytes_per_parameter"),
    [
        ("ddp", "fp32", 2, 20), ("fsdp1", "bf16-mixed", 2, 8), ("fsdp2", "fp32", 4, 4), ("fsdp2", "bf16-true", 2, 4),
        ("fsdp1-no-shard", "fp32", 2, 16), ("zero0", "bf16-mixed", 2, 16), ("zero1", "bf16-mixed", 2, 14),
        ("zero1", "fp32", 2, 12), ("zero2", "bf16-mixed", 2, 10), ("zero2", "fp32", 4, 8), ("zero2", "bf16-true", 2, 6),
        ("zero3", "bf16-mixed", 2, 9), ("zero3", "fp32", 4, 5), ("zero3", "bf16-true", 2, 5),
    ],
)
def test_the_arithmetic(engine: str, precision: str, ranks: int, bytes_per_parameter: int) -> None:
    """Bytes per parameter, worked out by hand; ZeRO-3's bucket, which does not grow with the model, comes on top."""
    case = ZERO2.with_(engine=engine, precision=precision, world_size=ranks, rows_per_step=4)
    due = footprint.due(case, ELEMENTS)
    assert due.live - due.buffers == bytes_per_parameter * ELEMENTS
    assert due.buffers == (2**18 if engine == "zero3" else 0)


@pytest.mark.parametrize(
    ("budget", "most", "outcome", "passes"),
    [
        (51 * 2**20, 40_000_000, "ok", True), (51 * 2**20, 40_000_000, "oom", False), (51 * 2**20, 0, "ok", False),
        (52 * 2**20, 40_000_000, "ok", False), (51 * 2**20, 60_000_000, "ok", False), (None, None, "ok", False),
    ],
    ids=["fits", "does not", "nothing in use", "another limit", "beyond it", "no limit"],
)
def test_a_target_fits_under_its_own_limit(
    budget: int | None, most: int | None, outcome: Any, passes: bool, tmp_path: Path,
) -> None:
    """It ran to its end, and really under the limit that the catalogue names."""
    case = next(case for case in FITS if case.engine == "fsdp2")
    told = {"limit": {"budget_bytes": budget, "most_bytes": most}}
    findings = list(memory.fits(replace(seen(case, tmp_path, told), outcome=outcome)))
    assert [finding.passed for finding in findings] == [passes, passes]


@pytest.mark.parametrize(
    ("outcome", "observed"),
    [
        ("oom", "out of memory in step 5"), ("ok", "it fits: the budget is not binding"),
        ("crashed", "crashed, not out of memory: killed by SIGKILL"),
        ("hung", "hung, not out of memory: killed by SIGKILL"),
    ],
)
def test_a_partner_must_run_out_of_memory(outcome: Any, observed: str, tmp_path: Path) -> None:
    """Nothing else will do: one that fits shows that the budget does not bind, one that crashes shows nothing."""
    run = replace(seen(FITS[0], tmp_path, {}), outcome=outcome, error={"message": "killed by SIGKILL"})
    finding = memory.must_not_fit(run)
    assert (finding.passed, finding.observed) == (outcome == "oom", observed)


def test_only_zero2_in_aligned_mode_may_spare_bytes() -> None:
    """Half of its share of the fp32 gradients: two bytes per parameter over the ranks. No other may hold less."""
    aligned = {engine: Case(model="llama-tiny", engine=engine, precision="bf16-mixed") for engine in DISTRIBUTED}
    spared = {engine: footprint.spared(case, 100) for engine, case in aligned.items()}
    assert spared.pop("zero2") == 100.0
    assert set(spared.values()) == {0.0}
    assert footprint.spared(aligned["zero2"].with_(precision="fp32"), 100) == 0.0
