"""A report of hundreds of cases is light and quickly made."""

from __future__ import annotations

import time
from pathlib import Path

from selftests import reports

CASES = 500
MOST_BYTES = 5_000_000
MOST_SECONDS = 10.0


def test_five_hundred_cases_are_light_and_quick(tmp_path: Path) -> None:
    """From recorded observations to the last byte on disk: under 5 MB, under 10 s of this process's time."""
    session = reports.large(tmp_path, CASES)
    began = time.process_time()
    page = session.end(1)
    spent = time.process_time() - began
    written = sum(path.stat().st_size for path in session.folder.glob("report.*"))
    print(f"{CASES} cases: {written / 1e6:.2f} MB in {spent:.2f} s")  # noqa: T201 - the figure that the README states
    assert page.count('<tr id="c-') == CASES
    assert written < MOST_BYTES
    assert spent < MOST_SECONDS
