"""``pytest --find-max-batch``: what is searched, what is told, what is judged, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401 - before pytester, which forgets modules: numpy can be loaded only once
import pytest

from selftests.plugin_fakes import CASE, OTHER, Suite, assert_usage_error
from selftests.test_plugin_terminal import typed

BODY = """
FIT = CASE.with_(measure="fit", budget_mib=40, rows_per_step=8, steps=2)
fits = pytest.mark.parametrize("case", [
    pytest.param(case, id=case.id, marks=pytest.mark.cpu)
    for case in (FIT, FIT.with_(rows_per_step=12), FIT.with_(engine="ddp", accumulation_steps=2))
])

@fits
def test_fits(case, observe, judge):
    assert False, "a search takes its place"

@pytest.mark.parametrize("partner", [pytest.param(FIT.with_(engine="zero1"), id="partner", marks=pytest.mark.cpu)])
def test_partner_fits_not(partner, observe, judge):
    assert False, "what must not fit is no search"

@both
def test_loss(case, judge):
    assert False, "a search takes its place"
"""
LAUNCHER = 'launcher=__import__("selftests.max_batch_fakes", fromlist=["BudgetLauncher"]).BudgetLauncher'
ZERO3 = f"{CASE.id}-s2-fit-40MiB"
SEARCH = ("--find-max-batch", "--run-dir=here")


@pytest.fixture
def searched(suite: Suite) -> pytest.Pytester:
    """A suite with two batches of one fit case, one fit case that accumulates, and two that name no budget."""
    return suite(BODY, LAUNCHER)


def found(tester: pytest.Pytester) -> list[dict[str, Any]]:
    """The searches of ``max-batch.json``."""
    told: list[dict[str, Any]] = json.loads((tester.path / "here" / "max-batch.json").read_text())["searches"]
    return told


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_largest_batch_is_found_and_told(searched: pytest.Pytester, processes: str) -> None:
    """Two batches of a case are one search. 10 MiB and 3 per row: 10 rows per rank fit in 40, and 11 do not."""
    result = searched.runpytest_inprocess(*SEARCH, "-k", "fits", "-n", processes)
    assert result.ret == 0
    result.assert_outcomes(passed=2, deselected=0 if processes == "2" else 4)
    result.stdout.fnmatch_lines_random([
        "case * budget * rows per rank * in use * first that does not fit * probes * probes took",
        f"{CASE.id}-s2-fit-40MiB * 40 MiB * 10 * 40.0 MiB * 11 * 6 * s",
        "llama-tiny-ddp-fp32-x2-acc2-s2-fit-40MiB * 40 MiB * 10 * 40.0 MiB * 11 * 7 * s",
        "picture: here/max-batch.png",
    ])
    assert result.outlines[-1] == "4 claims judged over 2 of 2 gated cases"
    by_case = {row["case_id"]: row for row in found(searched)}
    assert {(row["fits"], row["too_large"], row["in_use_bytes"]) for row in by_case.values()} == {(10, 11, 40 * 2**20)}
    assert (searched.path / "here" / "max-batch.png").read_bytes().startswith(b"\x89PNG")


def test_every_probe_is_a_recorded_run(searched: pytest.Pytester) -> None:
    """Each under its own id, once; the batch steps by one row per rank in each micro-step."""
    searched.runpytest_inprocess(*SEARCH, "-k", "ddp")
    (row,) = found(searched)
    rows = [probe["batch"] * 4 for probe in row["probes"]]
    recorded = [json.loads(path.read_text()) for path in searched.path.glob("here/*/observation.json")]
    assert sorted(seen["case"]["rows_per_step"] for seen in recorded) == sorted(rows)
    launched = (searched.path / "launched.txt").read_text().splitlines()
    assert len(launched) == len(rows) + 1  # and the launcher's end


def test_any_case_can_be_searched_in_a_budget_that_is_given(searched: pytest.Pytester) -> None:
    """A case that names no budget is run as one that does, for three steps; one that names another gets this one."""
    result = searched.runpytest_inprocess(*SEARCH, "--budget-mib", "31", "-k", f"loss or ({CASE.engine} and fits)")
    assert result.ret == 0
    cases = [row["case"] for row in found(searched)]
    # A case of the curve and a fit case may differ in steps: then they are two searches.
    assert [(case["engine"], case["steps"], case["budget_mib"]) for case in cases] == [
        (CASE.engine, 2, 31), (CASE.engine, 3, 31), (OTHER.engine, 3, 31),
    ]
    assert {row["fits"] for row in found(searched)} == {7}


def test_no_batch_that_fits_is_a_failure(searched: pytest.Pytester) -> None:
    """It says so, how to run the smallest again, and how to search again."""
    result = searched.runpytest_inprocess(*SEARCH, "--budget-mib=12", "-k", f"{CASE.engine} and fits")
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        "*largest batch that fits: none: 1 row per rank runs out of memory, allowed a batch of at least 1 row per *",
        "re-run: *torchrun --nproc-per-node 2 -m fixtures.worker here/*",
        f"search again: *pytest --find-max-batch --budget-mib=12 -k {CASE.id}-s2-fit-12MiB",
        "4 rows per rank: oom, 12.0 MiB in use, * s",
        f"{CASE.id}-s2-fit-12MiB * 12 MiB * none fits * - * 1 * 3 * s",
    ])
    (row,) = found(searched)
    assert (row["end"], row["fits"], row["too_large"]) == ("none fits", None, 1)


def test_a_budget_that_is_never_met_is_a_failure(searched: pytest.Pytester) -> None:
    """Without a batch that does not fit there is no largest one."""
    result = searched.runpytest_inprocess(*SEARCH, "--budget-mib=99999999", "-k", f"{CASE.engine} and fits")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*rows per rank fit, and the corpus has rows for no more: the budget was never met*"])
    (row,) = found(searched)
    assert (row["end"], row["fits"]) == ("no limit", None)


@pytest.mark.parametrize("outcome", ["crashed", "hung"])
def test_a_crash_or_a_hang_is_not_too_large(
    searched: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, outcome: str,
) -> None:
    """The search of that case stops and fails with the line that runs it again; the other search goes on."""
    monkeypatch.setenv("FAKE_ENDS", json.dumps({"8": outcome}))
    result = searched.runpytest_inprocess(*SEARCH, "-k", "fits and zero3 or loss", "--budget-mib=30")
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        f"*-b16-fit-30MiB  outcome: {outcome} (rank 1: Fake: as told: {outcome}), allowed ok (the run itself)",
        "re-run: *torchrun --nproc-per-node 2 -m fixtures.worker here/*-b16-fit-30MiB",
        "search again: *",
    ])
    assert {row["end"] for row in found(searched)} == {"stopped"}
    assert len(found(searched)) == 3


@pytest.mark.parametrize("limit", ["0", "39", "41"])
def test_an_answer_without_its_limit_is_none(
    searched: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, limit: str,
) -> None:
    """Runs that were under no limit, or another, prove nothing: both claims fail."""
    monkeypatch.setenv("FAKE_LIMIT_MIB", limit)
    result = searched.runpytest_inprocess(*SEARCH, "-k", f"{CASE.engine} and fits")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["claims by rung:", "  memory 2 (2 failed)"])


def test_the_live_line_tells_where_the_search_stands(searched: pytest.Pytester) -> None:
    """While a probe runs: which it is, what fits and what does not."""
    written = typed(searched, *SEARCH, "-k", f"{CASE.engine} and fits")
    assert f"[probe 1]  running {CASE.id}-s2-fit-40MiB  step 1/2  0.1 s" in written
    assert f"[probe 4; 8 fits, 16 does not]  running {CASE.id}-s2-b24" in written


def test_the_live_line_is_not_left_behind(searched: pytest.Pytester) -> None:
    """No terminal, no control sequences; the trail of probes is in the report of a failure only."""
    result = searched.runpytest_inprocess(*SEARCH, "-k", "ddp")
    assert "\x1b" not in result.stdout.str()
    result.stdout.no_fnmatch_line("*rows per rank: ok*")


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-k", "nowhere"], "-k 'nowhere' chooses no case"),
        (["-k", "loss"], "-k 'loss' chooses no case that names its budget: add --budget-mib N"),
        (["--budget-mib", "0"], "--budget-mib 0: not a positive whole number of MiB"),
        (["--budget-mib", "1.5"], "--budget-mib 1.5: not a positive whole number of MiB"),
        (["--budget-mib=-3"], "--budget-mib -3: not a positive whole number of MiB"),
    ],
)
def test_a_search_that_cannot_be_is_a_usage_error(
    searched: pytest.Pytester, arguments: list[str], words: str, processes: str,
) -> None:
    """One line, exit status 4, and nothing was run."""
    assert_usage_error(searched.runpytest_inprocess("--find-max-batch", *arguments, "-n", processes), words)
    assert "fit" not in (searched.path / "launched.txt").read_text()


def test_a_budget_without_a_search_is_a_usage_error(searched: pytest.Pytester) -> None:
    """Nobody would look at it."""
    assert_usage_error(searched.runpytest_inprocess("--budget-mib=5"), "add --find-max-batch")


def test_a_search_does_not_replay(searched: pytest.Pytester) -> None:
    """A record cannot be asked for another batch."""
    searched.runpytest_inprocess(*SEARCH, "-k", "ddp")
    assert_usage_error(searched.runpytest_inprocess("--find-max-batch", "--replay=here"), "--replay runs nothing")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_other_folders_hold_nothing_to_search(searched: pytest.Pytester, processes: str) -> None:
    """The cases are those of conformance/."""
    (searched.path / "other").mkdir()
    result = searched.runpytest_inprocess("--find-max-batch", "other", "-n", processes)
    assert_usage_error(result, "--find-max-batch searches the cases of conformance/")


def test_a_search_is_not_the_latest_run(searched: pytest.Pytester) -> None:
    """``runs/latest`` is the last session that ran the whole gate, also where nothing narrows the search."""
    assert searched.runpytest_inprocess("--find-max-batch").ret == 0
    assert not (searched.path / "runs" / "latest").exists()


def test_searches_can_be_listed(searched: pytest.Pytester) -> None:
    """--collect-only shows what would be searched, and runs nothing."""
    result = searched.runpytest_inprocess("--find-max-batch", "--collect-only", "-q")
    assert result.ret == 0
    listed = [f"*max-batch[[]{ZERO3}[]]", "*max-batch[[]llama-tiny-ddp-*[]]", "2/6 tests collected*"]
    result.stdout.fnmatch_lines(listed)


ROOT = Path(__file__).resolve().parent.parent


def test_a_real_search(tmp_path: Path) -> None:
    """DDP's largest batch in 100 MiB, with real engines under a real limit: the answer ran, the next one ran out."""
    command = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--find-max-batch", "--budget-mib=100",
        "-k", "llama-medium-ddp", f"--run-dir={tmp_path}",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout
    (row,) = json.loads((tmp_path / "max-batch.json").read_text())["searches"]
    assert row["too_large"] == row["fits"] + 1
    outcomes = {
        seen["case"]["rows_per_step"]: seen["outcome"]
        for seen in (json.loads(path.read_text()) for path in tmp_path.glob("*/observation.json"))
    }
    assert (outcomes[2 * row["fits"]], outcomes[2 * row["too_large"]]) == ("ok", "oom")
    # 11 where the processor multiplies in bf16; 16 where it does not, and oneDNN takes less room.
    least, most = (8, 14) if "_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else (13, 19)
    assert least <= row["fits"] <= most
