"""An attribution in words: the sentence, the command, and a report for those who can mend it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fixtures.observation import Observation, Request


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a reader is told of an attribution.

    :param command: runs the failing case again by hand. :param file: the upstream report.
    """

    sentence: str
    trials: int
    builds: int
    command: str = ""
    file: str = ""


def upstream(
    *, title: str, finding: str, bad: Observation, good: Observation, request: Request, versions: Mapping[str, str],
    culprits: Sequence[tuple[str, str, str]],
) -> str:
    """A report ready to paste, in Markdown: what breaks, since when, the numbers side by side, how to see it.

    :param culprits: package, bad release, good release.
    """
    released = "; ".join(f"`{package}` {new} (not in {old})" for package, new, old in culprits)
    pins = " ".join(f"{name}=={version}" for name, version in versions.items())
    backs = " ".join(f"{package}=={old}" for package, _, old in culprits)
    ranks = bad.case.world_size
    lines = [
        f"# {title}", "", f"Since {released}.", "", "## What happens", "", f"    {finding}", "",
        *_error(bad), *_numbers(bad, good),
        "## How to see it", "",
        _SCRIPT, "",
        "```sh", f"pip install {pins}", "mkdir -p seen && cat > seen/request.json <<'JSON'",
        json.dumps(request.to_json(), indent=1, sort_keys=True), "JSON",
        f"torchrun --nproc-per-node {ranks} -m fixtures.worker seen   # bad",
        f"pip install {backs}" if backs else "", "rm -r seen/by-hand",
        f"torchrun --nproc-per-node {ranks} -m fixtures.worker seen   # good", "```", "",
        _OUTPUT, "",
        "## Environment", "", f"{_machine(bad)}, {ranks} ranks", "",
    ]
    return "\n".join(lines)


_SCRIPT = (
    "A script that builds the model, wraps it and trains it for a few steps is `fixtures/worker.py` of shardgate; "
    "everything it needs to know is in `request.json`. In a checkout of shardgate:"
)
_OUTPUT = (
    "Both print the loss and the gradient norm of every step; `seen/by-hand/observation.json` holds dtypes, settings "
    "and collectives."
)


def _machine(bad: Observation) -> str:
    told = bad.provenance
    return f"Python {told.get('python', '?')}, {told.get('machine', '?')}, {told.get('platform', '?')}"


def _error(bad: Observation) -> list[str]:
    error = bad.error or {}
    told = str(error.get("traceback") or error.get("message") or "").strip()
    return ["```", *told.splitlines()[-25:], "```", ""] if told else []


def _numbers(bad: Observation, good: Observation) -> list[str]:
    if bad.outcome != "ok" or good.outcome != "ok":
        return []
    rows = ["| step | loss, bad | loss, good | gradient norm, bad | gradient norm, good |", "|---|---|---|---|---|"]
    for step in sorted({0, 1, len(bad.losses) - 1} & set(range(min(len(bad.losses), len(good.losses))))):
        norms = " | ".join(str(seen.grad_norms[step][0]) for seen in (bad, good))
        rows.append(f"| {step + 1} | {bad.losses[step]:.9f} | {good.losses[step]:.9f} | {norms} |")
    before, after = good.agreed("dtypes"), bad.agreed("dtypes")
    moved = [f"- {name}: {now}, was {before.get(name)}" for name, now in after.items() if now != before.get(name)]
    return [*rows, "", *(["Dtypes in use:", "", *moved, ""] if moved else [])]
