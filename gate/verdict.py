"""May we move? Two recorded sides in, one verdict out. Pure.

Four sources, kept apart: what the candidate breaks (a claim of conformance that holds in the pinned environment and
not here), where it differs from the pinned one beyond noise, what drifted in all engines alike, and what it mends.
What the upgrade changed in settings and dtypes is told in any case and decides nothing: a release may change a default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fixtures.files import encode
from gate import comparison
from gate.comparison import Change, Difference, Drift
from gate.problems import CANNOT_TELL, DO_NOT_MOVE, MOVE
from gate.records import Judged, Side, place

WORDS = {MOVE: "move", DO_NOT_MOVE: "do not move", CANNOT_TELL: "cannot tell"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What two sides say.

    :param breaks: failed claims of the candidate that do not fail in the pinned environment, lowest rung first.
    :param crossed: claims that fail where one side loads what the other saved.
    :param differences: numbers beyond noise that no changed setting accounts for.
    :param explained: numbers beyond noise in stock cases whose settings changed.
    :param within: how many numbers were compared and lie within noise, and how many of them are equal to the last bit.
    :param drifts: oracles that moved.
    :param mended: claims that fail in the pinned environment and hold in the candidate.
    :param both: claims that fail in both.
    :param changes: settings, dtypes and counts in force with another value.
    :param warnings: kinds of warning that only the candidate prints, with a case that has them.
    :param problems: why nothing can be said, or not everything.
    """

    breaks: tuple[Judged, ...] = ()
    crossed: tuple[Judged, ...] = ()
    differences: tuple[Difference, ...] = ()
    explained: tuple[Difference, ...] = ()
    within: tuple[int, int] = (0, 0)
    drifts: tuple[Drift, ...] = ()
    mended: tuple[Judged, ...] = ()
    both: tuple[Judged, ...] = ()
    changes: tuple[Change, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    unstable: tuple[str, ...] = field(default=())

    @property
    def status(self) -> int:
        """The exit status. What is broken is broken, whatever else could not be told."""
        if self.breaks or self.crossed or self.differences:
            return DO_NOT_MOVE
        return CANNOT_TELL if self.problems or self.unstable else MOVE

    @property
    def word(self) -> str:
        """``move``, ``do not move`` or ``cannot tell``."""
        return WORDS[self.status]

    @property
    def headline(self) -> str:
        """The verdict and its first reason, in one line."""
        if self.breaks or self.crossed:
            first = (*self.breaks, *self.crossed)[0].finding
            return f"{self.word}: [{first.rung}] {first.sentence}"
        if self.differences:
            first_difference = self.differences[0]
            return f"{self.word}: [{first_difference.rung}] {first_difference.sentence}"
        reasons = [*self.problems, *self.unstable]
        return f"{self.word}: {reasons[0] if reasons else 'no claim breaks, nothing differs beyond noise'}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, without NaN or infinity."""
        data = {
            "verdict": self.word, "status": self.status, "headline": self.headline,
            "breaks": [_judged(one) for one in self.breaks],
            "crossed": [_judged(one) for one in self.crossed],
            "differences": [_difference(one) for one in self.differences],
            "explained": [_difference(one) for one in self.explained],
            "within_noise": {"compared": self.within[0], "equal_to_the_last_bit": self.within[1]},
            "drift": [vars(one) for one in self.drifts],
            "mended": [_judged(one) for one in self.mended],
            "fail_in_both": [_judged(one) for one in self.both],
            "changes": [{**vars(one), "cases": list(one.cases)} for one in self.changes],
            "warnings": [{"warning": told, "case": case} for told, case in self.warnings],
            "problems": list(self.problems), "unstable": list(self.unstable),
        }
        plain: dict[str, Any] = encode(data)
        return plain


def _judged(one: Judged) -> dict[str, Any]:
    return {**one.finding.to_json(), "nodeid": one.nodeid, "known_failure": one.known}


def _difference(one: Difference) -> dict[str, Any]:
    return {**vars(one), "explained": list(one.explained), "sentence": one.sentence}


def decide(pinned: Side, candidate: Side, problems: Iterable[str] = ()) -> Verdict:
    """Compare two sides.

    :param problems: what else keeps the sides from being whole, a line each.
    """
    found = comparison.pairs(pinned, candidate)
    compared = comparison.differences(found)
    beyond = sorted((one for one in compared if one.beyond), key=lambda one: (place(one.rung), -one.size))
    own, both = broken(pinned, candidate)
    told_twice = {one.finding.subject.split(" ~ ")[0] for one in own}
    quiet = [one for one in compared if not one.beyond]
    return Verdict(
        breaks=tuple(own), both=tuple(both), mended=tuple(_mended(pinned, candidate)),
        differences=tuple(one for one in beyond if not one.explained and one.case not in told_twice),
        explained=tuple(one for one in beyond if one.explained),
        within=(len(quiet), sum(one.size == 0 for one in quiet)),
        drifts=tuple(comparison.drifts(found)), changes=tuple(comparison.changed(found)),
        warnings=tuple(_warnings(pinned, candidate)),
        problems=(*problems, *_gaps(pinned, candidate, found)),
    )


def broken(pinned: Side, candidate: Side) -> tuple[list[Judged], list[Judged]]:
    """Failed claims of the candidate: those that are its own, lowest rung first, and those that fail in both."""
    own: list[Judged] = []
    both: list[Judged] = []
    for one in candidate.judged:
        if one.finding.passed or one.against_baseline:
            continue
        before = pinned.by_key.get(one.key)
        # A test that dies before it judges leaves one finding, its case's outcome, and no other to compare with.
        failed_too = not before.finding.passed if before is not None else bool(pinned.failed(one.nodeid))
        (both if failed_too else own).append(one)
    return sorted(own, key=lambda one: (one.place, _size(one))), both


def _size(one: Judged) -> float:
    used = one.finding.used
    return -used if used is not None and not math.isnan(used) else -math.inf


def _mended(pinned: Side, candidate: Side) -> list[Judged]:
    """Failed claims of the pinned side that the candidate judged and that hold there."""
    found = []
    for one in pinned.judged:
        if one.finding.passed or one.against_baseline or candidate.failed(one.nodeid):
            continue
        after = candidate.by_key.get(one.key)
        died = one.finding.metric == "outcome" and one.nodeid in candidate.by_test
        if (after is not None and after.finding.passed) or died:
            found.append(after or one)
    return found


def _gaps(pinned: Side, candidate: Side, found: Mapping[str, comparison.Pair]) -> list[str]:
    """Why the comparison is not whole."""
    lines = []
    if not any(one.finding.passed for one in pinned.judged):
        lines.append("not one claim holds in the pinned environment: there is nothing to compare with")
    silent = [
        one.nodeid for key, one in pinned.by_key.items()
        if one.finding.passed and key not in candidate.by_key and not one.against_baseline
        and not candidate.failed(one.nodeid)
    ]
    if silent:
        lines.append(f"{len(silent)} claims were not judged in the candidate, the first in {silent[0]}")
    if candidate.observations and not any(seen.outcome == "ok" for seen in candidate.observations.values()):
        lines.append("no case ran to its end in the candidate")
    if not found:
        lines.append("no case ran to its end on both sides")
    return lines


def _warnings(pinned: Side, candidate: Side) -> list[tuple[str, str]]:
    known = frozenset[str]().union(*pinned.warned.values())
    found: dict[str, str] = {}
    for case, warned in candidate.warned.items():
        for told in sorted(warned - known):
            found.setdefault(told, case)
    return list(found.items())


def leaks(side: Side, versions: Mapping[str, str], name: str) -> list[str]:
    """Cases whose ranks ran with other releases than ``versions``, in words; none if all is well.

    :param versions: public versions of the packages under test.
    """
    wrong: dict[str, list[str]] = {}
    for case, seen in side.observations.items():
        if seen.outcome != "ok" and not seen.provenance.get("packages"):
            continue  # it died before it could say
        packages = seen.provenance.get("packages", {})
        for package, due in versions.items():
            ran = str(packages.get(package, "none")).partition("+")[0]
            if (package in packages and ran != due) or not packages:
                wrong.setdefault(f"{package} {ran} instead of {due}", []).append(case)
    return [f"the {name} side ran {what} in {len(cases)} cases, first {cases[0]}" for what, cases in wrong.items()]


def lowest(breaks: Sequence[Judged]) -> list[Judged]:
    """Of each case the breaks on its lowest broken rung; what breaks above follows from it."""
    floor: dict[str, int] = {}
    for one in breaks:
        subject = one.finding.subject.split(" ~ ")[0]
        floor[subject] = min(floor.get(subject, one.place), one.place)
    return [one for one in breaks if one.place == floor[one.finding.subject.split(" ~ ")[0]]]


def without(verdict: Verdict, cases: Collection[str] | None, unstable: tuple[str, ...]) -> Verdict:
    """``verdict`` less what it says of ``cases`` (of all, for ``None``), which did not break again: ``unstable``."""
    def kept(case: str) -> bool:
        return cases is not None and case not in cases

    return dataclasses.replace(
        verdict, unstable=unstable, differences=tuple(one for one in verdict.differences if kept(one.case)),
        breaks=tuple(one for one in verdict.breaks if kept(one.finding.subject.split(" ~ ")[0])),
    )
