"""The comparators: what passes, what never does, how much of the allowance was used, and what the line says."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from fixtures.verdict import (
    SMALLEST_SHARE,
    Claim,
    Finding,
    Tolerance,
    close,
    curve,
    falls,
    relative_errors,
    same,
    sequence,
    tensors,
)

CLAIM = Claim(subject="a-case", rung="loss", metric="loss, step 1", reference="the oracle")
QUARTER = Tolerance(relative=0.25, reason="a quarter")
EXACT = Tolerance(relative=0.0, reason="no difference")

Judge = Callable[[Any, Any], Finding]

COMPARATORS: dict[str, Judge] = {
    "same": lambda seen, due: same(CLAIM, seen, due),
    "same list": lambda seen, due: same(CLAIM, [1.0, seen], [1.0, due]),
    "same object": lambda seen, due: same(CLAIM, {"key": (seen,)}, {"key": (due,)}),
    "sequence": lambda seen, due: sequence(CLAIM, [2.0, seen], [2.0, due]),
    "close": lambda seen, due: close(CLAIM, seen, due, QUARTER),
    "curve, first step": lambda seen, due: curve(CLAIM, [seen, 2.0], [due, 2.0], QUARTER),
    "curve, last step": lambda seen, due: curve(CLAIM, [2.0, seen], [2.0, due], QUARTER),
}
"""Each takes what was observed and what is due, and passes if both are 1.0."""

TENSORS: dict[str, Judge] = {
    "first": lambda seen, due: two_tensors([1.0, seen], [1.0, due], [2.0], [2.0]),
    "last": lambda seen, due: two_tensors([2.0], [2.0], [seen, 1.0], [due, 1.0]),
}
"""The same for numbers inside a tensor, where none can be missing."""

NOT_FINITE = [math.nan, math.inf, -math.inf]


def two_tensors(seen_a: list[float], due_a: list[float], seen_b: list[float], due_b: list[float]) -> Finding:
    """The finding about parameters ``a`` and ``b``."""
    return tensors(CLAIM, {"a": seen_a, "b": seen_b}, {"a": due_a, "b": due_b}, QUARTER, scale={"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("name", [*COMPARATORS, *TENSORS])
def test_equal_passes(name: str) -> None:
    """What is as it should be passes, and uses nothing of an allowance."""
    found = {**COMPARATORS, **TENSORS}[name](1.0, 1.0)
    assert found.passed
    assert not found.used


@pytest.mark.parametrize("poison", [*NOT_FINITE, None])
@pytest.mark.parametrize("name", COMPARATORS)
def test_poison_never_passes(name: str, poison: float | None) -> None:
    """NaN, an infinity or nothing at all fails: as observed, as due, and on both sides at once."""
    judge = COMPARATORS[name]
    assert [judge(poison, 1.0).passed, judge(1.0, poison).passed, judge(poison, poison).passed] == [False] * 3


@pytest.mark.parametrize("poison", NOT_FINITE)
@pytest.mark.parametrize("name", TENSORS)
def test_poison_in_a_tensor_never_passes(name: str, poison: float) -> None:
    """A number that is not finite fails its tensor wherever it stands, and the line names that tensor."""
    judge, guilty = TENSORS[name], {"first": "in a", "last": "in b"}[name]
    for found in (judge(poison, 1.0), judge(1.0, poison), judge(poison, poison)):
        assert (found.passed, found.used) == (False, math.inf)
        assert found.observed.endswith(guilty)


@pytest.mark.parametrize("poison", NOT_FINITE)
@pytest.mark.parametrize("step", range(8))
def test_poison_in_a_curve_keeps_it_from_falling(step: int, poison: float) -> None:
    """Not even in the middle, which the drop does not look at, nor an infinite start, which is far above any end."""
    losses = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    losses[step] = poison
    found = falls(CLAIM, losses, by=1.0)
    assert (found.passed, found.used) == (False, math.inf)


@pytest.mark.parametrize(
    ("observed", "used", "passed"),
    [(9.0, 0.5, True), (7.0, 0.5, True), (10.0, 1.0, True), (6.0, 1.0, True), (10.5, 1.25, False), (4.0, 2.0, False)],
)
def test_close_uses_a_share_of_the_allowance(observed: float, used: float, passed: bool) -> None:
    """A quarter of 8 is 2: half of it is 0.5 used, the limit itself passes, on either side, beyond it fails."""
    found = close(CLAIM, observed, 8.0, QUARTER)
    assert (found.used, found.passed) == (used, passed)
    mirrored = close(CLAIM, -observed, -8.0, QUARTER)
    assert (mirrored.used, mirrored.passed) == (used, passed)


def test_zero_is_close_to_zero_alone() -> None:
    """A share of nothing is nothing: the smallest number is beyond every relative limit."""
    assert close(CLAIM, 0.0, 0.0, QUARTER).passed
    assert (close(CLAIM, 5e-324, 0.0, QUARTER).passed, close(CLAIM, 5e-324, 0.0, QUARTER).used) == (False, math.inf)


def test_no_tolerance_lets_equality_alone_pass() -> None:
    """With a limit of 0 equal numbers, curves and tensors pass, and their neighbours fail."""
    above = math.nextafter(1.0, 2.0)
    judges: list[Callable[[float], Finding]] = [
        lambda seen: close(CLAIM, seen, 1.0, EXACT),
        lambda seen: curve(CLAIM, [seen], [1.0], EXACT),
        lambda seen: tensors(CLAIM, {"w": [seen]}, {"w": [1.0]}, EXACT, scale={"w": 1.0}),
    ]
    assert [(judge(1.0).passed, judge(above).passed) for judge in judges] == [(True, False)] * 3


def test_numbers_beyond_the_largest_distance_fail() -> None:
    """A distance that overflows is no distance that a wide limit allows."""
    wide = Tolerance(relative=2.0, reason="wide")
    assert not close(CLAIM, 1.7e308, -1.7e308, wide).passed
    assert not curve(CLAIM, [1.0, 1.7e308], [1.0, -1.7e308], wide).passed


def test_a_curve_shows_its_worst_step() -> None:
    """One step beyond the limit fails the curve; the line gives that step's number, not the first or the last."""
    found = curve(CLAIM, [8.0, 9.0, 11.0, 8.5], [8.0, 8.0, 8.0, 8.0], QUARTER)
    assert (found.passed, found.used) == (False, 1.5)
    assert found.observed == "11 at step 3 of 4"
    assert found.allowed == "8 +/- 2: a quarter"


@pytest.mark.parametrize(
    ("observed", "expected"), [([], []), ([1.0], []), ([], [1.0]), ([1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0])],
)
def test_curves_and_sequences_of_other_length_fail(observed: list[float], expected: list[float]) -> None:
    """A shorter curve is no curve that agrees as far as it goes; no step at all is no agreement."""
    lengths = (f"{len(observed)} steps", f"{len(expected)} steps, at least 1")
    for found in (curve(CLAIM, observed, expected, QUARTER), sequence(CLAIM, observed, expected)):
        assert (found.passed, found.observed, found.allowed) == (False, *lengths)


def test_a_sequence_shows_its_first_wrong_step() -> None:
    """The rows of a step that are not the due ones are shown with the step's number."""
    found = sequence(CLAIM, [[0, 1], [2, 2], [9, 9]], [[0, 1], [2, 3], [4, 5]])
    assert (found.passed, found.observed, found.allowed) == (False, "2, 2 in step 2", "2, 3")


def test_same_is_exact() -> None:
    """Lists in order, words letter by letter; what is missing is shown as such."""
    assert same(CLAIM, ["float32"], ["float32"]).passed
    assert not same(CLAIM, ["float32", "bfloat16"], ["float32"]).passed
    assert not same(CLAIM, [1, 2], [2, 1]).passed
    assert same(CLAIM, [], ["float32"]).sentence == "a-case  loss, step 1: none, allowed float32 (the oracle)"


def test_tensors_show_the_worst_parameter() -> None:
    """The parameter furthest off relative to its own scale is named, not the one with the largest distance."""
    expected = {"large": [300.0, 400.0], "small": [0.0, 8.0 * 8]}
    observed = {"large": [302.0, 400.0], "small": [0.0, 8.0 * 9]}
    found = tensors(CLAIM, observed, expected, QUARTER, scale={"large": 500.0, "small": 64.0})
    assert (found.passed, found.used, found.observed) == (True, 0.5, "off by 0.125 in small")
    assert found.allowed == "relative error 0.25 in each of 2: a quarter"


@pytest.mark.parametrize(
    ("observed", "expected", "scale", "words"),
    [
        ({}, {}, {}, "no tensors"),
        ({}, {"w": [1.0]}, {"w": 1.0}, "missing w"),
        ({"w": [1.0]}, {}, {}, "extra w"),
        ({"v": [1.0]}, {"w": [1.0]}, {"w": 1.0}, "missing w; extra v"),
        ({"w": [1.0]}, {"w": [1.0, 0.0]}, {"w": 1.0}, "w: 1 elements"),
        ({"w": [1.0, 0.0]}, {"w": [1.0]}, {"w": 1.0}, "w: 2 elements"),
        ({"w": []}, {"w": []}, {"w": 1.0}, "w: 0 elements"),
        ({"w": [1.0]}, {"w": [1.0]}, {}, "no scale for w"),
        ({"w": [1.0]}, {"w": [1.0]}, {"v": 1.0}, "no scale for w"),
        ({"w": [1.0]}, {"w": [2.0]}, {"w": math.inf}, "off by inf in w"),
        ({"w": [1.0]}, {"w": [1.0]}, {"w": math.inf}, "off by inf in w"),
        ({"w": [1.0]}, {"w": [1.0]}, {"w": math.nan}, "off by inf in w"),
        ({"w": [1.0]}, {"w": [2.0]}, {"w": 0.0}, "off by inf in w"),
    ],
)
def test_tensors_that_cannot_be_compared_fail(
    observed: dict[str, list[float]], expected: dict[str, list[float]], scale: dict[str, float], words: str,
) -> None:
    """Other names, other sizes, none at all, or nothing to be relative to: never agreement, and the line says which."""
    found = tensors(CLAIM, observed, expected, QUARTER, scale=scale)
    assert (found.passed, found.used, found.observed) == (False, math.inf, words)


def test_a_tensor_of_noise_is_judged_by_a_share_of_the_largest() -> None:
    """Below a twentieth of the largest scale a tensor counts as if it had that; above, its own scale counts."""
    assert SMALLEST_SHARE == 0.05
    expected = {"large": [100.0], "noise": [1.0], "own": [10.0]}
    observed = {"large": [100.0], "noise": [2.0], "own": [11.0]}
    errors = relative_errors(observed, expected, scale={"large": 100.0, "noise": 1.0, "own": 10.0})
    assert errors == {"large": 0.0, "noise": 0.2, "own": 0.1}


@pytest.mark.parametrize(
    ("losses", "by", "passed", "used"),
    [
        ([4.0, 4.0, 9.0, 0.0, 0.0, 9.0, 1.0, 1.0], 1.5, True, 0.5),
        ([4.0, 4.0, 9.0, 0.0, 0.0, 9.0, 1.0, 1.0], 3.0, True, 1.0),
        ([4.0, 4.0, 9.0, 0.0, 0.0, 9.0, 1.0, 1.0], 3.75, False, 1.25),
        ([3.0, 1.0], 1.0, True, 0.5),
        ([1.0, 3.0], 1.0, False, math.inf),
        ([2.0, 2.0], 1.0, False, math.inf),
        ([2.0], 1.0, False, math.inf),
        ([], 1.0, False, math.inf),
        ([3.0, 1.0], math.nan, False, math.inf),
    ],
)
def test_a_curve_falls_from_its_first_to_its_last_quarter(
    losses: list[float], by: float, passed: bool, used: float,
) -> None:
    """Means of quarters are compared, so that one lucky last step proves nothing; one step falls nowhere."""
    found = falls(CLAIM, losses, by=by)
    assert (found.passed, found.used) == (passed, used)


@pytest.mark.parametrize("relative", [math.nan, math.inf, -math.inf, -1e-9])
def test_a_limit_that_allows_everything_is_refused(relative: float) -> None:
    """NaN, infinite and negative tolerances cannot be made, and the reason is in the message."""
    with pytest.raises(ValueError, match=rf"must be finite and at least 0, not {relative} \(why\)"):
        Tolerance(relative=relative, reason="why")


@pytest.mark.parametrize(("value", "error"), [(1.0, 0.0), (math.nan, math.inf)])
def test_equal_tensors_have_no_distance_unless_they_hold_nan(value: float, error: float) -> None:
    """The short cut for tensors that agree to the last bit does not take a NaN for agreement."""
    tensor = {"w": array("f", [value, 2.0])}
    copy = {"w": array("f", tensor["w"])}
    assert relative_errors(tensor, copy, scale={"w": 1.0}) == {"w": error}
