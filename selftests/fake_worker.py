"""A worker without frameworks, for the launcher's own tests: what its rank 1 does is the request's ``fault``.

Rank 0 behaves, and waits for rank 1 as a rank of a process group would.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from fixtures.files import write_json
from fixtures.observation import RankRecord, Request, Step

FOREVER_SECONDS = 600


def environment(platform: str) -> Mapping[str, str]:
    """Nothing to set: there is no framework to be told."""
    return {}


def run_rank(run_dir: Path, *, rank: int, world_size: int) -> int:
    """Record the case's steps at once, unless the fault has other plans for this rank."""
    request = Request.read(run_dir)
    _say(f"rank {rank} of {world_size}, process {os.getpid()}")
    if request.fault is not None:
        FAULTS[request.fault](run_dir, rank)
    _record(run_dir, request, rank)
    return 0


def _record(run_dir: Path, request: Request, rank: int) -> None:
    if rank == 0:
        (run_dir / "progress").write_text(f"{request.case.steps}/{request.case.steps}", encoding="utf-8")
    step = Step(loss=0.5, model_loss=None, grad_norm=1.0, measured_grad_norm=None, learning_rates=(1e-3,),
                rows=(rank,), seconds=0.0)
    record = RankRecord(rank=rank, outcome="ok", steps=(step,) * request.case.steps, seconds={"total": 0.0})
    write_json(run_dir / f"rank{rank}.json", record.to_json())


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")


def _wait_forever() -> NoReturn:
    time.sleep(FOREVER_SECONDS)
    raise AssertionError("nobody ended this rank")


def hangs(run_dir: Path, rank: int) -> None:
    """Both ranks wait for something that never comes."""
    if rank == 0:
        (run_dir / "progress").write_text("3/20", encoding="utf-8")
    _wait_forever()


def one_hangs(run_dir: Path, rank: int) -> None:
    """Rank 0 has done its work; rank 1 never ends."""
    if rank == 1:
        _wait_forever()


def ignores_signals(run_dir: Path, rank: int) -> None:
    """Both ranks wait, and refuse to end for anything that can be refused."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (run_dir / f"waiting{rank}").touch()
    _wait_forever()


def raises(run_dir: Path, rank: int) -> None:
    """Rank 1 lets an exception escape from ``run_rank``; rank 0 would wait for ever."""
    if rank == 0:
        _wait_forever()
    for number in range(30):
        _say(f"line {number}")
    raise ValueError("the sum of the parts is not the whole")


def segfaults(run_dir: Path, rank: int) -> None:
    """Rank 1 dies as a bug in compiled code would make it."""
    if rank == 0:
        _wait_forever()
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed(run_dir: Path, rank: int) -> None:
    """Rank 1 dies as the system's memory killer would make it."""
    if rank == 0:
        _wait_forever()
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_late(run_dir: Path, rank: int) -> None:
    """As above, but rank 0, which lost its peer, is the first whose end is seen."""
    if rank == 0:
        raise ConnectionError("Connection closed by peer")
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def exits_with_3(run_dir: Path, rank: int) -> None:
    """Rank 1 leaves without a word."""
    if rank == 0:
        _wait_forever()
    os._exit(3)


def leaves_early(run_dir: Path, rank: int) -> None:
    """Rank 1 leaves with status 0 and no record."""
    if rank == 1:
        os._exit(0)


def both_account(run_dir: Path, rank: int) -> None:
    """Rank 1 dies silently, and rank 0 notices and writes its own account soon after."""
    if rank == 1:
        os._exit(3)
    time.sleep(0.1)
    raise ConnectionError("rank 1 closed the connection")


def has_children(run_dir: Path, rank: int) -> None:
    """Each rank starts a process that would outlive it, then the work is done."""
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_SECONDS})"])
    (run_dir / f"child{rank}").write_text(str(child.pid), encoding="utf-8")


def has_children_and_hangs(run_dir: Path, rank: int) -> None:
    """As above, but the work is never done."""
    has_children(run_dir, rank)
    (run_dir / f"waiting{rank}").touch()
    _wait_forever()


def imports_framework(run_dir: Path, rank: int) -> None:
    """Both ranks need a package that the test provides."""
    importlib.import_module("a_framework")


def tells_variables(run_dir: Path, rank: int) -> None:
    """Each rank writes down its environment."""
    (run_dir / f"variables{rank}.json").write_text(json.dumps(dict(os.environ)), encoding="utf-8")


def kills_template(run_dir: Path, rank: int) -> None:
    """Rank 1 ends the process that it was forked from."""
    if rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    _wait_forever()


FAULTS = {
    function.__name__: function
    for function in (
        hangs, one_hangs, ignores_signals, raises, segfaults, is_killed, is_killed_late, exits_with_3, leaves_early,
        both_account, has_children, has_children_and_hangs, imports_framework, tells_variables,
        kills_template,
    )
}
