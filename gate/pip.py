"""What the gate asks of pip, and how pip's answers are read. Pytest circle.

pip is used as it is configured: its index, its proxies, its certificates and its constraints are the user's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gate.problems import BuildError, GateError, MachineError, UsageError

_UNREACHABLE = (
    "NewConnectionError", "Max retries exceeded", "ConnectTimeoutError", "ReadTimeoutError", "ProxyError",
    "ConnectionResetError", "name resolution", "SSLError", "connection broken",
)
_FULL = ("No space left on device", "Errno 28", "Disk quota exceeded")
_ABSENT = ("No matching distribution found", "Could not find a version")
BUILD_SECONDS = 1800.0
"""For one release: torch is a gigabyte, and some releases are compiled."""


class Installer(Protocol):
    """What the gate needs of pip; self-tests bring their own."""

    def versions(self, name: str) -> list[str]:
        """Published versions that this interpreter can use, no pre-releases, in pip's order."""

    def install(self, name: str, version: str, target: Path) -> None:
        """Put one release, without what it needs, into the folder ``target``."""

    def conflicts(self, layers: Sequence[Path]) -> list[str]:
        """Unmet requirements among all that is installed and laid over, a line each."""

    def needed(self, wanted: Mapping[str, str], layers: Sequence[Path]) -> dict[str, str]:
        """Releases that must be added for ``wanted`` to have what they require."""


@dataclass(frozen=True, kw_only=True)
class Pip:
    """The pip of this interpreter."""

    python: str = sys.executable

    def versions(self, name: str) -> list[str]:
        """As :class:`Installer`. :raises UsageError: for a name that is not published."""
        answer = self._run("index", "versions", name)
        found = re.search(r"^Available versions: (.+)$", answer.stdout, re.MULTILINE)
        if answer.returncode or found is None:
            raise _problem(answer, f"{name} is not published, or nothing of it fits this interpreter", UsageError)
        return [word.strip() for word in found.group(1).split(",")]

    def install(self, name: str, version: str, target: Path) -> None:
        """As :class:`Installer`; a yanked release counts as one that cannot be installed: nobody is to move there.

        Not compiled: of a large package a run imports a tenth, and what it imports is compiled then.
        """
        answer = self._run("install", "--no-deps", "--no-compile", "--target", str(target), f"{name}=={version}")
        if answer.returncode:
            raise _problem(answer, f"{name} {version} cannot be installed", BuildError)
        if "yanked version" in answer.stderr:
            raise BuildError(f"{name} {version} was yanked")

    def conflicts(self, layers: Sequence[Path]) -> list[str]:
        """As :class:`Installer`, from ``pip check``."""
        answer = self._run("check", layers=layers)
        return [line for line in answer.stdout.splitlines() if "requires" in line or "has requirement" in line]

    def needed(self, wanted: Mapping[str, str], layers: Sequence[Path]) -> dict[str, str]:
        """As :class:`Installer`, from a dry run of pip's resolver."""
        pins = [f"{name}=={version}" for name, version in wanted.items()]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            answer = self._run("install", "--dry-run", "--report", str(report), *pins, layers=layers)
            if answer.returncode:
                raise _problem(answer, f"{', '.join(pins)} do not go together", BuildError)
            rows = json.loads(report.read_text(encoding="utf-8"))["install"]
        return {row["metadata"]["name"]: row["metadata"]["version"] for row in rows}

    def _run(self, *words: str, layers: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
        general = ("--disable-pip-version-check", "--no-input", "--retries", "2")
        quiet = ("--quiet",) if words[0] == "install" else ()
        command = [self.python, "-m", "pip", words[0], *general, *quiet, *words[1:]]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if layers:
            variables["PYTHONPATH"] = os.pathsep.join(map(str, layers))
        try:
            return subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"pip {words[0]} took longer than {BUILD_SECONDS:g} s: try again later") from error


def _problem(
    answer: subprocess.CompletedProcess[str], what: str, otherwise: type[GateError],
) -> GateError:
    """pip's complaint in one line; its kind says whether the release, the machine or the command is at fault."""
    told = f"{answer.stderr}\n{answer.stdout}"
    if "No module named pip" in told:
        return MachineError("the gate installs with pip, and this environment has none: python -m ensurepip")
    if any(word in told for word in _FULL):
        return MachineError(f"{what}: no space left; free some and repeat the command, what was done is kept")
    if any(word in told for word in _UNREACHABLE):
        return MachineError(f"{what}: the package index cannot be reached; repeat the command when it can")
    if any(word in told for word in _ABSENT):
        return UsageError(f"{what}: there is no such release for this interpreter")
    errors = [line for line in told.splitlines() if line.lstrip().lower().startswith("error")]
    last = (errors or [line for line in told.splitlines() if line.strip()] or ["pip said nothing"])[0]
    return otherwise(f"{what}: {last.strip()}")
