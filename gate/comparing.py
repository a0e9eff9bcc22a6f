"""Both sides of a plan, recorded and judged, and the search for the cause of what breaks. Pytest circle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fixtures.files import RecordError
from fixtures.observation import Observation, Request
from gate import asked, environments, records
from gate.attribution import Attribution, Laboratory, attribute
from gate.attribution_text import Told, upstream
from gate.crossing import cross
from gate.environments import UNDER_TEST, Environment, Workshop
from gate.plan import Plan, World, shown_path
from gate.problems import BuildError, GateError, MachineError
from gate.records import Side
from gate.report import Account
from gate.runs import Ended
from gate.symptoms import IMPORT, Symptom, choose, family, shown
from gate.verdict import Verdict, decide, leaks, without

TRIAL_SECONDS = 900.0
"""For the tests of a few symptoms; what takes longer hangs at its start, or compiles on a machine far too busy."""


@dataclass
class Comparison:
    """The two sides of a plan, recorded and judged; the search for the cause, if there is something to search."""

    plan: Plan
    workshop: Workshop
    world: World
    folder: Path
    tell: Callable[[str], None]

    def account(self) -> Account:
        """Everything to be reported.

        :raises GateError: if the pinned environment cannot be made or run, or this machine cannot go on.
        """
        pinned = self.workshop.environment(self.plan.pinned)
        try:
            candidate = self.workshop.environment(self.plan.candidate)
        except BuildError as error:
            return self._account(Verdict(problems=(str(error),)), pinned, None)
        problems = self._import(pinned, candidate)
        if problems:
            verdict = Verdict(problems=tuple(problems))
            causes = self._causes_of_imports(problems)
            return self._account(verdict, pinned, candidate, attributions=causes)
        old, new, gaps = self._record(pinned, candidate)
        verdict = decide(old, new, gaps)
        laboratory = self._laboratory(old, choose(verdict, old, new))
        verdict, seen = self._confirm(verdict, laboratory, candidate)
        crossed = cross(
            {"pinned": (pinned, old), "candidate": (candidate, new)}, self.folder, self.plan.selection, self.world.run,
            self.tell,
        )
        verdict = dataclasses.replace(
            verdict, crossed=crossed.breaks, problems=(*verdict.problems, *crossed.problems)
        )
        found = []
        if self.plan.attribution:
            found = [self._cause(symptom, laboratory, new) for symptom in seen]
        return self._account(verdict, pinned, candidate, sides=(old, new), attributions=found)

    def _import(self, pinned: Environment, candidate: Environment) -> list[str]:
        """Why the candidate cannot run at all. :raises MachineError: if the pinned side cannot."""
        self.tell("importing the frameworks on both sides")
        platform = self.plan.selection.platform
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda one: self.world.imported(one, platform), (pinned, candidate))
            if not (old.hopeless or new.hopeless):
                list(pool.map(self.world.prepare, (pinned, candidate)))
        if old.hopeless:
            told = "; ".join(old.problems) or "it cannot be imported"
            raise MachineError(f"the pinned environment is broken: {told}")
        for name, seen, environment in (("pinned", old, pinned), ("candidate", new, candidate)):
            found = {package: told.get("version", "none") for package, told in seen.found.items()}
            wrong = [
                f"{package} {found[package]} instead of {due}" for package, due in environment.versions.items()
                if environments.public(found.get(package, due)) != due
            ]
            if wrong:
                raise MachineError(f"the {name} environment is not what was asked for: it imports {', '.join(wrong)}")
        for line in new.problems:
            self.tell(f"candidate: {line}")
        return [f"the candidate cannot be imported: {line}" for line in new.problems] if new.hopeless else []

    def _record(self, pinned: Environment, candidate: Environment) -> tuple[Side, Side, list[str]]:
        sides = {"pinned": (pinned, self.folder / "pinned"), "candidate": (candidate, self.folder / "candidate")}
        ended = self.world.run(sides, self.plan.selection, tell=self.tell)
        if not ended["pinned"].judged:
            raise _not_run("pinned", ended["pinned"], self.folder)
        gaps = [] if ended["candidate"].judged else [str(_not_run("candidate", ended["candidate"], self.folder))]
        old, new = (self._read(self.folder / name) for name in sides)
        for name, side, environment in (("pinned", old, pinned), ("candidate", new, candidate)):
            gaps += leaks(side, _under_test(environment), name)
        return old, new, gaps

    def _read(self, folder: Path) -> Side:
        try:
            return records.read(folder)
        except RecordError as error:
            again = f"python -m gate --resume {shown_path(self.folder)}"
            raise MachineError(f"{error}; remove it, and go on with: {again}") from error

    def _laboratory(self, old: Side, symptoms: Sequence[Symptom]) -> Laboratory:
        return Laboratory(
            workshop=self.workshop, run=self._trial, pinned=old, base=self.plan.pinned,
            symptoms=symptoms, folder=self.folder / "trials", tell=self.tell,
            imports=lambda environment: self.world.imported(environment, self.plan.selection.platform).problems,
        )

    def _filled(self, versions: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
        """``versions``, and those of the other ``names`` as they are installed."""
        installed = {name: environments.public(version) for name, version in self.workshop.installed.items()}
        return {**versions, **{name: installed[name] for name in names if name in installed and name not in versions}}

    def _trial(self, environment: Environment, tests: Sequence[str], folder: Path) -> Side:
        if not tests:
            raise ValueError(f"a trial of no tests would run them all: {folder}")
        selection = dataclasses.replace(self.plan.selection, keyword=None, tests=tuple(tests))
        self.world.run({"trial": (environment, folder)}, selection, tell=self.tell, seconds=TRIAL_SECONDS)
        side = self._read(folder)
        wrong = leaks(side, _under_test(environment), "trial's")
        if wrong:
            raise MachineError(f"{wrong[0]}: remove {shown_path(folder)}")
        return side

    def _confirm(
        self, verdict: Verdict, laboratory: Laboratory, candidate: Environment,
    ) -> tuple[Verdict, list[Symptom]]:
        """Run what broke once more in the candidate: what does not break again is unstable, and no reason to stay."""
        if not laboratory.symptoms:
            return verdict, []
        self.tell("running what broke once more")
        tests = list(dict.fromkeys(test for symptom in laboratory.symptoms for test in symptom.tests))
        again = self._trial(candidate, tests, self.folder / "again")
        seen = [one for one in laboratory.symptoms if shown(one, laboratory.pinned, again) == "bad"]
        unstable = [one for one in laboratory.symptoms if one not in seen]
        told = tuple(f"broke once and not again: {one.told}" for one in unstable)
        return without(verdict, {one.case for one in unstable} if seen else None, told), seen

    def _cause(self, symptom: Symptom, laboratory: Laboratory, new: Side) -> Told:
        self.tell(f"searching the cause of {symptom.what}")
        try:
            found = attribute(symptom, laboratory, self.plan.candidate, family(symptom.case, new), self.world.pip)
        except GateError as error:
            return Told(sentence=f"{symptom.what}: the search ended: {error}", trials=laboratory.trials, builds=0)
        return self._told(found, laboratory)

    def _told(self, found: Attribution, laboratory: Laboratory) -> Told:
        self.tell(found.sentence)
        folder = (found.folder or self.folder / "candidate") / found.symptom.case
        file = command = ""
        if (folder / "observation.json").exists():
            bad, request = Observation.read(folder), Request.read(folder)
            command = str(bad.provenance.get("command", ""))
            good = laboratory.pinned.observations.get(found.symptom.case)
            path = self.folder / f"upstream-{len(list(self.folder.glob('upstream-*.md'))) + 1}.md"
            if good is not None and found.culprits:
                title = f"{found.symptom.metric} breaks in {', '.join(f'{c.package} {c.bad}' for c in found.culprits)}"
                versions = {name: found.versions[name] for name in found.versions if name in UNDER_TEST}
                path.write_text(upstream(
                    title=title, finding=found.symptom.told, bad=bad, good=good, request=request, versions=versions,
                    culprits=[(one.package, one.bad, one.good) for one in found.culprits],
                ), encoding="utf-8")
                file = shown_path(path)
        return Told(sentence=found.sentence, trials=found.trials, builds=found.builds, command=command, file=file)

    def _causes_of_imports(self, problems: Sequence[str]) -> list[Told]:
        if not self.plan.attribution:
            return []
        line = problems[0].partition(": ")[2]
        symptom = Symptom(tests=(), case="the candidate", rung=IMPORT, metric=line.partition(":")[0], told=line)
        laboratory = self._laboratory(Side(judged=(), observations={}, warned={}), [symptom])
        return [self._cause(symptom, laboratory, laboratory.pinned)]

    def _account(
        self, verdict: Verdict, pinned: Environment, candidate: Environment | None,
        *, sides: tuple[Side, Side] | None = None, attributions: Sequence[Told] = (),
    ) -> Account:
        told = candidate.versions if candidate is not None else self.plan.candidate
        old, new = self._filled(pinned.versions, told), self._filled(told, pinned.versions)
        observed, judged = (sides[1].observations, sides[1].judged) if sides else ({}, ())
        return Account(
            verdict=verdict, pinned=old, candidate=new, moved=asked.changed(old, new),
            conflicts=candidate.conflicts if candidate is not None else (), command=self.plan.command,
            selection=" ".join(self.plan.selection.words), folder=shown_path(self.folder), cases=len(observed),
            claims=len(judged), seconds=0.0, attributions=attributions,
        )


def _under_test(environment: Environment) -> dict[str, str]:
    return {package: version for package, version in environment.versions.items() if package in UNDER_TEST}


def _not_run(name: str, ended: Ended, folder: Path) -> MachineError:
    told = f"the {name} side did not run to its end (status {ended.status}): {ended.last_words}"
    return MachineError(f"{told}; see {shown_path(folder / f'{name}.log')}")
