"""A launcher whose cases need memory by the row, for self-tests of the search for the largest batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.files import write_json
from fixtures.observation import Observation, Outcome, Request
from selftests.plugin_fakes import FakeLauncher

MIB = 2**20
BASE_MIB, ROW_MIB = 10, 3
"""What a rank of the fake needs beside its rows, and for each."""


class BudgetLauncher(FakeLauncher):
    """A case is out of memory if its rows need more than its budget. ``FAKE_ENDS`` (JSON, by batch) says otherwise.

    ``FAKE_LIMIT_MIB`` is the limit that ranks say they were under, if it is not the case's budget; 0 is none.
    """

    def run(
        self, request: Request, run_dir: Path, *, deadline_seconds: float,
        on_progress: Callable[[Any], None] | None = None, env: Mapping[str, str] | None = None,
    ) -> Observation:
        """As :meth:`FakeLauncher.run`."""
        seen = super().run(request, run_dir, deadline_seconds=deadline_seconds, on_progress=on_progress, env=env)
        case = request.case
        needs, budget = BASE_MIB + ROW_MIB * case.rows_per_micro_batch, case.budget_mib or 0
        ends = json.loads(os.environ.get("FAKE_ENDS", "{}"))
        outcome: Outcome = ends.get(str(case.rows_per_micro_batch), "ok" if needs <= budget else "oom")
        limit = int(os.environ.get("FAKE_LIMIT_MIB", budget))
        told = {"limit": {"budget_bytes": limit * MIB, "most_bytes": min(needs, budget) * MIB}} if limit else {}
        steps = seen.ranks[0].steps * (case.steps if outcome == "ok" else 1)
        ranks = tuple(replace(rank, outcome=outcome, steps=steps, memory=told) for rank in seen.ranks)
        error = None if outcome == "ok" else {"rank": 1, "type": "Fake", "message": f"as told: {outcome}"}
        seen = replace(seen, outcome=outcome, ranks=ranks, error=error)
        write_json(run_dir / "observation.json", seen.to_json())
        return seen
