"""The two searches of an attribution: since when, and which of many."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gate.bisection import Answer, fewest, first_bad

LINE = list(range(100))


def since(bad: int, asked: list[int], unclear: frozenset[int] = frozenset()) -> Callable[[int], Answer]:
    """A test that is bad from ``bad`` on; notes what it was asked."""
    def test(step: int) -> Answer:
        asked.append(step)
        return "unclear" if step in unclear else "bad" if step >= bad else "good"

    return test


@pytest.mark.parametrize("bad", [1, 2, 37, 64, 98, 99])
def test_the_first_bad_release_is_found_in_log2_steps(bad: int) -> None:
    """And neither end is tried again."""
    asked: list[int] = []
    found = first_bad(LINE, since(bad, asked))
    assert (found.good, found.bad, found.between) == (bad - 1, bad, ())
    assert len(asked) <= math.ceil(math.log2(len(LINE)))
    assert not {0, 99} & set(asked)


def test_neighbours_need_no_trial() -> None:
    """A move of one release is its own answer."""
    asked: list[int] = []
    assert first_bad([4, 5], since(5, asked)).bad == 5
    assert not asked


def test_what_cannot_be_tested_is_passed_over() -> None:
    """One that cannot be installed costs a trial, not the answer."""
    asked: list[int] = []
    found = first_bad(LINE, since(70, asked, frozenset({49, 50, 74})))
    assert (found.good, found.bad) == (69, 70)


def test_what_keeps_the_answer_open_is_told() -> None:
    """Where the change happened among what could not be tested, all of it is named."""
    found = first_bad(LINE, since(70, [], frozenset({69, 70, 71})))
    assert (found.good, found.bad, found.between) == (68, 72, (69, 70, 71))


def needs(*wanted: str, asked: list[tuple[str, ...]]) -> Callable[[tuple[str, ...]], Answer]:
    """A test that is bad where all of ``wanted`` are."""
    def test(names: tuple[str, ...]) -> Answer:
        asked.append(names)
        return "bad" if set(wanted) <= set(names) else "good"

    return test


@pytest.mark.parametrize("culprit", ["a", "b", "c", "d", "e"])
def test_one_culprit_is_found_among_many(culprit: str) -> None:
    """Whichever it is."""
    assert fewest(["a", "b", "c", "d", "e"], needs(culprit, asked=[])) == (culprit,)


def test_the_first_suspect_needs_one_trial() -> None:
    """Of three that moved together, the one that is suspected most is tried alone first."""
    asked: list[tuple[str, ...]] = []
    assert fewest(["a", "b", "c"], needs("a", asked=asked)) == ("a",)
    assert asked == [("a",)]


@pytest.mark.parametrize("pair", [("a", "b"), ("a", "e"), ("b", "d"), ("d", "e")])
def test_two_that_must_meet_are_both_found(pair: tuple[str, str]) -> None:
    """Neither alone is bad."""
    assert set(fewest(["a", "b", "c", "d", "e"], needs(*pair, asked=[]))) == set(pair)


def test_what_cannot_be_tried_apart_stays_together() -> None:
    """Unclear answers are no evidence against anybody."""
    assert fewest(["a", "b"], lambda names: "unclear") == ("a", "b")
