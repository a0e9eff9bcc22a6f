"""Measure what benign changes do on this platform: ``python -m conformance.calibrate`` writes it down. Pytest circle.

[Note: benign changes]
Each leaves the mathematics alone and moves the rounding. Against the oracle: rows backwards, the batch cut into 2, 4
and 8 micro-batches, eager attention, two threads, DDP on 2 and on 4 ranks. Between engines: other DeepSpeed buckets,
other FSDP units, one rounding of gradients to bf16, and a learning rate that differs in its last bit, which flips
whatever a different order of fp32 sums can flip. Every change is made within one engine, so that a broken engine cannot
excuse itself by its distance from another.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.catalogue import FEATURES, ORACLE
from conformance.claims import differences
from conformance.tolerances import BASELINES, METRICS, key, reference_kind
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.files import write_json
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case
from fixtures.tables import PRECISIONS

SEEDS = (0, 1, 2)
DEADLINE_SECONDS = 300
LAST_BIT = 2.0**-23


@dataclass(frozen=True, kw_only=True)
class Change:
    """A benign change of ``case``: what to run, what to compare it with, and which kind of tolerance it feeds."""

    name: str
    kind: str
    case: Case
    reference: Case
    benign: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def changes(oracle: Case, features: Mapping[str, Any]) -> Iterator[Change]:
    """The benign changes of one recipe at one precision: first those against the oracle, then those of a peer."""
    yield from _oracle_changes(oracle)
    yield from _peer_changes(oracle, features)


def _oracle_changes(oracle: Case) -> Iterator[Change]:
    ddp = oracle.with_(engine="ddp", world_size=2)
    alone: dict[str, dict[str, Any]] = {
        "rows backwards": {"rows_backwards": True},
        "eager attention": {"attention": "eager"},
        "two threads": {"threads": 2},
    }
    for name, benign in alone.items():
        yield Change(name=name, kind="oracle", case=oracle, reference=oracle, benign=benign)
    for steps in (2, 4, 8):
        cut = oracle.with_(accumulation_steps=steps)
        yield Change(name=f"{steps} micro-batches", kind="oracle", case=cut, reference=oracle)
    for case in (ddp, ddp.with_(world_size=4)):
        yield Change(name=f"DDP on {case.world_size} ranks", kind=reference_kind(case), case=case, reference=oracle)


def _peer_changes(oracle: Case, features: Mapping[str, Any]) -> Iterator[Change]:
    zero3, zero2, fsdp1, fsdp2 = (
        oracle.with_(engine=engine, world_size=2, **features) for engine in ("zero3", "zero2", "fsdp1", "fsdp2")
    )
    for case in (zero3, fsdp2):
        nudged = case.with_(learning_rate=case.learning_rate * (1 + LAST_BIT))
        yield Change(name=f"last bit of the learning rate, {case.engine}", kind="peer", case=nudged, reference=case)
    zero2_words, zero3_words = settings(zero2), settings(zero3)
    zero2_words["deepspeed"]["zero_optimization"] |= {"reduce_bucket_size": 5000, "allgather_bucket_size": 5000}
    zero3_words["deepspeed"]["zero_optimization"] |= {"reduce_bucket_size": 5000, "sub_group_size": 5000}
    yield Change(name="small buckets, zero2", kind="peer", case=zero2, reference=zero2, settings=zero2_words)
    yield Change(name="small buckets, zero3", kind="peer", case=zero3, reference=zero3, settings=zero3_words)
    if oracle.precision.endswith("-mixed"):
        # The mode promises fp32 masters, not fp32 gradients:
        # releases differ in whether ZeRO rounds them once on the way.
        for case in (zero2, zero3):
            words = settings(case)
            del words["deepspeed"]["data_types"]
            name = f"gradients kept in {oracle.precision.removesuffix('-mixed')}, {case.engine}"
            yield Change(name=name, kind="peer", case=case, reference=case, settings=words)
    one_unit = settings(fsdp1)
    one_unit["fsdp"] = {**one_unit["fsdp"], "auto_wrap_policy": "no_wrap"}
    yield Change(name="one unit, fsdp1", kind="peer", case=fsdp1, reference=fsdp1, settings=one_unit)
    kept = fsdp2.with_(engine="fsdp2-no-reshard")
    yield Change(name="units kept whole, fsdp2", kind="peer", case=kept, reference=fsdp2)


class Bench:
    """Runs requests, each once, in a folder of its own."""

    def __init__(self, launcher: Launcher, folder: Path, platform: str) -> None:
        self.launcher, self.folder, self.platform = launcher, folder, platform
        self.seen: dict[str, Observation] = {}

    def run(self, case: Case, seed: int, said: Mapping[str, Any], name: str = "") -> Observation:
        """:raises SystemExit: if the case does not run to its end, since noise of a broken stack is no evidence."""
        label = f"{case.id}-seed{seed}-{name.replace(' ', '_')}"
        if label not in self.seen:
            run_dir = self.folder / label
            run_dir.mkdir(parents=True)
            request = Request(case=case, settings=said, platform=self.platform, seed=seed)
            seen = self.launcher.run(request, run_dir, deadline_seconds=DEADLINE_SECONDS)
            if seen.outcome != "ok":
                message = (seen.error or {}).get("message", "")
                sys.exit(
                    f"calibrate: {label} {seen.outcome}: {message}: mend the stack first, noise of a broken one is none"
                )
            self.seen[label] = seen
        return self.seen[label]

    def difference(self, change: Change, seed: int, oracle: Case) -> dict[str, float]:
        """What ``change`` did, by metric."""
        said = dict(change.settings) or settings(change.case)
        if change.benign:
            said = {**said, "benign": dict(change.benign)}
        changed = self.run(change.case, seed, said, change.name)
        reference = self.run(change.reference, seed, settings(change.reference))
        return differences(changed, reference, self.run(oracle, seed, settings(oracle)))


def measure(bench: Bench, seeds: tuple[int, ...]) -> dict[str, dict[str, dict[str, Any]]]:
    """The largest effect of any benign change, by group of cases and metric, and which change had it."""
    noise: dict[str, dict[str, dict[str, Any]]] = {}
    recipes = [(name, oracle.with_(precision=p)) for name, oracle in ORACLE.items() for p in on(bench.platform)]
    for name, oracle in recipes:
        for change in changes(oracle, FEATURES[name]):
            for seed in seeds:
                effect = bench.difference(change, seed, oracle)
                print(f"{name:10s} {oracle.precision:10s} {change.kind:6s} seed {seed} {change.name:40s} "
                      + "  ".join(f"{metric} {effect[metric]:.1e}" for metric in METRICS), flush=True)
                group = noise.setdefault(key(oracle, change.kind), {})
                _keep(group, effect, f"{change.name}, {oracle.id}, seed {seed}")
    return noise


def on(platform: str) -> list[str]:
    """Precisions that the platform can run."""
    kind = "cpu" if platform == "cpu" else "cuda"
    return [name for name, precision in PRECISIONS.items() if kind in precision.platforms]


def _keep(group: dict[str, dict[str, Any]], effect: Mapping[str, float], source: str) -> None:
    for metric, value in effect.items():
        entry = group.setdefault(metric, {"relative": 0.0, "from": "no change had an effect", "samples": 0})
        entry["samples"] += 1
        if not value <= entry["relative"]:
            entry |= {"relative": float(f"{value:.3g}"), "from": source}


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="conformance.calibrate", description=__doc__.partition("\n")[0])
    parser.add_argument("--platform", default="cpu", help="whose evidence to write (default: cpu)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many parts of the corpus to measure on")
    parser.add_argument("--output", type=Path, help="where to write (default: baselines/<platform>/noise.json)")
    said = parser.parse_args(argv)
    output = said.output or BASELINES / said.platform / "noise.json"
    if said.platform == "cpu":
        extensions.ensure_built()
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder, Launcher() as launcher:
        bench = Bench(launcher, Path(folder), said.platform)
        noise = measure(bench, tuple(range(said.seeds)))
        provenance = next(iter(bench.seen.values())).provenance
    output.parent.mkdir(parents=True, exist_ok=True)
    date = dt.datetime.now(dt.timezone.utc).date().isoformat()
    write_json(output, {"noise": noise, "provenance": dict(provenance), "date": date, "seeds": said.seeds})
    print(f"wrote {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
