"""What ``--launcher`` may say, which ports cases meet at, and who a rank finds itself to be."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.files import RecordError, write_json
from fixtures.launchers import place
from fixtures.launchers.command import PLACEHOLDERS, PRESETS, Command, CommandError, again, fill, parse
from fixtures.launchers.process import free_port


def read(text: str, nodes: str | None = "2", environ: Mapping[str, str] | None = None) -> Command:
    """As the command line is read, on a machine that has every program but ``nowhere``."""
    return parse(text, nodes, environ=environ or {}, which=lambda name: None if name == "nowhere" else f"/bin/{name}")


def test_every_placeholder_is_filled() -> None:
    """Each in its own word, however the path is spelled."""
    command = read(" ".join(["go", *(f"{name}={{{name}}}" for name in PLACEHOLDERS)]))
    values = command.values("a-case-x4", 4, host="front", port=20001, python="/v/bin/python")
    assert fill(command.words, values, "/shared disk/runs") == [
        "go", "run_dir=/shared disk/runs", "case=a-case-x4", "ranks=4", "nodes=2", "ranks_per_node=2", "host=front",
        "port=20001", "python=/v/bin/python",
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_command(name: str) -> None:
    """One word stands for a whole line, which ends in the worker and the folder."""
    command = read(name, "1" if name == "torchrun" else "2")
    values = command.values("c", 2, host="front", port=20001, python="python")
    assert fill(command.words, values, "runs/c")[-3:] == ["-m", "fixtures.worker", "runs/c"]


@pytest.mark.parametrize(
    ("text", "nodes", "words"),
    [
        ("go {run_dir} {rank}", "2", "unknown placeholder {rank} (known: run_dir, case, "),
        ("go {run_dir.parent}", "2", "unknown placeholder {run_dir.parent}"),
        ("go {run_dir} {ranks:3d}", "2", "unknown placeholder {ranks:3d}"),
        ("go {run_dir} {}", "2", "unknown placeholder {}"),
        ("go {run_dir", "2", "a brace itself is written twice"),
        ("go 'here {run_dir}", "2", "cannot be split into words: No closing quotation"),
        ("", "2", "is empty: name a preset (torchrun, srun, srun-torchrun) or a command"),
        ("go there", "2", "{run_dir} is missing"),
        ("nowhere {run_dir}", "2", "there is no program 'nowhere' here"),
        ("go {run_dir} {nodes}", None, "say it with --nodes=N"),
        ("go {run_dir} {ranks_per_node}", None, "say it with --nodes=N"),
        ("go {run_dir}", "two", "--nodes two: not a positive whole number"),
        ("go {run_dir}", "0", "--nodes 0: not a positive whole number"),
        ("torchrun", "2", "starts the ranks of one node, not of 2"),
    ],
)
def test_a_mistake_is_one_line(text: str, nodes: str | None, words: str) -> None:
    """It says what was wrong, and with what."""
    with pytest.raises(CommandError, match=r"^--(launcher|nodes)") as met:
        read(text, nodes)
    assert words in str(met.value)
    assert "\n" not in str(met.value)


@pytest.mark.parametrize(
    ("nodes", "ranks", "used"), [(1, 4, 1), (2, 4, 2), (4, 4, 4), (3, 4, 2), (8, 2, 2), (2, 3, 1), (None, 4, 1)],
)
def test_ranks_divide_over_nodes_evenly(nodes: int | None, ranks: int, used: int) -> None:
    """A case takes as many nodes as it can fill with the same number of ranks."""
    assert Command(words=("go",), nodes=nodes).nodes_for(ranks) == used


@pytest.mark.parametrize(
    ("nodes", "environ", "count"),
    [
        (None, {}, None), (None, {"SLURM_JOB_NUM_NODES": "4"}, 4), (None, {"SLURM_NNODES": "3"}, 3),
        ("2", {"SLURM_JOB_NUM_NODES": "4"}, 2),
    ],
)
def test_slurm_says_how_many_nodes_there_are(nodes: str | None, environ: dict[str, str], count: int | None) -> None:
    """Unless the command line does."""
    assert read("go {run_dir}", nodes, environ).nodes == count


def test_a_launch_is_given_again(tmp_path: Path) -> None:
    """With the folder that the record lies in now; a run that no command started has none; a damaged one is told."""
    assert again(tmp_path, "runs/a") is None
    told = {"schema": 3, "words": ["go", "{ranks}", "{run_dir}"], "values": {"ranks": 2}}
    write_json(tmp_path / "launch.json", told)
    assert again(tmp_path, "runs/a b") == "go 2 'runs/a b'"
    write_json(tmp_path / "launch.json", {**told, "values": {}})
    with pytest.raises(RecordError, match="does not hold a launch"):
        again(tmp_path, "runs/a")


def test_no_two_workers_draw_the_same_port() -> None:
    """Of all ports, each of xdist's workers has its own; what is taken is not drawn."""
    drawn = [
        {free_port({"PYTEST_XDIST_WORKER": f"gw{worker}", "PYTEST_XDIST_WORKER_COUNT": "2"}) for _ in range(20)}
        for worker in range(2)
    ]
    assert not drawn[0] & drawn[1]
    assert len(drawn[0]) > 1
    assert all(port in place.PORTS for ports in drawn for port in ports)


def test_a_port_in_use_is_not_drawn() -> None:
    """A worker whose only port is taken has none."""
    port = free_port()
    only = {"PYTEST_XDIST_WORKER": f"gw{port - place.PORTS.start}", "PYTEST_XDIST_WORKER_COUNT": str(len(place.PORTS))}
    assert free_port(only) == port
    with socket.socket() as holder:
        holder.bind(("", port))
        holder.listen()
        with pytest.raises(OSError, match="no port of 20000 to 29999 is free"):
            free_port(only)


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
            "MASTER_ADDR": "a1", "MASTER_PORT": "29500"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
        "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "a[1-2]", "SLURMD_NODENAME": "a2"}
THE_FOURTH = place.Place(rank=3, ranks=4, local_rank=1, local_ranks=2, node=1, master="a1")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, THE_FOURTH),
        (SRUN, replace(THE_FOURTH, host="a2")),
        ({**SRUN, **TORCHRUN, "RANK": "2", "LOCAL_RANK": "0"}, place.Place(
            rank=2, ranks=4, local_rank=0, local_ranks=2, node=1, master="a1", host="a2")),
        ({}, place.Place()),
        # The script of a batch job is no task of a step.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURMD_NODENAME": "a1"}, place.Place()),
    ],
)
def test_a_rank_finds_out_who_it_is(environ: dict[str, str], expected: place.Place) -> None:
    """From torchrun's words before srun's, whose step may have started torchrun."""
    assert place.find(environ) == expected


def test_srun_says_what_torchrun_would() -> None:
    """So that whoever looks into the environment finds the same."""
    said = place.find(SRUN).variables(place.meeting_port(SRUN, 29500))
    assert said == TORCHRUN
    assert place.meeting_port({**SRUN, "SLURM_STEP_ID": "1"}) == place.meeting_port(SRUN) + 1
    assert place.meeting_port({**SRUN, "MASTER_PORT": "5"}, 6) == 5


@pytest.mark.parametrize(("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("8", [8]), ("1(x2)", [1, 1]), ("", [])])
def test_slurms_counts_are_read(text: str, counts: list[int]) -> None:
    """Tasks per node, repeated ones in brackets."""
    assert place.tasks_per_node(text) == counts


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a1", "a1"), ("a1,b", "a1"), ("gpu[07-09,12],b", "gpu07"), ("n[3,5]-ib", "n3-ib"), ("", "")],
)
def test_the_first_host_of_a_list_is_read(nodes: str, first: str) -> None:
    """Where Slurm puts rank 0."""
    assert place.first_host(nodes) == first
