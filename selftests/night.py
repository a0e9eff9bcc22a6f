"""A night on pretended GPUs: what its workers wrote down, and how well it was packed. For self-tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Run:
    """One case of a night: ``devices`` (their indices) from ``began`` until ``ended``, in seconds."""

    case_id: str
    devices: tuple[int, ...]
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


def double_bookings(spans: Iterable[tuple[str, float, float]]) -> list[str]:
    """A line for each pair of spans (device, from, until) that overlap on one device."""
    found, last = [], dict[str, tuple[float, float]]()
    for device, began, ended in sorted(spans, key=lambda span: (span[0], span[1])):
        before = last.get(device)
        if before is not None and began < before[1]:
            found.append(f"{device}: {began:.3f} to {ended:.3f} and until {before[1]:.3f}")
        if before is None or ended > before[1]:
            last[device] = (began, ended)
    return found


def spans(runs: Iterable[Run]) -> list[tuple[str, float, float]]:
    """One per run and device."""
    return [(str(device), run.began, run.ended) for run in runs for device in run.devices]


def makespan(runs: Sequence[Run]) -> float:
    """From the first start to the last end."""
    return max(run.ended for run in runs) - min(run.began for run in runs)


def lower_bound(runs: Sequence[Run], *, devices: int, workers: int) -> float:
    """Seconds that no packing of these runs, each as long as it was, can beat on so many devices and workers.

    Beside a run that needs all devices nothing else runs, so their times add up, and the rest comes on top: at least
    the sum of those that need more than half (they exclude each other), the rest's device-seconds by the devices, its
    worker-seconds by the workers, and its longest run. The best packing takes at least as long as the largest of these,
    maybe longer: what is within ten percent of this is within ten percent of the best.
    """
    whole = math.fsum(run.seconds for run in runs if len(run.devices) == devices)
    rest = [run for run in runs if len(run.devices) < devices]
    half = math.fsum(run.seconds for run in rest if 2 * len(run.devices) > devices)
    area = math.fsum(run.seconds * len(run.devices) for run in rest) / devices
    hands = math.fsum(run.seconds for run in rest) / workers
    longest = max((run.seconds for run in rest), default=0.0)
    return whole + max(half, area, hands, longest)
