"""Whole sessions made by hand, for self-tests of the report: records on disk, claims about them, and how they ended."""

from __future__ import annotations

import itertools
import math
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fixtures.files import write_json
from fixtures.observation import Observation
from fixtures.options import Orders
from fixtures.report import journal, write
from fixtures.report.curves import LOSS, NORM
from fixtures.report.facts import Ending
from fixtures.report.hearing import Ended, Heard, Hearing
from fixtures.spec import Case
from fixtures.summary import Note, Selection, Tally
from fixtures.tables import ENGINES, PRECISIONS
from fixtures.verdict import RUNGS, Claim, Finding, Tolerance, curve
from selftests.records import observation

ORACLE = Case(model="llama-tiny", engine="plain", precision="bf16-mixed", world_size=1, steps=8)
FSDP, ZERO = (ORACLE.with_(engine=engine, world_size=2) for engine in ("fsdp2", "zero3"))
MEMORY = Case(model="llama-small", engine="zero2", precision="bf16-mixed", measure="memory", steps=5, rows_per_step=2)
FIT = Case(model="llama-medium", engine="zero3", precision="bf16-mixed", measure="fit", budget_mib=63, steps=3)

LOSSES = (5.6, 5.4, 5.3, 5.1, 5.0, 4.9, 4.8, 4.7)
PACKAGES = {"accelerate": "1.15.0", "deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.24.0"}

_FP32, _BF16 = ["float32"], ["bfloat16"]
DTYPES = {
    "at_rest": _FP32, "master": _FP32, "optimizer_state": _FP32, "gradient": _FP32, "reduction": _FP32,
    "outputs": _BF16, "buffers": _FP32, "compute": {"Linear": _BF16, "Embedding": _BF16},
}
BYTES = {
    "points": {"backward": {"live": 9_000_000, "parameters": 4_000_000, "masters": 2_000_000, "gradients": 2_000_000,
                            "optimizer_state": 900_000, "activations": 100_000}},
    "peaks": {"forward": 9_100_000, "backward": 9_500_000, "step": 9_300_000},
}
LIMIT = {"limit": {"budget_bytes": 63 * 2**20, "most_bytes": 55 * 2**20}}


def record(folder: Path, case: Case, losses: Sequence[float] = LOSSES, **changes: Any) -> Observation:
    """Write what a run of ``case`` showed into ``folder/<id>/observation.json``."""
    where = {"platform": "cpu", "python": "3.11", "date": "2026-11-30T10:00:00+00:00", "packages": PACKAGES}
    fields: dict[str, Any] = {"dtypes": DTYPES, "provenance": where, **changes}
    seen = observation(case, folder / case.id, losses, **fields)
    write_json(seen.folder / "observation.json", seen.to_json())
    return seen


_TABLES = """
CREATE TABLE runs (id INTEGER PRIMARY KEY, date TEXT, folder TEXT, platform TEXT);
CREATE TABLE figures (run INTEGER, case_id TEXT, metric TEXT, unit TEXT, value REAL, low REAL, high REAL);
"""


def history(path: Path, *runs: tuple[str, str, dict[str, float]]) -> Path:
    """A history of runs, each a folder, a platform, and tokens per second by case."""
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(_TABLES)
        for number, (folder, platform, values) in enumerate(runs, 1):
            database.execute("INSERT INTO runs VALUES (?, 'a date', ?, ?)", (number, folder, platform))
            database.executemany(
                "INSERT INTO figures VALUES (?, ?, 'tokens_per_second', 'tokens/s/device', ?, ?, ?)",
                [(number, case_id, value, value - 5, value + 5) for case_id, value in values.items()],
            )
    return path


def spread(count: int) -> list[Case]:
    """As many different cases, each of a model, a precision, an engine and a learning rate."""
    models, engines = ("llama-tiny", "gpt2-tiny", "mistral-tiny"), [e for e in ENGINES if e != "plain"]
    rates = (1e-3 * 2**power for power in itertools.count())
    made = (
        Case(model=model, engine=engine, precision=precision, learning_rate=rate)
        for rate in rates for model in models for precision in PRECISIONS for engine in engines
    )
    return list(itertools.islice(made, count))


@dataclass
class Session:
    """A session under ``root`` whose records lie in ``root/runs/<name>``."""

    root: Path
    name: str = "first"
    tally: Tally = field(default_factory=Tally)
    hearing: Hearing = field(default_factory=lambda: Hearing(began=time.time() - 60))

    @property
    def folder(self) -> Path:
        """Where its records and its report lie."""
        return self.root / "runs" / self.name

    def judge(self, *findings: Finding, nodeid: str | None = None, link: str | None = None) -> None:
        """Count ``findings`` as made by one test, which then passed, failed or is known to fail."""
        test = nodeid or f"conformance/test_small.py::test_all[{findings[0].subject.partition(' ~ ')[0]}]"
        self.tally.add(Note(nodeid=test, findings=findings, link=link, cases=(findings[0].subject,)))
        broken = [finding.sentence for finding in findings if not finding.passed]
        ended: Ended = "passed" if not broken else "known" if link else "failed"
        self.hearing.tests[test] = Heard(nodeid=test, ended=ended, seconds=0.5, text="\n".join(broken))

    def gate(self, cases: Iterable[Case]) -> None:
        """The cases that had to be judged."""
        ids = tuple(case.id for case in cases)
        self.tally.selection = Selection(collected=len(ids), selected=len(ids), gated=ids)

    def orders(self, **changes: Any) -> Orders:
        """What it was asked to do: to run and to report into its folder."""
        asked: dict[str, Any] = {
            "root": self.root, "run_dir": self.folder, "replay_dir": None, "platform": "cpu",
            "deadline_seconds": 120.0, "live": True, "report_dir": self.folder, **changes,
        }
        return Orders(**asked)

    def end(self, exit_status: int = 0, **ending: Any) -> str:
        """Write the report; returns the page."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = (journal.line(found, nodeid=note.nodeid, link=note.link) for found, note in self.tally.findings)
        (self.folder / "findings.jsonl").write_text("".join(lines), encoding="utf-8")
        told = write.report(self.orders(), self.tally, self.hearing, Ending(exit_status=exit_status, **ending))
        page = self.folder / write.NAME
        if told != f"report: runs/{self.name}/{write.NAME}":
            raise AssertionError(told)
        return page.read_text(encoding="utf-8")


def claims(case: Case, *, share: float = 0.4, others: int = 0) -> list[Finding]:
    """The two claims that curves are held against, using this ``share`` of their tolerance, and as many ``others``."""
    due, off = list(LOSSES), [loss * (1 + share * 0.01 * (-1) ** step) for step, loss in enumerate(LOSSES)]
    made = [
        curve(Claim(subject=case.id, rung=metric.rung, metric=metric.claim, reference=f"plain oracle {case.oracle.id}"),
              off, due, Tolerance(relative=0.01, reason="4 x benign noise 0.0025"))
        for metric in (LOSS, NORM)
    ]
    plain = Claim(subject=case.id, rung="loss", metric="loss, step 1", reference="plain oracle")
    first = plain.found(observed="5.61", allowed="5.6 +/- 0.06: a reason", passed=True, used=share, tolerance=0.01)
    used = min(share, 1.0)
    rungs = [RUNGS[number % len(RUNGS)] for number in range(others)]
    return made + [replace(first, rung=rung, metric=f"metric {n}, step 1", used=used) for n, rung in enumerate(rungs)]


def away(share: float) -> tuple[float, ...]:
    """Losses that differ from :data:`LOSSES` by this share of the tolerance of :func:`claims`, up and down."""
    return tuple(loss * (1 + share * 0.01 * (-1) ** step) for step, loss in enumerate(LOSSES))


def mixed(root: Path) -> Session:
    """A session with everything a report can show: a curve that left its band, a crash, a known failure, a case that
    was not judged, memory, a limit, and a second run to compare with.
    """
    before = Session(root=root, name="before", hearing=Hearing(began=time.time() - 90_000))
    for case in (FSDP, ZERO):
        record(before.folder, case)
        before.judge(*claims(case))
    before.end(0)
    session = Session(root=root)
    crashed = ZERO.with_(engine="zero1")
    unjudged, known = ZERO.with_(engine="zero2"), ZERO.with_(engine="ddp")
    session.gate([FSDP, ZERO, crashed, unjudged, known, MEMORY, FIT])
    record(session.folder, ORACLE)
    record(session.folder, FSDP, away(2.5), dtypes={**DTYPES, "master": _BF16})
    record(session.folder, ZERO, away(0.4))
    record(session.folder, known, away(0.2))
    record(session.folder, MEMORY, memory=BYTES)
    record(session.folder, FIT, memory=LIMIT)
    _crash(session, crashed)
    values = {FSDP.id: 101.0, ZERO.id: 97.0}
    history(root / "history.sqlite", ("runs/before", "cpu", values), ("runs/first", "cpu", values))
    wrong = Claim(subject=FSDP.id, rung="dtypes", metric="dtype, master", reference="bf16-mixed promises")
    session.judge(wrong.found(observed="bfloat16", allowed="float32", passed=False), *claims(FSDP, share=2.5))
    session.judge(*claims(ZERO))
    late = Claim(subject=known.id, rung="parameters", metric="steps that the optimizer counted", reference="steps made")
    session.judge(late.found(observed="21", allowed="20", passed=False), link="https://example.org/issues/5104")
    for case in (MEMORY, FIT):
        session.judge(*claims(case, others=2)[2:])
    return session


def _crash(session: Session, case: Case) -> None:
    nasty = "<script>alert('rank 1')</script> \x1b[31mred\x1b[0m & \x07 | `tick` ]]> @everyone"
    error = {"rank": 1, "type": "RuntimeError", "message": nasty, "traceback": f"Traceback\n  {nasty}", "log_tail": ""}
    seen = replace(record(session.folder, case), outcome="crashed", ranks=(), error=error)
    write_json(seen.folder / "observation.json", seen.to_json())
    claim = Claim(subject=case.id, rung="engaged", metric="outcome", reference="the run itself")
    session.judge(claim.found(observed=f"crashed (rank 1: RuntimeError: {nasty})", allowed="ok", passed=False))


def large(root: Path, count: int = 500) -> Session:
    """``count`` cases of 20 steps with 26 claims each, as the gate makes, and one in fifty fails."""
    session = Session(root=root)
    cases = spread(count)
    session.gate(cases)
    for oracle in {case.oracle.id: case.oracle for case in cases}.values():
        record(session.folder, oracle, _falling(oracle, 0.0))
    for number, case in enumerate(cases):
        share = 3.0 if number % 50 == 0 else (number % 9) / 10
        record(session.folder, case, _falling(case, share), settings={f"key{n}": [n] * 3 for n in range(60)})
        session.judge(*claims(case, share=share, others=24))
    return session


def _falling(case: Case, share: float) -> tuple[float, ...]:
    return tuple((5.6 - 0.05 * step + 0.1 * math.sin(step)) * (1 + 0.01 * share * math.cos(step)) for step in range(20))
