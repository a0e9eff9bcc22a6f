"""The verdict: four sources, kept apart, and never a pass by not looking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.files import RecordError
from fixtures.spec import Case
from gate import records, verdict
from gate.records import Side
from gate.verdict import Verdict, decide, leaks
from selftests.gate_fakes import CASES, FSDP2, INSTALLED, ZERO3, finding, nodeid, record
from selftests.records import safetensors

PLAIN = FSDP2.oracle
VERSIONS = {name: version.partition("+")[0] for name, version in INSTALLED.items()}
UPCAST = ("dtypes", "dtype, at_rest")
CURVE = ("curve", "loss, every step")

Shown = Mapping[Case, Mapping[str, Any]]


def side(folder: Path, shown: Shown | None = None) -> Side:
    """A side whose cases show what is said, and are sound otherwise."""
    for case in CASES:
        record(folder, case, VERSIONS, (shown or {}).get(case, {}))
    return records.read(folder)


def compare(tmp_path: Path, old: Shown | None = None, new: Shown | None = None) -> Verdict:
    """The verdict over two such sides."""
    return decide(side(tmp_path / "pinned", old), side(tmp_path / "candidate", new))


def test_two_equal_sides_may_be_moved_between(tmp_path: Path) -> None:
    """Every number is compared, and equal to the last bit."""
    found = compare(tmp_path)
    assert (found.word, found.status) == ("move", 0)
    assert found.within == (8, 8)
    assert (found.changes, found.drifts, found.problems, found.warnings) == ((), (), (), ())


def test_a_claim_that_breaks_says_do_not_move(tmp_path: Path) -> None:
    """The lowest rung is told first."""
    found = compare(tmp_path, new={FSDP2: {"fails": (CURVE, UPCAST)}})
    assert (found.word, found.status) == ("do not move", 1)
    assert [one.finding.rung for one in found.breaks] == ["dtypes", "curve"]
    assert found.headline.startswith("do not move: [dtypes] llama-tiny-fsdp2-bf16_mixed-x2-s4  dtype, at_rest")


def test_a_claim_that_fails_in_both_is_nobodys_fault(tmp_path: Path) -> None:
    """It is told, and decides nothing."""
    broken = {FSDP2: {"fails": (UPCAST,)}}
    found = compare(tmp_path, broken, broken)
    assert found.status == 0
    assert [one.finding.metric for one in found.both] == ["dtype, at_rest"]


def test_a_claim_that_is_mended_is_told(tmp_path: Path) -> None:
    """With the link of the known failure that it was."""
    found = compare(tmp_path, {FSDP2: {"fails": (UPCAST,), "known": "https://example.org/1"}})
    assert found.status == 0
    assert [one.finding.metric for one in found.mended] == ["dtype, at_rest"]


def test_a_crash_of_the_candidate_alone_breaks_the_first_rung(tmp_path: Path) -> None:
    """Its test has judged nothing else, and so there is no finding to compare it with."""
    found = compare(tmp_path, new={ZERO3: {"outcome": "crashed", "message": "ValueError: tied"}})
    assert found.status == 1
    assert "tied" in found.headline
    assert not found.problems


def test_a_crash_that_is_mended_is_told(tmp_path: Path) -> None:
    """What its test judges now holds."""
    found = compare(tmp_path, {ZERO3: {"outcome": "crashed", "message": "ValueError: tied"}})
    assert found.status == 0
    assert [one.finding.metric for one in found.mended] == ["outcome"]


def test_findings_against_a_baseline_decide_nothing(tmp_path: Path) -> None:
    """Stored numbers are of a third environment; what changed is told by comparing the two."""
    new = {FSDP2: {"settings": {"clip": 0.0}}}
    old_side, new_side = side(tmp_path / "pinned"), side(tmp_path / "candidate", new)
    against = finding(FSDP2, "settings", "clip", passed=False, reference="baseline cpu/test_settings/x.json")
    judged = (*new_side.judged, records.Judged(nodeid=nodeid(FSDP2), finding=against))
    found = decide(old_side, Side(judged=judged, observations=new_side.observations, warned={}))
    assert found.status == 0
    assert [(one.key, one.old, one.new, one.cases) for one in found.changes] == [("clip", "1.0", "0.0", (FSDP2.id,))]


def test_changed_dtypes_are_told(tmp_path: Path) -> None:
    """Also where all claims hold."""
    found = compare(tmp_path, new={FSDP2: {"dtypes": {"at_rest": ["bfloat16"]}}})
    assert [(one.part, one.key) for one in found.changes] == [("dtypes", "at_rest")]


def test_a_curve_that_moves_alone_says_do_not_move(tmp_path: Path) -> None:
    """All claims hold, and yet one engine trains something else than before."""
    found = compare(tmp_path, new={FSDP2: {"losses": (4.0, 3.0, 2.0, 1.1)}})
    assert found.status == 1
    assert [one.metric for one in found.differences] == ["loss, every step"]
    assert "off by 0.1" in found.headline


def test_a_curve_that_moves_within_noise_is_no_reason_to_stay(tmp_path: Path) -> None:
    """A part in a million is the order of sums."""
    found = compare(tmp_path, new={FSDP2: {"losses": (4.0, 3.0, 2.0, 1.000001)}})
    assert found.status == 0
    assert found.within == (8, 7)


def test_what_moves_in_the_oracle_too_is_drift(tmp_path: Path) -> None:
    """It is told with its size, and is no reason to stay."""
    moved = {"losses": (4.0, 3.0, 2.2, 1.1)}
    found = compare(tmp_path, new=dict.fromkeys(CASES, moved))
    assert found.status == 0
    (drift,) = found.drifts
    assert drift.oracle == PLAIN.id
    assert drift.size == pytest.approx(0.1)


def test_drift_hides_no_engine_that_goes_further(tmp_path: Path) -> None:
    """What the oracle explains is taken off, no more."""
    moved = {"losses": (4.0, 3.0, 2.2, 1.1)}
    found = compare(tmp_path, new={**dict.fromkeys(CASES, moved), FSDP2: {"losses": (4.0, 3.0, 2.2, 1.2)}})
    assert [one.case for one in found.differences] == [FSDP2.id]


def test_nan_is_never_noise(tmp_path: Path) -> None:
    """Nor on both sides."""
    nan = {FSDP2: {"losses": (4.0, 3.0, 2.0, float("nan"))}}
    assert compare(tmp_path, nan, nan).status == 1


def test_a_case_without_gradients_is_compared_by_the_rest(tmp_path: Path) -> None:
    """A resumed run has none of step 1; one side that has none is a difference."""
    for name, kept in (("old", ()), ("new", ()), ("whole", ("gradients/w",))):
        record(tmp_path / name, FSDP2, VERSIONS, {})
        tensors = {"parameters/w": [1.0], **{one: [1.0] for one in kept}}
        (tmp_path / name / FSDP2.id / "tensors.safetensors").write_bytes(safetensors(tensors))
    old, new, whole = (records.read(tmp_path / name) for name in ("old", "new", "whole"))
    assert decide(old, new).within == (3, 3)
    assert [one.metric for one in decide(whole, new).differences] == ["gradients of step 1"]


def test_a_changed_default_explains_a_stock_case_only(tmp_path: Path) -> None:
    """A matched case has all settings made equal: there a number that moves is not explained by one that changed."""
    moved = {"losses": (4.0, 3.0, 2.0, 1.5), "settings": {"clip": 0.0}}
    assert compare(tmp_path, new={FSDP2: moved}).status == 1
    stock = FSDP2.with_(dialect="stock")
    for name, shown in (("old", {}), ("new", moved)):
        record(tmp_path / name, stock, VERSIONS, shown)
    found = decide(records.read(tmp_path / "old"), records.read(tmp_path / "new"))
    assert found.status == 0
    assert [one.explained for one in found.explained] == [("clip 1.0 -> 0.0",)]


def test_a_key_that_only_appears_explains_nothing(tmp_path: Path) -> None:
    """Releases add settings; what they add is off."""
    stock = FSDP2.with_(dialect="stock")
    moved = {"losses": (4.0, 3.0, 2.0, 1.5), "settings": {"clip": 1.0, "new": False}}
    for name, shown in (("old", {}), ("new", moved)):
        record(tmp_path / name, stock, VERSIONS, shown)
    assert decide(records.read(tmp_path / "old"), records.read(tmp_path / "new")).status == 1


def test_a_claim_that_is_not_judged_cannot_be_told(tmp_path: Path) -> None:
    """A candidate that judged less than the pinned side does not pass."""
    old, new = side(tmp_path / "pinned"), side(tmp_path / "candidate")
    found = decide(old, Side(judged=new.judged[1:], observations=new.observations, warned={}))
    assert (found.word, found.status) == ("cannot tell", 2)
    assert "1 claims were not judged" in found.headline


def test_nothing_recorded_cannot_be_told(tmp_path: Path) -> None:
    """Two empty sides are equal, and no reason to move."""
    empty = records.read(tmp_path)
    assert decide(empty, empty).status == 2


def test_a_broken_pinned_side_cannot_be_told(tmp_path: Path) -> None:
    """There is nothing to compare with."""
    crash = {case: {"outcome": "crashed", "message": "ImportError: torch"} for case in CASES}
    assert compare(tmp_path, crash).status == 2


def test_a_break_outweighs_what_could_not_be_told(tmp_path: Path) -> None:
    """What is broken is broken."""
    old, new = side(tmp_path / "pinned"), side(tmp_path / "candidate", {FSDP2: {"fails": (UPCAST,)}})
    assert decide(old, new, ["the machine was full"]).status == 1


def test_new_warnings_are_told_once(tmp_path: Path) -> None:
    """With a case that has them."""
    for case in (FSDP2, ZERO3):
        (tmp_path / "candidate" / case.id).mkdir(parents=True)
        (tmp_path / "candidate" / case.id / "rank0.log").write_text("/a/b.py:12: FutureWarning: use X\n  call()\n")
    found = compare(tmp_path)
    assert found.warnings == (("FutureWarning: use X", FSDP2.id),)
    assert found.status == 0


def test_ranks_that_ran_other_releases_are_found(tmp_path: Path) -> None:
    """Something of one side leaked into the other: then nothing can be told."""
    seen = side(tmp_path, {FSDP2: {"packages": {**VERSIONS, "accelerate": "1.13.0"}}})
    (line,) = leaks(seen, VERSIONS, "pinned")
    assert "accelerate 1.13.0 instead of 1.15.0 in 1 cases" in line
    assert not leaks(side(tmp_path / "sound"), VERSIONS, "pinned")


def test_a_verdict_is_plain_json(tmp_path: Path) -> None:
    """NaN and infinity included."""
    found = compare(tmp_path, new={FSDP2: {"losses": (4.0, 3.0, 2.0, float("inf"))}})
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["verdict"] == "do not move"


def test_what_does_not_break_again_is_taken_back(tmp_path: Path) -> None:
    """A break that was seen once is told as unstable, and nothing can be said."""
    found = compare(tmp_path, new={FSDP2: {"fails": (UPCAST,)}})
    assert verdict.without(found, None, ("broke once",)).status == 2
    assert verdict.without(found, {ZERO3.id}, ("broke once",)).status == 1


def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    """A killed session leaves one; half a line elsewhere is damage."""
    whole = side(tmp_path)
    path = tmp_path / "findings.jsonl"
    text = path.read_text()
    path.write_text(text + '{"half')
    assert records.read(tmp_path).judged == whole.judged
    path.write_text('{"half\n' + text)
    with pytest.raises(RecordError, match="no finding"):
        records.read(tmp_path)
