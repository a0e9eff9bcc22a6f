"""The ranks' records become one observation: what it sums, whom it blames, and what it does not let pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.files import write_json
from fixtures.observation import LOG_TAIL_LINES, Observation, RankRecord, Request, merge
from fixtures.spec import Case
from selftests.records import STEP, observation, rank, ranks

CASE = Case(model="llama-tiny", engine="zero3", precision="fp32", steps=3)
LOSSES = [3.0, 2.5, 2.0]
SOUND = ranks(CASE, LOSSES, provenance={"seed": 0})

Merge = Callable[..., Observation]


def dead(number: int, message: str, *, outcome: str = "crashed") -> RankRecord:
    """The record of a rank that died in its second step."""
    return rank(
        number, STEP, outcome=outcome, error={"type": "RuntimeError", "message": message, "traceback": "in step"}
    )


CLOSED = dead(0, "Connection closed by peer")
"""What the death of another rank does to a rank that waits for it."""


@pytest.fixture
def merged(tmp_path: Path) -> Merge:
    """``merged(*records, **what_the_launcher_saw)``: write the records under their own numbers and merge them."""

    def write_and_merge(*records: RankRecord, **seen: Any) -> Observation:
        for record in records:
            write_json(tmp_path / f"rank{record.rank}.json", record.to_json())
        return merge(Request(case=CASE, settings={}), tmp_path, wall_seconds=2.0, **seen)

    return write_and_merge


def told(seen: Observation) -> str:
    """The message of what went wrong."""
    assert seen.outcome == "crashed"
    assert seen.error is not None
    return str(seen.error["message"])


def test_whole_records_make_an_ok_observation(merged: Merge) -> None:
    """Both ranks with all their steps: nothing went wrong, and what they depend on is on record."""
    seen = merged(*SOUND, provenance={"date": "today"})
    assert (seen.outcome, seen.error, seen.ranks) == ("ok", None, SOUND)
    assert seen.provenance == {"seed": 0, "date": "today"}


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_record_is_a_crash(merged: Merge, tmp_path: Path, number: int) -> None:
    """One rank that left nothing behind is enough, whichever it is, and its file is named."""
    seen = merged(SOUND[1 - number])
    assert told(seen) == f"{tmp_path / f'rank{number}.json'} is missing"
    assert seen.error is not None
    assert seen.error["rank"] == -1


def test_no_record_at_all_is_a_crash(merged: Merge) -> None:
    """An empty folder is no run."""
    assert told(merged()).count("is missing") == CASE.world_size


def test_a_truncated_record_is_a_crash(merged: Merge, tmp_path: Path) -> None:
    """Half a record counts as none."""
    merged(*SOUND)
    (tmp_path / "rank1.json").write_bytes((tmp_path / "rank1.json").read_bytes()[:-20])
    assert "rank1.json is truncated or corrupt" in told(merged())


def test_a_record_under_another_number_is_a_crash(merged: Merge, tmp_path: Path) -> None:
    """Rank 0 twice is not two ranks, although all steps are there."""
    merged(SOUND[0])
    write_json(tmp_path / "rank1.json", SOUND[0].to_json())
    assert told(merged()) == f"{tmp_path / 'rank1.json'} is the record of rank 0"


@pytest.mark.parametrize(("steps", "count"), [((), 0), ((STEP, STEP), 2), ((STEP,) * 4, 4)])
def test_a_record_of_another_length_is_a_crash(merged: Merge, steps: Any, count: int) -> None:
    """A rank that says it is fine but made fewer steps, or more, was not."""
    assert told(merged(SOUND[0], rank(1, *steps))) == f"rank 1 recorded {count} of 3 steps"


def test_a_dying_ranks_account_is_told(merged: Merge, tmp_path: Path) -> None:
    """Its rank, type, message, traceback and the last lines of its log; what it saw until then is kept."""
    lines = [f"line {n}" for n in range(100)]
    (tmp_path / "rank1.log").write_text("\n".join(lines) + "\n\n")
    seen = merged(SOUND[0], dead(1, "the parts are not the whole"))
    assert told(seen) == "the parts are not the whole"
    assert seen.error == {
        "rank": 1, "type": "RuntimeError", "message": "the parts are not the whole", "traceback": "in step",
        "log_tail": "\n".join(lines[-LOG_TAIL_LINES:]),
    }
    assert len(seen.ranks[1].steps) == 1


def test_the_rank_that_died_first_is_blamed(merged: Merge) -> None:
    """Not the first in number, which only tells what that death did to it."""
    failure = {"rank": 1, "type": "Exit"}
    seen = merged(CLOSED, dead(1, "the parts are not the whole"), outcome="crashed", failure=failure)
    assert told(seen) == "the parts are not the whole"


def test_by_hand_the_rank_that_only_lost_a_peer_is_not_blamed(merged: Merge) -> None:
    """Without a launcher nobody saw who died first; a closed connection is what a death does to the others."""
    seen = merged(dead(0, "Connection closed by peer [127.0.0.1]:4711"), dead(1, "the real trouble"))
    assert seen.error is not None
    assert (seen.error["rank"], seen.error["message"]) == (1, "the real trouble")


def test_a_silent_death_is_told_by_the_launcher(merged: Merge) -> None:
    """Where the rank that died first left no account, the launcher's stands, and no other rank's takes its place."""
    failure = {"rank": 1, "type": "Killed", "message": "killed by SIGKILL"}
    seen = merged(CLOSED, outcome="crashed", failure=failure)
    assert (seen.outcome, seen.error) == ("crashed", failure)


def test_running_out_of_memory_takes_precedence(merged: Merge) -> None:
    """It is the cause even if another rank's process ended first."""
    failure = {"rank": 1, "type": "Exit"}
    full, closed = dead(0, "can't allocate memory", outcome="oom"), dead(1, "Connection closed by peer")
    seen = merged(full, closed, outcome="crashed", failure=failure)
    assert seen.error is not None
    assert (seen.outcome, seen.error["rank"], seen.error["message"]) == ("oom", 0, "can't allocate memory")


def test_a_hang_stays_a_hang(merged: Merge) -> None:
    """What ranks say when they are ended does not turn an expired deadline into a crash, nor do whole records."""
    failure = {"rank": 0, "type": "DeadlineExpired", "message": "no end within 7 s", "stacks": ["a", "b"]}
    for records in ((CLOSED, dead(1, "Terminated")), SOUND, ()):
        seen = merged(*records, outcome="hung", failure=failure)
        assert (seen.outcome, seen.error) == ("hung", failure)


def test_losses_are_the_sum_of_the_ranks_shares(tmp_path: Path) -> None:
    """Also the model's own, unless a rank did not ask it: then there is none for that step."""
    seen = observation(CASE, tmp_path, LOSSES)
    assert (seen.losses, seen.model_losses) == (LOSSES, LOSSES)
    silent = rank(1, *(replace(step, model_loss=None) for step in seen.ranks[1].steps))
    half = replace(seen, ranks=(seen.ranks[0], silent))
    assert (half.losses, half.model_losses) == (LOSSES, [None] * 3)


def test_what_ranks_report_is_kept_by_rank(tmp_path: Path) -> None:
    """Reported norms of every rank, measured norms by step, rows in rank order, each learning rate once."""
    first = replace(STEP, rows=(0, 1), grad_norm=1.5, measured_grad_norm=2.5, learning_rates=(0.1, 0.2))
    second = replace(first, rows=(8, 9), measured_grad_norm=None, learning_rates=(0.1,))
    other = replace(first, rows=(2, 3), grad_norm=None)
    seen = replace(observation(CASE, tmp_path, LOSSES), ranks=(rank(0, first, second), rank(1, other, other)))
    assert seen.rows == [[0, 1, 2, 3], [8, 9, 2, 3]]
    assert seen.grad_norms == [[1.5, None], [1.5, None]]
    assert seen.measured_grad_norms == {1: 2.5}
    assert seen.learning_rates == [0.1, 0.2]


def test_ranks_that_disagree_are_told(tmp_path: Path) -> None:
    """A setting of one rank is no setting of the run: what one of them says otherwise is shown, never dropped."""
    settings = [{"clip": 0.5}, {"clip": 0.0}]
    seen = observation(CASE, tmp_path, LOSSES, engaged={"wrapper": "X"}, dtypes={"master": ["float32"]})
    torn = replace(seen, ranks=tuple(replace(r, settings=settings[r.rank]) for r in seen.ranks))
    assert torn.agreed("settings") == {"ranks disagree": settings}
    assert torn.in_force() == {
        "engaged": {"wrapper": "X"}, "settings": {"ranks disagree": settings}, "collectives": {},
    }
    assert torn.agreed("dtypes") == {"master": ["float32"]}


def test_a_ranks_own_numbers_are_not_in_force(tmp_path: Path) -> None:
    """What each rank holds differs by rank and is no disagreement; anything else of the engine that differs is."""
    seen = observation(CASE, tmp_path, LOSSES)
    parts = tuple(replace(r, engaged={"stage": 3, "local": {"elements": r.rank}}) for r in seen.ranks)
    assert replace(seen, ranks=parts).in_force()["engaged"] == {"stage": 3}
    stages = tuple(replace(r, engaged={"stage": r.rank}) for r in seen.ranks)
    assert replace(seen, ranks=stages).in_force()["engaged"] == {"ranks disagree": [{"stage": 0}, {"stage": 1}]}
