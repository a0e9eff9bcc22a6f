"""A launcher that trains nothing and a GPU driver that is not there: the plugin's world in its self-tests."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.files import write_json
from fixtures.hardware.leases import Leases
from fixtures.hardware.leases import folder as leases_folder
from fixtures.hardware.recorded import Recorded
from fixtures.observation import Observation, RankRecord, Request, Step
from fixtures.outside import Outside
from fixtures.spec import Case
from fixtures.verdict import Finding
from selftests.records import safetensors

CASE = Case(model="llama-tiny", engine="zero3", precision="fp32")
OTHER = Case(model="gpt2-tiny", engine="fsdp2", precision="fp32")


Suite = Callable[..., pytest.Pytester]


def assert_usage_error(result: pytest.RunResult, *words: str) -> None:
    """Exit status 4, and one line on stderr that holds all the ``words``."""
    lines = [line for line in result.errlines if line]
    told = len(lines) == 1 and all(word in lines[0] for word in words)
    if result.ret != pytest.ExitCode.USAGE_ERROR or not told:
        pytest.fail(f"exit status {result.ret} and {lines}, not a usage error with {words}")
    result.stdout.no_fnmatch_line("*Traceback*")


def cpu_seconds_of_children() -> float:
    """CPU time of all processes that ended so far: wall time, less what a busy machine adds."""
    spent = os.times()
    return spent.children_user + spent.children_system


def finding(case: Case, *, rung: str = "loss", passed: bool = True, used: float | None = 0.25, **words: str) -> Finding:
    """A claim about ``case``."""
    said: dict[str, Any] = {"metric": "loss, step 1", "observed": "5.25", "allowed": "5.24 +/- 0.04"}
    said |= {"reference": "plain oracle", **words}
    return Finding(subject=case.id, rung=rung, passed=passed, used=used, **said)


def observation(request: Request, run_dir: Path) -> Observation:
    """What an uneventful run of one step shows."""
    step = Step(loss=2.5, model_loss=None, grad_norm=1.0, measured_grad_norm=None, learning_rates=(1e-3,), rows=(0,),
                seconds=0.1)
    ranks = tuple(RankRecord(rank=rank, outcome="ok", steps=(step,)) for rank in range(request.case.world_size))
    return Observation(case=request.case, outcome="ok", ranks=ranks, error=None, fault=None, wall_seconds=0.1,
                       provenance={}, folder=run_dir)


def crash(request: Request, run_dir: Path) -> Observation:
    """What a run shows whose rank 1 died."""
    error = {"rank": 1, "type": "ValueError", "message": "weights are upside down\nreally",
             "log_tail": "line a\nline b", "traceback": "Traceback (most recent call last):\n  the guilty line"}
    return Observation(case=request.case, outcome="crashed", ranks=(), error=error, fault=None, wall_seconds=0.1,
                       provenance={}, folder=run_dir)


def hang(request: Request, run_dir: Path) -> Observation:
    """What a run shows whose deadline expired."""
    error = {"rank": 0, "type": "DeadlineExpired", "message": "no end within 7 s", "log_tail": "waiting",
             "traceback": "stack of nobody", "stacks": ["File a.py", "File b.py"]}
    return replace(crash(request, run_dir), outcome="hung", error=error)


def run_out_of_space(request: Request, run_dir: Path) -> Observation:
    """What a run shows whose rank could not write its tensors."""
    message = "Error while serializing: I/O error: No space left on device (os error 28)"
    error = {"rank": 0, "type": "SafetensorError", "message": message}
    return replace(crash(request, run_dir), error=error)


OUTCOMES = {"rank full": run_out_of_space, "crash": crash, "hang": hang}


class FakeLauncher:
    """Writes the observation that a real launcher would, and a line into ``launched.txt`` beside the runs.

    ``FAKE_FAULT`` in the environment makes it misbehave: ``full``, ``rank full``, ``interrupt``, ``no tensors``,
    ``crash``, ``hang``. ``FAKE_LAST_WORDS`` are what a rank prints that crashes; if they begin with ``once:``, only in
    the first run of a case.
    """

    def run(
        self, request: Request, run_dir: Path, *, deadline_seconds: float,
        on_progress: Callable[[Any], None] | None = None, env: Mapping[str, str] | None = None,
    ) -> Observation:
        """As :meth:`fixtures.launch.Launcher.run`."""
        _note_down(f"{request.case.id} {deadline_seconds:g}{_on(env)}")
        fault = os.environ.get("FAKE_FAULT", "")
        if fault == "full" and request.case.engine == OTHER.engine:
            raise OSError(errno.ENOSPC, "No space left on device")
        if fault == "interrupt":
            raise KeyboardInterrupt
        for step in (1, 2):
            if on_progress is not None:
                on_progress(SimpleNamespace(case_id=request.case.id, step=step, steps=2, elapsed_seconds=step / 10))
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        seen = OUTCOMES.get(fault, observation)(request, run_dir)
        words = os.environ.get("FAKE_LAST_WORDS", "")
        if words and not (words.startswith("once:") and (run_dir / "first-attempt").exists()):
            (run_dir / "rank1.log").write_text(words.removeprefix("once:") + "\n" + "a frame\n" * 50, encoding="utf-8")
            (run_dir / "nccl_trace_rank_1").touch()
            seen = crash(request, run_dir)
        write_json(run_dir / "request.json", request.to_json())
        write_json(run_dir / "observation.json", seen.to_json())
        if fault != "no tensors":
            (run_dir / "tensors.safetensors").write_bytes(safetensors({"parameters/w": [1.0]}))
        return seen

    def run_together(
        self, members: Sequence[tuple[Request, Path]], *, deadline_seconds: float,
        on_progress: Callable[[Any], None] | None = None, env: Mapping[str, str] | None = None,
    ) -> list[Observation]:
        """As :meth:`run` for each, one after the other."""
        return [self.run(request, run_dir, deadline_seconds=deadline_seconds, on_progress=on_progress, env=env)
                for request, run_dir in members]

    def start(self, platform: str) -> None:
        """Nothing takes long."""

    def close(self) -> None:
        """Leaves its mark, so that a self-test can see it was called."""
        _note_down("closed")


def _on(env: Mapping[str, str] | None) -> str:
    """Which GPUs the ranks see, if that is said, and whether all of the machine's are leased meanwhile."""
    if not env:
        return ""
    leases = Leases(leases_folder())
    alone = all(leases.held(one["uuid"]) for one in machine(4)["gpus"])
    return f" on {env['CUDA_VISIBLE_DEVICES']} by {env['CUDA_DEVICE_ORDER']}{', alone' if alone else ''}"


def _note_down(line: str) -> None:
    with Path(os.environ["FAKE_LOG"]).open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


class ThoroughLauncher(FakeLauncher):
    """Leaves records of a real run's size: 20 steps, a page of settings, 60,000 gathered numbers."""

    def run(
        self, request: Request, run_dir: Path, *, deadline_seconds: float,
        on_progress: Callable[[Any], None] | None = None, env: Mapping[str, str] | None = None,
    ) -> Observation:
        """As :meth:`FakeLauncher.run`."""
        seen = super().run(request, run_dir, deadline_seconds=deadline_seconds, on_progress=on_progress, env=env)
        settings = {f"key{n}": [n] * 3 for n in range(100)}
        ranks = tuple(replace(rank, steps=rank.steps * 20, settings=settings) for rank in seen.ranks)
        (run_dir / "tensors.safetensors").write_bytes(safetensors({"gradients/w": [0.0] * 60_000}))
        return replace(seen, ranks=ranks)


def gpu(index: int, name: str = "NVIDIA A100-SXM4-80GB", **changes: Any) -> dict[str, Any]:
    """The answers of an idle GPU, in the form of ``fixtures/hardware/recorded.py``."""
    answers = {
        "name": name, "uuid": f"GPU-0000000{index}-0000-4000-8000-000000000000", "mig": [0, 0], "processes": [],
        "memory": {"total": 80 * 2**30, "used": 600 * 2**20}, "ecc": 0, "links": 12, "clock": 1410, "throttle": 1,
        "xids": [],
    }
    return {**answers, **changes}


def machine(count: int, **changes: Any) -> dict[str, Any]:
    """The answers of a machine with ``count`` alike."""
    return {"driver": "570.86.15", "gpus": [gpu(index, **changes) for index in range(count)]}


class FakeNvml(Recorded):
    """NVML with GPUs of these names, or a problem in their place."""

    class NVMLError_LibraryNotFound(Recorded.NVMLError):  # noqa: N801
        """As pynvml's."""

    def __init__(self, *names: str | bytes, problem: Exception | None = None) -> None:
        super().__init__({"gpus": [gpu(index) for index in range(len(names))]})
        self._names = names
        self._problem = problem

    def nvmlInit(self) -> None:  # noqa: N802
        """As pynvml's."""
        if self._problem is not None:
            raise self._problem
        super().nvmlInit()

    def nvmlDeviceGetName(self, handle: int, /) -> str | bytes:  # noqa: N802
        """As pynvml's."""
        return self._names[handle]


def outside(**changes: Any) -> Outside:
    """A machine with everything installed, no GPU, and a launcher that trains nothing."""
    fakes: dict[str, Any] = {
        "launcher": FakeLauncher, "version_of": lambda _: "99.0", "nvml": FakeNvml,
    }
    return Outside(**{**fakes, **changes})
