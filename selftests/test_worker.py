"""By hand: ``python -m fixtures.worker`` and torchrun repeat a recorded run bit for bit, and never write over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.catalogue import ORACLE
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.files import write_json
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 120

PLAIN = ORACLE["clip"].with_(steps=3)
DDP = PLAIN.with_(engine="ddp", world_size=2)
ALONE = ("-m",)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")

Files = dict[str, bytes]


def request(case: Case, fault: str | None = None) -> Request:
    """As the gate asks for it."""
    return Request(case=case, settings=settings(case), fault=fault)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """The gate's own, with the real engines."""
    extensions.ensure_built()
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def recorded(launcher: Launcher, tmp_path: Path) -> Callable[[Case], Observation]:
    """``recorded(case)``: the case, run as the gate runs it, in a folder of its own."""

    def run(case: Case) -> Observation:
        (tmp_path / case.id).mkdir()
        seen = launcher.run(request(case), tmp_path / case.id, deadline_seconds=TIMEOUT_SECONDS)
        assert seen.outcome == "ok", seen.error
        return seen

    return run


def by_hand(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, as somebody with a terminal would."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=TIMEOUT_SECONDS, check=False,
    )


def files(folder: Path) -> Files:
    """What lies in a run's folder itself."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(("case", "launch"), [(PLAIN, ALONE), (DDP, TORCHRUN)], ids=["alone", "under torchrun"])
def test_a_run_by_hand_repeats_the_recorded_one(
    recorded: Callable[[Case], Observation], case: Case, launch: tuple[str, ...],
) -> None:
    """Losses, norms and gathered tensors are the same to the last bit; what was recorded earlier is as it was."""
    seen = recorded(case)
    before = files(seen.folder)
    ended = by_hand(*launch, "fixtures.worker", seen.folder)
    assert ended.returncode == 0, ended.stderr
    again = Observation.read(seen.folder / "by-hand")
    assert (again.outcome, again.losses, again.grad_norms) == ("ok", seen.losses, seen.grad_norms)
    assert again.tensors == seen.tensors
    assert files(seen.folder) == before
    assert f"step   3  loss {seen.losses[2]:.9f}" in ended.stdout


def test_the_clipping_norm_bites(recorded: Callable[[Case], Observation]) -> None:
    """Every step's gradient is longer than what the clipping recipe clips to, so that clipping is no empty word."""
    norms = [norm for (norm,) in recorded(ORACLE["clip"]).grad_norms]
    assert len(norms) == ORACLE["clip"].steps
    assert all(norm is not None and norm > 0.5 for norm in norms)


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    """It would inject nothing, and a self-test that asks for it would prove nothing: no step is made."""
    write_json(tmp_path / "request.json", request(PLAIN, "rank_hang").to_json())
    ended = by_hand("-m", "fixtures.worker", tmp_path)
    seen = Observation.read(tmp_path / "by-hand")
    assert (ended.returncode, seen.outcome, seen.fault) == (1, "crashed", "rank_hang")
    assert [rank.steps for rank in seen.ranks] == [()]
    assert seen.error is not None
    assert seen.error["message"].startswith("unknown fault 'rank_hang' (known: upcast_skipped, ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "request.json is missing"),
        ("{", "request.json is truncated or corrupt"),
        ('{"schema": 3}', "request.json is not a request"),
    ],
)
def test_a_folder_without_a_request_is_a_usage_error(tmp_path: Path, content: str | None, words: str) -> None:
    """One line that names the file, status 4, and nothing is made in the folder."""
    _ = content is None or (tmp_path / "request.json").write_text(content)
    before = files(tmp_path)
    told(by_hand("-m", "fixtures.worker", tmp_path), f"fixtures.worker: {tmp_path}/{words}")
    assert files(tmp_path) == before


@pytest.mark.parametrize(("case", "ranks"), [(DDP, "1"), (DDP, "4"), (PLAIN, "2")])
def test_another_number_of_ranks_is_a_usage_error(tmp_path: Path, case: Case, ranks: str) -> None:
    """Fewer or more ranks would train another batch: the line is the command with the right number."""
    write_json(tmp_path / "request.json", request(case).to_json())
    ended = by_hand("-m", "fixtures.worker", tmp_path, RANK="0", WORLD_SIZE=ranks)
    command = f"torchrun --nproc-per-node {case.world_size} -m fixtures.worker {tmp_path}"
    told(ended, f"fixtures.worker: {case.id} needs {case.world_size} ranks, not {ranks}: {command}")
    assert list(files(tmp_path)) == ["request.json"]


@pytest.mark.parametrize("words", [(), ("one", "two")])
def test_no_folder_or_two_is_a_usage_error(words: tuple[str, ...]) -> None:
    """The line is how it is used."""
    told(by_hand("-m", "fixtures.worker", *words), "usage: torchrun --nproc-per-node N -m fixtures.worker RUN_DIR")


def told(ended: subprocess.CompletedProcess[str], line: str) -> None:
    """Check that a command ended with status 4 and one line on standard error that begins with ``line``."""
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr.startswith(line)
    assert len(ended.stderr.splitlines()) == 1
