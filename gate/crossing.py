"""Forward and backward: what one environment saved, the other loads. Pytest circle.

A resumed case loads what its source left beside it in the run folder. So a folder that holds one side's records, and
none of a resumed case, makes the other side resume from them; the tests of resumed cases then judge as they always do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fixtures.verdict import Finding
from gate import comparison, records
from gate.environments import Environment
from gate.problems import MachineError
from gate.records import Judged, Side
from gate.runs import Ended, Selection
from gate.verdict import broken

WORDS = {
    "forward": "checkpoint of the pinned side, loaded by the candidate",
    "backward": "checkpoint of the candidate, loaded by the pinned side",
}


@dataclass(frozen=True, kw_only=True)
class Crossed:
    """Claims that hold where a side loads its own checkpoints and fail where it loads the other's; gaps in words."""

    breaks: tuple[Judged, ...] = ()
    problems: tuple[str, ...] = ()
    judged: int = 0


def cross(
    sides: Mapping[str, tuple[Environment, Side]], folder: Path, selection: Selection,
    run: Callable[..., dict[str, Ended]], tell: Callable[[str], None],
) -> Crossed:
    """Let each of the two sides, pinned and candidate in this order, load what the other saved.

    :param folder: of the gate run. :param selection: whose platform and deadline hold here, too.
    """
    (old_environment, old), (new_environment, new) = sides.values()
    names = sorted(set(_resumed(old)) & set(_resumed(new)))
    if not names:
        return Crossed()
    tell(f"loading {len(names)} checkpoints forward and backward")
    tests = tuple(test for test in old.by_test if any(f"[{name}]" in test for name in names))
    folders = {"forward": _laid(old, folder / "forward"), "backward": _laid(new, folder / "backward")}
    environments = {"forward": new_environment, "backward": old_environment}
    chosen = replace(selection, keyword=None, tests=tests)
    ended = run({way: (environments[way], folders[way]) for way in WORDS}, chosen, tell=tell)
    found = {way: records.read(folders[way]) for way in WORDS}
    breaks = [
        replace(one, finding=replace(one.finding, reference=f"{one.finding.reference}; {WORDS[way]}"))
        for way, side in found.items() for one in [*_claims(old, side), *_numbers(old, side, names)]
    ]
    problems = [f"{WORDS[way]}: {told.last_words}" for way, told in ended.items() if not told.judged]
    problems += [
        f"{WORDS[way]}: {len(missing)} tests judged nothing, first {missing[0]}"
        for way, side in found.items() if (missing := [test for test in tests if test not in side.by_test])
    ]
    return Crossed(
        breaks=tuple(breaks), problems=tuple(problems), judged=sum(len(side.judged) for side in found.values())
    )


def _claims(old: Side, side: Side) -> list[Judged]:
    """What fails here only; not what is claimed to the last bit, which two releases do not owe each other."""
    return [one for one in broken(old, side)[0] if one.finding.tolerance != 0]


def _numbers(old: Side, side: Side, names: list[str]) -> list[Judged]:
    """Numbers of the resumed runs that lie beyond noise from those that the pinned side resumed itself."""
    found = {name: pair for name, pair in comparison.pairs(old, side).items() if name in names}
    beyond = [one for one in comparison.differences(found) if one.beyond]
    return [
        Judged(nodeid=next((test for test in old.by_test if f"[{one.case}]" in test), one.case), finding=Finding(
            subject=one.case, rung=one.rung, metric=one.metric, observed=f"off by {one.size:.3g}",
            allowed=f"{one.allowed:.3g}: {one.why}", reference="resumed by the pinned side", passed=False,
        ))
        for one in beyond
    ]


def _resumed(side: Side) -> list[str]:
    """The resumed cases that ran to their end."""
    return [name for name, seen in side.observations.items() if seen.outcome == "ok" and _source(seen.case) is not None]


def _source(case: Any) -> Any:
    # Only catalogues with checkpoints have cases with a source.
    return getattr(case, "source", None)


def _laid(side: Side, folder: Path) -> Path:
    """A run folder that holds all of ``side`` but its resumed cases."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, seen in side.observations.items():
            place = folder / name
            if _source(seen.case) is None and not place.is_symlink():
                place.symlink_to(seen.folder.absolute(), target_is_directory=True)
    except OSError as error:
        raise MachineError(f"cannot record in {folder}: {error.strerror or error}") from error
    return folder
