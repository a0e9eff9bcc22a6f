"""The finding: its sentence, its rung, its JSON; and the constants that the limits are made of."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from fixtures.verdict import EPSILON, RUNGS, Claim, Finding, Tolerance, close, holds

CLAIM = Claim(subject="a-case", rung="loss", metric="loss, step 1", reference="the oracle")
QUARTER = Tolerance(relative=0.25, reason="a quarter")


def test_the_sentence_says_all() -> None:
    """Subject, metric, observed, allowed with its reason, reference: one line."""
    said = close(CLAIM, 9.0, 8.0, QUARTER).sentence
    assert said == "a-case  loss, step 1: 9, allowed 8 +/- 2: a quarter (the oracle)"
    assert close(CLAIM, None, 8.0, QUARTER).observed == "none"
    assert close(CLAIM, 9.0, None, QUARTER).allowed.startswith("none +/- nan")
    held = holds(CLAIM, True, observed="as it is", allowed="so").sentence
    assert held == "a-case  loss, step 1: as it is, allowed so (the oracle)"


def test_the_ladder_stands_in_order() -> None:
    """A report names the lowest rung that breaks, so their order is part of the contract; no other rung can be made."""
    assert RUNGS == (
        "engaged", "settings", "dtypes", "data", "schedule", "loss", "gradients", "curve", "parameters", "checkpoint",
        "memory", "throughput", "experiment",
    )
    with pytest.raises(ValueError, match=r"unknown rung 'los' \(known: engaged, .*experiment\)"):
        replace(CLAIM, rung="los")


def test_a_finding_survives_json() -> None:
    """Written and read, it is the same finding; a worker process hands it over so."""
    found = close(CLAIM, 9.0, 8.0, QUARTER)
    assert Finding.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(("dtype", "code", "kept"), [("float32", "f", 4), ("float16", "e", 2), ("bfloat16", "f", 2)])
def test_epsilon_is_the_spacing_above_one(dtype: str, code: str, kept: int) -> None:
    """1 + epsilon is a number of the dtype, 1 + epsilon / 2 is none (bfloat16 is the upper half of a float32)."""

    def cut(value: float) -> float:
        packed = struct.pack(f">{code}", value)
        (stored,) = struct.unpack(f">{code}", packed[:kept] + bytes(len(packed) - kept))
        return float(stored)

    assert cut(1 + EPSILON[dtype]) == 1 + EPSILON[dtype]
    assert cut(1 + EPSILON[dtype] / 2) == 1
