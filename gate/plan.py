"""What the command asks for, and what the gate asks of the world. Pytest circle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gate import environments, runs
from gate.environments import Environment
from gate.pip import Installer, Pip
from gate.problems import MachineError, UsageError
from gate.runs import ROOT, Ended, Imported, Selection


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the command line asks for."""

    to: tuple[str, ...] = ()
    file: Path | None = None
    since: tuple[str, ...] = ()
    keyword: str | None = None
    platform: str = "cpu"
    deadline_seconds: float | None = None
    folder: Path | None = None
    resume: Path | None = None
    attribution: bool = True
    dry: bool = False
    command: str = "python -m gate"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be compared; kept in the gate's folder so that an interrupted run goes on with the same."""

    pinned: Mapping[str, str]
    candidate: Mapping[str, str]
    selection: Selection
    command: str
    attribution: bool = True

    def write(self, folder: Path) -> None:
        """:raises MachineError: if the folder cannot be written."""
        data = {**vars(self), "selection": self.selection.to_json()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "plan.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise MachineError(f"cannot record in {folder}: {error.strerror or error}") from error

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """:raises UsageError: if there is no gate run in ``folder``."""
        try:
            data = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
            chosen = data.pop("selection")
            return cls(**data, selection=Selection(**{**chosen, "tests": tuple(chosen["tests"])}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--resume {folder}: no gate run was begun there ({error})") from error


@dataclass(frozen=True, kw_only=True)
class World:
    """What the gate asks of the world outside, in one value; self-tests bring their own.

    :param run: records a selection in the environments and folders given. :param imported: imports the frameworks.
    :param chooses: why a selection can be run nowhere, if so.
    :param prepare: does once what an environment needs before its first case.
    """

    pip: Installer = field(default_factory=Pip)
    installed: Callable[[], Mapping[str, str]] = environments.installed_versions
    run: Callable[..., dict[str, Ended]] = runs.run
    imported: Callable[..., Imported] = runs.imported
    chooses: Callable[[Selection], str] = runs.chooses
    prepare: Callable[[Environment], None] = runs.prepare
    cache: Path = ROOT / ".gate"
    lock: Path = ROOT / "stack.txt"


def shown_path(path: Path | None) -> str:
    """``path`` as a command run from the repository would spell it."""
    absolute = (path or Path()).absolute()
    return str(absolute.relative_to(ROOT)) if absolute.is_relative_to(ROOT) else str(absolute)
