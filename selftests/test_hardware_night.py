"""A day in the life: forty cases, eight pretended GPUs, four workers, the real plugin and real leases."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.files import read_json
from fixtures.spec import Case
from selftests.night import Run, double_bookings, lower_bound, makespan, spans
from selftests.plugin_fakes import machine

DEVICES, WORKERS = 8, 4
ALLOWED = 1.10
"""Of the best packing, as the issue says."""

SECONDS_PER_MINUTE = 0.1
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
Minutes = Mapping[int, Sequence[float]]


def cases(minutes: Minutes) -> dict[Case, float]:
    """A case of its own for each number, in an order that has nothing to do with size: as catalogues grow."""
    like = Case(model="llama-tiny", engine="ddp", precision="fp32", steps=2)
    made = {like.with_(world_size=size, rows_per_step=8 * (1 + place)): took
            for size, times in minutes.items() for place, took in enumerate(times)}
    return dict(sorted(made.items(), key=lambda entry: entry[0].rows_per_step))


@pytest.fixture
def night(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Night:
    """``night(minutes, conftest=...)``: play it into the folder ``here``; returns its runs, as their ranks saw them."""

    def play(minutes: Minutes, *, conftest: str = CONFTEST) -> list[Run]:
        took = cases(minutes)
        variables = {
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
            "SHARDGATE_LEASES": str(pytester.path / "leases"),
            "FAKE_LOG": str(pytester.path / "launched.txt"), "NIGHT_LOG": str(pytester.path / "night.txt"),
            "NIGHT_CASES": json.dumps([case.to_json() for case in took]),
            "NIGHT_SECONDS": json.dumps({case.id: value * SECONDS_PER_MINUTE for case, value in took.items()}),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        (pytester.path / "nvml.json").write_text(json.dumps(machine(DEVICES)), encoding="utf-8")
        pytester.makeini("[pytest]\naddopts = --import-mode=importlib --strict-markers\ntestpaths = conformance\n")
        pytester.makeconftest(conftest)
        (pytester.mkdir("conformance") / "test_night.py").write_text(MODULE, encoding="utf-8")
        words = ("-m", "a100", "-n", str(WORKERS), "--run-dir=here", "--report=none", "--history=off")
        result = pytester.runpytest_subprocess(*words)
        assert result.ret == 0, result.stdout.str()
        assert f"claims judged over {len(took)} of {len(took)} gated cases" in result.stdout.str()
        return read(pytester.path)

    return play


def read(folder: Path) -> list[Run]:
    """What the workers wrote down, by case."""
    lines = [json.loads(line) for line in (folder / "night.txt").read_text(encoding="utf-8").splitlines()]
    by_case: dict[str, list[Any]] = {}
    for line in lines:
        by_case.setdefault(line[0], []).append(line)
    return [Run(case_id=name, devices=tuple(line[1] for line in mine), began=min(line[2] for line in mine),
                ended=max(line[3] for line in mine)) for name, mine in by_case.items()]


def as_leased(runs: list[Run], folder: Path) -> list[Run]:
    """The runs, as long as they had their GPUs: with the start and the end of their processes.

    On this machine those take a tenth of a second, a minute of the night that is played.
    """
    records = {run.case_id: read_json(folder / run.case_id / "observation.json") for run in runs}
    took = {name: one["provenance"]["gpu_seconds"] / one["case"]["world_size"] for name, one in records.items()}
    return [replace(run, ended=run.began + max(run.seconds, took[run.case_id])) for run in runs]


def test_a_night_is_packed(night: Night, pytester: pytest.Pytester) -> None:
    """Each case once, on as many GPUs as it needs, no GPU booked twice, within ten percent of the best packing."""
    runs = night(MINUTES)
    assert len(runs) == sum(map(len, MINUTES.values())) == 40
    assert sorted(len(run.devices) for run in runs) == sorted(size for size, times in MINUTES.items() for _ in times)
    assert double_bookings(spans(runs)) == []
    bound = lower_bound(as_leased(runs, pytester.path / "here"), devices=DEVICES, workers=WORKERS)
    assert makespan(runs) <= ALLOWED * bound


def test_sessions_that_do_not_share_locks_are_seen(night: Night) -> None:
    """The same night in small, each worker with leases of its own: devices are booked twice, and it shows."""
    apart = CONFTEST + """
import os
os.environ["SHARDGATE_LEASES"] = str(Path("leases").absolute() / os.environ.get("PYTEST_XDIST_WORKER", "all"))
"""
    assert double_bookings(spans(night({4: (5, 5, 5, 5), 2: (4, 4, 4, 4)}, conftest=apart)))


def run(devices: Sequence[int], began: float, ended: float) -> Run:
    """A run by hand."""
    return Run(case_id="", devices=tuple(devices), began=began, ended=ended)


@pytest.mark.parametrize(("spans", "count"), [
    ([("0", 0, 1), ("0", 1, 2), ("1", 0, 2)], 0),
    ([("0", 0, 1), ("0", 0.9, 2)], 1),
    ([("0", 0, 9), ("0", 1, 2), ("0", 3, 4)], 2),
])
def test_double_bookings_are_counted(spans: list[tuple[str, float, float]], count: int) -> None:
    """One after the other is none; inside each other is one each."""
    assert len(double_bookings(spans)) == count


def test_a_perfect_packing_meets_the_bound() -> None:
    """All eight, then two halves, then quarters: nothing is idle, and nothing can be faster."""
    packed = [run(range(8), 0, 2), run(range(4), 2, 4), run(range(4, 8), 2, 4),
              *(run(range(2 * place, 2 * place + 2), 4, 5) for place in range(4))]
    assert lower_bound(packed, devices=8, workers=4) == makespan(packed) == 5


@pytest.mark.parametrize("worse", [
    [run(range(4), 0, 2), run(range(4, 8), 2, 4)],  # one after the other, where both had room
    [run(range(2), 0, 1), run(range(2, 4), 0, 1), run(range(4, 6), 0, 1), run(range(6, 8), 1, 2)],  # one GPU pair idle
    [run(range(2), 0, 1), run(range(8), 1, 3), run(range(2), 3, 4)],  # small cases on both sides of a large one
])
def test_a_poor_packing_misses_the_bound(worse: list[Run]) -> None:
    """What could have been done at the same time was not."""
    assert makespan(worse) > ALLOWED * lower_bound(worse, devices=8, workers=4)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_one(seed: int) -> None:
    """No schedule of random runs, made by starting each as soon as there is room, beats it."""
    draw = random.Random(seed)
    made: list[Run] = []
    for _ in range(15):
        size, seconds = draw.choice((1, 2, 3, 4, 8)), draw.uniform(0.1, 3)
        starts = sorted({0.0, *(one.ended for one in made)})
        made.append(next(filter(None, (_placed(made, size, start, seconds) for start in starts))))
    assert not double_bookings(spans(made))
    assert lower_bound(made, devices=8, workers=4) <= makespan(made) + 1e-9


def _placed(made: list[Run], size: int, start: float, seconds: float) -> Run | None:
    """A run of this size from ``start`` on, if eight devices and four workers have room for it."""
    beside = [one for one in made if one.began < start + seconds and start < one.ended]
    busy = {device for one in beside for device in one.devices}
    free = [device for device in range(8) if device not in busy]
    return run(free[:size], start, start + seconds) if len(free) >= size and len(beside) < 4 else None
