"""Symptoms: few that stand for all, and recognised again only where they are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.spec import Case
from gate import records
from gate.records import Side
from gate.symptoms import Symptom, choose, shown, suspects
from gate.verdict import decide
from selftests.gate_fakes import CASES, FSDP2, INSTALLED, ZERO3, nodeid, record

VERSIONS = {name: version.partition("+")[0] for name, version in INSTALLED.items()}
UPCAST, CURVE = ("dtypes", "dtype, at_rest"), ("curve", "loss, every step")
CRASH = {"outcome": "crashed", "message": "ValueError: tied"}


def side(folder: Path, shows: Mapping[Case, Mapping[str, Any]] | None = None) -> Side:
    """A side whose cases show what is said."""
    for case in CASES:
        record(folder, case, VERSIONS, (shows or {}).get(case, {}))
    return records.read(folder)


def symptoms(tmp_path: Path, shows: Mapping[Case, Mapping[str, Any]]) -> tuple[list[Symptom], Side]:
    """What is chosen of a candidate that shows this, and the sound pinned side."""
    old, new = side(tmp_path / "old"), side(tmp_path / "new", shows)
    return choose(decide(old, new), old, new), old


def test_the_lowest_rung_of_a_case_stands_for_it(tmp_path: Path) -> None:
    """What breaks above follows from it."""
    (found,), _ = symptoms(tmp_path, {FSDP2: {"fails": (CURVE, UPCAST)}})
    assert (found.rung, found.case) == ("dtypes", FSDP2.id)


def test_each_family_has_its_own(tmp_path: Path) -> None:
    """They may have different causes."""
    found, _ = symptoms(tmp_path, {FSDP2: {"fails": (UPCAST,)}, ZERO3: CRASH})
    assert {(one.rung, one.case) for one in found} == {("dtypes", FSDP2.id), ("engaged", ZERO3.id)}


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({"fails": (UPCAST,)}, "bad"),
        ({"fails": (UPCAST, CURVE)}, "bad"),
        ({}, "good"),
        ({"fails": (CURVE,)}, "unclear"),
        (CRASH, "unclear"),
    ],
)
def test_a_broken_claim_is_recognised_on_its_rung(tmp_path: Path, told: Mapping[str, Any], answer: str) -> None:
    """A release that fails in another way says nothing about this one."""
    (found,), old = symptoms(tmp_path, {FSDP2: {"fails": (UPCAST,)}})
    assert shown(found, old, side(tmp_path / "trial", {FSDP2: told})) == answer


@pytest.mark.parametrize(
    ("message", "answer"), [("ValueError: also tied", "bad"), ("ImportError: no hub", "unclear")]
)
def test_a_crash_is_recognised_by_its_kind(tmp_path: Path, message: str, answer: str) -> None:
    """Whatever its words: they name objects and places."""
    (found,), old = symptoms(tmp_path, {FSDP2: CRASH})
    assert found.signature == "crashed (ValueError"
    assert shown(found, old, side(tmp_path / "trial", {FSDP2: {**CRASH, "message": message}})) == answer


def test_a_difference_is_recognised_by_its_metric(tmp_path: Path) -> None:
    """All claims hold on both sides, and the curve moved."""
    moved = {"losses": (4.0, 3.0, 2.0, 1.5)}
    (found,), old = symptoms(tmp_path, {FSDP2: moved})
    assert found.difference
    assert shown(found, old, side(tmp_path / "bad", {FSDP2: moved})) == "bad"
    assert shown(found, old, side(tmp_path / "good")) == "good"
    assert shown(found, old, side(tmp_path / "dead", {FSDP2: CRASH})) == "unclear"
    assert shown(found, old, Side(judged=(), observations={}, warned={})) == "unclear"


def test_an_empty_trial_is_unclear(tmp_path: Path) -> None:
    """Nothing judged is no good news."""
    (found,), old = symptoms(tmp_path, {FSDP2: {"fails": (UPCAST,)}})
    assert shown(found, old, Side(judged=(), observations={}, warned={})) == "unclear"


@pytest.mark.parametrize(
    ("family", "first"), [("deepspeed", "deepspeed"), ("fsdp", "accelerate"), ("ddp", "accelerate"),
                          ("plain", "transformers")],
)
def test_the_owner_of_the_engine_is_suspected_first(family: str, first: str) -> None:
    """Then what it stands on; what is required by others comes last."""
    ordered = suspects(["huggingface-hub", "torch", "deepspeed", "accelerate", "transformers"], [family])
    assert (ordered[0], ordered[-1]) == (first, "huggingface-hub")


def test_what_another_case_is_held_against_is_followed_up_by_that_ones_test(tmp_path: Path) -> None:
    """A case without a test of its own moved: its symptom is never one of no tests, which would run them all."""
    def only_beside(whole: Side) -> Side:
        kept = [one for one in whole.judged if one.finding.subject != ZERO3.id]
        named = [replace(one, finding=one.finding.referring(f"the line through {ZERO3.id} and another"))
                 if one.finding.subject == FSDP2.id else one for one in kept]
        return Side(judged=tuple(named), observations=whole.observations, warned={})

    old = only_beside(side(tmp_path / "old"))
    new = only_beside(side(tmp_path / "new", {ZERO3: {"losses": (4.0, 3.0, 2.0, 1.5)}}))
    (found,) = choose(decide(old, new), old, new)
    assert (found.case, found.tests) == (ZERO3.id, (nodeid(FSDP2),))
    unnamed = [replace(one, finding=one.finding.referring("itself")) for one in old.judged]
    assert choose(decide(old, new), replace(old, judged=tuple(unnamed)), new) == []
