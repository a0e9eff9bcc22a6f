"""What pip says is read as what it means: no such release, one that cannot be made, a machine that cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gate.pip import Pip
from gate.problems import BuildError, GateError, MachineError, UsageError


def answering(tmp_path: Path, *, out: str = "", err: str = "", status: int = 0) -> Pip:
    """A pip that answers this, and writes down what it was asked, and under which PYTHONPATH."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"open({str(tmp_path / 'path')!r}, 'a').write(os.environ.get('PYTHONPATH', '-') + '\\n')\n"
        f"print({out!r}); print({err!r}, file=sys.stderr); sys.exit({status})\n"
    )
    script.chmod(0o755)
    return Pip(python=str(script))


def test_published_versions_are_read(tmp_path: Path) -> None:
    """From the line that says so."""
    pip = answering(tmp_path, out="accelerate (1.15.0)\nAvailable versions: 1.15.0, 1.14.0\n  LATEST: 1.15.0")
    assert pip.versions("accelerate") == ["1.15.0", "1.14.0"]


def test_a_release_is_installed_alone(tmp_path: Path) -> None:
    """Without what it requires, into a folder, and without the layers that the gate was started with."""
    answering(tmp_path).install("accelerate", "1.12.0", tmp_path / "layer")
    asked = (tmp_path / "asked").read_text()
    assert "-m pip install" in asked
    assert "--no-deps" in asked
    assert asked.endswith(f"--target {tmp_path / 'layer'} accelerate==1.12.0\n")
    assert (tmp_path / "path").read_text() == "-\n"


def test_a_yanked_release_is_refused(tmp_path: Path) -> None:
    """pip installs one that is asked for by its version, and warns."""
    err = "WARNING: The candidate selected for download or install is a yanked version: 'accelerate' candidate"
    with pytest.raises(BuildError, match="was yanked"):
        answering(tmp_path, err=err).install("accelerate", "1.12.0", tmp_path / "layer")


@pytest.mark.parametrize(
    ("err", "kind", "told"),
    [
        ("ERROR: No matching distribution found for accelerate==9.9", UsageError, "no such release"),
        (
            "WARNING: Retrying ... NewConnectionError('refused')\nERROR: No matching distribution found for accelerate",
            MachineError, "cannot be reached",
        ),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", MachineError, "no space left"),
        ("python: No module named pip", MachineError, "ensurepip"),
        ("  error: subprocess-exited-with-error\n  x Building wheel\nnote", BuildError, "subprocess-exited-with-error"),
        ("", BuildError, "pip said nothing"),
    ],
)
def test_a_failure_is_of_its_kind(tmp_path: Path, err: str, kind: type[GateError], told: str) -> None:
    """One line that says what is at fault: the release, the machine, or the command."""
    with pytest.raises(GateError) as error:
        answering(tmp_path, err=err, status=1).install("accelerate", "9.9", tmp_path / "layer")
    assert type(error.value) is kind
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_conflicts_are_read(tmp_path: Path) -> None:
    """As pip check finds them under the layers."""
    out = "transformers 4.57.6 has requirement huggingface-hub<1.0, but you have huggingface-hub 2.4.0."
    pip = answering(tmp_path, out=out, status=1)
    assert pip.conflicts([Path("/layer/a"), Path("/layer/b")]) == [out]
    assert (tmp_path / "path").read_text() == "/layer/a:/layer/b\n"
    assert answering(tmp_path, out="No broken requirements found.").conflicts([]) == []
