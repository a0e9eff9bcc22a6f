"""Whose fault is it, and since when? Pytest circle.

First the fewest packages that bring the symptom with them while all others stay pinned, then the release of each by
bisection over the published ones. Each trial runs only the tests of the symptoms, in an environment of layers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gate import asked
from gate.bisection import Answer, fewest, first_bad
from gate.environments import Environment, Workshop, public
from gate.pip import Installer
from gate.problems import BuildError, GateError, UsageError
from gate.records import Side
from gate.symptoms import Symptom, shown, suspects

Versions = Mapping[str, str]


class Trial(Protocol):
    """Runs tests in an environment."""

    def __call__(self, environment: Environment, tests: Sequence[str], folder: Path) -> Side:
        """Record ``tests`` in ``folder``; what was recorded there before is not run again."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A package, the release that brings the symptom and the last one before it; ``between`` could not be tested."""

    package: str
    bad: str
    good: str
    between: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """``accelerate 1.13.0 (1.12.0 is good)``."""
        untold = f"; {', '.join(self.between)} could not be tested" if self.between else ""
        return f"{self.package} {self.bad} ({self.good} is good{untold})"


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Where a symptom comes from.

    :param culprits: one, or several that must meet; none if it could not be found.
    :param versions: an environment that shows it, as close to the pinned one as was found.
    :param folder: where the run of that environment is recorded.
    :param trials: environments that were run; :param builds: releases that had to be installed for it.
    """

    symptom: Symptom
    culprits: tuple[Culprit, ...]
    versions: Versions
    folder: Path | None
    trials: int
    builds: int
    note: str = ""

    @property
    def sentence(self) -> str:
        """``X breaks in Y 1.13.0 (1.12.0 is good)``."""
        if not self.culprits:
            return f"{self.symptom.what}: {self.note or 'no culprit found'}"
        if len(self.culprits) == 1:
            said = f"{self.symptom.what} breaks in {self.culprits[0].sentence}"
        else:
            said = f"{self.symptom.what} breaks where {' meets '.join(one.sentence for one in self.culprits)}"
        return f"{said}: {self.note}" if self.note else said

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self), "symptom": vars(self.symptom), "culprits": [vars(one) for one in self.culprits],
            "folder": str(self.folder) if self.folder else None, "sentence": self.sentence,
            "versions": dict(self.versions),
        }


@dataclass
class Laboratory:
    """Tries environments, each once: answers are read again from the trial's folder after an interruption.

    :param pinned: the pinned side's record, which every trial is compared with.
    :param folder: where trials are recorded.
    :param imports: what cannot be imported in an environment, a line each.
    """

    workshop: Workshop
    run: Trial
    pinned: Side
    base: Versions
    symptoms: Sequence[Symptom]
    folder: Path
    tell: Callable[[str], None]
    imports: Callable[[Environment], Sequence[str]]
    _answers: dict[str, dict[str, Answer]] = field(default_factory=dict)
    _folders: dict[str, Path] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """How many environments were tried."""
        return len(self._answers)

    def answer(self, symptom: Symptom, changes: Versions, *, complete: bool = True) -> Answer:
        """Whether the pinned environment with ``changes``, and with what they require, shows ``symptom``.

        :param complete: whether what they require is laid over, too.

        :raises MachineError: if this machine cannot try it now.
        """
        versions = {**self.base, **changes}
        name = self._name(versions if complete else {**versions, "": "as they are"})
        if name not in self._answers:
            said = ", ".join(f"{package} {version}" for package, version in changes.items()) or "nothing changed"
            self._answers[name] = self._try(versions, name, complete=complete)
            answers = self._answers[name]
            self.tell(f"trial {self.trials}: {said}: {', '.join(sorted(set(answers.values())))}")
            self._note_down(versions, answers)
        return self._answers[name][symptom.what]

    def versions(self, changes: Versions) -> dict[str, str]:
        """All versions of the pinned environment with ``changes``, and of what they require."""
        installed = {name: public(version) for name, version in self.workshop.installed.items()}
        return {**installed, **self.workshop.environment({**self.base, **changes}).versions}

    def recorded(self, changes: Versions) -> Path | None:
        """Where the trial of the pinned environment with ``changes`` lies."""
        return self._folders.get(self._name({**self.base, **changes}))

    def _try(self, versions: Versions, name: str, *, complete: bool) -> dict[str, Answer]:
        try:
            environment = self.workshop.environment(versions, complete=complete)
        except (BuildError, UsageError) as error:
            self.tell(str(error))
            return {symptom.what: "unclear" for symptom in self.symptoms}
        tests = list(dict.fromkeys(test for symptom in self.symptoms for test in symptom.tests))
        if not tests:
            broken = {line.partition(":")[0] for line in self.imports(environment)}
            other: Answer = "unclear" if broken else "good"
            return {one.what: "bad" if one.metric in broken else other for one in self.symptoms}
        self._folders[name] = folder = self.folder / name
        side = self.run(environment, tests, folder)
        return {symptom.what: shown(symptom, self.pinned, side) for symptom in self.symptoms}

    def _name(self, versions: Versions) -> str:
        text = json.dumps([dict(versions), [symptom.tests for symptom in self.symptoms]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _note_down(self, versions: Versions, answers: Mapping[str, Answer]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "trials.jsonl").open("a", encoding="utf-8") as stream:
            row = {"trial": self._name(versions), "versions": dict(versions), "answers": dict(answers)}
            stream.write(json.dumps(row, sort_keys=True) + "\n")


def attribute(
    symptom: Symptom, laboratory: Laboratory, candidate: Versions, family: str, pip: Installer,
) -> Attribution:
    """Find what brings ``symptom``. The candidate is known to show it, and the pinned environment not to.

    :param candidate: what was asked for; what it requires follows it.
    """
    trials, builds = laboratory.trials, len(laboratory.workshop.built)
    changed = {name: version for name, version in candidate.items() if laboratory.base.get(name) != version}

    def together(names: tuple[str, ...]) -> Answer:
        return laboratory.answer(symptom, {name: changed[name] for name in names})

    guilty = fewest(suspects(changed, [family]), together)
    apart = len(guilty) == 1 or all(together((name,)) == "good" for name in guilty)
    culprits = [_release(symptom, laboratory, {n: changed[n] for n in guilty}, name, pip) for name in guilty]
    versions = {one.package: one.bad for one in culprits}
    note = "neither alone brings it" if apart else "they could not be tried apart"
    if len(culprits) == 1:
        note = _brought_along(symptom, laboratory, culprits[0])
    return Attribution(
        symptom=symptom, culprits=tuple(culprits), versions={**laboratory.base, **versions},
        folder=laboratory.recorded(versions), trials=laboratory.trials - trials,
        builds=len(laboratory.workshop.built) - builds, note=note,
    )


def _brought_along(symptom: Symptom, laboratory: Laboratory, culprit: Culprit) -> str:
    """Whether the fault is in what the release requires and not in itself, in words; empty if it is its own."""
    bad, good = ({culprit.package: version} for version in (culprit.bad, culprit.good))
    try:
        after, before = laboratory.versions(bad), laboratory.versions(good)
    except GateError:
        return ""
    others = {name: before[name] for name in before if name != culprit.package and before[name] != after.get(name)}
    if not others:
        return ""
    told = ", ".join(f"{name} {after.get(name, '(none)')} for {version}" for name, version in others.items())
    answer = laboratory.answer(symptom, {**bad, **others}, complete=False)
    return {
        "good": f"it is not in {culprit.package} itself but in what it brings: {told}",
        "bad": "",
        "unclear": f"with it came {told}, which could not be tried apart",
    }[answer]


def _release(
    symptom: Symptom, laboratory: Laboratory, guilty: Versions, name: str, pip: Installer,
) -> Culprit:
    """The release of ``name`` since which the guilty show the symptom, the others being as the candidate has them."""
    old, new = laboratory.base.get(name), guilty[name]
    if old is None:
        return Culprit(package=name, bad=new, good="without it")
    line = steps(asked.releases(pip, name), old, new)
    others = {other: version for other, version in guilty.items() if other != name}
    found = first_bad(line, lambda version: laboratory.answer(symptom, {**others, name: version}))
    return Culprit(package=name, bad=found.bad, good=found.good, between=found.between)


def steps(published: Sequence[str], old: str, new: str) -> list[str]:
    """The releases from ``old`` to ``new``, both included, in the order of the move, which may be a step back."""
    from packaging.version import Version

    low, high = sorted((old, new), key=Version)
    between = [one for one in published if Version(low) < Version(one) < Version(high)]
    line = [low, *between, high]
    return line if low == old else line[::-1]
