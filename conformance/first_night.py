"""One GPU, one rank, for the first time: ``python -m conformance.first_night --platform h200``. Pytest circle.

For a GPU that is lent for an hour, on which the gate cannot run: it needs two devices. Every engine trains the small
ladder on CUDA with one rank and is held against the plain oracle on the same card; what rounding does there is measured
beside it, by cutting the oracle's batch. Then, on a card made as small as the published one, GPT-2 XL must run out of
memory under DDP and train under FSDP with offload. The outcome goes to ``baselines/<platform>/first-night.json``, and a
line for the README's table "What has run where" to standard output.

Never run on a GPU yet. Everything but the platform's name is proven on a CPU, by a self-test.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import claims, memory, own_model, promises, published
from conformance.calibrate import on
from conformance.catalogue import FEATURES, ORACLE, platforms
from conformance.tolerances import BASELINES, MARGIN, fp32_rounding
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.files import write_json
from fixtures.hardware import cards as gpus
from fixtures.hardware.cards import PlatformError
from fixtures.hardware.devices import discover, load_nvml
from fixtures.judging import outcome_finding
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case
from fixtures.tables import PLATFORMS
from fixtures.verdict import Claim, Finding

ENGINES = ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
DEADLINE_SECONDS, CARD_SECONDS = 180.0, 900.0
JUDGED = ("loss", "loss_curve", "norm", "gradients", "parameters")
LARGEST = 0.3
"""Beyond this a difference is another training, whatever rounding does."""


def ladder(platform: str, engines: Sequence[str], recipes: Sequence[str] = tuple(ORACLE)) -> list[Case]:
    """The recipes of the gate on one rank, at each precision that the platform has."""
    return [
        case for name in recipes for precision in on(platform) for engine in engines
        if platform in platforms(case := ORACLE[name].with_(engine=engine, precision=precision, **FEATURES[name]))
    ]


def cards() -> list[tuple[Case, bool]]:
    """GPT-2 XL on one emulated 24 GB card, as published: what must run out of memory there, and what must not."""
    return [(published.real(row.case), row.published > 0) for row in published.XL if row.case.world_size == 1]


class Night:
    """Runs cases, each once, and keeps what was found of them.

    :param launcher: one for all.
    :param folder: where runs are recorded.
    """

    def __init__(self, launcher: Launcher, folder: Path, platform: str) -> None:
        self.launcher, self.folder, self.platform = launcher, folder, platform
        self.seen: dict[str, Observation] = {}
        self.findings: list[Finding] = []

    def run(self, case: Case, deadline_seconds: float = DEADLINE_SECONDS) -> Observation:
        """The case's observation, whatever its outcome."""
        if case.id not in self.seen:
            run_dir = self.folder / case.id
            run_dir.mkdir(parents=True)
            request = Request.of(case, settings(case), self.platform)
            self.seen[case.id] = self.launcher.run(request, run_dir, deadline_seconds=deadline_seconds)
        return self.seen[case.id]

    def judge(self, case: Case) -> list[Finding]:
        """The case against its oracle on this card, by what rounding does to the oracle."""
        runs = [self.run(one) for one in (case.oracle, *own_model.cuts(case), case)]
        failed = [outcome_finding(one) for one in runs if one.outcome != "ok"]
        if failed:
            return failed
        oracle, *cut, seen = runs
        return [*promises.engagement(case, seen.in_force()["engaged"]), *_compared(seen, oracle, cut)]

    def tell(self, subject: str, findings: list[Finding], seconds: float) -> None:
        """Keep them, and print one line."""
        self.findings += findings
        failed = [finding for finding in findings if not finding.passed]
        worst = max((finding.used or 0.0 for finding in findings), default=0.0)
        print(f"{'FAILED' if failed or not findings else 'held':6} {subject:58} {worst:5.0%} of its limits, "
              f"{seconds:.0f} s", flush=True)
        for finding in failed:
            print(f"       {finding.sentence}", flush=True)


def _compared(seen: Observation, oracle: Observation, cut: Sequence[Observation]) -> Iterator[Finding]:
    noise = own_model.noise(oracle, cut)
    found = claims.differences(seen, oracle, oracle)
    for metric in JUDGED:
        floor = fp32_rounding(seen.case, "parameters" if metric == "parameters" else metric)
        allowed = min(max(floor, MARGIN * noise[metric]), LARGEST)
        claim = Claim(subject=seen.case.id, rung="curve", metric=metric.replace("_", " "), reference=oracle.case.id)
        passed = math.isfinite(noise[metric]) and found[metric] <= allowed
        yield claim.found(observed=f"{found[metric]:.2g} off", allowed=f"{allowed:.2g}", passed=passed,
                          used=found[metric] / allowed if math.isfinite(found[metric]) else math.inf)


def go(night: Night, cases: Sequence[Case], *, with_cards: bool) -> None:
    """Run and judge all of it."""
    for case in cases:
        begun = time.monotonic()
        night.tell(case.id, night.judge(case), time.monotonic() - begun)
    for case, fits in cards() if with_cards else []:
        begun = time.monotonic()
        seen = night.run(case, CARD_SECONDS)
        found = [outcome_finding(seen), *memory.fits(seen)] if fits else [memory.must_not_fit(seen)]
        night.tell(case.id, found, time.monotonic() - begun)


def record(night: Night) -> dict[str, Any]:
    """The content of ``first-night.json``."""
    some = next((one for one in night.seen.values() if one.outcome == "ok"), None)
    return {
        "platform": night.platform, "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "provenance": dict(some.provenance) if some is not None else {},
        "cases": {
            name: {"outcome": one.outcome, "seconds": round(one.wall_seconds, 1),
                   "last_loss": one.losses[-1] if one.outcome == "ok" and one.losses else None}
            for name, one in sorted(night.seen.items())
        },
        "claims": {"held": sum(one.passed for one in night.findings), "all": len(night.findings)},
        "failed": [one.sentence for one in night.findings if not one.passed],
    }


def line(told: Mapping[str, Any], where: str) -> str:
    """A line for the README's table: what ran where, with which packages, and what held."""
    packages = told["provenance"].get("packages", {})
    stack = ", ".join(f"{name} {version}" for name, version in packages.items())
    claimed = told["claims"]
    return (f"| the small ladder, one rank, on {where} ({told['platform']}) | {told['date']} | "
            f"{claimed['held']} of {claimed['all']} claims of {len(told['cases'])} runs held | {stack} |")


def _named(parser: argparse.ArgumentParser, words: str, known: Sequence[str]) -> list[str]:
    found = [name for name in words.split(",") if name]
    unknown = [name for name in found if name not in known]
    if unknown or not found:
        wrong = ", ".join(unknown) or "nothing"
        parser.exit(4, f"first_night: nothing is called {wrong} (known: {', '.join(known)})\n")
    return found


def _where(parser: argparse.ArgumentParser, platform: str) -> str:
    """The card, in words; what the platform needs and does not find is one line."""
    if platform == "cpu":
        return "CPU"
    try:
        found = gpus.choose(
            platform, discover(load_nvml()), asked=f"--platform {platform}", environment=os.environ,
        )
    except PlatformError as error:
        parser.exit(4, f"first_night: {error}\n")
    return str(found)


def main(argv: list[str]) -> int:
    """The command line: 0 if every claim held, 1 if not, 4 for what the user has to mend."""
    parser = argparse.ArgumentParser(prog="conformance.first_night", description=__doc__.partition("\n")[0])
    parser.add_argument("--platform", required=True, choices=PLATFORMS, help="which card this is")
    parser.add_argument("--engines", default=",".join(ENGINES), help="some of them, with commas between")
    parser.add_argument("--recipes", default=",".join(ORACLE), help="some of the gate's, with commas between")
    parser.add_argument("--output", type=Path, help="where to write (default: baselines/<platform>/first-night.json)")
    said = parser.parse_args(argv)
    engines, recipes = (
        _named(parser, words, known) for words, known in ((said.engines, ENGINES), (said.recipes, tuple(ORACLE)))
    )
    where = _where(parser, said.platform)
    if said.platform == "cpu":
        extensions.ensure_built()
    with tempfile.TemporaryDirectory(prefix="first-night-") as folder, Launcher() as launcher:
        night = Night(launcher, Path(folder), said.platform)
        go(night, ladder(said.platform, engines, recipes), with_cards=said.platform != "cpu")
        told = record(night)
    output = said.output or BASELINES / said.platform / "first-night.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, told)
    print(f"wrote {output}; for the README's table:\n{line(told, where)}")
    return 0 if night.findings and not told["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
