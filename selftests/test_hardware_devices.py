"""What NVML's answers on record are taken for, and which of the GPUs a session gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.hardware import cards, devices, recorded
from fixtures.hardware.cards import Cards, PlatformError
from fixtures.hardware.devices import Hardware, is_a
from fixtures.hardware.recorded import Recorded
from fixtures.platforms import GPUS
from selftests.plugin_fakes import FakeNvml, gpu, machine

ROOT = Path(__file__).resolve().parent.parent
NAMED = [platform for platform in GPUS if platform != "gpu"]


def found(answers: dict[str, Any]) -> Hardware:
    """What discovery makes of these answers."""
    return devices.discover(Recorded(answers))


def chosen(answers: dict[str, Any], platform: str = "a100", *, shared: bool = False, **environment: str) -> Cards:
    """The cards of a session on ``platform``."""
    return cards.choose(platform, found(answers), asked=f"-m {platform}", environment=environment, shared=shared)


def indices(session: Cards) -> list[int]:
    """Which GPUs they are."""
    return [card.index for card in session.devices]


@pytest.mark.parametrize(("name", "platform"), [
    ("NVIDIA A100-SXM4-80GB", "a100"), (b"NVIDIA A100 80GB PCIe", "a100"), ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA H100 NVL", "h100"), ("NVIDIA H200", "h200"),
])
def test_gpu_is_known_by_its_name(name: str | bytes, platform: str) -> None:
    """NVML's name decides, as text or bytes, and it decides for one platform only."""
    hardware = devices.discover(FakeNvml(name, name))
    assert [known for known in NAMED if hardware.has(known)] == [platform]
    assert hardware.has("gpu")


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA A10", "NVIDIA A1000", "Tesla V100-SXM2-16GB"])
def test_other_gpus_are_no_platform(name: str) -> None:
    """A name that only contains a platform's letters is another GPU."""
    assert not any(devices.discover(FakeNvml(name)).has(known) for known in NAMED)


def test_cpu_is_always_here() -> None:
    """The default needs no hardware."""
    assert Hardware().has("cpu")


def test_message_counts_what_is_here() -> None:
    """The wrong GPU is named, with its number."""
    hardware = devices.discover(FakeNvml("NVIDIA L4", "NVIDIA L4"))
    with pytest.raises(PlatformError, match=r"^-m a100 needs an NVIDIA A100; this machine has 2 x NVIDIA L4$"):
        cards.choose("a100", hardware, asked="-m a100", environment={})


@pytest.mark.parametrize(("nvml", "words"), [
    (None, "pip install nvidia-ml-py"),
    (FakeNvml(problem=FakeNvml.NVMLError_LibraryNotFound("libnvidia-ml.so.1")), "(NVML not found)"),
    (FakeNvml(problem=FakeNvml.NVMLError("Driver mismatch")), "(NVML: Driver mismatch)"),
    (FakeNvml(), "(NVML counts none)"),
])
def test_no_gpu_says_why(nvml: FakeNvml | None, words: str) -> None:
    """The package, the library, the driver or the hardware: the message says which is missing."""
    hardware = devices.discover(nvml)
    assert hardware.gpus == ()
    assert str(hardware).startswith("this machine has no NVIDIA GPU (")
    assert words in str(hardware)


def test_nvml_is_shut_down_again() -> None:
    """Discovery leaves nothing open, also when a GPU cannot be asked."""

    class Broken(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            raise self.NVMLError("GPU is lost")

    for nvml in (FakeNvml("NVIDIA H200"), Broken()):
        devices.discover(nvml)
        assert nvml.open == 0


def test_real_nvml_answers_here() -> None:
    """Whatever this machine has, discovery tells it without raising."""
    hardware = devices.discover(devices.load_nvml())
    assert bool(hardware.gpus) != bool(hardware.problem) or str(hardware).endswith("(NVML counts none)")


def test_any_gpu_is_a_gpu() -> None:
    """The generic platform takes a card of any name, and none at all is not one."""
    assert is_a("gpu", "Tesla V100-SXM2-16GB")
    assert chosen(machine(2, name="NVIDIA L4"), "gpu").words.startswith("2 x NVIDIA L4, 80 GiB each")
    with pytest.raises(PlatformError, match=r"^-m gpu needs an NVIDIA GPU; this machine has no NVIDIA GPU"):
        cards.choose("gpu", Hardware(), asked="-m gpu", environment={})


def test_everything_that_nvml_tells_is_kept() -> None:
    """Name, UUID, memory, MIG mode and processes of each GPU."""
    hardware = found({"gpus": [gpu(0), gpu(1, mig=[1, 1], processes=[4242])]})
    one, other = hardware.devices
    assert (one.index, one.uuid[:12], one.total_bytes) == (0, "GPU-00000000", 80 * 2**30)
    assert (one.mig, one.processes, one.user) == (False, (), "")
    assert (other.mig, other.processes, other.user) == (True, (4242,), "process 4242")


def test_card_that_knows_no_mig_is_whole() -> None:
    """Most cards answer that they do not support the question: that is no."""
    hardware = found({"gpus": [gpu(0, mig={"error": "NotSupported"}, ecc={"error": "NotSupported"})]})
    assert not hardware.devices[0].mig


def test_mig_is_left_out_and_said() -> None:
    """A card cut into slices is not used; with no other card that is the error."""
    session = chosen({"gpus": [gpu(0, mig=[1, 1]), gpu(1)]})
    assert indices(session) == [1]
    assert "left out: GPU 0: MIG is on (off: nvidia-smi -i 0 -mig 0)" in str(session)
    with pytest.raises(PlatformError, match=r"no GPU of this machine can be used .GPU 0: MIG is on"):
        chosen(machine(1, mig=[1, 1]))


def test_lost_card_is_left_out_and_said() -> None:
    """One GPU that has fallen off the bus does not hide the others."""
    session = chosen({"gpus": [gpu(0), gpu(1, lost={"error": "GpuIsLost"}), gpu(2)]})
    assert indices(session) == [0, 2]
    assert session.left_out == ("GPU 1: Gpu Is Lost",)
    assert found(machine(1, lost={"error": "GpuIsLost"})).problem == "NVML: Gpu Is Lost"


def test_other_cards_are_left_out_and_said() -> None:
    """On a machine with several kinds, those of the platform are used."""
    session = chosen({"gpus": [gpu(0), gpu(1, "NVIDIA L4"), gpu(2)]})
    assert indices(session) == [0, 2]
    assert session.left_out == ("GPU 1: NVIDIA L4, no A100",)
    assert [card.index for card in session.machine] == [0, 1, 2]


@pytest.mark.parametrize(("platform", "other"), [
    ("gpu", {"name": "NVIDIA L4"}), ("a100", {"name": "NVIDIA A100-PCIE-40GB"}),
    ("a100", {"memory": {"total": 40 * 2**30, "used": 0}}),
])
def test_mixed_cards_are_refused(platform: str, other: dict[str, Any]) -> None:
    """Another kind or size of card under the same word: figures of a mixture mean nothing. Alike, they pass."""
    with pytest.raises(PlatformError, match=r"these cards differ.*CUDA_VISIBLE_DEVICES"):
        chosen({"gpus": [gpu(0), gpu(1, **other)]}, platform)
    assert indices(chosen({"gpus": [gpu(0), gpu(1)]}, platform)) == [0, 1]


@pytest.mark.parametrize(("answers", "who"), [
    ({"processes": [4242]}, "GPU 1: process 4242"),
    ({"processes": [1, 2, 3, 4]}, "GPU 1: processes 1, 2, 3, ..."),
    ({"memory": {"total": 80 * 2**30, "used": 30 * 2**30}}, r"GPU 1: someone unseen from here \(30.0 GiB"),
])
def test_somebody_else_on_a_card_is_refused(answers: dict[str, Any], who: str) -> None:
    """By process or, beyond a container's walls, by memory; unless the user shares, or hides that card."""
    crowded = {"gpus": [gpu(0), gpu(1, **answers)]}
    with pytest.raises(PlatformError, match=f"somebody else computes here .{who}.*--shared-gpus"):
        chosen(crowded)
    assert indices(chosen(crowded, shared=True)) == [0, 1]
    assert indices(chosen(crowded, CUDA_VISIBLE_DEVICES="0")) == [0]


def test_another_sessions_processes_are_waited_for() -> None:
    """A card that another session has leased is not somebody else's: the lease will tell when it is free."""
    hardware = found(machine(2, processes=[4242]))
    session = cards.choose("a100", hardware, asked="", environment={}, leased=lambda uuid: True)
    assert indices(session) == [0, 1]


def test_cards_travel_to_workers() -> None:
    """What the controller decided arrives whole."""
    session = chosen({"gpus": [gpu(0), gpu(1, "NVIDIA L4")]})
    assert Cards.from_json(json.loads(json.dumps(session.to_json()))) == session


@pytest.mark.parametrize(("value", "expected"), [
    (None, [0, 1, 2, 3]), ("2", [2]), ("2,0", [2, 0]), (" 1 , 3 ", [1, 3]), ("1,-1,2", [1]), ("GPU-00000003", [3]),
    ("GPU-00000002,GPU-00000001-0000", [2, 1]),
])
def test_visible_devices_are_read_as_cuda_does(value: str | None, expected: list[int]) -> None:
    """Indices and UUIDs, whole or abbreviated, in the order given; a negative number ends the list."""
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    session = cards.choose("a100", found(machine(4)), asked="-m a100", environment=environment)
    assert indices(session) == expected


@pytest.mark.parametrize(("value", "words"), [
    ("", "hides all of them"), ("-1", "hides all of them"), ("NoDevFiles", "hides all of them"),
    ("7", "names GPU 7, and this machine has 4"), ("1,1", "names 1 twice"), ("GPU-0000000", "names 4 GPUs"),
    ("GPU-ffff", "names no GPU"), ("MIG-GPU-00000000/1/0", "slice of a GPU"), ("0,", "an empty word names no GPU"),
    ("one", "one names no GPU"),
])
def test_what_cuda_would_pass_over_is_refused(value: str, words: str) -> None:
    """An index that is not there, a double and a slice would silently leave fewer GPUs, or none."""
    with pytest.raises(PlatformError, match=words):
        chosen(machine(4), CUDA_VISIBLE_DEVICES=value)


def test_indices_of_mixed_cards_are_ambiguous() -> None:
    """CUDA counts the fastest first unless told otherwise, and NVML by bus."""
    mixed = {"gpus": [gpu(0, "NVIDIA L4"), gpu(1), gpu(2)]}
    with pytest.raises(PlatformError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        chosen(mixed, CUDA_VISIBLE_DEVICES="1")
    assert indices(chosen(mixed, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")) == [1]
    assert indices(chosen(mixed, CUDA_VISIBLE_DEVICES="GPU-00000002")) == [2]


def test_what_is_recorded_is_answered_again(tmp_path: Path) -> None:
    """A recording of a recording is the same machine, what it does not support included."""
    answers = {"driver": "535.1", "gpus": [gpu(0, ecc={"error": "NotSupported"}, links={"error": "InvalidArgument"}),
                                           gpu(1, mig=[1, 1], processes=[7])]}
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(recorded.record(Recorded(answers))), encoding="utf-8")
    assert devices.discover(Recorded(path)) == found(answers)
    assert json.loads(path.read_text())["gpus"][0]["ecc"] == {"error": "NotSupported"}


def test_recorder_here_records_or_says_why_not() -> None:
    """The command line on whatever machine this is."""
    command = [sys.executable, "-m", "fixtures.hardware.recorded"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 0:
        assert devices.discover(Recorded(json.loads(done.stdout))).devices
    else:
        assert done.returncode == 4
        assert done.stderr.startswith("fixtures.hardware.recorded: ")


def test_every_question_is_one_that_nvml_knows() -> None:
    """The recorded answers stand in for functions of the real module: one that is not there could never be asked."""
    pynvml = pytest.importorskip("pynvml")
    asked = [name for name in vars(Recorded) if name.startswith("nvml")]
    assert len(asked) > 10
    assert [name for name in asked if not hasattr(pynvml, name)] == []
    assert issubclass(pynvml.NVMLError_GpuIsLost, pynvml.NVMLError)
