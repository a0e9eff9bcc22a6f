"""What ends the gate without a verdict, and the exit statuses. Pure."""

from __future__ import annotations

MOVE, DO_NOT_MOVE, CANNOT_TELL, USAGE = 0, 1, 2, 3
"""Exit statuses: we may move; we may not; nothing can be said; the command or this machine is wrong."""


class GateError(Exception):
    """One line for the user. ``status`` is what the command ends with."""

    status = USAGE


class UsageError(GateError):
    """The command asks for what cannot be."""


class MachineError(GateError):
    """This machine cannot do it now: no registry, no space, no pip. The same command goes on when it can."""


class BuildError(GateError):
    """A release cannot be installed here."""

    status = CANNOT_TELL
