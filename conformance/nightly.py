"""What a GPU night runs, and what it is expected to take: one booking per case. Pytest circle.

Nobody has run it yet. Memory is rehearsed where a model is of full size; minutes are estimates: of the small models ten
times what the CPU takes, of the large ones the published step times, or the card's peak at the published share of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from conformance import catalogue, full_size, published
from conformance.full_size import TRIALS
from fixtures.rehearsal.cards import CARD_GIB, TITAN_RTX_GIB
from fixtures.spec import Case
from fixtures.tables import PLATFORMS

SMALL_GIB, SMALL_MINUTES = 2.0, 0.2
"""A CUDA context, NCCL's buffers and a few MiB; a start of some seconds and steps of milliseconds."""
COMPILED_MINUTES = 2.0
RACE_MINUTES = 2.0
"""Of each racing case: all are alive at once for two heats or more."""
PUBLISHED_MINUTES = 2.0
"""Building GPT-2 Large or XL on the host, and three steps."""

HOURS: Mapping[str, tuple[float, float]] = {platform: (5.0, 12.0) for platform in PLATFORMS if platform != "cpu"}
"""By platform, the least and the most device hours of a night: one that takes less has lost its cases."""
UNKNOWN_CARD_HOURS = (0.5, 12.0)
"""Where the card is not known nothing is booked that needs a certain one."""


@dataclass(frozen=True, kw_only=True)
class Booking:
    """One case of a night.

    :param gib: of each card.
    :param minutes: expected, on all its devices at once.
    """

    case: Case
    gib: float
    minutes: float

    @property
    def devices(self) -> int:
        """One per rank."""
        return self.case.world_size

    @property
    def device_hours(self) -> float:
        """Devices times time."""
        return self.devices * self.minutes / 60


SMALL_CASES = (
    *catalogue.MATCHED, *catalogue.SCALED, *catalogue.OVERFLOWING, *catalogue.KERNELS, *catalogue.STOCK,
    *catalogue.EXPERIMENT.values(), *catalogue.MEMORY, *catalogue.OFFLOADED, *catalogue.TRAINER,
    *catalogue.LAST_WINDOW, *catalogue.MIGRATION, *catalogue.ARCHITECTURES, *catalogue.DROPOUT, *catalogue.RANKS,
    *catalogue.RACE, *catalogue.COMPILED, *catalogue.BUFFERS, *catalogue.PROGRAMS,
)


def bookings(platform: str) -> list[Booking]:
    """Every case that ``pytest -m PLATFORM --full`` is about, once, the ones with the most devices and time first."""
    found = [*_small(platform), *_published()]
    found += _trials() if platform in CARD_GIB else []
    unique = {booking.case.id: booking for booking in found}
    return sorted(unique.values(), key=lambda booking: (-booking.devices, -booking.minutes, booking.case.id))


def _small(platform: str) -> list[Booking]:
    cases = [case for case in SMALL_CASES if platform in catalogue.platforms(case)]
    racing = {case.id for case in catalogue.RACE}
    return [
        Booking(
            case=case, gib=SMALL_GIB * (len(racing) if case.id in racing else 1),
            minutes=RACE_MINUTES if case.id in racing else COMPILED_MINUTES if case.compiled != "none"
            else SMALL_MINUTES,
        )
        for case in cases
    ]


def _published() -> list[Booking]:
    return [
        Booking(case=param.values[0], gib=TITAN_RTX_GIB, minutes=PUBLISHED_MINUTES) for param in published.real_rows()
    ]


def _trials() -> list[Booking]:
    return [
        Booking(case=case, gib=full_size.need(case), minutes=one.minutes)
        for one in TRIALS for case in one.runs.values()
    ]


def device_hours(booked: Iterable[Booking]) -> float:
    """Of all cases together; their oracles and peers, which are cases themselves or small, are not counted twice."""
    return sum(booking.device_hours for booking in booked)


def hours(platform: str) -> tuple[float, float]:
    """The least and the most device hours of the platform's night."""
    return HOURS[platform] if platform in CARD_GIB else UNKNOWN_CARD_HOURS


def oracles() -> list[Case]:
    """One process over the whole batch: on a GPU it runs there, too."""
    cases = (*catalogue.MATCHED, *catalogue.SCALED, *catalogue.OVERFLOWING, *catalogue.KERNELS)
    return list({case.oracle.id: case.oracle for case in cases if "a100" in catalogue.platforms(case)}.values())


def params() -> list[Any]:
    """Parameters ``case``, one for each case of a night and each oracle, marked as the case is, to be rehearsed."""
    found: dict[str, tuple[Case, set[str]]] = {}
    for platform in HOURS:
        for case in [*(booking.case for booking in bookings(platform)), *oracles()]:
            found.setdefault(case.id, (case, set()))[1].add(platform)
    return [
        pytest.param(case, id=name, marks=[
            pytest.mark.rehearsed, *([pytest.mark.full] if name in catalogue.FULL else []),
            *(getattr(pytest.mark, platform) for platform in sorted(on)),
        ])
        for name, (case, on) in found.items()
    ]


def table(platform: str) -> str:
    """The night as Markdown: case, devices, GiB, minutes; one line for all small ones of a kind."""
    booked = bookings(platform)
    large = [booking for booking in booked if booking.case.architecture.full_size]
    small = [booking for booking in booked if booking not in large]
    lines = ["| case | devices | GiB each | minutes |", "|---|---|---|---|"]
    lines += [
        f"| `{one.case.id}` | {one.devices} | {one.gib:.1f} | {one.minutes:g} |" for one in large
    ]
    lines.append(f"| {len(small)} small ones | 1 to 4 | {SMALL_GIB:g} to {max(b.gib for b in small):g} | "
                 f"{sum(b.minutes for b in small):.0f} together |")
    lines.append(f"| **all** | | | **{device_hours(booked):.1f} device hours** |")
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    print(table(sys.argv[1] if len(sys.argv) > 1 else "a100"))
