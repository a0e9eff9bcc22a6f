"""Environments to compare: the one that is installed, with single releases laid over it. Pytest circle.

[Note: layers]
A layer is one release of one package, without what it requires, in a folder of its own. Layers are made once, appear
whole or not at all, and are shared: an environment is a list of them for ``PYTHONPATH``. Nothing is installed into
what runs the gate, so nothing of a candidate can leak into the pinned side; and a search over releases makes one small
folder per release, not one environment each.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from fixtures.packages import LOWER_BOUNDS
from gate.pip import Installer
from gate.problems import BuildError, MachineError, UsageError

UNDER_TEST = tuple(LOWER_BOUNDS)
"""The packages whose versions every rank writes down."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is installed, and what is laid over it.

    :param versions: of all packages under test, and of everything laid over; public versions, by canonical name.
    :param layers: folders for ``PYTHONPATH``.
    :param conflicts: requirements that are unmet here and not in what is installed.
    """

    versions: Mapping[str, str]
    layers: tuple[Path, ...] = ()
    conflicts: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """The environment of a process that runs in it: this one's, with no layer but its own."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return inherited | ({"PYTHONPATH": self.path} if self.layers else {})

    @property
    def path(self) -> str:
        """The value of ``PYTHONPATH``."""
        return os.pathsep.join(map(str, self.layers))


@dataclass
class Workshop:
    """Makes environments. ``built`` counts the layers that it had to make, ``tell`` hears about each.

    :param cache: the folder of the layers.
    :param installed: versions by canonical name of what is installed.
    """

    cache: Path
    pip: Installer
    installed: Mapping[str, str]
    tell: Callable[[str], None] = lambda line: None
    built: list[str] = field(default_factory=list)
    _before: frozenset[str] | None = None

    def environment(self, versions: Mapping[str, str], *, complete: bool = True) -> Environment:
        """What is installed with ``versions`` over it.

        :param complete: also lay over what these releases require and what is installed does not meet.
        :raises BuildError: if a release cannot be installed. :raises MachineError: if this machine cannot do it now.
        """
        over = self.differing(versions)
        layers = self._layers(over)
        unmet = self._unmet(layers) if over else []
        if unmet and complete:
            over |= self._required(over, layers)
            layers = self._layers(over)
            unmet = self._unmet(layers)
        return Environment(versions=self._all(over), layers=layers, conflicts=tuple(unmet))

    def differing(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Those of ``versions`` that are not what is installed."""
        return {name: version for name, version in versions.items() if not self._has(name, version)}

    def has_layer(self, name: str, version: str) -> bool:
        """Whether this release was laid out before."""
        return self._place(name, version).is_dir()

    def _has(self, name: str, version: str) -> bool:
        installed = self.installed.get(name)
        return installed is not None and version in (installed, public(installed))

    def _all(self, over: Mapping[str, str]) -> dict[str, str]:
        base = {name: public(self.installed[name]) for name in UNDER_TEST if name in self.installed}
        return {**base, **over}

    def _layers(self, over: Mapping[str, str]) -> tuple[Path, ...]:
        return tuple(self._layer(name, over[name]) for name in sorted(over))

    def _required(self, over: Mapping[str, str], layers: tuple[Path, ...]) -> dict[str, str]:
        # All packages under test are named, so that pip keeps each at its version and only adds what they require.
        wanted = {name: version for name, version in self._all(over).items() if name in UNDER_TEST or name in over}
        try:
            found = self.pip.needed(wanted, layers)
        except BuildError:
            return {}  # they contradict each other: they are run as they were asked for, and the conflicts are told
        named = {canonicalize_name(name): public(version) for name, version in found.items()}
        return {name: version for name, version in named.items() if name not in over and not self._has(name, version)}

    def _unmet(self, layers: tuple[Path, ...]) -> list[str]:
        if self._before is None:
            self._before = frozenset(self.pip.conflicts(()))
        return [line for line in self.pip.conflicts(layers) if line not in self._before]

    def _place(self, name: str, version: str) -> Path:
        tag = f"{sys.implementation.cache_tag}-{platform.machine()}"
        return self.cache / "layers" / tag / f"{name}-{version}"

    def _layer(self, name: str, version: str) -> Path:
        from filelock import FileLock

        final = self._place(name, version)
        if final.is_dir():
            return final
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(final.with_name(f".{final.name}.lock")):
                if not final.is_dir():  # another gate may have made it while this one waited
                    self._make(name, version, final)
        except OSError as error:
            why = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "see that it can be written"
            told = error.strerror or str(error)
            raise MachineError(f"cannot make {final}: {told}; {why} and repeat the command") from error
        return final

    def _make(self, name: str, version: str, final: Path) -> None:
        temporary = final.with_name(f".{final.name}.part")
        shutil.rmtree(temporary, ignore_errors=True)  # of a gate that was killed: the lock is ours now
        self.tell(f"installing {name} {version}")
        try:
            self.pip.install(name, version, temporary)
            found = installed_versions([str(temporary)]).get(name, "nothing")
            if public(found) != public(version):
                raise BuildError(f"{name} {version}: pip installed {found}")
            temporary.rename(final)
            self.built.append(f"{name} {version}")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def public(version: str) -> str:
    """A version without its local part: ``2.13.0`` for ``2.13.0+cpu``."""
    with contextlib.suppress(ValueError):
        return Version(version).public
    return version


def installed_versions(path: Iterable[str] | None = None) -> dict[str, str]:
    """Versions by canonical name of what lies on ``path``; by default on this interpreter's, less ``PYTHONPATH``."""
    laid_over = {Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    entries = list(path) if path is not None else [p for p in sys.path if Path(p).absolute() not in laid_over]
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=entries):
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(canonicalize_name(name), distribution.version)
    return found


def pinned_versions(lock: Path, installed: Mapping[str, str]) -> dict[str, str]:
    """The packages under test as ``lock`` pins them; an unpinned one as it is installed.

    :raises UsageError: if one is neither.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    pins = {name: public(version) for name, version in installed.items() if name in UNDER_TEST}
    for line in lock.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(line.partition("#")[0].strip())
            name = canonicalize_name(requirement.name)
            exact = [one.version for one in requirement.specifier if one.operator == "=="]
            if name in UNDER_TEST and exact:
                pins[name] = exact[0]
    missing = [name for name in UNDER_TEST if name not in pins]
    if missing:
        raise UsageError(f"{', '.join(missing)}: neither installed nor pinned in {lock.name}")
    return pins
