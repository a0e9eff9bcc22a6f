"""What a rehearsal's record says of the full depth, and how that is judged: small records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import rehearsal
from fixtures.observation import Observation
from fixtures.rehearsal.cards import ASSUMED, CARD_GIB, GIB
from fixtures.rehearsal.forecast import HELD, PHASES, Forecast, ForecastError, forecast
from fixtures.spec import Case
from fixtures.verdict import Finding
from selftests.records import observation

CASE = Case(model="llama-deep", engine="fsdp2", precision="fp32", rows_per_step=2, steps=3, measure="memory")
LAYERS = 20


def phase(*stretches: int, live: int = 0, **parts: int) -> dict[str, Any]:
    """One phase of a record."""
    return {"live": live, "parts": {**dict.fromkeys(HELD, 0), **parts}, "stretches": list(stretches)}


def at_depth(layers: int, *, unit: int = 1) -> dict[str, Any]:
    """A depth: each layer has 10 of parameters and gradients and 20 of state, and keeps 5 in forward.

    Backward begins with all that is kept and 400 for the logits, and ends with nothing kept and all gradients.
    """
    at_rest, kept = {"parameters": 10 * layers * unit, "optimizer_state": 20 * layers * unit}, 5 * layers * unit
    held = 30 * layers * unit
    grads = [held + kept + 400 * unit, *(held + kept - 5 * i * unit + 10 * i * unit + unit for i in range(layers))]
    return {
        "before": phase(held, live=held, **at_rest),
        "forward": phase(*(held + 5 * i * unit for i in range(layers)), held + kept + 300 * unit, **at_rest),
        "backward": phase(*grads, held + 10 * layers * unit + 2 * unit, **at_rest, gradients=10 * layers * unit),
        "step": phase(held + 10 * layers * unit + 7 * unit, **at_rest),
    }


def record(unit: int = 1, **changes: Any) -> dict[str, Any]:
    """A rehearsal of one rank at depths 2, 3 and 4."""
    return {
        "platform": "a100", "layers": LAYERS, "processor_seconds": 1.0, "resident_bytes": 2**20,
        "ranks": {"0": {str(depth): at_depth(depth, unit=unit) for depth in (2, 3, 4)}}, **changes,
    }


def rehearsed(tmp_path: Path, memory: dict[str, Any], case: Case = CASE) -> Observation:
    """An observation of a rehearsal."""
    return observation(case.rehearsal, tmp_path, memory=memory)


def ran(tmp_path: Path, told: Forecast, factor: float = 1.0) -> Observation:
    """An observation of a run that had ``factor`` times the peaks foretold."""
    peaks = {name: int(peak * factor) for name, peak in told.peaks.items()}
    return observation(CASE, tmp_path, memory={"peaks": peaks})


def test_the_line_reaches_the_full_depth() -> None:
    """The peaks are those of the same arithmetic at full depth, although another moment is the highest there."""
    told, whole = forecast(record()), at_depth(LAYERS)
    assert told.peaks == {name: max(whole[name]["stretches"]) for name in ("forward", "backward", "step")}
    assert at_depth(4)["backward"]["stretches"][0] == max(at_depth(4)["backward"]["stretches"])
    deep = forecast(record(), 200)
    assert deep.peaks["backward"] == max(at_depth(200)["backward"]["stretches"])
    assert at_depth(200)["backward"]["stretches"][0] < deep.peaks["backward"]


def test_parts_add_up_to_the_peak() -> None:
    """What is held is told by part, and the rest of the peak is activations."""
    told = forecast(record())
    assert sum(told.parts.values()) == told.peak_bytes
    assert (told.parts["parameters"], told.parts["optimizer_state"]) == (10 * LAYERS, 20 * LAYERS)


def test_a_bend_is_seen() -> None:
    """Where the smallest depth lies off the line, the forecast says how far; where it lies on it, 0."""
    bent = record()
    bent["ranks"]["0"]["2"]["backward"]["stretches"][0] *= 2
    assert forecast(record()).bend == 0
    assert forecast(bent).bend > rehearsal.BEND


def test_what_is_offloaded_is_not_counted_on_a_gpu() -> None:
    """Weights, gradients and state leave the card's peak; on the CPU the host's memory is the device's."""
    plain, offloaded = forecast(record()), forecast(record(), offload="parameters")
    assert offloaded.parts["parameters"] == offloaded.parts["optimizer_state"] == 0
    assert offloaded.peak_bytes < plain.peak_bytes
    assert forecast(record(platform="cpu"), offload="parameters") == forecast(record(platform="cpu"))


def test_the_rank_that_has_most_counts() -> None:
    """With two ranks on record each phase is that of the one with the higher peak."""
    both = record()
    both["ranks"]["3"] = {str(depth): at_depth(depth, unit=2) for depth in (2, 3, 4)}
    assert forecast(both).peaks["step"] == forecast(record(unit=2)).peaks["step"]


@pytest.mark.parametrize("lost", ["ranks", "layers", "processor_seconds"])
def test_a_record_that_lacks_something_is_none(lost: str) -> None:
    """No forecast from half a record, nor from two depths."""
    short = record()
    del short[lost]
    with pytest.raises(ForecastError):
        forecast(short)
    with pytest.raises(ForecastError):
        forecast(record(ranks={"0": {"2": at_depth(2), "3": at_depth(3)}}))


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.04, True), (1.06, False), (0.94, False)])
def test_agreement_is_within_five_percent(factor: float, passed: bool, tmp_path: Path) -> None:
    """Off by 4 % agrees, off by 6 % does not, in either direction; every phase is judged, and the highest."""
    told = forecast(record(unit=1000), 8)
    found = list(rehearsal.agrees(rehearsed(tmp_path / "told", record(unit=1000)), ran(tmp_path / "ran", told, factor)))
    assert [finding.passed for finding in found] == [passed] * 4


@pytest.mark.parametrize(("engine", "counted"), [("fsdp2", 100), ("zero3", 100), ("zero1", 109), ("zero2", 109)])
def test_a_late_release_on_one_rank_of_many_alike_is_no_need(engine: str, counted: int, tmp_path: Path) -> None:
    """Alike, the rank that has least is compared; under ZeRO-1 and ZeRO-2, whose ranks differ, the one with most."""
    seen = observation(CASE.with_(engine=engine), tmp_path)
    peaks = [{"peaks": dict.fromkeys(PHASES, peak)} for peak in (109, 100)]
    ranks = tuple(replace(rank, memory=memory) for rank, memory in zip(seen.ranks, peaks, strict=True))
    assert rehearsal.measured(replace(seen, ranks=ranks)) == dict.fromkeys(PHASES, counted)
    lost = (ranks[0], replace(ranks[1], memory={}))
    assert rehearsal.measured(replace(seen, ranks=lost)) == dict.fromkeys(PHASES, None)


EMPTY: dict[str, Any] = {}


def _agrees(told: Observation, seen: Observation) -> list[Finding]:
    return list(rehearsal.agrees(told, seen))


def _apart(told: Observation, seen: Observation) -> list[Finding]:
    return [rehearsal.tells_apart(told, seen)]


@pytest.mark.parametrize("claim", [_agrees, _apart])
def test_nothing_on_record_is_no_agreement_and_no_difference(
    claim: Callable[[Observation, Observation], list[Finding]], tmp_path: Path
) -> None:
    """A rehearsal or a run without bytes fails both claims."""
    told = forecast(record(), 8)
    lost = rehearsed(tmp_path / "lost", EMPTY)
    assert not any(finding.passed for finding in claim(lost, ran(tmp_path / "ran", told)))
    unmeasured = observation(CASE, tmp_path / "unmeasured")
    assert not any(finding.passed for finding in claim(rehearsed(tmp_path / "told", record()), unmeasured))


def test_two_cases_that_need_the_same_are_not_told_apart(tmp_path: Path) -> None:
    """The negative control fails where the other's rehearsal foretells the case as well."""
    told = forecast(record(unit=1000), 8)
    other = rehearsed(tmp_path / "told", record(unit=1000))
    assert not rehearsal.tells_apart(other, ran(tmp_path / "same", told)).passed
    assert rehearsal.tells_apart(other, ran(tmp_path / "more", told, 1.2)).passed


@pytest.mark.parametrize("platform", CARD_GIB)
@pytest.mark.parametrize(("share", "fits"), [(0.97, True), (1.03, False)])
def test_a_verdict_is_held_to_what_the_case_states(share: float, fits: bool, platform: str, tmp_path: Path) -> None:
    """Just under the card's memory fits, just over it does not; the contrary fails, and so does an empty record."""
    peak = forecast(record()).peak_bytes
    room = (CARD_GIB[platform] - ASSUMED.outside_gib) / ASSUMED.allocator_factor * GIB
    seen = rehearsed(tmp_path, record(unit=int(room * share / peak)))
    assert rehearsal.verdict_of(seen, platform, fits=fits).passed
    assert not rehearsal.verdict_of(seen, platform, fits=not fits).passed
    lost = rehearsed(tmp_path / "lost", EMPTY)
    assert not rehearsal.verdict_of(lost, platform, fits=fits).passed
    assert not rehearsal.straight(lost).passed
