"""The files that hold the project together agree: README, tox.ini, pyproject.toml, stack.txt, CHANGELOG."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from fixtures.packages import LOWER_BOUNDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def read(name: str) -> str:
    """The text of a file of the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def pyproject() -> dict[str, Any]:
    """The content of pyproject.toml."""
    content: dict[str, Any] = tomllib.loads(read("pyproject.toml"))
    return content


def requirements(*groups: str) -> dict[str, Requirement]:
    """What these dependency groups ask for, by canonical name."""
    tables = pyproject()["dependency-groups"]
    found = [Requirement(line) for group in groups or tables for line in tables[group] if isinstance(line, str)]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def lower_bound(requirement: Requirement) -> Version:
    """The version after ``>=``, which every requirement must have and have alone."""
    (bound,) = requirement.specifier
    assert bound.operator == ">=", f"{requirement} is no lower bound"
    return Version(bound.version)


def pins() -> dict[str, Version]:
    """The versions in stack.txt, by canonical name."""
    lines = [line for line in read("stack.txt").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def tox_ini() -> configparser.ConfigParser:
    """The sections of tox.ini; values keep their braces."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(read("tox.ini"))
    return parser


def tox_environments() -> set[str]:
    """The names that ``tox run -e`` takes."""
    return {section.removeprefix("testenv:") for section in tox_ini() if section.startswith("testenv:")}


def fences(markdown: str) -> list[str]:
    """What stands inside each fence of a Markdown text."""
    return re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)


def environments_asked(command: str) -> list[str]:
    """The environments that a shell line asks of tox: ``pip install tox && tox run -e a,b -- -k x`` gives a and b."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a line of output with an apostrophe, not a command
        return []
    asked = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-e" and "tox" in words[:i]]
    return [name for names in asked for name in names.split(",")]


def tree_paths(lines: list[str]) -> Iterator[str]:
    """The paths in an annotated tree: names lead their line, and a name below a folder stands further to the right."""
    folders: list[tuple[int, str]] = []
    for line in lines:
        bare = line.lstrip(" │├└─\t")
        indent = len(line) - len(bare)
        while folders and folders[-1][0] >= indent:
            folders.pop()
        parent = folders[-1][1] if folders else ""
        for word in bare.split():
            if not re.fullmatch(r"[\w.\-/]+(/|\.\w+)|LICENSE|\.ci/run|\.gitignore", word):
                break
            yield parent + word
            if word.endswith("/"):
                folders.append((indent, parent + word))


def tree_of(markdown: str) -> list[str]:
    """The lines of the README's annotated tree: the fence in which a line begins with ``conformance/``."""
    trees = [block for block in fences(markdown) if re.search(r"^[ │├└─]*conformance/(\s|$)", block, re.MULTILINE)]
    assert trees, "README.md has no annotated tree"
    return trees[0].splitlines()


def test_readme_names_only_environments_that_exist() -> None:
    """Every `tox run -e NAME` that README shows is in tox.ini; the two commands of the first page are among them."""
    lines = [line for block in fences(read("README.md")) for line in block.splitlines()]
    asked = {name for line in lines for name in environments_asked(line)}
    assert {"cpu", "selftest"} <= asked <= tox_environments()


def test_readme_tree_names_only_paths_that_exist() -> None:
    """Every file and folder of the annotated tree is there, and the tree names the five folders we work in."""
    paths = set(tree_paths(tree_of(read("README.md"))))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert {"baselines/", "conformance/", "fixtures/", "selftests/"} <= paths


def test_the_tree_reader_finds_what_is_nested() -> None:
    """The reader of the tree is no sieve: nested names get their folder, and words of the annotation are not names."""
    tree = ["README.md  tox.ini   the menu", "fixtures/  HOW", "├── spec.py  a case", "    engines/", "        ddp.py"]
    nested = ["fixtures/", "fixtures/spec.py", "fixtures/engines/", "fixtures/engines/ddp.py"]
    assert list(tree_paths(tree)) == ["README.md", "tox.ini", *nested]


def test_the_command_reader_finds_tox_environments() -> None:
    """The reader of commands sees lists, prefixes and words for pytest."""
    assert environments_asked("pip install tox && PYTHONPATH=/x tox run -e lint,type -- -k x") == ["lint", "type"]
    assert environments_asked("pytest -e cpu") == []


def test_ci_runs_environments_that_exist() -> None:
    """.ci/run goes through the README's test command and the gate, after lint and types."""
    (names,) = re.findall(r"^for name in (.+); do$", read(".ci/run"), re.MULTILINE)
    assert {"selftest", "cpu"} <= set(names.split()) <= tox_environments()


def test_the_menu_shares_one_environment() -> None:
    """Only lint has a folder and packages of its own: the frameworks are installed once."""
    own = {"runner", "env_dir", "dependency_groups", "constraints", "deps", "set_env", "pass_env"}
    sections = tox_ini()
    differing = {name for name in tox_environments() if own & set(sections[f"testenv:{name}"])}
    assert differing == {"lint"}
    assert sections["testenv"]["runner"] == "shared"


def test_every_requirement_is_a_lower_bound_that_stack_meets() -> None:
    """stack.txt pins every package that pyproject.toml asks for, at its lower bound or above."""
    pinned = pins()
    stack_python = {"python_version": "3.11"}
    asked = {n: r for n, r in requirements().items() if r.marker is None or r.marker.evaluate(stack_python)}
    assert [str(requirement) for name, requirement in asked.items() if pinned[name] < lower_bound(requirement)] == []


def test_the_suite_enforces_the_lower_bounds_that_pyproject_states() -> None:
    """fixtures/packages.py, which a run checks, and pyproject.toml, which pip reads, name the same versions."""
    stated = requirements("runtime")
    assert {name: str(lower_bound(stated[name])) for name in LOWER_BOUNDS} == LOWER_BOUNDS


def test_one_python_is_promised() -> None:
    """pip, ruff and mypy hear of the same oldest Python."""
    settings = pyproject()
    oldest = settings["project"]["requires-python"].removeprefix(">=")
    assert settings["tool"]["mypy"]["python_version"] == oldest
    assert settings["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_changelog_begins_with_gate_changes() -> None:
    """Under the newest version the first section is about cases, tolerances and baselines."""
    headings = re.findall(r"^##+ (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    sections = [heading for heading in headings if not re.match(r"\[?(v?\d|unreleased)", heading, re.IGNORECASE)]
    assert sections[:1] == ["Gate changes"]


HOME_PATH = re.compile(r"(?<![\w.~>-])/(?:work|root|home|Users|opt|mnt)/[\w.]")
PRIVATE_HOST = re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host", re.IGNORECASE)


def tracked_files() -> list[Path]:
    """What git tracks or would: everything but what .gitignore names."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    """No tracked file holds a path into a home or work folder, nor where its author's packages came from."""
    files = [path for path in tracked_files() if path != Path(__file__).resolve()]
    assert ROOT / "tox.ini" in files
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in files for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if HOME_PATH.search(line) or PRIVATE_HOST.search(line)
    ]
    assert named == []


@pytest.mark.parametrize("line", ["cd /mnt/data/main", '"cwd": "/home/ann/x"', "see /root/.cache", "/Users/ann"])
def test_a_place_on_somebodys_machine_is_seen(line: str) -> None:
    """The pattern finds such paths."""
    assert HOME_PATH.search(line)


@pytest.mark.parametrize("line", ["TMPDIR=/var/x", "https://example.org/home/page", "baselines/cpu", "src/root/x"])
def test_other_paths_are_left_alone(line: str) -> None:
    """The pattern passes URLs, relative paths and scratch folders."""
    assert not HOME_PATH.search(line)
