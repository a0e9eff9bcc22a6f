"""``python -m gate.matrix``: which releases go together? Pytest circle.

A short ladder of cases in every pair of releases of two packages: some faults need two packages to appear, and one
release of each alone looks sound. Each pair is recorded once; the command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.files import RecordError
from fixtures.verdict import RUNGS
from gate import asked, environments, matrix_page, records
from gate.environments import UNDER_TEST, Workshop
from gate.plan import World
from gate.problems import CANNOT_TELL, GateError, MachineError, UsageError
from gate.records import Side, place
from gate.runs import ROOT, Selection
from gate.verdict import leaks

DATA, PAGE = ROOT / "docs" / "compatibility.json", ROOT / "docs" / "compatibility.html"
NEWEST = 6
LADDER = (
    "not experiment and (gpt2-tiny-fsdp2-fp32 or llama-tiny-fsdp2-bf16_mixed-x2] or gpt2-tiny-zero2-fp32 "
    "or gpt2-tiny-zero3-fp32 or llama-tiny-zero3-bf16_mixed-x2])"
)
"""Both families, tied and untied embeddings, accumulation, fp32 and mixed precision: five cases and their oracles."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one pair of releases showed.

    :param rungs: by rung, the number of its claims that hold and of those that fail.
    :param broken: the failed claims, lowest rung first, each with its rung; known upstream failures have a link.
    :param problem: why there is nothing to tell.
    """

    versions: Mapping[str, str]
    rungs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    broken: tuple[Mapping[str, str], ...] = ()
    problem: str = ""

    @property
    def lowest(self) -> str:
        """The lowest rung that breaks, ``untold``, or ``holds``. What is known upstream counts: it is broken here."""
        if self.problem or not self.rungs:
            return "untold"
        return self.broken[0]["rung"] if self.broken else "holds"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "versions": dict(self.versions), "lowest": self.lowest, "problem": self.problem,
            "rungs": {rung: list(count) for rung, count in self.rungs.items()},
            "broken": [dict(one) for one in self.broken],
        }


def cell(side: Side, versions: Mapping[str, str], folder: Path) -> Cell:
    """What a side, recorded in ``folder``, says of its pair; where that lay is nobody's concern."""
    counts: dict[str, list[int]] = {}
    broken = []
    for one in side.judged:
        if not one.against_baseline:
            counts.setdefault(one.finding.rung, [0, 0])[not one.finding.passed] += 1
            if not one.finding.passed:
                broken.append(one)
    told = [
        {"rung": one.finding.rung, "claim": one.finding.sentence.replace(f"{folder}/", ""), "known": one.known or ""}
        for one in sorted(broken, key=lambda one: one.place)
    ]
    due = {name: version for name, version in versions.items() if name in UNDER_TEST}
    wrong = leaks(side, due, "recorded")
    ordered = sorted(counts, key=place)
    return Cell(
        versions=versions, rungs={rung: (counts[rung][0], counts[rung][1]) for rung in ordered}, broken=tuple(told),
        problem=wrong[0] if wrong else "" if counts else "nothing was judged",
    )


@dataclass
class Matrix:
    """Fills the table. ``rows`` and ``columns`` are a package and its releases; ``folder`` holds the records."""

    rows: tuple[str, Sequence[str]]
    columns: tuple[str, Sequence[str]]
    selection: Selection
    folder: Path
    world: World
    tell: Callable[[str], None]
    jobs: int = 1

    def fill(self) -> list[list[Cell]]:
        """:raises MachineError: if this machine cannot go on; what was recorded is kept."""
        workshop = Workshop(
            cache=self.world.cache, pip=self.world.pip, installed=self.world.installed(), tell=self.tell,
        )
        pinned = environments.pinned_versions(self.world.lock, workshop.installed)
        building = threading.Lock()
        pairs = [(row, column) for row in self.rows[1] for column in self.columns[1]]

        def one(pair: tuple[str, str]) -> Cell:
            versions = {**pinned, self.rows[0]: pair[0], self.columns[0]: pair[1]}
            found = self._cell(versions, workshop, building)
            self.tell(f"{self.rows[0]} {pair[0]}, {self.columns[0]} {pair[1]}: {found.lowest}")
            return found

        with ThreadPoolExecutor(self.jobs) as pool:
            cells = list(pool.map(one, pairs))
        width = len(self.columns[1])
        return [cells[begin:begin + width] for begin in range(0, len(cells), width)]

    def _cell(self, versions: Mapping[str, str], workshop: Workshop, building: threading.Lock) -> Cell:
        row, column = (f"{name}-{versions[name]}" for name in (self.rows[0], self.columns[0]))
        folder = self.folder / row / column
        try:
            with building:
                environment = workshop.environment(versions)
            ended = folder / "ended"
            if not ended.exists():
                self.world.prepare(environment)
                told = self.world.run({"pair": (environment, folder)}, self.selection, tell=lambda line: None)["pair"]
                if not told.judged:
                    return Cell(versions=versions, problem=told.last_words)
                ended.touch()
            return cell(records.read(folder), environment.versions, folder)
        except MachineError:
            raise
        except (GateError, RecordError) as error:
            return Cell(versions=versions, problem=str(error))


def axis(word: str, world: World) -> tuple[str, list[str]]:
    """``accelerate`` (its newest releases), ``accelerate=1.12.0,1.13.0``.

    :raises UsageError: for a release that is not published.
    """
    name, _, listed = word.partition("=")
    if name not in UNDER_TEST:
        raise UsageError(f"{name!r} is no package under test (known: {', '.join(UNDER_TEST)})")
    published = asked.releases(world.pip, name)
    if not listed:
        return name, published[-NEWEST:]
    chosen = [version.strip() for version in listed.strip("=").split(",")]
    missing = [version for version in chosen if version not in published]
    if missing:
        raise UsageError(f"{name} {missing[0]} is not published (newest: {published[-1] if published else 'none'})")
    return name, chosen


def main(argv: Sequence[str], world: World | None = None) -> int:
    """:returns: 0 when the table is filled, whatever it says; the gate's statuses for what ends it."""
    told = argparse.ArgumentParser(prog="python -m gate.matrix", description="Which releases go together?")
    told.add_argument("rows", nargs="?", default="accelerate", help="PACKAGE, or PACKAGE=VERSION,VERSION,...")
    told.add_argument("columns", nargs="?", default="deepspeed", help="the same")
    told.add_argument("-k", dest="keyword", default=LADDER, help="the cases, in pytest's words")
    told.add_argument("--jobs", type=int, default=1, help="pairs at a time, each with two ranks")
    told.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "matrix", help="record here, and go on here")
    told.add_argument("--data", type=Path, default=DATA, help="the data file; the page lies beside it")
    words = told.parse_args(argv)
    here = world or World()
    try:
        rows, columns = axis(words.rows, here), axis(words.columns, here)
        matrix = Matrix(
            rows=rows, columns=columns, selection=Selection(keyword=words.keyword), jobs=words.jobs, world=here,
            folder=words.run_dir.absolute(), tell=lambda line: print(f"matrix: {line}", flush=True),
        )
        table = matrix.fill()
        write(words.data, rows, columns, table, words.keyword)
    except GateError as error:
        print(f"matrix: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("matrix: interrupted; the same command goes on", file=sys.stderr)
        return CANNOT_TELL
    print(f"matrix: {words.data}, {words.data.with_suffix('.html')}")
    return 0


def write(
    path: Path, rows: tuple[str, Sequence[str]], columns: tuple[str, Sequence[str]], table: Sequence[Sequence[Cell]],
    keyword: str,
) -> None:
    """The data file and the page."""
    data = {
        "rows": {"package": rows[0], "versions": list(rows[1])},
        "columns": {"package": columns[0], "versions": list(columns[1])},
        "cases": keyword, "rungs": list(RUNGS), "cells": [[one.to_json() for one in line] for line in table],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".html").write_text(matrix_page.page(data), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
