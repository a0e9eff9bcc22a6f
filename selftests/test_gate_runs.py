"""How the gate runs the suite: what it asks of pytest, how it ends it, and what importing the frameworks shows."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gate import __main__ as command_line
from gate import runs
from gate.environments import Environment
from gate.runs import Ended, Imported, Selection

FRAMEWORKS = ("torch", "transformers", "accelerate", "deepspeed")


def layer(tmp_path: Path, **code: str) -> Environment:
    """An environment whose four frameworks are one line of code each."""
    for name in FRAMEWORKS:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(code.get(name, ""))
        metadata = tmp_path / f"{name}-9.9.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    return Environment(versions=dict.fromkeys(FRAMEWORKS, "9.9"), layers=(tmp_path,))


def test_what_a_layer_holds_is_what_is_imported(tmp_path: Path) -> None:
    """Version and folder are read back from the process that imports it; what it prints is no answer."""
    seen = runs.imported(layer(tmp_path, accelerate="print('hello')"), "cpu")
    assert {name: (told["version"], told["folder"]) for name, told in seen.found.items()} == dict.fromkeys(
        FRAMEWORKS, ("9.9", str(tmp_path))
    )
    assert not seen.problems
    assert not seen.hopeless


def test_a_framework_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    """The others are imported all the same; without accelerate no case can run."""
    seen = runs.imported(layer(tmp_path, accelerate="raise ImportError('no Y in X')"), "cpu")
    assert seen.problems == ["import accelerate: ImportError: no Y in X"]
    assert seen.hopeless


def test_a_broken_deepspeed_leaves_hope(tmp_path: Path) -> None:
    """The cases of other engines can run, and say for themselves what breaks."""
    seen = runs.imported(layer(tmp_path, deepspeed="raise SystemExit(3)"), "cpu")
    assert seen.problems == ["import deepspeed: SystemExit: 3"]
    assert not seen.hopeless


def test_an_import_that_hangs_is_ended(tmp_path: Path) -> None:
    """With the line where it hung."""
    seen = runs.imported(layer(tmp_path, torch="import time\ntime.sleep(600)"), "cpu", seconds=5)
    assert seen.hopeless
    assert "torch/__init__.py" in seen.problems[0]


def test_an_import_that_kills_its_process_is_told(tmp_path: Path) -> None:
    """As a binary for another processor does."""
    seen = runs.imported(layer(tmp_path, torch="import os\nos.kill(os.getpid(), 11)"), "cpu")
    assert seen.hopeless
    assert "died with status -11" in seen.problems[0]


def test_nothing_imported_is_hopeless() -> None:
    """No answer is no good one."""
    assert Imported().hopeless


def test_pytest_is_asked_for_the_selection(tmp_path: Path) -> None:
    """Recorded in the side's folder, going on there, in turn."""
    words = runs.command(Selection(keyword="fsdp2 and llama", deadline_seconds=30), tmp_path / "pinned", Path("/turns"))
    assert words[1:3] == ["-m", "pytest"]
    assert f"--run-dir={tmp_path / 'pinned'}" in words
    assert "--continue" in words
    assert "--turns=/turns" in words
    assert words[-5:] == ["-m", "cpu", "-k", "fsdp2 and llama", "--deadline=30"]


def test_a_pytest_that_cannot_run_is_told(tmp_path: Path) -> None:
    """With its own last words: here a test that is not there."""
    selection = Selection(tests=("conformance/test_nowhere.py",))
    ended = runs.run({"pinned": (Environment(versions={}), tmp_path / "pinned")}, selection, tell=lambda line: None)
    assert ended["pinned"].status == 4
    assert not ended["pinned"].judged
    assert "test_nowhere.py" in ended["pinned"].last_words


def test_a_side_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """And nothing of it is left."""
    folder = tmp_path / "trial"
    ended = runs.run(
        {"trial": (Environment(versions={}), folder)}, Selection(), tell=lambda line: None, seconds=0.0
    )
    assert ended == {"trial": Ended(status=-1, last_words="did not end in time")}


def test_a_deaf_process_is_ended() -> None:
    """One that ignores the gentle signals is killed."""
    code = "import signal, time; signal.signal(2, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    patience, runs.END_SECONDS = runs.END_SECONDS, 0.2
    try:
        runs.end(process)
    finally:
        runs.END_SECONDS = patience
        process.stdout.close()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name what to move to"),
        (["--nonsense"], "unrecognized arguments"),
        (["--resume", "/nowhere"], "no gate run was begun there"),
        (["accelerate=1"], "is not NAME==VERSION"),
        (["-r", "/nowhere.txt"], "cannot be read"),
        (["accelerate", "-k", "nonsense", "--dry-run"], "-k 'nonsense' chooses no case"),
        (["accelerate", "-k", "llama and and"], "Wrong expression passed to '-k'"),
    ],
)
def test_a_wrong_command_ends_with_3(words: list[str], told: str) -> None:
    """And one line, no traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "gate", *words], cwd=runs.ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 3
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_the_help_tells_the_exit_statuses() -> None:
    """They are the interface of a script."""
    assert "0 move, 1 do not move, 2 cannot tell, 3" in " ".join(command_line.parser().format_help().split())


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    """Also where the shell has it ignored; exit status 2."""
    code = textwrap.dedent(f"""
        import os, signal, sys
        sys.path.insert(0, {str(runs.ROOT)!r})
        from gate import __main__ as m, gating
        def interrupted(self):
            self.folder = gating.Path({str(tmp_path)!r})
            os.kill(os.getpid(), signal.SIGINT)
        gating.Gate.run = interrupted
        sys.exit(m.main(["accelerate"]))
    """)
    result = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, code], capture_output=True, text=True,
        timeout=60, check=False,
    )
    assert result.returncode == 2, result.stderr
    assert f"python -m gate --resume {tmp_path}" in result.stderr
