"""Leases of GPUs: nobody has one twice, nobody waits for ever, and who dies frees his."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.hardware.cards import Card
from fixtures.hardware.leases import FOLDER, LeaseError, Leases, folder
from selftests.night import double_bookings

ROOT = Path(__file__).resolve().parent.parent
CARDS = [Card(index=index, uuid=f"GPU-{index}") for index in range(4)]


Take = Callable[..., list[int]]


@pytest.fixture
def take() -> Iterator[Take]:
    """``take(leases, count, avoided=...)``: lease, and keep until the test ends."""
    with contextlib.ExitStack() as kept:

        def lease(leases: Leases, count: int, **words: set[str]) -> list[int]:
            with leases.turn():
                mine = leases.gather(CARDS, count, **words)
            kept.enter_context(mine)
            return [card.index for card in mine.cards]

        yield lease


Background = Callable[[Callable[[], None]], threading.Thread]


@pytest.fixture
def background() -> Iterator[Background]:
    """Runs a function beside the test, and waits for it when the test ends."""
    started: list[threading.Thread] = []

    def run(function: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=function, daemon=True)
        started.append(thread)
        thread.start()
        return thread

    yield run
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_no_card_is_had_twice(tmp_path: Path, take: Take) -> None:
    """Two processes of one or of two sessions get different cards, in the order of the bus."""
    one, other = Leases(tmp_path), Leases(tmp_path)
    assert take(one, 2) == [0, 1]
    assert take(other, 2) == [2, 3]
    assert all(one.held(card.uuid) for card in CARDS)


def test_lease_ends(tmp_path: Path, take: Take) -> None:
    """A closed lease frees its cards, once."""
    leases = Leases(tmp_path)
    with leases.turn(), leases.gather(CARDS, 4) as lease:
        pass
    lease.close()
    assert not any(leases.held(card.uuid) for card in CARDS)
    assert take(leases, 4) == [0, 1, 2, 3]


def test_too_many_cards_are_a_mistake_at_once(tmp_path: Path) -> None:
    """Waiting for cards that do not exist would never end."""
    with pytest.raises(ValueError, match="5 of 4"):
        Leases(tmp_path).gather(CARDS, 5)


def test_all_or_none(tmp_path: Path, take: Take, background: Background) -> None:
    """Who waits for four while one is missing holds none of the others."""
    first = Leases(tmp_path)
    with first.turn():
        lease = first.gather(CARDS, 1)
    got: list[list[int]] = []
    background(lambda: got.append(take(Leases(tmp_path), 4)))
    time.sleep(0.2)
    # The one who waits tries them over and over, so a single look may meet one of its tries.
    assert any(not first.held("GPU-3") for _ in range(50))
    assert not got
    lease.close()
    wait_for(lambda: bool(got))
    assert got == [[0, 1, 2, 3]]


def test_large_case_is_not_passed_by(tmp_path: Path, background: Background) -> None:
    """While one waits for all cards, another that needs a free one waits behind it."""
    first = Leases(tmp_path)
    with first.turn():
        lease = first.gather(CARDS, 1)
    order: list[int] = []

    def run(count: int) -> None:
        leases = Leases(tmp_path)
        with leases.turn():
            mine = leases.gather(CARDS, count)
        order.append(count)
        time.sleep(0.1)
        mine.close()

    background(lambda: run(4))
    time.sleep(0.3)
    background(lambda: run(1))
    time.sleep(0.3)
    assert order == []
    lease.close()
    wait_for(lambda: len(order) == 2)
    assert order == [4, 1]


def test_suspects_are_taken_last(tmp_path: Path, take: Take) -> None:
    """A card that failed is avoided while there are others, and taken if there are none."""
    assert take(Leases(tmp_path), 2, avoided={"GPU-0"}) == [1, 2]
    assert take(Leases(tmp_path), 2, avoided={"GPU-0"}) == [0, 3]


def test_killed_process_frees_its_cards(tmp_path: Path, take: Take) -> None:
    """Nothing has to be cleaned up after SIGKILL."""
    code = f"""
        import time
        from pathlib import Path
        from fixtures.hardware.leases import Leases
        from selftests.test_hardware_leases import CARDS
        leases = Leases(Path({str(tmp_path)!r}))
        with leases.turn():
            lease = leases.gather(CARDS, 4)
            print("mine", flush=True)
            time.sleep(600)
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mine\n"
        assert all(Leases(tmp_path).held(card.uuid) for card in CARDS)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert take(Leases(tmp_path), 4) == [0, 1, 2, 3]


def test_many_who_want_many_all_get_them(tmp_path: Path) -> None:
    """Twelve threads with needs of one to four: none waits for ever, none shares a card; each had what it asked for."""
    spans: list[tuple[str, float, float]] = []
    failed: list[str] = []

    def run(count: int) -> None:
        leases = Leases(tmp_path)
        for _ in range(3):
            with leases.turn():
                lease = leases.gather(CARDS, count)
            began = time.monotonic()
            time.sleep(0.002)
            spans.extend((card.uuid, began, time.monotonic()) for card in lease.cards)
            failed.extend(["short"] * (len(lease.cards) != count))
            lease.close()

    threads = [threading.Thread(target=run, args=(1 + number % 4,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert len(spans) == 3 * 3 * (1 + 2 + 3 + 4)
    assert double_bookings(spans) == []


def test_folder_is_the_machines_unless_named(tmp_path: Path) -> None:
    """All sessions of a machine meet in one folder; one that cannot be made is one line."""
    assert folder({}).name == "shardgate-leases"
    assert folder({FOLDER: str(tmp_path)}) == tmp_path
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(LeaseError, match=f"cannot lease GPUs in {blocked}.*{FOLDER}"):
        Leases(blocked)


def test_locks_are_open_to_all_users(tmp_path: Path, take: Take) -> None:
    """Whoever comes first, other users of the machine can lock the same cards."""
    where = tmp_path / "locks"
    take(Leases(where), 1)
    assert where.stat().st_mode & 0o777 == 0o777
    assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o666}


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Return once ``condition`` holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
