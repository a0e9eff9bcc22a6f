"""A world for the gate's self-tests: an index of four packages, empty layers, runs that train nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fixtures.files import write_json
from fixtures.observation import Observation, Request
from fixtures.spec import Case
from fixtures.summary import Note, Tally
from fixtures.verdict import Finding
from gate.environments import Environment
from gate.plan import World
from gate.problems import BuildError, MachineError
from gate.runs import Ended, Imported, Selection
from selftests import records

FSDP2 = Case(model="llama-tiny", engine="fsdp2", precision="bf16-mixed", steps=4)
ZERO3 = FSDP2.with_(engine="zero3")
CASES = (FSDP2, ZERO3, FSDP2.oracle)
INSTALLED = {"torch": "2.13.0+cpu", "transformers": "5.24.0", "accelerate": "1.15.0", "deepspeed": "0.19.8"}
PUBLISHED = {
    "torch": ["2.12.0", "2.13.0"],
    "transformers": ["5.6.2", "5.7.0", "5.24.0"],
    "accelerate": ["1.9.0", "1.10.0", "1.10.1", "1.11.0", "1.12.0", "1.13.0", "1.14.0", "1.15.0", "1.16.0rc1"],
    "deepspeed": ["0.19.2", "0.19.3", "0.19.6", "0.19.7", "0.19.8"],
}
WEIGHTS = {"gradients/w": [3.0, 4.0], "parameters/w": [1.0, 2.0], "initial/w": [0.0, 0.0]}

Versions = Mapping[str, str]
Shows = Callable[[Versions, Case], Mapping[str, Any]]
"""What a case shows under given releases: ``fails``, ``outcome``, ``losses``, ``settings``, ``dtypes``, ..."""


@dataclass
class FakePip:
    """pip as the gate sees it. ``broken``: releases that cannot be installed; ``down``: the index is unreachable."""

    broken: frozenset[tuple[str, str]] = frozenset()
    down: bool = False
    requires: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    installs: list[str] = field(default_factory=list)

    def versions(self, name: str) -> list[str]:
        """Newest first, as pip tells them."""
        if self.down:
            raise MachineError("the package index cannot be reached")
        return PUBLISHED.get(name, ["1.0"])[::-1]

    def install(self, name: str, version: str, target: Path) -> None:
        """A layer with nothing but its metadata."""
        if (name, version) in self.broken:
            raise BuildError(f"{name} {version} cannot be installed: error: no compiler")
        self.installs.append(f"{name} {version}")
        metadata = target / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")

    def conflicts(self, layers: Sequence[Path]) -> list[str]:
        """One line per requirement in ``requires`` that no layer meets."""
        laid = {path.name for path in layers}
        return [
            f"{name} {version} has requirement {needed}=={due}"
            for (name, version), wanted in self.requires.items() if f"{name}-{version}" in laid
            for needed, due in wanted.items() if f"{needed}-{due}" not in laid
        ]

    def needed(self, wanted: Versions, layers: Sequence[Path]) -> dict[str, str]:
        """What ``requires`` says of what is wanted."""
        found: dict[str, str] = {}
        for release, due in self.requires.items():
            if release in wanted.items():
                found |= due
        return found


def sound(versions: Versions, case: Case) -> Mapping[str, Any]:
    """Nothing is wrong with any release."""
    return {}


@dataclass
class FakeRuns:
    """Records what ``shows`` says of each case; ``runs`` notes every side that was run, with its tests."""

    shows: Shows = sound
    runs: list[tuple[Versions, tuple[str, ...]]] = field(default_factory=list)
    status: int = 0

    def __call__(
        self, sides: Mapping[str, tuple[Environment, Path]], selection: Selection, *,
        tell: Callable[[str], None], seconds: float | None = None,
    ) -> dict[str, Ended]:
        """As :func:`gate.runs.run`."""
        for environment, folder in sides.values():
            self.runs.append((environment.versions, selection.tests))
            (folder / "findings.jsonl").unlink(missing_ok=True)
            for case in CASES:
                test = nodeid(case)
                if not selection.tests or test in selection.tests:
                    record(folder, case, environment.versions, self.shows(environment.versions, case))
        return {name: Ended(status=self.status, last_words="as told") for name in sides}


def nodeid(case: Case) -> str:
    """The one test of a case in this world."""
    return f"conformance/test_all.py::test_all[{case.id}]"


def record(folder: Path, case: Case, versions: Versions, shown: Mapping[str, Any]) -> None:
    """The record of ``case`` in a side's folder, and its findings."""
    packages = {name: shown.get("packages", versions)[name] for name in INSTALLED}
    outcome = shown.get("outcome", "ok")
    seen = records.observation(
        case, folder / case.id, shown.get("losses", (4.0, 3.0, 2.0, 1.0)), tensors=WEIGHTS,
        provenance={"packages": packages, "platform": "cpu", "command": f"torchrun {case.id}"},
        settings=shown.get("settings", {"clip": 1.0}), dtypes=shown.get("dtypes", {"at_rest": ["float32"]}),
    )
    if outcome != "ok":
        seen = replace(seen, outcome=outcome, error={"type": "ValueError", "message": shown["message"], "rank": 0})
    write(seen, folder / case.id)
    findings = _findings(case, shown)
    known = shown.get("known")
    Tally(journal=folder / "findings.jsonl").add(Note(nodeid=nodeid(case), findings=findings, link=known))


def _findings(case: Case, shown: Mapping[str, Any]) -> tuple[Finding, ...]:
    if shown.get("outcome", "ok") != "ok":
        return (finding(case, "engaged", "outcome", passed=False, observed=f"crashed (rank 0: {shown['message']})"),)
    fails = shown.get("fails", ())
    claims = (("engaged", "wrapper"), ("dtypes", "dtype, at_rest"), ("curve", "loss, every step"))
    return tuple(finding(case, *claim, passed=claim not in fails) for claim in claims)


def finding(
    case: Case, rung: str, metric: str, *, passed: bool, observed: str = "", reference: str = "what is promised",
) -> Finding:
    """A claim about ``case``."""
    return Finding(
        subject=case.id, rung=rung, metric=metric, passed=passed, observed=observed or ("this" if passed else "that"),
        allowed="this", reference=reference,
    )


def write(seen: Observation, folder: Path) -> None:
    """The files of one case."""
    write_json(folder / "observation.json", seen.to_json())
    write_json(folder / "request.json", Request(case=seen.case, settings={}).to_json())


def imports(environment: Environment, platform: str) -> Imported:
    """Everything can be imported."""
    return Imported(found={name: {"version": environment.versions[name]} for name in INSTALLED})


def world(tmp_path: Path, *, pip: FakePip | None = None, runs: FakeRuns | None = None, **changes: Any) -> World:
    """The pinned stack installed, and a cache that is empty."""
    lock = tmp_path / "stack.txt"
    lock.write_text("".join(f"{name}=={version.partition('+')[0]}\n" for name, version in INSTALLED.items()))
    made = World(
        pip=pip or FakePip(), installed=lambda: INSTALLED, run=runs or FakeRuns(), imported=imports,
        chooses=lambda selection: "", prepare=lambda environment: None, cache=tmp_path / "cache", lock=lock,
    )
    return replace(made, **changes)
