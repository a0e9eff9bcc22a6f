"""The gate's report: ``gate.md`` for people, ``gate.json`` for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gate.attribution_text import Told
from gate.comparison import Change
from gate.records import Judged
from gate.verdict import Verdict

MOST = 12
"""Lines of each list that ``gate.md`` shows; ``gate.json`` holds all."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """Everything that a report tells.

    :param moved: by package, old and new version; ``None`` where a side has none.
    :param conflicts: unmet requirements of the candidate.
    :param attributions: what was found of the cause of each symptom.
    :param files: upstream reports, by the symptom they are about.
    """

    verdict: Verdict
    pinned: Mapping[str, str]
    candidate: Mapping[str, str]
    moved: Mapping[str, tuple[str | None, str | None]]
    conflicts: Sequence[str]
    selection: str
    folder: str
    command: str
    cases: int
    claims: int
    seconds: float
    attributions: Sequence[Told] = ()

    def to_json(self) -> dict[str, Any]:
        """The content of ``gate.json``."""
        return {
            **self.verdict.to_json(), "pinned": dict(self.pinned), "candidate": dict(self.candidate),
            "moved": {name: list(pair) for name, pair in self.moved.items()}, "conflicts": list(self.conflicts),
            "selection": self.selection, "command": self.command, "cases": self.cases, "claims": self.claims,
            "seconds": round(self.seconds, 1), "attributions": [vars(one) for one in self.attributions],
        }


def moved(pairs: Mapping[str, tuple[str | None, str | None]]) -> str:
    """``accelerate 1.12.0 -> 1.13.0, torch ...``."""
    told = [f"{name} {old or '(none)'} -> {new or '(none)'}" for name, (old, new) in pairs.items()]
    return ", ".join(told) or "nothing"


def summary(account: Account) -> list[str]:
    """The lines that the command ends with: what moved, the verdict, its reasons, what changed."""
    verdict = account.verdict
    lines = [f"moved: {moved(account.moved)}", f"judged: {account.claims} claims over {account.cases} cases"]
    lines += _section("breaks, lowest rung first", map(_claim, verdict.breaks), 6)
    lines += _section("checkpoints that do not cross", map(_claim, verdict.crossed), 6)
    lines += _section("differs beyond noise", (one.sentence for one in verdict.differences), 6)
    lines += _section("drift common to all engines", map(_drift, verdict.drifts), 3)
    lines += _section("mended", map(_claim, verdict.mended), 3)
    lines += _section("changed settings, dtypes and counts", map(change, verdict.changes), MOST)
    lines += _section("cannot tell", [*verdict.problems, *verdict.unstable], 6)
    lines += _section("cause", (one.sentence for one in account.attributions), 6)
    for one in account.attributions:
        lines += [f"  re-run: {one.command}"] * bool(one.command) + [f"  upstream report: {one.file}"] * bool(one.file)
    return [*lines, f"report: {account.folder}/gate.md", verdict.headline]


def page(account: Account) -> str:
    """``gate.md``."""
    verdict = account.verdict
    equal = f"{verdict.within[0]} numbers compared lie within noise, {verdict.within[1]} of them equal to the last bit"
    parts = [
        f"# {verdict.word.capitalize()}", "", f"**{verdict.headline}**", "",
        f"Moved: {moved(account.moved)}.", "",
        f"{account.claims} claims over {account.cases} cases on each side ({account.selection}); {equal}.", "",
        f"Took {account.seconds:.0f} s. Again: `{account.command}`.", "",
        *_versions(account),
        *_table("Breaks, lowest rung first", "Claims that hold in the pinned environment and fail in the candidate.",
                map(_claim, verdict.breaks)),
        *_causes(account.attributions),
        *_table("Checkpoints that do not cross", "One side saved, the other loaded.", map(_claim, verdict.crossed)),
        *_table("Differs beyond noise", "Numbers of cases whose claims all hold.",
                (f"[{one.rung}] {one.sentence}" for one in verdict.differences)),
        *_table("Differs, with changed settings", "Stock cases: their defaults changed, and their numbers with them.",
                (f"[{one.rung}] {one.sentence}" for one in verdict.explained)),
        *_table("Drift common to all engines", "The oracle moved: torch or the model. No failure by itself.",
                map(_drift, verdict.drifts)),
        *_table("What changed in settings, dtypes and counts", "Decides nothing: a release may change a default.",
                map(change, verdict.changes)),
        *_table("Mended", "Failed in the pinned environment, hold in the candidate.", map(_mended, verdict.mended)),
        *_table("Fail in both", "Not the upgrade's doing.", map(_claim, verdict.both)),
        *_table("New warnings", "", (f"{_short(told)}  ({case})" for told, case in verdict.warnings)),
        *_table("Unmet requirements of the candidate", "", account.conflicts),
        *_table("Could not be told", "", [*verdict.problems, *verdict.unstable]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _versions(account: Account) -> list[str]:
    names = dict.fromkeys([*account.pinned, *account.candidate])
    rows = [f"| {name} | {account.pinned.get(name, '-')} | {account.candidate.get(name, '-')} |" for name in names]
    return ["| package | pinned | candidate |", "|---|---|---|", *rows, ""]


def _causes(attributions: Sequence[Told]) -> list[str]:
    lines: list[str] = ["## Cause", ""] if attributions else []
    for one in attributions:
        tried = f"{one.trials} environments tried, {one.builds} releases installed"
        lines += [f"- **{one.sentence}** ({tried})"]
        lines += [f"  - re-run: `{one.command}`"] * bool(one.command)
        lines += [f"  - upstream report, ready to paste: `{one.file}`"] * bool(one.file)
    return [*lines, ""] if lines else []


def _table(title: str, meaning: str, rows: Iterable[str]) -> list[str]:
    told = list(rows)
    if not told:
        return []
    more = [f"- and {len(told) - MOST} more in gate.json"] if len(told) > MOST else []
    return [f"## {title}", "", *([meaning, ""] if meaning else []), *(f"- {row}" for row in told[:MOST]), *more, ""]


def _section(title: str, rows: Iterable[str], most: int) -> Iterator[str]:
    told = list(rows)
    if told:
        yield f"{title}:"
        yield from (f"  {row}" for row in told[:most])
        if len(told) > most:
            yield f"  and {len(told) - most} more"


def _claim(one: Judged) -> str:
    known = f" (known: {one.known})" if one.known else ""
    return f"[{one.finding.rung}] {one.finding.sentence}{known}"


def _mended(one: Judged) -> str:
    known = f": remove its line from known_failures.txt ({one.known})" if one.known else ""
    return f"[{one.finding.rung}] {one.finding.subject}  {one.finding.metric}{known}"


def _drift(one: Any) -> str:
    return f"{one.oracle}: losses moved by up to {one.size:.3g} (relative), and all engines with them"


def change(one: Change) -> str:
    """``settings deepspeed.gradient_clipping: 0.0 -> 1.0  in A, B and 4 more``."""
    more = f" and {len(one.cases) - 2} more" if len(one.cases) > 2 else ""
    where = f"{', '.join(one.cases[:2])}{more}"
    return f"{one.part} {one.key}: {_short(one.old)} -> {_short(one.new)}  in {where}"


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:87]}..."
