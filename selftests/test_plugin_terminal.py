"""The live line, on a real pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest

from selftests.plugin_fakes import CASE, OTHER, Suite

JUDGED = """
@both
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).losses)))
"""
TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def typed(tester: pytest.Pytester, *arguments: str) -> str:
    """What pytest writes to a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    with subprocess.Popen(command, cwd=tester.path, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        received = b""
        with contextlib.suppress(OSError):  # a pseudo-terminal ends with EIO
            while chunk := os.read(ours, 65536):
                received += chunk
    os.close(ours)
    assert process.returncode == 0, received.decode()
    return received.decode()


def screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end: a terminal of endless width and height, without colours."""
    rows, row, column = [""], 0, 0
    for number, command, control, word in TOKEN.findall(text):
        if control == "\r":
            column = 0
        elif control == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif command == "K":
            rows[row] = rows[row][:column]
        elif command == "A":
            row -= int(number)
        elif command == "C":
            column += int(number)
        elif word:
            rows[row] = rows[row].ljust(column)[:column] + word + rows[row][column + len(word):]
            column += len(word)
    return rows


@pytest.mark.parametrize("capture", ["fd", "no"])
def test_live_line_shows_case_and_step(suite: Suite, capture: str) -> None:
    """While a case runs, its id, step and seconds are shown; afterwards the screen is pytest's own."""
    written = typed(suite(JUDGED), f"--capture={capture}")
    assert f"running {CASE.id}  step 1/2  0.1 s" in written
    assert f"running {OTHER.id}  step 2/2  0.2 s" in written
    shown = screen(written)
    assert any(re.fullmatch(r"conformance/test_small\.py \.\.( +\[100%\])?", line) for line in shown), shown
    assert not any("running" in line for line in shown)
    assert [line for line in shown if line][-1] == "2 claims judged over 2 of 2 gated cases"


def test_several_processes_show_no_live_line(suite: Suite) -> None:
    """Under xdist nobody owns the terminal's last line."""
    assert "running" not in typed(suite(JUDGED), "-n", "2")


def test_no_terminal_no_live_line(suite: Suite) -> None:
    """A log file gets no control sequences."""
    result = suite(JUDGED).runpytest_subprocess()
    assert "running" not in result.stdout.str()
    assert "\x1b" not in result.stdout.str()
