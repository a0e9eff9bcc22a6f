"""The history: kept whole, refused when damaged, asked from the command line; and how often its test for drift errs."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fixtures.history import store
from fixtures.history.__main__ import main
from fixtures.history.drift import LEAST_NIGHTS, drift, mann_kendall, theil_sen
from fixtures.history.figures import of_run
from fixtures.history.store import Figure, HistoryError, Run
from selftests.plugin_fakes import CASE, OTHER, Suite
from selftests.races import DDP, timed
from selftests.records import observation

RUN = Run(date="2026-01-02T03:04:05+00:00", folder="runs/x", platform="cpu", machine={"cpu": "x", "cores": 2},
          packages={"torch": "2.13.0"}, exit_status=0, claims=5, failed=1)


def figure(value: float, metric: str = "step_seconds") -> Figure:
    """Of one case."""
    return Figure(case_id="a-case", metric=metric, unit="s", value=value, low=value * 0.99, high=value * 1.01)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Twelve nights; step_seconds climbs by 1 % each, the loss stays."""
    path = tmp_path / "history.sqlite"
    for night in range(12):
        packages = {"torch": "2.13.0" if night < 6 else "2.14.0"}
        run = Run(**{**vars(RUN), "packages": packages})
        store.append(path, run, [figure(0.010 * 1.01**night), figure(5.5 + 0.001 * (night % 3), "last loss")])
    return path


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    """Runs and figures, oldest first, with numbers of their own; another program can query them."""
    path = tmp_path / "history.sqlite"
    assert [store.append(path, RUN, [figure(1.0)]), store.append(path, RUN, [figure(2.0)])] == [1, 2]
    assert [run.id for run in store.runs(path)] == [1, 2]
    assert store.series(path, "a-case") == {("a-case", "step_seconds"): [(1, figure(1.0)), (2, figure(2.0))]}
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT avg(value) FROM figures WHERE metric = 'step_seconds'").fetchone() == (1.5,)


def test_half_a_run_is_none(tmp_path: Path) -> None:
    """A figure that cannot be stored takes its run with it."""
    path = tmp_path / "history.sqlite"
    store.append(path, RUN, [figure(1.0)])
    with pytest.raises(HistoryError):
        store.append(path, RUN, [figure(1.0), figure(2.0)])  # the same case and metric twice
    assert len(store.runs(path)) == 1


@pytest.mark.parametrize("content", [b"not a database, but long enough to look at", b"SQLite format 3\x00 and no more"])
def test_a_damaged_file_is_named_and_left(tmp_path: Path, content: bytes) -> None:
    """Neither reading nor appending touches what is no history."""
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    for use in (lambda: store.append(path, RUN, []), lambda: store.runs(path), lambda: store.series(path)):
        with pytest.raises(HistoryError, match=r"history\.sqlite is damaged, or no history .*--history"):
            use()
    assert path.read_bytes() == content


def test_another_version_or_program_is_refused(tmp_path: Path) -> None:
    """A database of other tables, and one of a later suite, are not ours to write."""
    for statement in ("CREATE TABLE recipes (name TEXT)", "PRAGMA user_version = 99"):
        path = tmp_path / f"{statement[:6]}.sqlite"
        with sqlite3.connect(path) as database:
            database.execute(statement)
        with pytest.raises(HistoryError, match="this suite reads"):
            store.append(path, RUN, [])


JUDGED = """
@both
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).losses)))
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_session_adds_one_run(suite: Suite, processes: str) -> None:
    """Whatever its processes; a replay adds none, and --history=off none."""
    tester = suite(JUDGED)
    for words in (["-n", processes, "--run-dir", "first"], ["--replay=first"], ["--history=off", "--run-dir", "third"]):
        assert tester.runpytest_inprocess(*words).ret == 0
    (run,) = store.runs(tester.path / "history.sqlite")
    assert (run.folder, run.exit_status, run.claims, run.failed) == ("first", 0, 2, 0)
    assert set(store.series(tester.path / "history.sqlite")) == {(c.id, "last loss") for c in (CASE, OTHER)}


def test_a_damaged_history_hides_no_verdict(suite: Suite) -> None:
    """The session says so in one line, and its exit status is that of its claims."""
    tester = suite(JUDGED)
    (tester.path / "history.sqlite").write_text("a poem, long enough to be read as a header of something else")
    result = tester.runpytest_inprocess("--run-dir", "first")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["not kept in the history: *history.sqlite is damaged*", "2 claims judged over 2 of*"])
    failing = suite_failing(tester)
    assert failing.ret == 1


def suite_failing(tester: pytest.Pytester) -> pytest.RunResult:
    """The same session with a claim that fails."""
    path = tester.path / "conformance" / "test_small.py"
    path.write_text(path.read_text().replace("finding(case, ", "finding(case, passed=False, "))
    return tester.runpytest_inprocess("--run-dir", "second")


def test_what_is_kept_of_a_run(tmp_path: Path) -> None:
    """The last loss of what trained, the speed of what was timed, nothing of what crashed or had a fault."""
    seen = observation(CASE, tmp_path, losses=(4.0, 3.0))
    kept = {(one.case_id, one.metric): one.value for one in of_run([seen])}
    assert kept == {(CASE.id, "last loss"): 3.0}
    (tmp_path / "request.json").write_text("{}")
    paced = timed(DDP, [0.5] * 14)
    rates = {one.metric: one.value for one in of_run_of(paced, tmp_path)}
    assert rates["step_seconds"] == 0.5
    assert rates["tokens_per_second"] == DDP.tokens_per_step / DDP.world_size / 0.5
    assert "mfu" not in rates


def of_run_of(seen: object, folder: Path) -> Iterator[Figure]:
    """Figures of one timed case without a race around it."""
    from dataclasses import replace

    from fixtures.files import write_json
    from fixtures.observation import Observation, Request

    assert isinstance(seen, Observation)
    write_json(folder / "request.json", Request(case=seen.case, settings={}).to_json())
    return of_run([replace(seen, folder=folder)])


def test_show_gives_table_and_picture(history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line per run with what changed, the verdict on drift, and a PNG."""
    picture = tmp_path / "picture.png"
    assert main(["--history", str(history), "show", "a-case", "--metric", "step", "--plot", str(picture)]) == 0
    told = capsys.readouterr().out
    assert "torch 2.13.0 -> 2.14.0" in told
    assert "+11.6%" in told
    assert "DRIFTS: +1.00% per run" in told
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_drift_is_found_by_its_command(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 and the series that climbs; the one that stays is counted."""
    assert main(["--history", str(history), "drift"]) == 1
    told = capsys.readouterr().out
    assert "a-case  step_seconds: DRIFTS" in told
    assert "1 of 2 series drift" in told


@pytest.mark.parametrize("words", [["list"], ["show", "x"], ["drift"]])
def test_no_history_is_one_line(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 4; nothing is made."""
    assert main(["--history", str(tmp_path / "none.sqlite"), *words]) == 4
    assert "there is no such history yet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    assert main([*words, "--history", str(empty)]) == 4
    assert "is empty, and no history" in capsys.readouterr().err
    assert empty.stat().st_size == 0


def test_too_few_nights_are_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drift that cannot be judged is not absent."""
    store.append(tmp_path / "h.sqlite", RUN, [figure(1.0)])
    assert main(["--history", str(tmp_path / "h.sqlite"), "drift"]) == 4
    assert f"nothing has {LEAST_NIGHTS} runs" in capsys.readouterr().err


def test_mann_kendall_is_that_of_the_books() -> None:
    """S = 10 of five rising values has variance 16.67: z = 2.20; no trend and all equal are chance."""
    assert mann_kendall([1, 2, 3, 4, 5]) == pytest.approx(0.0137, abs=1e-4)
    assert mann_kendall([1.0] * 9) == 1.0
    assert mann_kendall([5, 4, 3, 2, 1]) > 0.98
    assert theil_sen([0, 1, 2, 30, 4]) == 1.0


def told(nights: int, *, per_night: float, noise: float, repeats: int = 1000, carry: float = 0.0) -> float:
    """The share of simulated histories in which drift is told; ``carry``: what a night keeps of the last's noise."""
    found = 0
    for seed in range(repeats):
        found += drift("step_seconds", series(random.Random(seed), nights, per_night, noise, carry)).told
    return found / repeats


def series(dice: random.Random, nights: int, per_night: float, noise: float, carry: float) -> Sequence[float]:
    """One simulated history."""
    values, off = [], 0.0
    for night in range(nights):
        off = carry * off + dice.gauss(0, noise * (1 - carry**2) ** 0.5)
        values.append((1 + per_night) ** night * (1 + off))
    return values


@pytest.mark.parametrize(("nights", "carry", "most"), [(14, 0.0, 0.003), (30, 0.0, 0.003), (30, 0.3, 0.01)])
def test_drift_does_not_cry_wolf(nights: int, carry: float, most: float) -> None:
    """Steady nights of 1.5 % noise: told in at most 3 of 1000 histories; 10 where nights resemble the last one."""
    assert told(nights, per_night=0.0, noise=0.015, carry=carry) <= most


@pytest.mark.parametrize(("nights", "per_night", "least"), [(14, 0.01, 0.98), (30, 0.003, 0.95)])
def test_drift_is_seen(nights: int, per_night: float, least: float) -> None:
    """In the same noise, 1 % per night within two weeks and 0.3 % per night within a month."""
    assert told(nights, per_night=per_night, noise=0.015, repeats=300) >= least


def test_an_improvement_is_no_drift() -> None:
    """Falling seconds and rising rates are not told; rising seconds and falling rates are."""
    rising, falling = [1.0 + 0.01 * n for n in range(20)], [2.0 - 0.01 * n for n in range(20)]
    assert [drift("step_seconds", falling).told, drift("tokens_per_second", rising).told] == [False, False]
    assert [drift("step_seconds", rising).told, drift("tokens_per_second", falling).told] == [True, True]
