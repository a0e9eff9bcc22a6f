"""``python -m gate accelerate==1.15.0 [torch==... ...]``: may we move? Pytest circle.

Exit status: 0 move, 1 do not, 2 cannot tell, 3 the command or this machine is wrong.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fixtures.tables import PLATFORMS
from gate.gating import Gate
from gate.plan import Orders
from gate.problems import CANNOT_TELL, USAGE, GateError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As argparse, with the gate's own status."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    told = _Parser(
        prog="python -m gate", description="May we move to these releases? Runs the suite in the pinned and in the "
        "candidate environment, a case at a time in turn, and compares them.",
        epilog="exit status: 0 move, 1 do not move, 2 cannot tell, 3 the command or this machine is wrong",
    )
    told.add_argument("to", nargs="*", metavar="NAME==VERSION", help="what the candidate has: releases, names (the "
                      "newest release), or 'latest' (the newest of all four)")
    told.add_argument("-r", dest="file", metavar="FILE", help="more of them, one a line")
    told.add_argument("--from", dest="since", action="append", default=[], metavar="NAME==VERSION",
                      help="what the pinned side has instead of stack.txt's; may be repeated")
    told.add_argument("-k", dest="keyword", metavar="WORDS", help="only these tests, in pytest's words")
    told.add_argument("--platform", default="cpu", choices=PLATFORMS)
    told.add_argument("--deadline", type=float, metavar="SECONDS", help="for one case")
    told.add_argument("--run-dir", metavar="DIR", help="record here; default: runs/gate/<time>")
    told.add_argument("--resume", metavar="DIR", help="go on with a gate run that was interrupted")
    told.add_argument("--no-attribution", dest="attribution", action="store_false", help="do not search the culprit")
    told.add_argument("--dry-run", action="store_true", help="only say what would be installed and run")
    return told


def main(argv: Sequence[str]) -> int:
    """:returns: the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    words = parser().parse_args(argv)
    orders = Orders(
        to=tuple(words.to), file=Path(words.file) if words.file else None, since=tuple(words.since),
        keyword=words.keyword, platform=words.platform, deadline_seconds=words.deadline,
        folder=Path(words.run_dir) if words.run_dir else None, resume=Path(words.resume) if words.resume else None,
        attribution=words.attribution, dry=words.dry_run, command=shlex.join(["python", "-m", "gate", *argv]),
    )
    gate = Gate(orders=orders, tell=tell)
    try:
        return gate.run()
    except GateError as error:
        print(f"gate: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"gate: {error.strerror or error} ({error.filename}){gate.how_to_go_on}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"gate: interrupted{gate.how_to_go_on}", file=sys.stderr)
        return CANNOT_TELL


def tell(line: str) -> None:
    """Progress, at once."""
    print(f"gate: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
