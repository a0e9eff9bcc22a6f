"""The compatibility table: every pair is run once, and says which rungs hold and what breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.spec import Case
from gate import matrix, records
from selftests.gate_fakes import INSTALLED, ZERO3, FakePip, FakeRuns, Versions, record, world


def where_two_meet(versions: Versions, case: Case) -> Mapping[str, Any]:
    """accelerate 1.12.0 with deepspeed 0.19.8 cannot accumulate; 0.19.7 has a known failure."""
    if versions["accelerate"] == "1.12.0" and versions["deepspeed"] == "0.19.8" and case == ZERO3:
        return {"outcome": "crashed", "message": "ValueError: no_sync <raised>"}
    if versions["deepspeed"] == "0.19.7" and case == ZERO3:
        return {"fails": (("curve", "loss, every step"),), "known": "https://example.org/1"}
    return {}


def fill(tmp_path: Path, runs: FakeRuns, pip: FakePip | None = None) -> tuple[int, dict[str, Any], str]:
    """Exit status, data and page of a table of two by three."""
    status = matrix.main(
        ["accelerate=1.12.0,1.13.0", "deepspeed=0.19.6,0.19.7,0.19.8", "--run-dir", str(tmp_path / "runs"), "--data",
         str(tmp_path / "table.json")], world(tmp_path, runs=runs, pip=pip),
    )
    path = tmp_path / "table.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    return status, data, path.with_suffix(".html").read_text() if data else ""


def test_every_pair_has_its_cell(tmp_path: Path) -> None:
    """The lowest broken rung, and the claim."""
    status, data, page = fill(tmp_path, FakeRuns(where_two_meet))
    assert status == 0
    assert [[one["lowest"] for one in line] for line in data["cells"]] == [
        ["holds", "curve", "engaged"], ["holds", "curve", "holds"],
    ]
    assert data["cells"][0][0]["rungs"] == {"engaged": [3, 0], "dtypes": [3, 0], "curve": [3, 0]}
    assert "no_sync &lt;raised&gt;" in page
    assert page.count("<details>") == 6
    assert page.count("class=known") == 2
    assert page.count("class=broken") == 1
    assert page.count("<summary>known: curve<") == 2
    assert page.count("<summary>breaks: engaged<") == 1


def test_a_claim_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    """The table is for others."""
    versions = {name: version.partition("+")[0] for name, version in INSTALLED.items()}
    record(tmp_path, ZERO3, versions, {"outcome": "crashed", "message": f"RecordError: {tmp_path}/x is missing"})
    (broken,) = matrix.cell(records.read(tmp_path), versions, tmp_path).broken
    assert "RecordError: x is missing" in broken["claim"]


def test_a_pair_is_run_once(tmp_path: Path) -> None:
    """A second command reads what was recorded."""
    fill(tmp_path, FakeRuns())
    again = FakeRuns()
    fill(tmp_path, again)
    assert not again.runs


def test_a_pair_that_cannot_be_installed_is_untold(tmp_path: Path) -> None:
    """It does not hold, and it does not end the table."""
    pip = FakePip(broken=frozenset({("deepspeed", "0.19.7")}))
    _, data, page = fill(tmp_path, FakeRuns(), pip)
    assert [one["lowest"] for one in data["cells"][0]] == ["holds", "untold", "holds"]
    assert "no compiler" in page


def test_a_pair_that_cannot_be_run_is_untold(tmp_path: Path) -> None:
    """With pytest's last words."""
    _, data, _ = fill(tmp_path, FakeRuns(status=4))
    assert {one["problem"] for line in data["cells"] for one in line} == {"as told"}


@pytest.mark.parametrize("word", ["numpy", "accelerate=9.9"])
def test_an_axis_that_cannot_be_is_a_usage_error(
    tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 3 and one line."""
    assert matrix.main([word, "deepspeed"], world(tmp_path)) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_an_axis_without_releases_has_the_newest(tmp_path: Path) -> None:
    """Six of them."""
    name, versions = matrix.axis("accelerate", world(tmp_path))
    assert (name, versions[-1], len(versions)) == ("accelerate", "1.15.0", 6)
