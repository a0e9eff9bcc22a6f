"""Tokens per second, tails and MFU; the machine and what else went on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.rebaseline import differences, drawn, signed
from fixtures.throughput import machine
from fixtures.throughput.conditions import Watch, identify
from fixtures.throughput.figures import figures, mfu, peak_flops, quantile
from selftests.plugin_fakes import FakeNvml
from selftests.races import DDP, timed


def test_figures_of_a_case() -> None:
    """Rates are per device, tails are those of steps, shares those of a step's time; no peak, no MFU."""
    told = figures(timed(DDP, [0.1] * 13 + [0.4]))
    assert told["tokens_per_second"] == pytest.approx(DDP.tokens_per_step / 2 / 0.1)
    assert told["step_seconds"] == pytest.approx(0.1)
    assert told["step_seconds_p99"] == pytest.approx(0.4)
    assert (told["data_share"], told["communication_share"]) == (pytest.approx(0.1), 0.25)
    assert told["mfu"] is None
    assert figures(timed(DDP, [])) == {}


def test_mfu_is_the_published_formula() -> None:
    """Granite 7B on an A100, 6.74e9 parameters at 3,000 tokens per second: 39 % of 312 TFLOP/s."""
    assert mfu(6_740_000_000, 3000, peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16")) == pytest.approx(0.3888, abs=1e-4)


@pytest.mark.parametrize(("device", "dtype", "peak"), [
    ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12), ("NVIDIA H100 PCIe", "bfloat16", 756e12),
    ("NVIDIA H200", "float32", 67e12), ("NVIDIA L4", "bfloat16", None), ("AMD EPYC", "float32", None),
    ("NVIDIA A100-SXM4-40GB", "float64", None),
])
def test_peaks_are_looked_up_by_device_and_dtype(device: str, dtype: str, peak: float | None) -> None:
    """What the table does not hold is absent, not 0."""
    assert peak_flops(device, dtype) == peak


def test_quantiles_lie_between_neighbours() -> None:
    """As statistics.quantiles, inclusive."""
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 3.0]


def test_machines_are_told_apart_by_what_matters() -> None:
    """Count, memory, interconnect and driver family are named; the host's memory is not; nothing is never equal."""
    there = {"gpus": ["A100"] * 8, "gpu_memory_gib": [80] * 8, "interconnect": "NVLink, 12 links", "driver": "535",
             "cores": 64, "memory_gib": 500}
    here = {**there, "gpus": ["A100"] * 4, "interconnect": "PCIe", "driver": "570", "memory_gib": 250}
    assert machine.differences(there, there) == []
    assert machine.differences(there, here) == [
        "gpus: 8 x A100 there, 4 x A100 here", "interconnect: NVLink, 12 links there, PCIe here",
        "driver: 535 there, 570 here",
    ]
    assert machine.differences({}, {}) == ["no machine on record"]


class BusyNvml(FakeNvml):
    """Two GPUs on NVLink, one of them hot and shared with someone; the driver does not know their processes' names."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """As pynvml's."""
        return "570.86.15"

    def nvmlDeviceGetMemoryInfo(self, handle: int, /) -> Any:  # noqa: N802
        """As pynvml's."""
        return SimpleNamespace(total=80 * 2**30)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int, /) -> int:  # noqa: N802
        """Twelve links."""
        if link >= 12:
            raise self.NVMLError("invalid argument")
        return 1

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int, /) -> int:  # noqa: N802
        """The hot one runs slowly."""
        return (1410, 900)[handle]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int, /) -> int:  # noqa: N802
        """Idle, and thermal."""
        return (0x1, 0x40)[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int, /) -> list[int]:  # noqa: N802
        """Ours, and on the second GPU someone else's."""
        return [1, 2, 3][: 2 + handle]


def test_a_gpu_machine_is_identified() -> None:
    """Names, memory, links and the driver's family; NVML is closed again."""
    nvml = BusyNvml("NVIDIA A100-SXM4-80GB", b"NVIDIA A100-SXM4-80GB")
    told = identify("a100", nvml)
    assert told["gpus"] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert (told["gpu_memory_gib"], told["interconnect"], told["driver"]) == ([80, 80], "NVLink, 12 links", "570")
    assert nvml.open == 0
    assert "gpus" not in identify("cpu", nvml)


def test_clocks_throttling_and_neighbours_are_noted() -> None:
    """On GPUs; on a CPU, load and how many cores others kept busy."""
    watch = Watch("a100", BusyNvml("A100", "A100"))
    watch.look()
    told = watch.told(0.0, ranks_per_gpu=2)
    assert told["sm_clock_mhz"] == {"0": [1410, 1410], "1": [900, 900]}
    assert told["throttled"] == ["thermal (hardware)"]
    assert told["other_gpu_processes"] == {"1": 1}
    assert set(Watch("cpu", None).told(0.0)) == {"load_average", "other_busy_cores"}


@pytest.mark.parametrize(("old", "new", "difference"), [
    ("2.0", "3.0", "+1 (+50.0%)"), ("1000", "900", "-100 (-10.0%)"), ("0", "5", "+5"), ('"a"', '"b"', ""),
    ("(absent)", "1", ""), ("true", "false", ""),
])
def test_differences_of_numbers_are_signed(old: str, new: str, difference: str) -> None:
    """Of anything else there is none."""
    assert signed(old, new) == difference


def test_a_review_leaves_out_what_is_only_shown() -> None:
    """Dates move with every recording; a new file is one row; a damaged one that was replaced is told, too."""
    before = {"t/a": {"judged": {"x": 1.0}, "recorded": {"date": "1"}}, "t/c": "{"}
    after = {"t/a": {"judged": {"x": 1.5}, "recorded": {"date": "2"}}, "t/b": {"judged": {"x": 2.0}}, "t/c": "{"}
    rows = list(differences(before, after))
    assert rows == [("t/a", "judged.x", "1.0", "1.5", "+0.5 (+50.0%)"), ("t/b", "judged", "(new)", "x 2.0", "")]
    assert len(drawn(rows, 80)) == 3
