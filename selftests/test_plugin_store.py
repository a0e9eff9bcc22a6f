"""Where observations come from: run folders, replays, and what happens when one is damaged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fixtures.files import write_json
from fixtures.observation import Observation
from selftests.plugin_fakes import CASE, OTHER, Suite, assert_usage_error, cpu_seconds_of_children

JUDGED = """
@both
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).losses)))
"""

FILES = ("report.html", "report.md", "junit.xml", "findings.jsonl", "session.json")

TENSORS = """
@both
def test_gradients(case, trained, judge):
    judge(finding(case, observed=str(trained(case).group("gradients"))))
"""


def recorded(suite: Suite, body: str = JUDGED) -> pytest.Pytester:
    """A suite whose run lies in ``done/``."""
    tester = suite(body)
    assert tester.runpytest_inprocess("--run-dir", "done").ret == 0
    (tester.path / "launched.txt").write_text("")
    return tester


def spoil(folder: Path, **changes: object) -> None:
    """Change top-level fields of a recorded observation."""
    path = folder / "observation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def snapshot_of(folder: Path) -> dict[str, int]:
    """Every file under ``folder``, with the time it was last written."""
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_run_folder_holds_each_case(suite: Suite) -> None:
    """A case's folder bears its id, runs/latest points to the session, and the record knows its own command."""
    tester = suite(JUDGED)
    tester.runpytest_inprocess()
    latest = tester.path / "runs" / "latest"
    record = json.loads((latest / CASE.id / "observation.json").read_text())
    assert record["provenance"]["command"].endswith(
        f"torchrun --nproc-per-node 2 -m fixtures.worker runs/{latest.readlink()}/{CASE.id}"
    )
    assert {path.name for path in latest.iterdir()} == {CASE.id, OTHER.id, ".locks", *FILES}


def test_latest_is_a_whole_run(suite: Suite) -> None:
    """A session of a few cases leaves runs/latest where it was."""
    tester = suite(JUDGED)
    tester.runpytest_inprocess()
    whole = (tester.path / "runs" / "latest").readlink()
    tester.runpytest_inprocess("-k", CASE.id, "--run-dir", "runs/few")
    assert (tester.path / "runs" / "few" / CASE.id).exists()
    assert (tester.path / "runs" / "latest").readlink() == whole


def test_what_is_laid_over_is_part_of_the_command(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PYTHONPATH the printed line would run other packages, and find nothing wrong."""
    tester = suite(JUDGED.replace("finding(case, ", "finding(case, passed=False, "))
    monkeypatch.setenv("PYTHONPATH", "/lay it/over")
    monkeypatch.setenv("TOX_ENV_NAME", "cpu")
    result = tester.runpytest_inprocess()
    result.stdout.fnmatch_lines([f"re-run: PYTHONPATH='/lay it/over' {sys.prefix}/bin/torchrun --nproc-per-node 2 *"])


def test_pictures_go_into_the_run_folder(suite: Suite) -> None:
    """A test that draws is told where; a replay writes nothing, so it is told nowhere."""
    tester = suite("""
        @one
        def test_plot(case, artifact, judge):
            path = artifact("plot.png")
            judge(finding(case, metric=str(path and path.name), passed=False))
    """)
    tester.runpytest_inprocess("--run-dir", "done").stdout.fnmatch_lines([f"{CASE.id}  plot.png: *"])
    (tester.path / "done" / CASE.id).mkdir()
    record = Observation(case=CASE, outcome="ok", ranks=(), error=None, fault=None, wall_seconds=0.0, provenance={},
                         folder=tester.path)
    write_json(tester.path / "done" / CASE.id / "observation.json", record.to_json())
    tester.runpytest_inprocess("--replay", "done").stdout.fnmatch_lines([f"{CASE.id}  None: *"])


def test_used_run_folder_is_refused(suite: Suite) -> None:
    """Two sessions never mix in one folder; what was recorded there stays."""
    tester = recorded(suite)
    before = snapshot_of(tester.path / "done")
    assert_usage_error(tester.runpytest_inprocess("--run-dir", "done"), "--run-dir done is not empty", "--replay=done")
    assert snapshot_of(tester.path / "done") == before


@pytest.mark.parametrize("processes", ["0", "2"])
def test_run_folder_that_cannot_be_made(suite: Suite, processes: str) -> None:
    """A folder under a file is told in one line before anything runs."""
    tester = suite(JUDGED)
    result = tester.runpytest_inprocess("-n", processes, "--run-dir", "launched.txt/here")
    assert_usage_error(result, "cannot record in", "Not a directory", "--run-dir")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_full_disk_ends_the_session(suite: Suite, processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, exit status 4, and what was recorded before is whole."""
    monkeypatch.setenv("FAKE_FAULT", "full")
    tester = suite(JUDGED)
    result = tester.runpytest_inprocess("-n", processes, "--run-dir", "here")
    assert_usage_error(result, "cannot record in", "No space left on device")
    assert {path.name for path in (tester.path / "here").iterdir()} <= {CASE.id, ".locks", *FILES}
    assert processes == "2" or json.loads((tester.path / "here" / CASE.id / "observation.json").read_text())


def test_disk_that_fills_under_a_rank_ends_the_session(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that died for want of space is no broken engine: one line, and nothing is recorded of it."""
    monkeypatch.setenv("FAKE_FAULT", "rank full")
    tester = suite(JUDGED)
    assert_usage_error(tester.runpytest_inprocess("--run-dir", "here"), CASE.id, "No space left on device", "--run-dir")
    assert not (tester.path / "here" / CASE.id).exists()


def test_full_disk_is_no_known_failure(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listed failure excuses a claim, not a session that cannot record."""
    monkeypatch.setenv("FAKE_FAULT", "full")
    tester = suite(JUDGED)
    (tester.path / "known_failures.txt").write_text("*  https://example.org/1  everything\n")
    assert_usage_error(tester.runpytest_inprocess(), "No space left on device")


def test_record_damaged_during_the_session(suite: Suite) -> None:
    """A record that this session made and that is half there now ends it with one line."""
    result = suite("""
        from pathlib import Path

        @one
        def test_loss(case, observe, judge):
            folder = Path("here", case.id)
            folder.mkdir()
            (folder / "observation.json").write_text('{"schema": 3, ')
            judge(finding(case, observed=observe(case).outcome))
    """).runpytest_inprocess("--run-dir", "here")
    assert_usage_error(result, f"{CASE.id}/observation.json is truncated or corrupt")


def test_interrupt_closes_the_launcher(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a running case, the launcher is closed and no half-written folder is left."""
    monkeypatch.setenv("FAKE_FAULT", "interrupt")
    tester = suite(JUDGED)
    result = tester.runpytest_inprocess("--run-dir", "here", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert (tester.path / "launched.txt").read_text().splitlines()[-1] == "closed"
    assert not list((tester.path / "here").glob(f"*{CASE.id}*"))


@pytest.mark.parametrize("processes", ["0", "2"])
def test_replay_judges_without_running(suite: Suite, processes: str) -> None:
    """Nothing is launched, nothing is written but a report beside the runs, no package under test is needed."""
    tester = recorded(suite)
    tester.makeconftest(
        (tester.path / "conftest.py").read_text().replace("outside()", "outside(version_of=lambda name: None)")
    )
    before = snapshot_of(tester.path / "done")
    result = tester.runpytest_inprocess("-n", processes, "--replay", "done", "-m", "cpu")
    assert result.ret == 0
    assert result.outlines[-1] == "2 claims judged over 2 of 2 gated cases"
    assert snapshot_of(tester.path / "done") == before
    assert not (tester.path / "launched.txt").read_text()
    assert [path.name for path in (tester.path / "runs").glob("*/*")] == ["done"]


def test_run_folder_outside_the_repository(suite: Suite, tmp_path: Path) -> None:
    """Workers that start when the folder is there take it for what it is, not for a test folder; so does a replay."""
    tester = suite(JUDGED)
    assert tester.runpytest_inprocess("-n", "2", "--run-dir", str(tmp_path / "outside")).ret == 0
    assert tester.runpytest_inprocess("-n", "2", f"--replay={tmp_path / 'outside'}").ret == 0
    assert tester.runpytest_inprocess("-n", "2", "conformance", "--replay", str(tmp_path / "outside")).ret == 0


def test_replay_on_another_machine_needs_no_gpu(suite: Suite) -> None:
    """A run recorded on an A100 is judged again anywhere."""
    result = recorded(suite).runpytest_inprocess("--replay", "done", "-m", "a100")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["shardgate: platform a100, judging again done"])


def test_replay_on_the_wrong_platform_is_refused(suite: Suite) -> None:
    """A CPU's record is not judged by another platform's baselines."""
    tester = recorded(suite)
    spoil(tester.path / "done" / CASE.id, provenance={"platform": "h100"})
    result = tester.runpytest_inprocess("--replay", "done")
    assert_usage_error(result, f"{CASE.id} was recorded on h100, and this session judges cpu: add --platform h100")
    assert tester.runpytest_inprocess("--replay", "done", "--platform", "h100").ret != pytest.ExitCode.USAGE_ERROR


def test_replay_prints_its_own_command(suite: Suite) -> None:
    """A failure of a replay is judged again by a replay."""
    tester = recorded(suite)
    module = tester.path / "conformance" / "test_small.py"
    module.write_text(module.read_text().replace("finding(case, ", "finding(case, passed=False, "))
    result = tester.runpytest_inprocess("--replay", "done")
    result.stdout.fnmatch_lines([
        f"re-run: *torchrun --nproc-per-node 2 -m fixtures.worker done/{CASE.id}",
        f'judge again: *pytest --replay=done "conformance/test_small.py::test_loss[[]{CASE.id}[]]"',
    ])


def test_case_missing_from_a_replay_fails_its_tests(suite: Suite) -> None:
    """One clear line for the case that was never recorded; the others are judged."""
    tester = recorded(suite)
    for path in sorted((tester.path / "done" / CASE.id).iterdir()):
        path.unlink()
    (tester.path / "done" / CASE.id).rmdir()
    result = tester.runpytest_inprocess("--replay", "done")
    result.assert_outcomes(passed=1, failed=1)
    assert f"{CASE.id} is not recorded in done" in result.outlines
    assert result.outlines[-2:] == [f"not judged: {CASE.id}", "1 claims judged over 1 of 2 gated cases"]


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize(("changes", "words"), [
    ({"schema": 0}, ["has schema 0, this suite reads 3: record it again"]),
    ({"outcome": "splendid"}, ["unknown outcome 'splendid'"]),
    ({"case": {**CASE.to_json(), "engine": "zero4"}}, ["is not an observation: unknown engine 'zero4'"]),
    ({"ranks": None}, ["is not an observation"]),
])
def test_damaged_record_is_a_usage_error(
    suite: Suite, changes: dict[str, object], words: list[str], processes: str,
) -> None:
    """Nothing is judged beside a record of another schema or with a field that cannot be."""
    tester = recorded(suite)
    spoil(tester.path / "done" / OTHER.id, **changes)
    assert_usage_error(tester.runpytest_inprocess("-n", processes, "--replay", "done"), f"{OTHER.id}/observation.json",
                       *words)


def test_truncated_record_is_a_usage_error(suite: Suite) -> None:
    """Half an observation is none."""
    tester = recorded(suite)
    path = tester.path / "done" / CASE.id / "observation.json"
    path.write_text(path.read_text()[:300])
    assert_usage_error(tester.runpytest_inprocess("--replay", "done"), "observation.json is truncated or corrupt")


def test_truncated_tensors_are_a_usage_error(suite: Suite) -> None:
    """Half a gradient is none, and is found before anything is judged."""
    tester = recorded(suite)
    (tester.path / "done" / CASE.id / "tensors.safetensors").write_bytes(b"\x08\0\0")
    assert_usage_error(tester.runpytest_inprocess("--replay", "done"), "tensors.safetensors is truncated or corrupt")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_missing_tensors_are_a_usage_error(
    suite: Suite, processes: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record without the tensors that a test asks for cannot be judged, in whichever process that shows."""
    monkeypatch.setenv("FAKE_FAULT", "no tensors")
    tester = suite(TENSORS)
    assert_usage_error(tester.runpytest_inprocess("-n", processes), "tensors.safetensors cannot be read")


def test_record_of_another_case_is_a_usage_error(suite: Suite) -> None:
    """Ids leave defaults out: a changed default is not judged on an old record."""
    tester = recorded(suite)
    spoil(tester.path / "done" / CASE.id, case={**CASE.to_json(), "steps": 7})
    assert_usage_error(tester.runpytest_inprocess("--replay", "done"), "holds another case (steps 7, now 20)")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--replay", "nowhere"], ["there is no such folder"]),
    (["--replay="], ["--replay= names no folder"]),
    (["--run-dir="], ["--run-dir= names no folder"]),
    (["--replay", "conformance"], ["no run was recorded there"]),
    (["--replay", "done", "--run-dir", "new"], ["leave --run-dir out"]),
])
def test_replay_of_nothing_is_a_usage_error(suite: Suite, arguments: list[str], words: list[str]) -> None:
    """A folder that is missing or holds no run is told in one line."""
    assert_usage_error(suite(JUDGED).runpytest_inprocess(*arguments), *words)


def test_replay_of_a_hundred_cases_is_quick(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 tests over 100 recorded cases of a real size, no framework: at most 4 times what pytest itself takes."""
    tester = suite("""
        cases = [CASE.with_(learning_rate=n / 1000) for n in range(2, 102)]

        @pytest.mark.parametrize("rung", range(6))
        @pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in cases])
        def test_rung(case, rung, trained, judge):
            seen = trained(case)
            judge(finding(case, observed=str(seen.losses + seen.grad_norms)) for _ in range(2))
    """, changes="launcher=ThoroughLauncher")
    assert tester.runpytest_inprocess("--run-dir", "done", "-q").ret == 0
    for package in ("torch", "transformers", "accelerate", "deepspeed", "safetensors"):
        tester.makepyfile(**{f"absent/{package}": "raise ImportError"})
    monkeypatch.setenv("PYTHONPATH", f"{tester.path / 'absent'}{os.pathsep}{os.environ['PYTHONPATH']}")
    bare = tester.mkdir("bare")
    (bare / "tox.ini").touch()
    (bare / "test_bare.py").write_text("import pytest\n@pytest.mark.parametrize('n', range(600))\ndef test(n): pass\n")
    begun = cpu_seconds_of_children()
    assert tester.run(sys.executable, "-m", "pytest", "-q", "-c", bare / "tox.ini", bare).ret == 0
    before = cpu_seconds_of_children()
    result = tester.runpytest_subprocess("--replay", "done", "-q")
    seconds = cpu_seconds_of_children() - before
    assert result.outlines[-1] == "1200 claims judged over 100 of 100 gated cases"
    assert seconds < 4 * (before - begun)
