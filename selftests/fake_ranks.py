"""``python -m selftests.fake_ranks HOW FAULT RUN_DIR``: what torchrun or srun would start, without frameworks.

``HOW`` is ``torchrun`` or ``srun``: which variables tell the ranks who they are. Each rank is on a node of its own, and
has a session of its own, as torchrun's have. What rank 1 does is ``FAULT`` (see selftests/fake_worker.py, and below).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fixtures.files import read_json, write_json
from fixtures.launchers import place
from fixtures.launchers import rank as launched
from fixtures.observation import Request
from selftests import fake_worker

ROOT = Path(__file__).resolve().parent.parent


def stops(run_dir: Path, rank: int) -> None:
    """Rank 1 stands still, as if its machine were gone; rank 0 waits for it."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(fake_worker.FOREVER_SECONDS)


def stops_first(run_dir: Path, rank: int) -> None:
    """As above, but it is rank 0 that stands still."""
    stops(run_dir, 1 - rank)


def never_comes(run_dir: Path, rank: int) -> None:
    """Rank 1 was never started (see :func:`start`)."""
    time.sleep(fake_worker.FOREVER_SECONDS)


FAULTS = {**fake_worker.FAULTS, "stops": stops, "stops_first": stops_first, "never_comes": never_comes}


def start(how: str, fault: str, run_dir: Path) -> int:
    """Start the ranks as ``how`` says and wait for them; exit status 1 as soon as one fails, as torchrun does."""
    ranks = Request.read(run_dir).case.processes
    running = [
        subprocess.Popen([sys.executable, "-m", "selftests.fake_ranks", "rank", fault, str(run_dir)], cwd=ROOT,
                         env={**os.environ, **VARIABLES[how](rank, ranks)}, start_new_session=True)
        for rank in range(ranks - (fault == "never_comes"))
    ]
    while all(one.poll() in (None, 0) for one in running):
        if all(one.poll() == 0 for one in running):
            return int(fault == "ends_badly")
        time.sleep(0.02)
    return 1


def _of_torchrun(rank: int, ranks: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def _of_srun(rank: int, ranks: int) -> dict[str, str]:
    return {"SLURM_STEP_ID": "3", "SLURM_JOB_ID": "77", "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0",
            "SLURM_NODEID": str(rank), "SLURM_NTASKS": str(ranks), "SLURM_STEP_NUM_TASKS": str(ranks),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{ranks})", "SLURM_STEP_NODELIST": "localhost"}


VARIABLES: Mapping[str, Callable[[int, int], dict[str, str]]] = {"torchrun": _of_torchrun, "srun": _of_srun}


def rank_of(run_dir: Path, fault: str) -> int:
    """One rank: what ``fixtures.worker`` does, with the fake worker's work."""
    launch = launched.awaited(run_dir)
    if launch is None:
        raise SystemExit("nobody waits for this rank")
    here = place.find(os.environ)

    def run_rank(
        run_dir: Path, *, rank: int, world_size: int, ready: Callable[[], None], node: Mapping[str, Any],
    ) -> int:
        ready()
        sys.stdout.write(f"rank {rank} of {world_size}\n")
        sys.stdout.write("".join(f"{name} is {os.environ[name]}\n" for name in ("GIVEN",) if name in os.environ))
        if fault in FAULTS:
            _meet(run_dir, world_size - (fault == "never_comes"))
            FAULTS[fault](run_dir, rank)
        fake_worker.run_rank(run_dir, rank=rank, world_size=world_size)
        record = read_json(run_dir / f"rank{rank}.json")
        write_json(run_dir / f"rank{rank}.json", {**record, "provenance": {"node": node}})
        return 0

    return launched.run(run_dir, here, launch, run_rank)


def _meet(run_dir: Path, ranks: int) -> None:
    """Return when all have come: a fault strikes ranks that train together."""
    give_up = time.monotonic() + 30.0
    while len(list((run_dir / "nodes").glob("rank*.json"))) < ranks and time.monotonic() < give_up:
        time.sleep(0.02)


if __name__ == "__main__":
    how, fault, folder = sys.argv[1:]
    status = rank_of(Path(folder), fault) if how == "rank" else start(how, fault, Path(folder))
    sys.stdout.flush()
    os._exit(status)
