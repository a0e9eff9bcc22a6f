"""What a side of a gate run recorded: observations and findings, read from its run folder. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fixtures.files import RecordError
from fixtures.observation import Observation
from fixtures.verdict import RUNGS, Finding

_BASELINE = ("baseline ", "record it:")
_FIELDS = frozenset(field.name for field in dataclasses.fields(Finding))
"""Of a finding; a line of the journal may hold more."""
_PLACES = {rung: place for place, rung in enumerate(RUNGS)}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A finding and the test that made it; ``known`` is the link of the known failure that the test is."""

    nodeid: str
    finding: Finding
    known: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the finding is about: equal on both sides."""
        return self.nodeid, self.finding.subject, self.finding.rung, self.finding.metric

    @property
    def place(self) -> int:
        """Of its rung on the ladder."""
        return place(self.finding.rung)

    @property
    def against_baseline(self) -> bool:
        """Whether it compares with stored numbers of another environment, and so says nothing about either of these."""
        return self.finding.reference.startswith(_BASELINE)


def place(rung: str) -> int:
    """Place of ``rung`` on the ladder; an unknown one stands above all."""
    return _PLACES.get(rung, len(_PLACES))


@dataclass(frozen=True, kw_only=True)
class Side:
    """One environment's run.

    :param judged: every finding, in order.
    :param observations: by case id, whatever their outcome.
    :param warned: by case id, the kinds of warning that rank 0 printed.
    """

    judged: tuple[Judged, ...]
    observations: Mapping[str, Observation]
    warned: Mapping[str, frozenset[str]]

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str, str, str], Judged]:
        """Findings by what they are about; of several about one thing a failed one."""
        found: dict[tuple[str, str, str, str], Judged] = {}
        for one in self.judged:
            if one.key not in found or not one.finding.passed:
                found[one.key] = one
        return found

    @cached_property
    def by_test(self) -> Mapping[str, tuple[Judged, ...]]:
        """Findings by test."""
        found: dict[str, list[Judged]] = {}
        for one in self.judged:
            found.setdefault(one.nodeid, []).append(one)
        return {nodeid: tuple(several) for nodeid, several in found.items()}

    def failed(self, nodeid: str) -> tuple[Judged, ...]:
        """The failed findings of a test, those against a baseline left out."""
        return tuple(
            one for one in self.by_test.get(nodeid, ()) if not one.finding.passed and not one.against_baseline
        )


def read(folder: Path) -> Side:
    """What lies in the run folder ``folder``.

    :raises RecordError: if a record is damaged.
    """
    observations = {
        path.parent.name: Observation.read(path.parent) for path in sorted(folder.glob("[!.]*/observation.json"))
    }
    warned = {name: frozenset(_warnings(folder / name / "rank0.log")) for name in observations}
    return Side(judged=tuple(_findings(folder / "findings.jsonl")), observations=observations, warned=warned)


def _findings(path: Path) -> Iterator[Judged]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    lines = text.split("\n")
    try:
        for line in lines[:-1]:  # a session that was killed may have left half a line at the end
            yield _judged(json.loads(line))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path} holds a line that is no finding: {error}") from error


def _judged(row: dict[str, Any]) -> Judged:
    used = float(row["used"]) if row["used"] is not None else None
    told = {name: value for name, value in row.items() if name in _FIELDS}
    return Judged(nodeid=row["nodeid"], known=row["known_failure"], finding=Finding.from_json({**told, "used": used}))


def _warnings(log: Path) -> Iterator[str]:
    """``FutureWarning: use X instead``, from lines such as ``/a/b.py:12: FutureWarning: use X instead``."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        head, found, told = line.partition("Warning: ")
        if found:
            yield f"{head.split()[-1] if head.split() else ''}Warning: {told.strip()}"
