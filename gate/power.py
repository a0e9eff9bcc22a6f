"""``python -m gate.power``: can the gate see? Pytest circle.

Three figures: real regressions detected, injected faults detected, false alarms of an environment against itself. What
was recorded under the run folder is read from there when the command is repeated: it goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from gate import environments, records, regressions
from gate.gating import Gate
from gate.plan import Orders, World
from gate.problems import CANNOT_TELL, DO_NOT_MOVE, USAGE, GateError
from gate.regressions import Regression, Seen
from gate.runs import ROOT, Selection
from gate.verdict import decide, leaks

PAGE = ROOT / "docs" / "power.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- power -->", "<!-- /power -->"
FAULT_TESTS = "test_a_fault_"
"""Self-tests that put one fault into a real run and expect the gate to see it are called so."""
SAME = "llama-tiny and (zero3 or fsdp2) and (fp32-x2] or bf16_mixed-x2]) and not experiment and not millionth"
"""What an environment is compared with itself on: both families, fp32 and mixed precision, twenty steps each."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: what, what was seen, and whether that is as it should be."""

    part: str
    name: str
    told: str
    passed: bool


def detect(rows: Sequence[Regression], folder: Path, tell: Callable[[str], None], world: World) -> Iterator[Row]:
    """Move from the good to the bad release of each row, by the gate."""
    for regression in rows:
        if regression.uncovered:
            seen = Seen(flagged=False, passed=False, told=f"not covered: {regression.uncovered}")
        else:
            seen = _moved(regression, folder / regression.name, tell, world)
        what = f"{regression.package} {regression.good} -> {regression.bad}: {regression.what}"
        tell(f"{regression.name}: {'seen' if seen.detected else 'NOT SEEN'}: {seen.told}")
        yield Row(part="regressions", name=f"[{what}]({regression.link})", told=seen.told, passed=seen.detected)


def _moved(regression: Regression, folder: Path, tell: Callable[[str], None], world: World) -> Seen:
    since, to = regression.sides
    begun = (folder / "plan.json").exists()
    orders = Orders(
        to=tuple(to), since=tuple(since), keyword=regression.keyword, attribution=False,
        folder=None if begun else folder, resume=folder if begun else None, command=f"power {regression.name}",
    )
    told = folder / "gate.json"
    try:
        if not told.exists():
            Gate(orders=orders, tell=tell, world=world).run()
    except GateError as error:
        return Seen(flagged=False, passed=False, told=str(error))
    return regressions.judge(regression, json.loads(told.read_text(encoding="utf-8")))


def inject(folder: Path, keyword: str | None, tell: Callable[[str], None]) -> Iterator[Row]:
    """Run the self-tests that inject faults, each into a real run of a real engine."""
    told = folder / "faults.xml"
    if not told.exists():
        tell("injecting faults")
        chosen = f"{FAULT_TESTS} and ({keyword})" if keyword else FAULT_TESTS
        temporary = told.with_suffix(".part")
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "selftests", "-k", chosen, f"--junitxml={temporary}"]
        with (folder / "faults.log").open("wb") as log:
            subprocess.run([sys.executable, *words], cwd=ROOT, check=False, stdout=log, stderr=subprocess.STDOUT)
        temporary.replace(told)
    for case in ET.parse(told).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        why = str(bad[0].get("message", bad[0].tag)).partition("\n")[0][:120] if bad else "seen"
        yield Row(part="faults", name=str(case.get("name")), told=why, passed=not bad)


def repeat(folder: Path, times: int, keyword: str, tell: Callable[[str], None], world: World) -> Iterator[Row]:
    """Record the pinned environment again and again, and compare each run with the one before: none may differ."""
    workshop = environments.Workshop(cache=world.cache, pip=world.pip, installed=world.installed(), tell=tell)
    pinned = workshop.environment(environments.pinned_versions(world.lock, workshop.installed))
    last = None
    for number in range(times + 1):
        place = folder / f"{number:03}"
        ended = place / "ended"
        if not ended.exists():
            told = world.run({"same": (pinned, place)}, Selection(keyword=keyword), tell=tell)["same"]
            if not told.judged:
                raise GateError(f"{place}: pytest ended with {told.status}: {told.last_words}")
            ended.touch()
        side = records.read(place)
        if last is not None:
            found = decide(last, side, leaks(side, pinned.versions, "pinned"))
            tell(f"against itself {number} of {times}: {found.headline}")
            yield Row(part="same", name=f"run {number}", told=found.headline, passed=found.status == 0)
        last = side


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The three figures, for ``power.json``."""
    def part(name: str) -> list[Row]:
        return [row for row in rows if row.part == name]

    known, faults, same = part("regressions"), part("faults"), part("same")
    return {
        "regressions": {"detected": sum(row.passed for row in known), "of": len(known)},
        "faults": {"detected": sum(row.passed for row in faults), "of": len(faults)},
        "same": {"false_alarms": sum(not row.passed for row in same), "of": len(same)},
        "rows": [vars(row) for row in rows],
    }


def lines(told: dict[str, Any]) -> list[str]:
    """The table of the three figures, in Markdown; a part that was not run has no line."""
    known, faults, same = told["regressions"], told["faults"], told["same"]
    rows = [
        (known, f"| real regressions: bad flagged on its rung, good passed | {known['detected']} of {known['of']} |"),
        (faults, f"| injected faults: lowest broken rung as it should be | {faults['detected']} of {faults['of']} |"),
        (same, f"| false alarms: an environment against itself | {same['false_alarms']} in {same['of']} runs |"),
    ]
    return ["| proof | figure |", "|---|---|", *(row for part, row in rows if part["of"])]


def page(told: dict[str, Any]) -> str:
    """``docs/power.md``: the figures, and every regression."""
    rows = [row for row in told["rows"] if row["part"] != "same"]
    listed = [f"| {row['name']} | {'yes' if row['passed'] else '**no**'} | {_cell(row['told'])} |" for row in rows]
    return "\n".join([
        "# Can the gate see?", "", "Made by `tox run -e power`.", "", *lines(told), "",
        "| what | seen | told |", "|---|---|---|", *listed, "",
    ])


def _cell(text: str) -> str:
    return text.replace("|", "/")


def write(told: dict[str, Any]) -> None:
    """The page, and the three figures between their marks in the README."""
    PAGE.write_text(page(told), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    if BEGIN in text and END in text:
        head, _, rest = text.partition(BEGIN)
        table = "\n".join(lines(told))
        README.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


PARTS = ("regressions", "faults", "same")


def main(argv: Sequence[str], world: World | None = None) -> int:
    """:returns: 0 if all is seen and nothing is alarmed at, 1 if not, and the gate's statuses for what ends it."""
    told = argparse.ArgumentParser(prog="python -m gate.power", description="Can the gate see?")
    told.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "power", help="record here, and go on here")
    told.add_argument("--only", choices=PARTS, action="append", help="one part; nothing is written into docs then")
    told.add_argument("-k", dest="keyword", help="regressions and fault tests whose name has this word")
    told.add_argument("--repeats", type=int, default=30, help="of the environment against itself")
    words = told.parse_args(argv)
    began = time.monotonic()
    here, folder = world or World(), words.run_dir.absolute()
    try:
        rows = list(_rows(words, folder, here))
    except (GateError, OSError) as error:
        print(f"power: {error}", file=sys.stderr)
        return error.status if isinstance(error, GateError) else USAGE
    except KeyboardInterrupt:
        print("power: interrupted; the same command goes on", file=sys.stderr)
        return CANNOT_TELL
    found = figures(rows)
    (folder / "power.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not words.only and not words.keyword:
        write(found)
    print("\n".join([*lines(found), f"{time.monotonic() - began:.0f} s; {folder / 'power.json'}"]))
    silent = [part for part in _parts(words) if not any(row.part == part for row in rows)]
    for part in silent:
        print(f"power: {part}: nothing was tried, and that proves nothing", file=sys.stderr)
    return 0 if not silent and all(row.passed for row in rows) else DO_NOT_MOVE


def _parts(words: argparse.Namespace) -> Sequence[str]:
    """The parts to be run: a word that narrows them leaves the comparison of an environment with itself out."""
    return [part for part in words.only or PARTS if not (part == "same" and words.keyword)]


def _rows(words: argparse.Namespace, folder: Path, world: World) -> Iterator[Row]:
    parts = _parts(words)
    folder.mkdir(parents=True, exist_ok=True)

    def tell(line: str) -> None:
        print(f"power: {line}", flush=True)

    if "regressions" in parts:
        table = [one for one in regressions.read() if not words.keyword or words.keyword in one.name]
        yield from detect(table, folder / "regressions", tell, world)
    if "faults" in parts:
        yield from inject(folder, words.keyword, tell)
    if "same" in parts:
        yield from repeat(folder / "same", words.repeats, SAME, tell, world)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


