"""How a launch ends, and what the observation says of it. With a fake worker: no frameworks, milliseconds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.launch import Launcher, Progress
from fixtures.launchers.endings import last_traceback
from fixtures.observation import Observation, Request
from fixtures.spec import Case

CASE = Case(model="gpt2-tiny", engine="ddp", precision="fp32")
DEADLINE_SECONDS = 20.0
SHORT_SECONDS = 0.4

Run = Callable[..., Observation]


def request(fault: str | None = None) -> Request:
    """A request whose rank 1 does what ``fault`` says (see selftests/fake_worker.py)."""
    return Request(case=CASE, settings={}, fault=fault)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """One launcher for all tests here: each of them would suffer from what the one before left behind."""
    with Launcher(worker="selftests.fake_worker", preload=(), grace_seconds=0.4, kills=lambda: 7) as shared:
        yield shared


@pytest.fixture
def run(launcher: Launcher, tmp_path: Path) -> Run:
    """Runs a fault in the test's own folder."""

    def run_fault(fault: str | None = None, deadline_seconds: float = DEADLINE_SECONDS) -> Observation:
        folder = tmp_path / (fault or "ok")
        folder.mkdir()
        return launcher.run(request(fault), folder, deadline_seconds=deadline_seconds)

    return run_fault


def test_good_ranks_give_an_ok_observation(run: Run) -> None:
    """Both ranks are there, each with its own record."""
    observation = run()
    assert (observation.outcome, observation.error) == ("ok", None)
    assert observation.rows[0] == [0, 1]


def test_the_observation_is_on_disk(run: Run) -> None:
    """What ``run`` returns is what ``observation.json`` holds."""
    observation = run()
    assert Observation.read(observation.folder) == observation


@pytest.mark.parametrize("platform", ["cpu", "a100"])
def test_ranks_get_the_callers_variables(launcher: Launcher, tmp_path: Path, platform: str) -> None:
    """What the caller hands over, and on a GPU where NCCL's flight recorder writes and how long it waits."""
    asked = replace(request("tells_variables"), platform=platform)
    launcher.run(asked, tmp_path, deadline_seconds=DEADLINE_SECONDS, env={"CUDA_VISIBLE_DEVICES": "5,3"})
    for rank in range(2):
        told = json.loads((tmp_path / f"variables{rank}.json").read_text())
        assert (told["CUDA_VISIBLE_DEVICES"], told["LOCAL_RANK"]) == ("5,3", str(rank))
        recorder = told.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
        assert recorder == (None if platform == "cpu" else str(tmp_path / "nccl_trace_rank_"))
        assert ("SHARDGATE_COLLECTIVE_SECONDS" in told) == (platform != "cpu")


def test_ranks_print_into_their_own_logs(run: Run) -> None:
    """What a rank prints is in its log and in no other."""
    folder = run().folder
    assert "rank 0 of 2" in (folder / "rank0.log").read_text()
    assert "rank 1 of 2" in (folder / "rank1.log").read_text()
    assert "rank 0" not in (folder / "rank1.log").read_text()


def test_an_exception_is_told_with_its_traceback(run: Run) -> None:
    """An exception that escapes from a rank is that rank's account: type, message, traceback, last lines of its log."""
    observation = run("raises")
    assert observation.outcome == "crashed"
    assert observation.error is not None
    assert (observation.error["rank"], observation.error["type"]) == (1, "ValueError")
    assert observation.error["message"] == "the sum of the parts is not the whole"
    assert "in raises" in observation.error["traceback"]
    assert "line 29\nTraceback" in observation.error["log_tail"]
    assert "line 2\n" not in observation.error["log_tail"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("segfaults", "killed by SIGSEGV"),
        ("is_killed", "killed by SIGKILL, not by the system's memory killer (its count stayed at 7)"),
        ("exits_with_3", "exit status 3"),
    ],
)
def test_a_silent_death_is_told_by_the_launcher(run: Run, fault: str, message: str) -> None:
    """A rank that dies without a word is named, with how it died; the rank that waited for it is not blamed."""
    observation = run(fault)
    assert observation.outcome == "crashed"
    assert observation.error is not None
    assert (observation.error["rank"], observation.error["message"]) == (1, message)
    assert "rank 1 of 2" in observation.error["log_tail"]


@pytest.mark.parametrize("fault", ["is_killed", "is_killed_late"])
@pytest.mark.parametrize(
    ("counts", "kind", "words"),
    [
        ((3, 4), "KilledBySystem", "by the system's memory killer (its count rose from 3 to 4): the machine was full"),
        ((3, 3), "RankKilled", "not by the system's memory killer (its count stayed at 3)"),
        ((None, None), "RankKilled", "its count cannot be read here"),
        ((3, None), "RankKilled", "its count cannot be read here"),
    ],
)
def test_a_kill_of_the_system_is_told_from_others(
    tmp_path: Path, fault: str, counts: tuple[int | None, int | None], kind: str, words: str,
) -> None:
    """By the kernel's own count, and for the rank that was killed, also where another's end was seen first."""
    answers = iter(counts)
    with Launcher(worker="selftests.fake_worker", preload=(), grace_seconds=0.4, kills=lambda: next(answers)) as own:
        seen = own.run(request(fault), tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert seen.error is not None
    assert (seen.outcome, seen.error["rank"], seen.error["type"]) == ("crashed", 1, kind)
    assert seen.error["message"].startswith("killed by SIGKILL")
    assert words in seen.error["message"]


def test_a_segfault_shows_where_python_was(run: Run) -> None:
    """The interpreter's dump of a fatal signal is the traceback."""
    error = run("segfaults").error
    assert error is not None
    assert error["traceback"].startswith("Fatal Python error: Segmentation fault")
    assert "in segfaults" in error["traceback"]


def test_the_first_death_is_the_cause(run: Run) -> None:
    """A rank that only noticed the death of another writes its account, and is not taken for the cause."""
    observation = run("both_account")
    assert observation.error is not None
    assert (observation.error["rank"], observation.error["message"]) == (1, "exit status 3")
    assert [record.rank for record in observation.ranks] == [0]
    assert observation.ranks[0].error is not None
    assert observation.ranks[0].error["type"] == "ConnectionError"


def test_a_missing_record_is_a_crash(run: Run) -> None:
    """Exit status 0 without a record is not believed."""
    observation = run("leaves_early")
    assert observation.outcome == "crashed"
    assert observation.error is not None
    assert "rank1.json is missing" in observation.error["message"]


def test_a_hang_is_told_with_every_stack(run: Run) -> None:
    """At the deadline each rank says where it stands, in its own frames alone."""
    observation = run("hangs", SHORT_SECONDS)
    assert observation.outcome == "hung"
    assert observation.error is not None
    assert observation.error["message"] == "no end within 0.4 s: ranks 0, 1 still ran, 3 of 20 steps done"
    assert len(observation.error["stacks"]) == 2
    for stack in observation.error["stacks"]:
        assert "in hangs" in stack
        assert "template.py" not in stack
    assert "most recent call first" not in observation.error["log_tail"]


def test_a_rank_that_waits_for_one_that_left_is_hung(run: Run) -> None:
    """The rank that did its work is not blamed, and its stack says that it had ended."""
    observation = run("one_hangs", SHORT_SECONDS)
    assert observation.outcome == "hung"
    assert observation.error is not None
    assert observation.error["rank"] == 1
    assert observation.error["stacks"][0] == "rank 0 had ended: exit status 0"
    assert "in one_hangs" in observation.error["stacks"][1]


def test_no_rank_can_refuse_to_end(run: Run) -> None:
    """Ranks that ignore SIGTERM, SIGINT and SIGHUP are ended at the deadline all the same, and soon."""
    observation = run("ignores_signals", SHORT_SECONDS)
    assert observation.outcome == "hung"
    assert SHORT_SECONDS < observation.wall_seconds < SHORT_SECONDS + 2.0


@pytest.mark.parametrize("fault", ["raises", "segfaults", "exits_with_3", "hangs", "kills_template"])
def test_the_next_case_is_unaffected(run: Run, fault: str) -> None:
    """After each kind of bad end the same launcher runs a good case."""
    assert run(fault, SHORT_SECONDS).outcome != "ok"
    assert run().outcome == "ok"


def test_progress_is_told_while_ranks_run(launcher: Launcher, tmp_path: Path) -> None:
    """The listener hears the case, its steps and a growing clock."""
    heard: list[Progress] = []
    launcher.run(request("hangs"), tmp_path, deadline_seconds=SHORT_SECONDS, on_progress=heard.append)
    assert {(progress.case_id, progress.steps) for progress in heard} == {(CASE.id, 20)}
    assert heard[-1].step == 3
    assert 0.0 < heard[0].elapsed_seconds < heard[-1].elapsed_seconds


def test_two_launchers_run_side_by_side(tmp_path: Path) -> None:
    """Each has its own template, and neither waits for the other."""
    outcomes: dict[int, str] = {}
    meeting = threading.Barrier(2, timeout=DEADLINE_SECONDS)

    def run_many(number: int) -> None:
        with Launcher(worker="selftests.fake_worker", preload=()) as launcher:
            launcher.start()
            meeting.wait()
            for repeat in range(5):
                folder = tmp_path / f"{number}-{repeat}"
                folder.mkdir()
                outcomes[10 * number + repeat] = launcher.run(
                    request(), folder, deadline_seconds=DEADLINE_SECONDS
                ).outcome

    threads = [threading.Thread(target=run_many, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(outcomes.values()) == ["ok"] * 10


def test_a_folder_that_is_gone_is_an_os_error(launcher: Launcher, tmp_path: Path) -> None:
    """A run folder that cannot be written is the caller's to know, not a crash of the case."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        launcher.run(request(), tmp_path / "nowhere", deadline_seconds=DEADLINE_SECONDS)


def test_a_log_that_cannot_be_opened_is_an_os_error(run: Run, launcher: Launcher, tmp_path: Path) -> None:
    """The template's refusal arrives with its reason and the file's name, and the next case runs."""
    (tmp_path / "rank1.log").mkdir()
    with pytest.raises(IsADirectoryError, match=r"rank1\.log"):
        launcher.run(request(), tmp_path, deadline_seconds=DEADLINE_SECONDS)
    assert run().outcome == "ok"


def test_the_last_traceback_counts() -> None:
    """Of several tracebacks in a log the last is the one that ended the rank."""
    log = "Traceback (most recent call last):\n  first\nA: 1\nTraceback (most recent call last):\n  second\nB: 2\n"
    assert last_traceback(log) == "Traceback (most recent call last):\n  second\nB: 2"
    assert last_traceback("nothing of the kind") == ""
