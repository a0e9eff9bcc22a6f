"""What a GPU night is started with: it can be read, it names only what exists, and it hands on the exit status."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.tables import PLATFORMS

ROOT = Path(__file__).resolve().parent.parent
NIGHTLY = ROOT / "nightly"
SCRIPTS = [NIGHTLY / "night.sh", NIGHTLY / "slurm.sh"]
GPUS = PLATFORMS[1:]


def workflow() -> dict[str, Any]:
    """The workflow, as YAML."""
    found: dict[str, Any] = yaml.safe_load((NIGHTLY / "github.yml").read_text(encoding="utf-8"))
    return found


def steps() -> list[dict[str, Any]]:
    """The steps of all its jobs."""
    return [step for job in workflow()["jobs"].values() for step in job["steps"]]


def guide() -> str:
    """The README's section for who has a bare GPU node."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split("### From a bare GPU node to the first gated night", 1)[1].split("\n## ", 1)[0]


def told() -> dict[str, str]:
    """Everything that names commands."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(NIGHTLY.iterdir())}
    return {**files, "README": guide()}


def named(pattern: str) -> Iterator[tuple[str, str]]:
    """File and what ``pattern`` finds in it."""
    return ((name, found) for name, text in told().items() for found in re.findall(pattern, text))


def bash(script: str) -> subprocess.CompletedProcess[str]:
    """Read ``script`` and run nothing."""
    return subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False, timeout=20)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_read(path: Path) -> None:
    """By bash, and by the system: they are executable."""
    assert bash(path.read_text(encoding="utf-8")).stderr == ""
    assert os.access(path, os.X_OK)


def test_a_broken_script_is_noticed() -> None:
    """Bash does say so."""
    assert bash("if true; then\n").returncode != 0


def test_every_step_of_the_workflow_can_be_read() -> None:
    """By bash; and none has an expression in it, whose value would be taken for code."""
    scripts = [step["run"] for step in steps() if "run" in step]
    assert len(scripts) == 2
    for script in scripts:
        assert bash(script).stderr == ""
        assert "${{" not in script


def test_actions_are_pinned() -> None:
    """By commit, not by a tag that moves."""
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one)] == []


def test_the_workflow_keeps_what_was_found() -> None:
    """Also of a night that failed, and it waits for the rehearsal."""
    kept = next(step for step in steps() if "upload-artifact" in step.get("uses", ""))
    assert kept["if"] == "always()"
    assert kept["with"]["if-no-files-found"] == "error"
    assert workflow()["jobs"]["night"]["needs"] == "rehearse"


def test_every_environment_that_is_named_exists() -> None:
    """``tox run -e NAME``: each is one of the menu."""
    menu = set(re.findall(r"^\[testenv:([\w-]+)\]", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE))
    found = list(named(r"tox run -e ([\w-]+)"))
    assert {"nightly", "calibrate", "rehearse", "gpu-first", "rebaseline"} <= {name for _, name in found}
    assert [one for one in found if one[1] not in menu] == []


def test_every_module_that_is_named_exists() -> None:
    """``python -m NAME``, but for those of Python itself."""
    found = [one for one in named(r"python3? -m ([\w.]+)") if one[1] not in ("pip", "venv")]
    assert [one for one in found if not (ROOT / f"{one[1].replace('.', '/')}.py").is_file()] == []


def options() -> set[str]:
    """Every option of ours, of pytest and of the commands, as their sources spell it."""
    spelled: set[str] = set()
    for path in [*ROOT.glob("fixtures/*.py"), *ROOT.glob("conformance/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
                spelled.add(node.value)
    return spelled


OTHERS = {"--quiet", "--user", "--notest", "--rm", "--gpus", "--ipc", "--yes", "--no-install-recommends",
          "--no-cache-dir", "--job-name", "--nodes", "--gpus-per-node", "--cpus-per-task", "--mem", "--time",
          "--output", "--snapshot-update"}
"""Of pip, tox, docker, apt, sbatch and syrupy."""


def test_every_option_that_is_named_exists() -> None:
    """In the scripts, the workflow, the container and the README's guide."""
    found = list(named(r"(?<![\w-])(--[a-z][a-z-]+)"))
    assert {"--full", "--run-dir", "--weights", "--platform"} <= {name for _, name in found}
    assert [one for one in found if one[1] not in options() | OTHERS] == []


def test_every_platform_that_is_named_exists() -> None:
    """Those that the workflow offers, and those in the guide's commands."""
    # YAML takes the word "on" for a truth.
    triggers = next(value for name, value in workflow().items() if str(name) == "True")
    offered = triggers["workflow_dispatch"]["inputs"]["platform"]
    assert set(offered["options"]) <= set(GPUS)
    assert offered["default"] in GPUS
    found = list(named(r"(?:--platform|-m|night\.sh|slurm\.sh) ([a-z]\d+)\b"))
    assert found
    assert [one for one in found if one[1] not in GPUS] == []


TOX = """#!/usr/bin/env bash
printf '%s\n' "$@" > "$TOLD"
for word in "$@"; do
    case $word in --run-dir=*) mkdir -p "${word#*=}"; echo "# verdict" > "${word#*=}/report.md" ;; esac
done
exit "${STATUS:-0}"
"""


def night(tmp_path: Path, *words: str, script: str = "night.sh", **environment: str) -> tuple[int, list[str], str]:
    """Run the script with a tox that only notes what it was told: exit status, words for tox, output."""
    fake = tmp_path / "bin"
    fake.mkdir(exist_ok=True)
    (fake / "tox").write_text(TOX)
    (fake / "tox").chmod(0o755)
    variables = {
        "PATH": f"{fake}:{os.environ['PATH']}", "TOLD": str(tmp_path / "told"), "RUN_DIR": str(tmp_path / "run"),
        **environment,
    }
    done = subprocess.run(
        ["bash", str(NIGHTLY / script), *words], env=variables, capture_output=True, text=True, timeout=30, check=False,
    )
    path = tmp_path / "told"
    return done.returncode, path.read_text().splitlines() if path.exists() else [], done.stdout + done.stderr


@pytest.mark.parametrize("status", ["0", "1", "4", "5"])
def test_the_nights_status_is_the_gates(tmp_path: Path, status: str) -> None:
    """Whatever it is; and the report goes into the job's summary, also of a night that failed."""
    summary = tmp_path / "summary.md"
    code, _, output = night(tmp_path, "a100", STATUS=status, GITHUB_STEP_SUMMARY=str(summary))
    assert code == int(status)
    assert summary.read_text() == "# verdict\n"
    assert f"ended with status {status}" in output


def test_words_and_weights_are_handed_on(tmp_path: Path) -> None:
    """What stands after the platform goes to pytest, and a folder of weights with it."""
    _, words, _ = night(tmp_path, "h100", "-k", "zero3", WEIGHTS="/models/mistral")
    assert words[:6] == ["run", "-e", "nightly", "--", "-m", "h100"]
    assert {"--full", "--weights=/models/mistral", "-k", "zero3"} <= set(words)


def test_a_night_without_a_platform_is_refused(tmp_path: Path) -> None:
    """One line that says what is missing; nothing runs."""
    code, words, output = night(tmp_path)
    assert (code != 0, words) == (True, [])
    assert "usage: nightly/night.sh PLATFORM" in output


def test_the_job_hands_on_the_status(tmp_path: Path) -> None:
    """A Slurm job ends as its night does; without sbatch it says how it is meant."""
    asked = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "7"}
    assert night(tmp_path, "a100", script="slurm.sh", STATUS="1", **asked)[0] == 1
    code, _, output = night(tmp_path, "a100", script="slurm.sh")
    assert code != 0
    assert "submit this with sbatch" in output


def test_the_container_runs_the_night() -> None:
    """Its command is the script, and what it copies is there."""
    text = (NIGHTLY / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r'^ENTRYPOINT \["([^"]+)"\]', text, re.MULTILINE)
    assert (ROOT / command).is_file()
