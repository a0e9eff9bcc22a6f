"""Hardware discovery, and which platform the command line means."""

from __future__ import annotations

import pytest

from fixtures import platforms
from fixtures.platforms import Hardware, PlatformError
from fixtures.spec import PLATFORMS, SpecError
from selftests.plugin_fakes import FakeNvml

MARKS = (*PLATFORMS, "slow")


@pytest.mark.parametrize(("name", "platform"), [
    ("NVIDIA A100-SXM4-80GB", "a100"), (b"NVIDIA A100 80GB PCIe", "a100"), ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA H100 NVL", "h100"), ("NVIDIA H200", "h200"),
])
def test_gpu_is_known_by_its_name(name: str | bytes, platform: str) -> None:
    """NVML's name decides, as text or bytes, and it decides for one platform only."""
    hardware = platforms.discover(FakeNvml(name, name))
    assert [known for known in platforms.GPUS if hardware.has(known)] == [platform]


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA A10", "NVIDIA A1000", "Tesla V100-SXM2-16GB"])
def test_other_gpus_are_no_platform(name: str) -> None:
    """A name that only contains a platform's letters is another GPU."""
    assert not any(platforms.discover(FakeNvml(name)).has(known) for known in platforms.GPUS)


def test_cpu_is_always_here() -> None:
    """The default needs no hardware."""
    assert Hardware().has("cpu")


def test_message_counts_what_is_here() -> None:
    """The wrong GPU is named, with its number."""
    hardware = platforms.discover(FakeNvml("NVIDIA L4", "NVIDIA L4"))
    with pytest.raises(PlatformError, match=r"^-m a100 needs an NVIDIA A100; this machine has 2 x NVIDIA L4$"):
        platforms.check("a100", hardware, "-m a100")


@pytest.mark.parametrize(("nvml", "words"), [
    (None, "pip install nvidia-ml-py"),
    (FakeNvml(problem=FakeNvml.NVMLError_LibraryNotFound("libnvidia-ml.so.1")), "(NVML not found)"),
    (FakeNvml(problem=FakeNvml.NVMLError("Driver mismatch")), "(NVML: Driver mismatch)"),
    (FakeNvml(), "(NVML counts none)"),
])
def test_no_gpu_says_why(nvml: FakeNvml | None, words: str) -> None:
    """The package, the library, the driver or the hardware: the message says which is missing."""
    hardware = platforms.discover(nvml)
    assert hardware.gpus == ()
    assert str(hardware).startswith("this machine has no NVIDIA GPU (")
    assert words in str(hardware)


def test_nvml_is_shut_down_again() -> None:
    """Discovery leaves nothing open, also when a GPU cannot be asked."""

    class Broken(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            raise self.NVMLError("GPU is lost")

    for nvml in (FakeNvml("NVIDIA H200"), Broken()):
        platforms.discover(nvml)
        assert nvml.open == 0


def test_real_nvml_answers_here() -> None:
    """Whatever this machine has, discovery tells it without raising."""
    hardware = platforms.discover(platforms.load_nvml())
    assert bool(hardware.gpus) != bool(hardware.problem) or str(hardware).endswith("(NVML counts none)")


@pytest.mark.parametrize(("option", "expression", "platform"), [
    (None, "", "cpu"), (None, "cpu", "cpu"), (None, "slow", "cpu"), (None, "a100", "a100"), (None, "not a100", "cpu"),
    (None, "a100 and not slow", "a100"), (None, "h100 and not (a100 or h200)", "h100"), (None, "slow(level=3)", "cpu"),
    ("h200", "", "h200"), ("h200", "h200 or a100", "h200"), ("a100", "cpu", "a100"), ("cpu", "not h100", "cpu"),
])
def test_words_choose_the_platform(option: str | None, expression: str, platform: str) -> None:
    """--platform first, then the one GPU that -m asks for, then the CPU."""
    assert platforms.choose(option=option, mark_expression=expression, known_marks=MARKS) == platform


@pytest.mark.parametrize(("option", "expression"), [
    (None, "a10"), (None, "cpu or fast"), (None, "a100 or h100"), ("h100", "a100"), (None, "cpu and"),
    (None, "cpu a100"),
])
def test_words_that_name_no_platform(option: str | None, expression: str) -> None:
    """An unknown word, two GPUs, a contradiction and a typo of the grammar are all refused."""
    with pytest.raises(PlatformError):
        platforms.choose(option=option, mark_expression=expression, known_marks=MARKS)


def test_unknown_platform_lists_the_known() -> None:
    """The message offers what there is."""
    with pytest.raises(SpecError, match=r"unknown platform 'tpu'.*\(known: cpu, a100, h100, h200\)"):
        platforms.choose(option="tpu", mark_expression="", known_marks=MARKS)
