"""``python -m selftests.launch_driver RUN_DIR``: owns a launcher whose ranks never end, to be killed by a test.

It raises ``SystemExit`` itself when a file ``leave`` appears in the folder.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from fixtures.launch import Launcher, Progress
from fixtures.observation import Request
from fixtures.spec import Case


def main(run_dir: Path) -> None:
    """Run a case that never ends."""

    def on_progress(progress: Progress) -> None:
        if (run_dir / "leave").exists():
            sys.exit(7)

    case = Case(model="gpt2-tiny", engine="ddp", precision="fp32")
    request = Request(case=case, settings={}, fault="has_children_and_hangs")
    with Launcher(worker="selftests.fake_worker", preload=()) as launcher:
        launcher.run(request, run_dir, deadline_seconds=60, on_progress=on_progress)


if __name__ == "__main__":
    # A background job or nohup may have had them ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    main(Path(sys.argv[1]))
