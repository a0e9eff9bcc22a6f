"""Teaches tox one thing: several entries of its menu may share one environment folder.

The stack under test is a gigabyte or more, so ``cpu``, ``selftest`` and their neighbours must not install it once each.
tox refuses: it stores an environment's name in the folder and recreates the folder when another name comes along
(https://github.com/tox-dev/tox/issues/2788), because two names might want different packages. Ours inherit theirs from
one section, and tox still recreates the folder when packages, constraints or the interpreter change.

tox finds this file by its name.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tox.plugin import impl
from tox.tox_env.api import ToxEnv
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tox.tox_env.register import ToxEnvRegister


class SharedInfo(Info):
    """What tox remembers of an environment folder, less the name of the environment that made it."""

    @contextmanager
    def compare(self, value: Any, section: str, sub_section: str | None = None) -> Iterator[tuple[bool, Any | None]]:
        """As tox's own; the name is dropped before it compares and stores."""
        if section == ToxEnv.__name__:
            value = {key: item for key, item in value.items() if key != "name"}
        with super().compare(value, section, sub_section) as answer:
            yield answer


class SharedRunner(VirtualEnvRunner):
    """tox's own runner over an environment folder (``env_dir``) that other entries of the menu use too."""

    @staticmethod
    def id() -> str:
        """The word for ``runner =`` in tox.ini."""
        return "shared"

    @property
    def cache(self) -> Info:
        """The memory of the folder."""
        return SharedInfo(self.env_dir)


@impl
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    """Called by tox before it reads which runner an environment wants."""
    register.add_run_env(SharedRunner)
