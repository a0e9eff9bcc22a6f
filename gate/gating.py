"""One gate run, from words to a verdict. Pytest circle."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gate import asked, environments, report, runs
from gate.comparing import Comparison
from gate.environments import Workshop
from gate.plan import Orders, Plan, World, shown_path
from gate.problems import MachineError, UsageError
from gate.report import Account
from gate.runs import ROOT, Selection


@dataclass
class Gate:
    """Runs it. ``tell`` hears of progress, a line at a time."""

    orders: Orders
    tell: Callable[[str], None]
    world: World = field(default_factory=World)
    folder: Path | None = None

    @property
    def how_to_go_on(self) -> str:
        """For the message after an interruption; empty if nothing was recorded yet."""
        return f"; go on with: python -m gate --resume {shown_path(self.folder)}" if self.folder else ""

    def run(self) -> int:
        """:returns: the exit status.

        :raises GateError: one line, for everything that ends it without a verdict.
        """
        began = time.monotonic()
        workshop = Workshop(
            cache=self.world.cache, pip=self.world.pip, installed=self.world.installed(), tell=self.tell,
        )
        plan = self._resumed(self.orders.resume) if self.orders.resume else self._plan(workshop)
        pairs = asked.changed(plan.pinned, plan.candidate)
        self.tell(f"moving {report.moved(pairs)}")
        if self.orders.dry:
            return self._dry(plan, workshop)
        if not pairs:
            self.tell("the candidate is what is pinned: nothing to judge, nothing to move")
            return 0
        self.folder = (self.orders.resume or self.orders.folder or ROOT / "runs" / "gate" / _now()).absolute()
        plan.write(self.folder)
        comparison = Comparison(plan=plan, workshop=workshop, world=self.world, folder=self.folder, tell=self.tell)
        account = dataclasses.replace(comparison.account(), seconds=time.monotonic() - began)
        _write(self.folder, account)
        for line in report.summary(account):
            self.tell(line)
        return account.verdict.status

    def _resumed(self, folder: Path) -> Plan:
        if self.orders.to or self.orders.since or self.orders.file or self.orders.keyword:
            raise UsageError("--resume goes on with what was planned: leave releases, --from, -r and -k out")
        return Plan.read(folder)

    def _plan(self, workshop: Workshop) -> Plan:
        orders, pip = self.orders, self.world.pip
        if orders.folder and (orders.folder / "plan.json").exists():
            raise UsageError(f"a gate run was begun in {orders.folder}: go on with --resume {orders.folder}")
        if not orders.to and orders.file is None:
            raise UsageError("name what to move to: NAME==VERSION, NAME for its newest release, latest, or -r FILE")
        pinned = environments.pinned_versions(self.world.lock, workshop.installed)
        pinned |= asked.read(orders.since, pip)
        wanted = asked.read_file(orders.file, pip) if orders.file else {}
        candidate = {**pinned, **wanted, **asked.read(orders.to, pip)}
        selection = Selection(
            platform=orders.platform, keyword=orders.keyword, deadline_seconds=orders.deadline_seconds,
        )
        if problem := self.world.chooses(selection):
            raise UsageError(problem)
        return Plan(
            pinned=pinned, candidate=candidate, selection=selection, command=orders.command,
            attribution=orders.attribution,
        )

    def _dry(self, plan: Plan, workshop: Workshop) -> int:
        for name, versions in (("pinned", plan.pinned), ("candidate", plan.candidate)):
            over = workshop.differing(versions)
            self.tell(f"{name}: {', '.join(f'{package} {version}' for package, version in sorted(versions.items()))}")
            for package, version in sorted(over.items()):
                ready = "ready" if workshop.has_layer(package, version) else "to be installed, and what it requires"
                self.tell(f"  laid over what is installed: {package} {version} ({ready})")
            self.tell(f"  {shlex.join(runs.command(plan.selection, Path('DIR', name)))}")
        return 0


def _write(folder: Path, account: Account) -> None:
    try:
        data = json.dumps(account.to_json(), indent=1, allow_nan=False)
        (folder / "gate.json").write_text(f"{data}\n", encoding="utf-8")
        (folder / "gate.md").write_text(report.page(account), encoding="utf-8")
    except OSError as error:
        raise MachineError(f"cannot write the report in {folder}: {error.strerror or error}") from error


def _now() -> str:
    return f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%dT%H%M%SZ}-{os.getpid()}"
