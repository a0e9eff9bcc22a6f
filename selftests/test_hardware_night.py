"""A day in the life: forty cases, eight pretended GPUs, four workers, the real plugin and real leases."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.files import read_json
from fixtures.spec import Case
from selftests.night import Run, double_bookings, lower_bound, makespan, spans
from selftests.plugin_fakes import machine

DEVICES, WORKERS = 8, 4
ALLOWED = 1.10
"""Of the best packing, as the issue says."""

SECONDS_PER_MINUTE = 0.11
"""The night is played this fast; what its cases took is in minutes below."""

MINUTES = {
    8: (13, 10, 8),
    4: (9.5, 9, 8.5, 8, 8, 7.5, 7, 6.5, 6, 5),
    2: (6, 5.5, 5, 5, 4.5, 4.5, 4, 4, 4, 3.5, 3.5, 3, 3, 3, 2.5, 2.5, 2),
    1: (1.8, 1.5, 1.4, 1.2, 1.2, 1, 1, 0.8, 0.6, 0.5),
}
"""By devices: 7B models on four and eight, GPT-2 and the ladder of small models on two, oracles on one."""

CONFTEST = """
from pathlib import Path
from fixtures.hardware.recorded import Recorded
from fixtures.launch import Launcher
from selftests.plugin_fakes import outside

pytest_plugins = ["fixtures.plugin"]

def pytest_shardgate_outside(config):
    return outside(
        launcher=lambda: Launcher(worker="selftests.night_worker", preload=[]),
        nvml=lambda: Recorded(Path("nvml.json").absolute()),
    )
"""

MODULE = """
import json
import os
import pytest
from fixtures.spec import Case
from selftests.plugin_fakes import finding

CASES = [Case.from_json(data) for data in json.loads(os.environ["NIGHT_CASES"])]
night = pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=pytest.mark.a100) for case in CASES])

@night
def test_engaged(case, trained, judge):
    judge(finding(case, observed=str(trained(case).outcome)))

@night
def test_curve(case, trained, judge):
    judge(finding(case, rung="curve", observed=str(trained(case).losses)))
"""

Night = Callable[..., list[Run]]


def cases(minutes: dict[int, tuple[float, ...]]) -> dict[Case, float]:
    """A case of its own for each number, in an order that has nothing to do with size: as catalogues grow."""
    made = {
        Case(model="llama-tiny", engine="ddp", precision="fp32", world_size=size, steps=2, rows_per_step=8 * (1 + place)):
        took for size, times in minutes.items() for place, took in enumerate(times)
    }
    return dict(sorted(made.items(), key=lambda entry: entry[0].rows_per_step))


@pytest.fixture
def night(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Night:
    """``night(minutes, workers, conftest)``: play it; returns its runs, as long as their launcher says they took."""

    def play(minutes: dict[int, tuple[float, ...]], workers: int = WORKERS, conftest: str = CONFTEST) -> list[Run]:
        took = cases(minutes)
        root = Path(__file__).resolve().parent.parent
        monkeypatch.setenv("PYTHONPATH", str(root))
        monkeypatch.setenv("SHARDGATE_LEASES", str(pytester.path / "leases"))
        monkeypatch.setenv("FAKE_LOG", str(pytester.path / "launched.txt"))
        monkeypatch.setenv("NIGHT_LOG", str(pytester.path / "night.txt"))
        monkeypatch.setenv("NIGHT_CASES", json.dumps([case.to_json() for case in took]))
        seconds = {case.id: value * SECONDS_PER_MINUTE for case, value in took.items()}
        monkeypatch.setenv("NIGHT_SECONDS", json.dumps(seconds))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        (pytester.path / "nvml.json").write_text(json.dumps(machine(DEVICES)), encoding="utf-8")
        pytester.makeini("[pytest]\naddopts = --import-mode=importlib --strict-markers\ntestpaths = conformance\n")
        pytester.makeconftest(conftest)
        (pytester.mkdir("conformance") / "test_night.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
        result = pytester.runpytest_subprocess("-m", "a100", "-n", str(workers), "--run-dir=here", "--report=none")
        assert result.ret == 0, result.stdout.str()
        assert f"claims judged over {len(took)} of {len(took)} gated cases" in result.stdout.str()
        return read(pytester.path)

    return play


def read(folder: Path) -> list[Run]:
    """What the workers wrote down, by case."""
    lines = [json.loads(line) for line in (folder / "night.txt").read_text(encoding="utf-8").splitlines()]
    found = []
    for case_id in dict.fromkeys(line[0] for line in lines):
        mine = [line for line in lines if line[0] == case_id]
        found.append(Run(case_id=case_id, devices=tuple(line[1] for line in mine),
                         began=min(line[2] for line in mine), ended=max(line[3] for line in mine)))
    return found


def as_launched(runs: list[Run], folder: Path) -> list[Run]:
    """The runs, as long as they took with the start and the end of their processes."""
    took = {run.case_id: read_json(folder / run.case_id / "observation.json")["wall_seconds"] for run in runs}
    return [replace(run, ended=run.began + max(run.seconds, took[run.case_id])) for run in runs]


def test_a_night_is_packed(night: Night, pytester: pytest.Pytester) -> None:
    """Each case once, on as many GPUs as it needs, no GPU booked twice, within ten percent of the best packing."""
    runs = night(MINUTES)
    assert len(runs) == sum(map(len, MINUTES.values())) == 40
    assert sorted(len(run.devices) for run in runs) == sorted(size for size, times in MINUTES.items() for _ in times)
    assert double_bookings(spans(runs)) == []
    bound = lower_bound(as_launched(runs, pytester.path / "here"), devices=DEVICES, workers=WORKERS)
    strict = lower_bound(runs, devices=DEVICES, workers=WORKERS)
    print(f"{makespan(runs):.2f} s; at least {bound:.2f} s as launched, {strict:.2f} s without launching")
    assert makespan(runs) <= ALLOWED * bound
