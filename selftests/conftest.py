"""A tiny suite in a folder of its own, judged by the real plugin in a fake world."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures import extensions
from fixtures.launch import Launcher
from selftests.plugin_fakes import Suite

ROOT = Path(__file__).resolve().parent.parent

CONFTEST = """
from pathlib import Path

from fixtures.hardware.recorded import Recorded
from selftests.plugin_fakes import FakeNvml, ThoroughLauncher, outside

pytest_plugins = ["fixtures.plugin"]

def pytest_shardgate_outside(config):
    return outside({changes})
"""

HEAD = """
import pytest
from fixtures.baseline import unchanged
from selftests.plugin_fakes import CASE, OTHER, finding

both = pytest.mark.parametrize("case", [
    pytest.param(case, id=case.id, marks=[pytest.mark.cpu, pytest.mark.a100]) for case in (CASE, OTHER)
])
one = pytest.mark.parametrize("case", [pytest.param(CASE, id=CASE.id, marks=pytest.mark.cpu)])
"""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What could not be checked on this machine is counted by its reason, however quiet the session."""
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ")
                      for report in terminalreporter.getreports("skipped") if isinstance(report.longrepr, tuple))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"not checked here: {count} self-test{'s' if count > 1 else ''}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def _by_itself() -> Iterator[None]:
    """Sessions that tests start are started by nobody else: not by tox, and not in a worker of pytest-xdist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TOX_ENV_NAME", raising=False)
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """One launcher for all real runs of a module, with DeepSpeed's extensions built."""
    extensions.ensure_built()
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """``suite(body, changes="")``: write one conformance module and a conftest.py; ``changes`` go to the fake world."""

    def write(body: str, changes: str = "") -> pytest.Pytester:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("SHARDGATE_LEASES", str(pytester.path / "leases"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv("FAKE_LOG", str(pytester.path / "launched.txt"))
        (pytester.path / "launched.txt").touch()
        pytester.makeini("[pytest]\naddopts = --import-mode=importlib --strict-markers\ntestpaths = conformance\n")
        pytester.makeconftest(CONFTEST.format(changes=changes))
        conformance = pytester.mkdir("conformance")
        (conformance / "test_small.py").write_text(HEAD + textwrap.dedent(body), encoding="utf-8")
        return pytester

    return write
