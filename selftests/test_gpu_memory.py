"""A GPU's memory is counted and limited as promised, on a card that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.gpu import card as own_card
from fixtures.gpu.cuda import Cuda
from fixtures.gpu.limit import Limit
from fixtures.gpu.meter import Meter
from fixtures.hardware.failures import OUT_OF_MEMORY
from fixtures.phases import BACKWARD, BEFORE, BUILD, CLOSED, FORWARD, PREPARE, STEP

MIB = 2**20
TOTAL = 80 * 1024 * MIB
CONTEXT = 500 * MIB
ROUNDING = 512


class OutOfMemoryError(RuntimeError):
    """As ``torch.OutOfMemoryError``."""


class FakeCard:
    """A card with an allocator that rounds up, keeps what it reserved, and obeys a share; ``outside`` is the rest."""

    def __init__(self, *, outside: int = CONTEXT, total: int = TOTAL) -> None:
        self.outside, self.total, self.share = outside, total, 1.0
        self.tensors: dict[int, int] = {}
        self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.pending: list[int] = []
        self.synchronized = 0

    @property
    def allocated(self) -> int:
        """Rounded up."""
        return sum(-(-size // ROUNDING) * ROUNDING for size in self.tensors.values())

    def allocate(self, size: int) -> int:
        """A tensor's name; what other streams had still used is given back first."""
        for name in self.pending:
            del self.tensors[name]
        self.pending.clear()
        name = max(self.tensors, default=0) + 1
        self.tensors[name] = size
        needed = max(self.reserved, self.allocated)
        if needed > self.share * self.total:
            del self.tensors[name]
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        self.reserved = needed
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return name

    def free(self, name: int, *, late: bool = False) -> None:
        """Let a tensor go; ``late``: another stream uses it until the next allocation."""
        if late:
            self.pending.append(name)
        else:
            del self.tensors[name]

    def touch(self) -> None:
        """One small tensor that comes and goes."""
        self.free(self.allocate(4))

    def synchronize(self) -> None:
        """As torch.cuda's."""
        self.synchronized += 1

    def memory_stats(self) -> Mapping[str, Any]:
        """As torch.cuda's."""
        return {"requested_bytes.all.current": sum(self.tensors.values())}

    def max_memory_allocated(self) -> int:
        """As torch.cuda's."""
        return self.peak_allocated

    def memory_reserved(self) -> int:
        """As torch.cuda's."""
        return self.reserved

    def max_memory_reserved(self) -> int:
        """As torch.cuda's."""
        return self.peak_reserved

    def reset_peak_memory_stats(self) -> None:
        """As torch.cuda's."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def mem_get_info(self) -> tuple[int, int]:
        """As torch.cuda's."""
        return self.total - self.outside - self.reserved, self.total

    def empty_cache(self) -> None:
        """As torch.cuda's."""
        self.reserved = self.allocated

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """As torch.cuda's, which refuses a share that is none."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self.share = fraction


@pytest.fixture
def card() -> FakeCard:
    """80 GiB, of which the context takes 500 MiB."""
    return FakeCard()


def test_the_fake_is_what_the_meter_needs(card: FakeCard) -> None:
    """Checked by mypy, too: torch.cuda itself stands for the same protocol in fixtures/training.py."""
    stands_for: Cuda = card
    assert stands_for.mem_get_info() == (TOTAL - CONTEXT, TOTAL)


def tensor(size: int, place: int, device: str = "cuda") -> Any:
    """What the meter asks of a tensor."""
    storage = SimpleNamespace(nbytes=lambda: size, data_ptr=lambda: place)
    return SimpleNamespace(device=SimpleNamespace(type=device), untyped_storage=lambda: storage)


def trained(card: FakeCard, *, late: bool = False) -> dict[str, Any]:
    """Four steps of a model of 1000 bytes, with 500 of activations and a work space that was there before."""
    meter = Meter(card, warm_up=lambda: card.tensors.update({99: 8 * MIB}), touch=card.touch)
    meter.start()
    meter.mark(BUILD, {"parameters": [tensor(1000, 1, "cpu")]})
    card.allocate(1000)
    held = {"parameters": [tensor(1000, 1)], "masters": [tensor(7000, 2, "cpu")]}
    meter.mark(PREPARE, held)
    card.outside += 64 * MIB  # NCCL's buffers
    for _ in range(4):
        meter.mark(BEFORE, held)
        activations = card.allocate(500)
        meter.mark(FORWARD, held)
        card.free(card.allocate(7000))
        gradients = card.allocate(1000)
        card.free(activations, late=late)
        meter.mark(BACKWARD, {**held, "gradients": [tensor(1000, 3), tensor(1000, 3)]})
        card.free(gradients)
        meter.mark(STEP, held)
    meter.mark(CLOSED, {})
    meter.stop()
    return meter.to_json()


@pytest.mark.parametrize("late", [False, True])
def test_what_tensors_asked_for_is_counted_to_the_byte(card: FakeCard, late: bool) -> None:
    """Not what the allocator made of it; storages once; a tensor that another stream still used is not there."""
    told = trained(card, late=late)
    forward, backward = told["points"]["forward"], told["points"]["backward"]
    assert (forward["live"], forward["parameters"], forward["activations"], forward["rest"]) == (1500, 1000, 500, 0)
    assert (backward["live"], backward["gradients"], backward["activations"]) == (2000, 1000, 0)
    assert (told["after_steps"], told["after_close"]) == ([1000] * 4, 1000)


def test_what_lies_in_the_hosts_memory_is_not_counted(card: FakeCard) -> None:
    """Offloaded masters take nothing of the card; the model's size is told where it was built."""
    told = trained(card)
    assert told["points"]["build"]["parameters"] == 1000
    assert told["points"]["prepare"]["masters"] == 0


def test_peaks_are_allocated_reserved_and_of_the_card(card: FakeCard) -> None:
    """What the allocator gave beyond what was there before, what it took, and with NCCL's buffers."""
    told = trained(card)
    assert told["peaks"]["backward"] == 1024 + 512 + 7168
    assert told["peaks"]["forward"] == 1024 + 512
    reserved = 8 * MIB + 1024 + 512 + 7168
    assert told["reserved_peaks"]["backward"] == reserved
    assert told["in_use_peaks"]["backward"] == CONTEXT + 64 * MIB + reserved
    assert told["in_use_peaks"]["prepare"] < told["in_use_peaks"]["forward"]
    assert card.synchronized > 4 * 4


def test_a_run_that_did_not_end_tells_nothing(card: FakeCard) -> None:
    """As on the CPU: half a record is none."""
    meter = Meter(card, warm_up=lambda: None, touch=card.touch)
    meter.start()
    meter.mark(BUILD, {})
    assert meter.to_json() == {}
    meter.stop()


CARD_24 = 24 * 1024 * MIB


def test_a_smaller_card_runs_out_where_it_would(card: FakeCard) -> None:
    """24 GiB less the context; afterwards the whole card is there again."""
    limit = Limit(CARD_24, card)
    limit.start()
    card.allocate(CARD_24 - CONTEXT - MIB)
    with pytest.raises(OutOfMemoryError):
        card.allocate(2 * MIB)
    limit.look()
    assert limit.to_json() == {
        "budget_bytes": CARD_24, "most_bytes": CARD_24 - MIB, "outside_bytes": CONTEXT, "total_bytes": TOTAL,
    }
    limit.lift()
    card.allocate(2 * MIB)


def test_what_comes_outside_the_allocator_is_taken_from_the_rest(card: FakeCard) -> None:
    """NCCL's buffers leave less for tensors from the next phase on."""
    limit = Limit(CARD_24, card)
    limit.start()
    card.allocate(CARD_24 // 2)
    card.outside += 1024 * MIB
    limit.look()
    left = CARD_24 - CARD_24 // 2 - CONTEXT - 1024 * MIB
    with pytest.raises(OutOfMemoryError):
        card.allocate(left + MIB)
    card.allocate(left)


def test_a_phase_that_was_beyond_the_card_is_out_of_memory(card: FakeCard) -> None:
    """Both together were too much: the smaller card would not have come so far. It says what took what."""
    limit = Limit(CARD_24, card)
    limit.start()
    card.free(card.allocate(CARD_24 - CONTEXT))
    card.outside += 100 * MIB
    with pytest.raises(MemoryError, match=r"24,576 MiB is too small: 24,076 MiB reserved .* and 600 MiB outside it"):
        limit.look()


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (81 * 1024 * MIB, "a card of 82,944 MiB cannot be emulated on one of 81,920 MiB"),
        (51 * MIB, "a card of 51 MiB has no room: 500 MiB of it are in use before any tensor"),
    ],
)
def test_a_card_that_cannot_be_emulated_is_refused(card: FakeCard, budget: int, words: str) -> None:
    """A larger one, and one that the context alone fills: neither is out of memory, and neither runs unlimited."""
    with pytest.raises(RuntimeError, match=words) as told:
        Limit(budget, card).start()
    assert not any(word in f"{told.type.__name__}: {told.value}" for word in OUT_OF_MEMORY)


def test_only_what_is_reserved_now_counts_at_the_start(card: FakeCard) -> None:
    """What was cached before the model was built is given back first."""
    card.free(card.allocate(10 * 1024 * MIB))
    limit = Limit(CARD_24, card)
    limit.start()
    limit.look()
    assert limit.to_json()["most_bytes"] == CONTEXT


SAID = [
    ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB", True),
    ("AcceleratorError: CUDA error: out of memory", True),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
    ("DistBackendError: NCCL error ... Last error: Cuda failure 2 'out of memory'", True),
    ("MemoryError: a card of 24,576 MiB is too small", True),
    ("RuntimeError: CUDA error: device-side assert triggered", False),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
    ("DistBackendError: NCCL error ... Last error: Cuda failure 999 'unknown error'", False),
]
"""What the frameworks say, and whether it is out of memory."""


@pytest.mark.parametrize(("said", "is_oom"), SAID)
def test_out_of_memory_is_told_from_other_errors_of_a_gpu(said: str, is_oom: bool) -> None:
    """By the words of torch, CUDA, cuBLAS and NCCL."""
    assert any(word in said for word in OUT_OF_MEMORY) is is_oom


@pytest.mark.parametrize("uuid", ["00000001-0000-4000-8000-00000000000A", "GPU-00000001-0000-4000-8000-00000000000a"])
def test_rank_on_the_leased_card_goes_on(uuid: str) -> None:
    """However torch spells the card; a run by hand has no lease, and an old torch cannot tell."""
    leased = "GPU-00000000-0000-4000-8000-00000000000a,GPU-00000001-0000-4000-8000-00000000000a"
    own_card.check(leased, 1, SimpleNamespace(uuid=uuid))
    own_card.check(None, 1, SimpleNamespace(uuid=uuid))
    own_card.check(leased, 0, SimpleNamespace())


def test_rank_on_another_card_ends() -> None:
    """Where CUDA counts otherwise than NVML, two cases would sit on one card: the rank says so and ends."""
    with pytest.raises(own_card.WrongCardError, match="local rank 0 sees GPU-b, and GPU-a is leased for it"):
        own_card.check("GPU-a,GPU-b", 0, SimpleNamespace(uuid="b"))
