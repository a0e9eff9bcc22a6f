"""Lower bounds of the packages under test, and the promise to import none of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import packages
from selftests.plugin_fakes import cpu_seconds_of_children

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = "torch transformers accelerate deepspeed"


def test_bounds_are_those_of_the_dependency_group() -> None:
    """The message names the bound that pip would install."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group = text.partition("runtime = [")[2].partition("]")[0]
    bounds = dict(re.findall(r'"(\w+)>=([\d.]+)"', group))
    assert {package: bounds[package] for package in packages.LOWER_BOUNDS} == packages.LOWER_BOUNDS


@pytest.mark.parametrize(("versions", "line"), [
    ({}, None),
    ({"torch": "2.6.0"}, None),
    ({"torch": "2.10.0+cpu"}, None),
    ({"torch": "2.5.1"}, 'torch 2.5.1 is below 2.6: pip install "torch>=2.6"'),
    ({"deepspeed": None}, 'deepspeed is not installed: pip install "deepspeed>=0.16"'),
    ({"accelerate": "1.3.0rc1"}, 'accelerate 1.3.0rc1 is below 1.3: pip install "accelerate>=1.3"'),
])
def test_problem_is_one_line_with_its_remedy(versions: dict[str, str | None], line: str | None) -> None:
    """Versions are compared as versions, not as text."""
    assert packages.problem(lambda package: versions.get(package, "99")) == line


def test_missing_package_has_no_version() -> None:
    """Not installed is told apart from any version."""
    assert packages.installed_version("no-such-package-anywhere") is None
    assert packages.installed_version("pytest") == pytest.__version__


def test_collection_is_quick_and_imports_no_framework() -> None:
    """Collecting this repository's conformance suite leaves the packages under test alone, and takes at most a quarter
    longer than importing torch does: about a second, more where the processor is slow. The best of two counts.
    """
    script = f"""
import sys, pytest
class Watch:
    def pytest_unconfigure(self):
        print("imported:", sorted(set({FRAMEWORKS.split()!r}) & set(sys.modules)))
sys.exit(pytest.main(["--collect-only", "-q", "conformance"], plugins=[Watch()]))
"""
    collecting, importing = [], []
    for _ in range(2):
        begun = cpu_seconds_of_children()
        subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=True)
        importing.append(cpu_seconds_of_children() - begun)
        begun = cpu_seconds_of_children()
        result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        collecting.append(cpu_seconds_of_children() - begun)
    assert min(collecting) < 1.25 * min(importing)
    assert "imported: []" in result.stdout, result.stdout + result.stderr
