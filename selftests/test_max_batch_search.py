"""The search finds the boundary from pretended probes, in few of them, and never calls anything else an answer."""

from __future__ import annotations

import math
import random

import pytest

from fixtures.max_batch.search import Probe, Search, search
from fixtures.observation import Outcome

MOST = 4096


class Machine:
    """Fits every batch up to ``largest``; a batch in ``ends`` ends in its own way. Counts what it was asked."""

    def __init__(self, largest: int, ends: dict[int, Outcome] | None = None) -> None:
        self.largest, self.ends = largest, ends or {}
        self.asked: list[int] = []

    def __call__(self, batch: int) -> Probe:
        """A probe of ``batch``."""
        self.asked.append(batch)
        outcome = self.ends.get(batch, "ok" if batch <= self.largest else "oom")
        return Probe(batch=batch, outcome=outcome, in_use_bytes=batch, seconds=0.5)


def answer(found: Search) -> tuple[str, int | None, int | None]:
    """How it ended, the largest batch that fitted, the smallest that did not."""
    fits, too_large = found.fits, found.too_large
    return found.end, fits.batch if fits else None, too_large.batch if too_large else None


@pytest.mark.parametrize("start", [1, 2, 7, 100, MOST])
@pytest.mark.parametrize("largest", [1, 2, 3, 7, 8, 9, 100, 1000, MOST - 1])
def test_the_boundary_is_found_from_anywhere(start: int, largest: int) -> None:
    """From below and from above, in no more probes than doubling and bisecting need, none of them twice."""
    machine = Machine(largest)
    found = search(machine, start=start, most=MOST)
    assert answer(found) == ("found", largest, largest + 1)
    assert len(set(machine.asked)) == len(machine.asked) <= 2 * math.log2(MOST) + 2
    assert [one.batch for one in found.probes] == machine.asked
    assert found.seconds == 0.5 * len(machine.asked)


@pytest.mark.parametrize("start", [1, 5, 64])
def test_nothing_fits_is_no_answer(start: int) -> None:
    """The smallest batch was really tried."""
    found = search(Machine(0), start=start, most=MOST)
    assert answer(found) == ("none fits", None, 1)


@pytest.mark.parametrize("start", [1, 5, MOST])
def test_a_limit_that_was_never_met_is_no_answer(start: int) -> None:
    """The largest batch that may be tried fits: nobody knows how much more would."""
    found = search(Machine(MOST), start=start, most=MOST)
    assert answer(found) == ("no limit", MOST, None)


@pytest.mark.parametrize("outcome", ["crashed", "hung"])
@pytest.mark.parametrize("at", [8, 16, 64, 48])
def test_a_crash_or_a_hang_stops_the_search(outcome: Outcome, at: int) -> None:
    """At the start, while doubling, and while bisecting: it is not taken for a batch that does not fit."""
    machine = Machine(40, {at: outcome})
    found = search(machine, start=8, most=MOST)
    assert found.end == "stopped"
    assert machine.asked[-1] == at
    assert found.probes[-1].outcome == outcome


@pytest.mark.parametrize("seed", range(50))
def test_a_noisy_boundary_ends_in_it(seed: int) -> None:
    """Between 90 and 110 each run goes either way. The answer's own probe fitted, the next batch's did not."""
    chance = random.Random(seed)
    machine = Machine(0, {batch: chance.choice(("ok", "oom")) for batch in range(91, 110)} | dict.fromkeys(
        range(1, 91), "ok"))
    found = search(machine, start=8, most=MOST)
    end, fits, too_large = answer(found)
    assert end == "found"
    assert fits is not None
    assert 90 <= fits < 110
    assert too_large == fits + 1
    by_batch = {one.batch: one.outcome for one in found.probes}
    assert (by_batch[fits], by_batch[fits + 1]) == ("ok", "oom")
    assert len(machine.asked) <= 2 * math.log2(MOST) + 2


def test_what_a_probe_raises_passes_through() -> None:
    """Ctrl-C and a full disk end the search at once."""
    def probe(batch: int) -> Probe:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(probe, start=1, most=8)


@pytest.mark.parametrize(("start", "most"), [(0, 8), (9, 8), (1, 0)])
def test_a_start_out_of_bounds_is_refused(start: int, most: int) -> None:
    """There is nothing to search."""
    with pytest.raises(ValueError, match="a search starts between 1 and"):
        search(Machine(4), start=start, most=most)


def test_a_search_is_the_same_after_json() -> None:
    """It travels from xdist's workers to the controller."""
    found = search(Machine(5), start=1, most=8)
    assert Search.from_json(found.to_json()) == found
