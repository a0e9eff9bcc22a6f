"""Which nodes are called lost, from their last signs of life; and a rank's own pulse."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.files import read_json, write_json
from fixtures.launchers import pulse
from fixtures.launchers.endings import accused
from fixtures.launchers.lost import lost, nodes
from fixtures.launchers.place import Place


def sign(rank: int, node: int, **heard: float) -> dict[str, Any]:
    """What ``rank`` said last: when ``node`` heard the others, which is told by one rank of each node."""
    said = {"heard": {number.removeprefix("n"): age for number, age in heard.items()}} if heard else {}
    return {"rank": rank, "node": {"number": node, "host": "m", "address": f"10.0.0.{node}"}, **said}


def judged(*heard: dict[str, float], silent: dict[int, float] | None = None, ended: tuple[int, ...] = ()) -> list[int]:
    """The numbers of the lost among nodes of one rank each, of which ``ended`` have recorded their work."""
    signs = {rank: sign(rank, rank, **ages) for rank, ages in enumerate(heard)}
    return list(lost(signs, silent or {}, [rank for rank in signs if rank not in ended]))


def test_nodes_that_hear_each_other_are_there() -> None:
    """Fresh signs, and none of them is lost."""
    assert judged({"n1": 0.4}, {"n0": 0.9}) == []


def test_of_two_nodes_the_one_without_rank_0_is_lost() -> None:
    """Somebody has to be: where rank 0 is, they meet."""
    assert judged({"n1": 8.0}, {"n0": 8.0}) == [1]


def test_one_way_is_enough() -> None:
    """A link that lets through in one direction only is no link."""
    assert judged({"n1": 0.1}, {"n0": 8.0}) == [1]


def test_of_three_nodes_the_lonely_one_is_lost() -> None:
    """Also where it is the one with rank 0."""
    assert judged({"n1": 8.0, "n2": 8.0}, {"n0": 8.0, "n2": 0.1}, {"n0": 8.0, "n1": 0.1}) == [0]
    assert judged({"n1": 8.0, "n2": 0.1}, {"n0": 8.0, "n2": 8.0}, {"n0": 0.1, "n1": 8.0}) == [1]


def test_nodes_that_reach_each_other_by_way_of_a_third_are_there() -> None:
    """One broken pair among three does not cut anybody off."""
    assert judged({"n1": 8.0, "n2": 0.1}, {"n0": 8.0, "n2": 0.1}, {"n0": 0.1, "n1": 0.1}) == []


def test_a_silent_file_is_a_lost_node() -> None:
    """Its process is gone or stands still, whatever others heard."""
    assert judged({"n1": 0.1}, {"n0": 0.1}, silent={0: 9.0, 1: 0.5}) == [0]
    assert judged({"n1": 9.0}, {"n0": 0.1}, silent={0: 0.5, 1: 9.0}) == [1]


def test_a_network_without_datagrams_proves_nothing() -> None:
    """Who never heard anybody may sit behind a firewall."""
    assert judged({}, {}) == []


def test_a_node_that_has_recorded_its_work_is_not_lost() -> None:
    """It left; the other is not lost either."""
    assert judged({"n1": 9.0}, {"n0": 0.1}, ended=(1,), silent={1: 30.0}) == []


def test_ranks_of_one_node_are_told_together() -> None:
    """A node is there as long as one of its unfinished ranks is."""
    signs = {0: sign(0, 0, n1=0.1), 1: sign(1, 0), 2: sign(2, 1, n0=0.1), 3: sign(3, 1)}
    assert {number: ranks for number, (_, ranks) in nodes(signs).items()} == {0: [0, 1], 1: [2, 3]}
    assert list(lost(signs, {2: 9.0, 3: 0.2}, [0, 1, 2, 3])) == []
    assert lost(signs, {2: 9.0, 3: 8.0}, [0, 1, 2, 3]) == {1: 8.0}


TORCHRUN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
fixtures.worker FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_21:28:08
  host      : localhost
  rank      : 1 (local_rank: 0)
  exitcode  : -9 (pid: 19794)
"""


@pytest.mark.parametrize(
    ("printed", "rank"),
    [
        (TORCHRUN, 1), (TORCHRUN + TORCHRUN.replace("rank      : 1", "rank      : 0"), 1),
        ("srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Terminated\n", 1),
        ("srun: error: gpu-07: tasks 2-3: Exited with exit code 3\n", 2),
        ("srun: error: Unable to allocate resources\n", None), ("rank: 1 is well\n", None), ("", None),
    ],
)
def test_the_command_says_who_failed_first(printed: str, rank: int | None) -> None:
    """In torchrun's words and in srun's, as they were printed; other words accuse nobody."""
    assert accused(printed) == rank


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A case's folder with a launcher that counts."""
    (tmp_path / pulse.FOLDER).mkdir()
    write_json(tmp_path / pulse.FOLDER / pulse.COUNT, {"schema": 3, "count": 1})
    return tmp_path


def test_speakers_of_two_nodes_hear_each_other(folder: Path) -> None:
    """By datagrams, and tell it in their signs."""
    both = [pulse.Pulse(folder, Place(rank=rank, ranks=2, node=rank, master="127.0.0.1")) for rank in range(2)]
    for one in both:
        one.start()
    time.sleep(3.5 * pulse.BEAT_SECONDS)
    for one in both:
        one.stop()
    signs = pulse.read(folder)
    assert [set(signs[rank]["heard"]) for rank in range(2)] == [{"1"}, {"0"}]
    assert all(float(age) < 3.0 for told in signs.values() for age in told["heard"].values())
    assert read_json(folder / "nodes" / "rank0.json")["beat"] >= 3


@pytest.mark.parametrize(
    ("end", "words"),
    [("ended", "the launcher has ended this case"), ("gone", "the launcher has ended this case"),
     ("silent", "the launcher has been silent"), ("counting", "")],
)
def test_a_rank_that_nobody_waits_for_leaves(folder: Path, end: str, words: str) -> None:
    """When it is told, when its folder is gone, when the count stands still; and not while the launcher counts."""
    left: list[str] = []
    one = pulse.Pulse(folder, Place(), alone_seconds=1.5, leave=left.append)
    one.start()
    for count in range(30):
        if left:
            break
        if end == "ended":
            (folder / "nodes" / pulse.ENDED).touch()
        elif end == "gone" and (folder / "nodes").exists():
            (folder / "nodes").rename(folder / "elsewhere")
        elif end == "counting":
            write_json(folder / "nodes" / pulse.COUNT, {"schema": 3, "count": count})
        time.sleep(0.15)
    one.stop()
    assert "".join(left)[:len(words)] == words
    assert len(left) == bool(words)
