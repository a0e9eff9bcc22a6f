"""``python -m conformance.alarms``: does the gate on speed cry wolf, and does it sleep? Pytest circle.

Races the cases of the gate and judges them as the gate does, over and over, in turns: unchanged, where every failed
claim is a false alarm; and with one engine, another each time, that takes a tenth longer, where a repeat is caught if a
claim about that engine fails as slow. Exit status 1 if there was a false alarm, or fewer were caught than wanted.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import sensitivity
from conformance.catalogue import PACES, RACE, RIVALS
from fixtures import extensions
from fixtures.files import RecordError, write_json
from fixtures.launch import Launcher
from fixtures.observation import Observation
from fixtures.outside import Outside
from fixtures.spec import Case
from fixtures.throughput import floor, judged, machine
from fixtures.throughput.floor import Stored
from fixtures.throughput.heats import run_heat
from fixtures.throughput.judged import Pace
from fixtures.throughput.race import Race
from fixtures.throughput.ratio import Heat
from fixtures.verdict import Finding

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 600.0
CAUGHT_SHARE = 28 / 30
"""Of the slowed repeats, how many must be caught."""

FAULTS = ("slow_step", "stalled_step", "slow_hooks")
SLOWED = [RACE[0], *RIVALS]
"""Whose turn it is to be slow: every engine. What is a feature of another stays as it is."""


class AlarmsError(RuntimeError):
    """Nothing can be counted: a race did not run, or there is no baseline of this machine."""


@dataclass(kw_only=True)
class Bench:
    """Runs races with one launcher.

    :param keep: where records stay, a folder for each race; a heat that has its records there is not run again.
    """

    launcher: Launcher
    platform: str = "cpu"
    fault: str | None = None
    slowed: Case | None = None
    keep: Path | None = None

    def race(self, name: str) -> Race:
        """A race of the gate's cases, kept under ``name``."""
        return Race(cases=RACE, run=lambda cases, heat: self._heat(cases, Path(name) / f"heat{heat}"))

    def _heat(self, cases: Sequence[Case], heat: Path) -> list[Observation]:
        kept = self.keep / heat if self.keep else None
        if kept is not None and kept.is_dir():
            return _read(kept, cases)
        folder = Path(tempfile.mkdtemp(prefix="shardgate-alarms-"))
        try:
            seen = self._run(cases, folder)
            if kept is not None:
                _keep(seen, kept)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return seen

    def _run(self, cases: Sequence[Case], folder: Path) -> list[Observation]:
        folders = [folder / case.id for case in cases]
        for one in folders:
            one.mkdir()
        faults = {} if self.slowed is None or self.fault is None else {self.slowed.id: self.fault}
        seen = run_heat(self.launcher, cases, folders, platform=self.platform, nvml=Outside().nvml(),
                        deadline_seconds=DEADLINE_SECONDS, faults=faults)
        lost = next((one for one in seen if one.outcome != "ok"), None)
        if lost is not None:
            raise AlarmsError(f"{lost.case.id} {lost.outcome}: {(lost.error or {}).get('message')}")
        return seen


def _keep(seen: Sequence[Observation], folder: Path) -> None:
    """All records of a heat, or none: an interrupted heat is run again."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for one in seen:
            (half / one.case.id).mkdir()
            write_json(half / one.case.id / "observation.json", one.to_json())
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _read(folder: Path, cases: Sequence[Case]) -> list[Observation]:
    """:raises AlarmsError: if the heat is one of other cases. :raises RecordError: if a record is damaged."""
    missing = [case.id for case in cases if not (folder / case.id).is_dir()]
    if missing:
        raise AlarmsError(f"{folder} has no record of {missing[0]}: it was kept of other cases; name another folder")
    return [Observation.read(folder / case.id) for case in cases]


@dataclass(kw_only=True)
class Repeat:
    """What the gate said of one race."""

    slowed: Case | None
    seconds: float
    heats: int
    findings: list[Finding]
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    seen: Sequence[Heat] = ()

    @property
    def failed(self) -> list[Finding]:
        """Claims that did not hold."""
        return [finding for finding in self.findings if not finding.passed]

    @property
    def caught(self) -> bool:
        """Whether the engine that was slowed is named as slow; unstable does not count."""
        return any(f.subject == self.slowed.id and f.observed.startswith("slower") for f in self.failed
                   ) if self.slowed is not None else False

    @property
    def wrong(self) -> list[Finding]:
        """Failed claims about cases that nothing was done to, nor to what they are measured with."""
        if self.slowed is None:
            return self.failed
        touched = {(p.case.id, p.against) for p in paces() if self.slowed in (p.case, *p.others)}
        return [f for f in self.failed if not any(f.subject == c and a in f.metric for c, a in touched)]


def paces() -> list[Pace]:
    """All claims of the gate about speed."""
    return [pace for found in PACES.values() for pace in found]


def stored(root: Path, platform: str, here: Mapping[str, Any]) -> dict[str, Stored]:
    """The gate's baselines, by :func:`key`.

    :param here: the identity of this machine: against another's baseline the gate does not see a tenth.
    :raises AlarmsError: if one is missing, stale or of another machine. :raises RecordError: if one is damaged.
    """
    found = {}
    for test, claimed in PACES.items():
        for pace in claimed:
            path = root / "baselines" / platform / "test_throughput" / f"{test}[{pace.case.id}].json"
            baseline = judged.read(path)
            if baseline is None or baseline.recorded.get("settings") != pace.settings(RACE):
                raise AlarmsError(f"{path} is missing or stale: tox run -e rebaseline -- -k throughput, or --fresh 16")
            apart = floor.foreign(baseline, here)
            if apart:
                raise AlarmsError(f"{path} is another machine's ({'; '.join(apart)}), and the gate judges widely "
                                  "there: --fresh 16 measures this one's first")
            found[key(pace)] = baseline
    return found


def key(pace: Pace) -> str:
    """A claim's name in what this command prints and keeps."""
    return f"{pace.case.id.removeprefix(f'{pace.case.model}-').partition('-loss')[0]} / {pace.against}"


def fresh(bench: Bench, heats: int) -> dict[str, Stored]:
    """Baselines measured now, over at least so many heats, as sure as the gate's own; kept nowhere."""
    race = bench.race("baselines")
    race.most_heats = max(heats, floor.MOST_HEATS_TO_RECORD)
    race.at_least(heats)
    while any(pace.of(race.heats).spread > floor.SPREAD_TO_RECORD for pace in paces()) and race.again():
        pass
    found = {}
    for pace in paces():
        now = pace.of(race.heats)
        found[key(pace)] = Stored(value=round(now.value, 3), spread=now.spread,
                                  recorded=judged.baseline(race, pace, now)["recorded"])
        print(f"  {key(pace):36s} {now.value:.3f} +/- {now.spread:.1%}", flush=True)
    return found


def repeat(bench: Bench, baselines: Mapping[str, Stored], slowed: Case | None, number: int) -> Repeat:
    """One race, judged; ``number`` counts those of its kind, from 1."""
    bench.slowed = slowed
    name = f"{bench.fault}-{slowed.engine}" if slowed else "unchanged"
    begun, race = time.monotonic(), bench.race(f"{number:02d}-{name}")
    findings = [judged.judge(race, pace, baselines[key(pace)], reference="") for pace in paces()]
    changes = {}
    for pace in paces():
        middle, low, high = floor.change(pace.of(race.heats), baselines[key(pace)])
        changes[key(pace)] = (middle, (high - low) / 2)
    return Repeat(slowed=slowed, seconds=time.monotonic() - begun, heats=len(race.heats), findings=findings,
                  changes=changes, seen=list(race.heats))


def tell(number: int, one: Repeat) -> None:
    """One line, and one for each claim that failed."""
    what = f"{one.slowed.engine} slowed" if one.slowed else "unchanged"
    verdict = ("caught" if one.caught else "MISSED") if one.slowed else ("FALSE ALARM" if one.failed else "quiet")
    print(f"{number:3d}  {what:14s} {verdict:12s} {one.heats} heats  {one.seconds:5.1f} s", flush=True)
    for finding in one.failed:
        print(f"       {finding.subject}  {finding.metric}: {finding.observed}, allowed {finding.allowed}", flush=True)


def report(unchanged: Sequence[Repeat], faulty: Sequence[Repeat], fault: str) -> tuple[str, bool]:
    """The figures, and whether they are those that are wanted."""
    lines = []
    alarms = [one for one in unchanged if one.failed]
    if unchanged:
        kinds = Counter(f.observed.partition(" ")[0].rstrip(":") for one in alarms for f in one.failed)
        why = f" ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})" if kinds else ""
        lines.append(f"false alarms: {len(alarms)} of {len(unchanged)} unchanged repeats{why}")
    caught = sum(one.caught for one in faulty)
    wanted = math.ceil(CAUGHT_SHARE * len(faulty))
    if faulty:
        by_engine = Counter(one.slowed.engine for one in faulty if one.slowed and not one.caught)
        missed = f"; missed: {', '.join(f'{n} x {e}' for e, n in by_engine.items())}" if by_engine else ""
        lines.append(f"caught: {caught} of {len(faulty)} with {fault} in one engine (wanted: {wanted}){missed}")
        lines.append(f"in those, wrongly failed claims: {sum(len(one.wrong) for one in faulty)}")
    everything = [*unchanged, *faulty]
    seconds = sorted(one.seconds for one in everything)
    lines.append(f"seconds per repeat: median {seconds[len(seconds) // 2]:.0f}, most {seconds[-1]:.0f}; "
                 f"heats: {dict(sorted(Counter(one.heats for one in everything).items()))}")
    if len(unchanged) > 2:
        for name in unchanged[0].changes:
            seen = [one.changes[name] for one in unchanged]
            lines.append(f"  {name:40s} from the baseline: mean {statistics.fmean(middle for middle, _ in seen):+.1%}, "
                         f"sd {statistics.stdev(middle for middle, _ in seen):.1%}, "
                         f"interval +/- {statistics.fmean(half for _, half in seen):.1%}")
    return "\n".join(lines), not alarms and caught >= wanted


def smallest(unchanged: Sequence[Repeat], baselines: Mapping[str, Stored]) -> str:
    """The least slowdown that is caught as often as wanted, by engine, from the heats that were run."""
    pool = [heat for one in unchanged for heat in one.seen]
    if len(pool) < sensitivity.LEAST_HEATS:
        return f"smallest slowdown that is seen: not told, {len(pool)} of {sensitivity.LEAST_HEATS} heats"
    first = {pace.case: pace for pace in reversed(paces())}
    wanted = math.ceil(CAUGHT_SHARE * sensitivity.RACES)
    found = sensitivity.smallest(
        pool, RACE, {case.engine: (first[case], baselines[key(first[case])]) for case in SLOWED}, wanted)
    each = ", ".join(f"{name} {'more' if by is None else f'{by:.0%}'}" for name, by in found.items())
    return f"smallest slowdown that is seen in {wanted} of {sensitivity.RACES} races dealt from those heats: {each}"


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="conformance.alarms", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30, help="of each kind (default: 30)")
    parser.add_argument("--only", choices=("unchanged", "faulty"), help="one kind alone")
    parser.add_argument("--fault", choices=FAULTS, default="slow_step", help="what is done to one engine")
    parser.add_argument("--fresh", type=int, metavar="HEATS", help="do not use the stored baselines: measure at least "
                        f"so many heats first (at least {floor.HEATS_TO_RECORD}); for a machine they are not of")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was measured there (about 200 MB), and go "
                        "on from what is there: heats that have their records are judged again, not run again")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> int:
    """As :func:`main`.

    :raises AlarmsError, RecordError, OSError, ValueError: if nothing can be counted.
    """
    extensions.ensure_built()
    with Launcher() as launcher:
        bench = Bench(launcher=launcher, fault=options.fault, keep=options.keep)
        baselines = fresh(bench, options.fresh) if options.fresh else stored(ROOT, bench.platform, machine.host())
        return count(bench, baselines, options)


def count(bench: Bench, baselines: Mapping[str, Stored], options: argparse.Namespace) -> int:
    """Runs the repeats and prints the figures; after Ctrl-C, those of the repeats that ended, and does not pass.

    :raises AlarmsError: if none ended.
    """
    unchanged: list[Repeat] = []
    faulty: list[Repeat] = []
    whole = False
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(options.repeats):
            # In turns, so that a machine that gets busier meanwhile counts for both kinds.
            if options.only != "faulty":
                unchanged.append(repeat(bench, baselines, None, number + 1))
                tell(number + 1, unchanged[-1])
            if options.only != "unchanged":
                faulty.append(repeat(bench, baselines, SLOWED[number % len(SLOWED)], number + 1))
                tell(number + 1, faulty[-1])
        whole = True
    if not unchanged and not faulty:
        raise AlarmsError("interrupted before the first repeat ended")
    text, met = report(unchanged, faulty, options.fault)
    print(text)
    print(smallest(unchanged, baselines))
    print(f"alarms {'passed' if met else 'FAILED'}" if whole else "alarms interrupted: too few repeats to pass")
    return 0 if met and whole else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if the figures are as wanted, 1 if not, 4 if they cannot be measured."""
    options = options_of(argv)
    least = floor.HEATS_TO_RECORD
    if options.repeats < 1 or (options.fresh is not None and options.fresh < least):
        print(f"error: --repeats must be at least 1, --fresh at least {least}", file=sys.stderr)
        return 4
    try:
        return run(options)
    except (AlarmsError, RecordError, extensions.ExtensionError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main())
