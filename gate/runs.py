"""Runs the suite in an environment, or in two of them with their cases in turn. Pytest circle."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fixtures.extension_cache import ALWAYS
from gate.environments import Environment
from gate.problems import MachineError

ROOT = Path(__file__).resolve().parent.parent
IMPORT_SECONDS = 300.0
"""For importing four frameworks, compiling a new layer included: 10 to 40 s on two busy cores."""
POLL_SECONDS = 0.2
TELL_SECONDS = 15.0
END_SECONDS = 15.0
"""For pytest to end its ranks and tell what it judged when it is interrupted; then it is terminated, then killed."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which conformance tests run: a platform, and pytest's ``-k`` words or test names."""

    platform: str = "cpu"
    keyword: str | None = None
    tests: tuple[str, ...] = ()
    deadline_seconds: float | None = None

    @property
    def words(self) -> list[str]:
        """The words for pytest."""
        words = ["-m", self.platform, *self.tests]
        words += ["--report=none"] if self.tests else []  # a trial is read by the gate alone
        words += ["-k", self.keyword] if self.keyword else []
        return words + ([f"--deadline={self.deadline_seconds:g}"] if self.deadline_seconds else [])

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``Selection(**data)`` is the inverse but for the tuple."""
        return {**vars(self), "tests": list(self.tests)}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How pytest ended, and its last words if it could not do what it was asked to."""

    status: int
    last_words: str = ""

    @property
    def judged(self) -> bool:
        """Whether it ran to its end: all claims hold, or some do not."""
        return self.status in (0, 1)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What importing the frameworks showed.

    :param found: per framework ``version``, ``folder``, and ``error`` if it failed; empty if nothing answered.
    :param hung: the stack where it still was when the time was over.
    """

    found: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hung: str = ""

    @property
    def problems(self) -> list[str]:
        """A line per framework that cannot be imported."""
        if self.hung:
            return [f"importing the frameworks hangs: {self.hung}"]
        return [f"import {name}: {told['error']}" for name, told in self.found.items() if "error" in told]

    @property
    def hopeless(self) -> bool:
        """Whether no case can run: all need torch, transformers and accelerate."""
        needed = ("torch", "transformers", "accelerate")
        return bool(self.hung) or any("error" in self.found.get(name, {"error": ""}) for name in needed)


def command(selection: Selection, folder: Path, turns: Path | None = None) -> list[str]:
    """The pytest command that records ``selection`` in ``folder``, and goes on there if it began before."""
    taking = [f"--turns={turns}"] if turns else []
    here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return [*here, f"--run-dir={folder}", "--continue", *taking, *selection.words]


def chooses(selection: Selection) -> str:
    """Why ``selection`` can be run nowhere; empty if it chooses tests. Imports no framework, takes two seconds."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *selection.words]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if told.returncode == 0:
        return ""
    if told.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        return f"-k {selection.keyword!r} chooses no case" if selection.keyword else "there is no case to run"
    return _last_words(told.stdout + told.stderr).removeprefix("ERROR: ")


def run(
    sides: Mapping[str, tuple[Environment, Path]], selection: Selection, *, tell: Callable[[str], None],
    seconds: float | None = None,
) -> dict[str, Ended]:
    """Record ``selection`` in each environment and its folder, one case at a time in turn.

    :param seconds: after which what still runs is ended.
    """
    with contextlib.ExitStack() as stack:
        turns = _turns(sides)
        running = {
            name: stack.enter_context(_started(environment, command(selection, folder, turns), folder))
            for name, (environment, folder) in sides.items()
        }
        _watch(running, {name: folder for name, (_, folder) in sides.items()}, tell, seconds)
        return {name: _ended(process, sides[name][1]) for name, process in running.items()}


def _turns(sides: Mapping[str, tuple[Environment, Path]]) -> Path | None:
    folders = [folder for _, folder in sides.values()]
    return folders[0].with_name("turns") if len(folders) > 1 else None


@contextlib.contextmanager
def _started(environment: Environment, words: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own group, so that Ctrl-C comes to it once, from here; it is gone at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # All that is selected is judged anew, from the record where there is one.
        (folder / "findings.jsonl").unlink(missing_ok=True)
        with folder.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                words, cwd=ROOT, env=environment.variables(), stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )
    except OSError as error:
        raise MachineError(f"cannot run in {folder}: {error.strerror or error}") from error
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` if it still runs, gently at first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _watch(
    running: Mapping[str, subprocess.Popen[bytes]], folders: Mapping[str, Path], tell: Callable[[str], None],
    seconds: float | None,
) -> None:
    began = told = time.monotonic()
    while any(process.poll() is None for process in running.values()):
        time.sleep(POLL_SECONDS)
        now = time.monotonic()
        if seconds is not None and now - began > seconds:
            return
        if now - told >= TELL_SECONDS:
            told = now
            recorded = (f"{name} {len(list(folder.glob('*/observation.json')))}" for name, folder in folders.items())
            tell(f"{now - began:4.0f} s: cases recorded: {', '.join(recorded)}")


def _ended(process: subprocess.Popen[bytes], folder: Path) -> Ended:
    running = process.poll() is None
    end(process)
    if running:
        return Ended(status=-1, last_words="did not end in time")
    status = process.returncode
    return Ended(status=status, last_words="" if status in (0, 1) else _last_words(_text(folder.with_suffix(".log"))))


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR:", "E  ", "INTERNALERROR"))]
    return (errors or lines or ["it said nothing"])[-1].strip()


def prepare(environment: Environment) -> None:
    """Compile what every case of DeepSpeed's needs, unless that was done: a case that waits for it keeps its turn.

    What only some need, they have compiled. Where it cannot be compiled the cases that need it say why.
    """
    subprocess.run(
        [sys.executable, "-m", "fixtures.extensions", ALWAYS], cwd=ROOT, env=environment.variables(), check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )


def imported(environment: Environment, platform: str, *, seconds: float = IMPORT_SECONDS) -> Imported:
    """Import the frameworks in ``environment``, in a process that may hang or die of it."""
    variables = environment.variables()
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # what it compiles is kept beside the layers, for all that follow
    words = [sys.executable, "-m", "gate.imports", platform, str(seconds)]
    try:
        answer = subprocess.run(
            words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=seconds + 30,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Imported(hung=f"no answer within {seconds:g} s")
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    if answer.returncode:
        frames = [line for line in lines if line.startswith("File ")]
        where = (frames or lines or [f"it died with status {answer.returncode}"])[0 if frames else -1]
        return Imported(hung=where) if "Timeout (" in answer.stderr else Imported(found={"torch": {"error": where}})
    return Imported(found=json.loads(answer.stdout.splitlines()[-1]))
