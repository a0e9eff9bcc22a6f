"""Which of many, and since when: the two searches behind an attribution. Pure.

A test answers ``good``, ``bad`` or ``unclear``: releases may not install, or fail in a way of their own. Both searches
pass over what is unclear, and say so where it keeps them from an exact answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Answer = Literal["good", "bad", "unclear"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Bracket(Generic[T]):
    """The last that is good and the first that is bad; ``between`` lies what could not be tested."""

    good: T
    bad: T
    between: tuple[T, ...] = ()


def first_bad(line: Sequence[T], test: Callable[[T], Answer]) -> Bracket[T]:
    """Search ``line``, whose first is known to be good and whose last is known to be bad; neither is tested.

    Of n steps in between, about log2(n) are tested; each one that is unclear costs one more.
    """
    if len(line) < 2:
        raise ValueError("a search needs a good and a bad end")
    low, high = 0, len(line) - 1
    unclear: set[int] = set()
    while True:
        open_ones = [place for place in range(low + 1, high) if place not in unclear]
        if not open_ones:
            return Bracket(good=line[low], bad=line[high], between=tuple(line[low + 1:high]))
        middle = min(open_ones, key=lambda place: abs(2 * place - low - high))
        answer = test(line[middle])
        if answer == "good":
            low = middle
        elif answer == "bad":
            high = middle
        else:
            unclear.add(middle)


def fewest(items: Sequence[T], test: Callable[[tuple[T, ...]], Answer]) -> tuple[T, ...]:
    """A part of ``items`` that is bad, and of which no smaller part that could be tested is.

    All of them are known to be bad together, none of them to be good.

    Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002): halves, then
    what is left without a part, then smaller parts. Put first what is most likely alone at fault.
    """
    kept, parts = tuple(items), 2
    while len(kept) > 1:
        pieces = _split(kept, parts)
        rests = [tuple(item for item in kept if item not in piece) for piece in pieces] if parts > 2 else []
        found = next((part for part in [*pieces, *rests] if test(part) == "bad"), None)
        if found is not None:
            parts = 2 if found in pieces else max(parts - 1, 2)
            kept = found
        elif parts < len(kept):
            parts = min(len(kept), 2 * parts)
        else:
            break
    return kept


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    ends = [len(items) * n // parts for n in range(parts + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(ends) if end > begin]
