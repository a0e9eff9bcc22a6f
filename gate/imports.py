"""``python -m gate.imports``: can the frameworks be imported here, and which are they? Ranks circle.

Prints one line of JSON: per framework its ``version``, ``folder`` and, if it cannot be imported, ``error``. The first
process that imports a new layer also leaves it compiled for those that follow.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path

from fixtures.template import PRELOAD
from fixtures.worker import environment

FRAMEWORKS = ("torch", "transformers", "accelerate", "deepspeed")


def look(name: str) -> dict[str, str]:
    """What ``import name`` finds; the modules of it that ranks use are imported, too."""
    told: dict[str, str] = {}
    try:
        told["version"] = importlib.metadata.version(name)
        module = importlib.import_module(name)
        told["folder"] = str(Path(str(module.__file__)).parent.parent)
        for inner in (one for one in PRELOAD if one.startswith(f"{name}.")):
            _import(inner)
    except BaseException as error:  # noqa: BLE001 - a broken release may raise anything, SystemExit included
        told["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return told


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # not a module that this release has not: something that it needs is missing


def main(argv: list[str]) -> int:
    """``argv``: platform, and seconds after which to give up with the stacks of all threads."""
    os.environ.update(environment(argv[0]))
    faulthandler.dump_traceback_later(float(argv[1]), exit=True)
    answer = sys.stdout
    sys.stdout = sys.stderr  # some releases print when they are imported
    told = {name: look(name) for name in FRAMEWORKS}
    print(json.dumps(told), file=answer, flush=True)
    return 0


if __name__ == "__main__":
    STATUS = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(STATUS)  # destructors of half-imported frameworks may hang
