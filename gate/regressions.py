"""Real regressions that the gate must see: the table, and what a gate run says of a row. Pytest circle."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.verdict import RUNGS
from gate.problems import UsageError

TABLE = Path(__file__).with_name("regressions.toml")


@dataclass(frozen=True, kw_only=True)
class Regression:
    """One row of the table; its comment says what the fields mean."""

    name: str
    what: str
    package: str
    bad: str
    good: str
    rung: str
    link: str
    keyword: str = ""
    change: str = ""
    uncovered: str = ""
    since: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.keyword) == bool(self.uncovered):
            raise UsageError(f"{self.name}: a row has a keyword, or says why it is uncovered")
        if not self.uncovered and self.rung not in RUNGS:
            raise UsageError(f"{self.name}: unknown rung {self.rung!r} (known: {', '.join(RUNGS)})")

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The words for the gate: ``--from`` the good release, to the bad one."""
        return [f"{self.package}=={self.good}", *self.since], [f"{self.package}=={self.bad}", *self.since]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the gate says of one regression: is the bad release flagged as it should be, does the good one pass?"""

    flagged: bool
    passed: bool
    told: str

    @property
    def detected(self) -> bool:
        """Both: a gate that flags everything sees nothing."""
        return self.flagged and self.passed


def read(path: Path = TABLE) -> list[Regression]:
    """:raises UsageError: on a row that is not whole, or whose name is taken."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    rows = tomllib.loads(path.read_text(encoding="utf-8"))["regression"]
    try:
        found = [Regression(**{**row, "since": tuple(row.get("since", ()))}) for row in rows]
    except TypeError as error:
        raise UsageError(f"{path.name}: {error}") from error
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path.name}: {twice[0]} stands there twice")
    return found


def judge(regression: Regression, gate: Mapping[str, Any]) -> Seen:
    """What ``gate.json`` of a move from the good to the bad release says.

    A break is flagged if it is the lowest of all and on the rung of the table; the good release passes if no claim that
    it judged fails on that rung, known upstream failures apart.
    """
    before = [one for one in (*gate["mended"], *gate["fail_in_both"]) if one["rung"] == regression.rung]
    failing = [one for one in before if not one["known_failure"]]
    judged = gate["claims"] > 0
    if regression.change:
        listed = [one for one in gate["changes"] if one["key"].endswith(regression.change)]
        told = f"{listed[0]['key']}: {listed[0]['old']} -> {listed[0]['new']}" if listed else "not listed"
        return Seen(flagged=bool(listed), passed=judged and not failing, told=told)
    lowest = gate["breaks"][0] if gate["breaks"] else None
    flagged = gate["status"] == 1 and lowest is not None and lowest["rung"] == regression.rung
    said = f"[{lowest['rung']}] {lowest['metric']}: {lowest['observed']}" if lowest else gate["headline"]
    return Seen(flagged=flagged, passed=judged and not failing, told=said.partition("\n")[0][:120])
