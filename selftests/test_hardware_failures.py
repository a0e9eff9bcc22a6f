"""Failures of GPUs are told apart, by what ranks printed and by what the driver counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.hardware import failures, flight_recorder
from fixtures.hardware.cards import Card
from fixtures.hardware.failures import Facts, classify
from fixtures.hardware.health import Watch
from fixtures.hardware.recorded import Recorded
from selftests.gpu_failures import INFRASTRUCTURE, REPORTS, Report
from selftests.plugin_fakes import machine

CARDS = [Card(index=index, uuid=machine(2)["gpus"][index]["uuid"]) for index in range(2)]


def kind_of(outcome: str, *texts: str, facts: Facts | None = None) -> str | None:
    """The kind's name, or ``None``."""
    found = classify(outcome, texts, facts or Facts())
    return None if found is None else found.kind.name


@pytest.mark.parametrize("report", REPORTS, ids=[f"{one.kind}-{one.where.rpartition('/')[2]}" for one in REPORTS])
def test_reported_failure_is_known(report: Report) -> None:
    """Each real report is of its kind, and it is that line by which it is known."""
    found = classify(report.outcome, [report.text])
    assert (found.kind.name if found else None) == report.kind
    assert found is None or found.because.startswith("Xid ") or found.because in report.text


def test_every_kind_has_a_report() -> None:
    """No kind is known from its table alone."""
    assert {report.kind for report in REPORTS} - {None} == {kind.name for kind in failures.KINDS}


def test_only_the_machine_is_given_a_second_chance() -> None:
    """ECC, Xid and lost devices; never a program's fault, a timeout, or a lack of memory."""
    assert {kind.name for kind in failures.KINDS if kind.infrastructure} == INFRASTRUCTURE


@pytest.mark.parametrize("report", [report for report in REPORTS if report.kind], ids=lambda report: report.kind)
def test_a_run_that_ended_did_not_fail(report: Report) -> None:
    """Whatever its log or the driver says: what is judged then is its numbers."""
    assert classify("ok", [report.text], Facts(ecc={"GPU 0": 1}, lost=("GPU 0",))) is None


@pytest.mark.parametrize(("facts", "kind", "because"), [
    (Facts(lost=("GPU 1",)), "lost device", "NVML: GPU 1 is lost"),
    (Facts(xids=(("GPU 1", 79),)), "lost device", "Xid 79 on GPU 1"),
    (Facts(ecc={"GPU 1": 2}), "ECC error", "NVML: 2 uncorrectable memory errors on GPU 1"),
    (Facts(xids=(("GPU 0", 48),)), "ECC error", "Xid 48 on GPU 0"),
    (Facts(xids=(("GPU 0", 119),)), "Xid error", "Xid 119 on GPU 0"),
    (Facts(xids=(("GPU 0", 31),)), "illegal access", "Xid 31 on GPU 0"),
])
@pytest.mark.parametrize("outcome", ["crashed", "hung"])
def test_the_driver_counts_without_words(facts: Facts, kind: str, because: str, outcome: str) -> None:
    """A run that died or hung silently is explained by what NVML tells of its cards."""
    found = classify(outcome, ["killed by SIGABRT"], facts)
    assert found is not None
    assert (found.kind.name, found.because) == (kind, because)


@pytest.mark.parametrize("xid", sorted(failures.CONSEQUENCES))
def test_consequences_name_no_cause(xid: int) -> None:
    """A program that was cleaned away was not killed by that."""
    assert kind_of("crashed", facts=Facts(xids=(("GPU 0", xid),))) is None


@pytest.mark.parametrize(("first", "then"), [
    ("CUDA error: uncorrectable ECC error encountered", "Watchdog caught collective operation timeout"),
    ("CUDA error: an illegal memory access was encountered", "Watchdog caught collective operation timeout"),
    ("CUDA out of memory. Tried to allocate", "Watchdog caught collective operation timeout"),
    ("GPU has fallen off the bus", "CUDA error: an illegal memory access was encountered"),
])
def test_the_cause_goes_before_what_it_did(first: str, then: str) -> None:
    """One rank's fault leaves the others in a collective: the order of their logs does not matter."""
    assert kind_of("crashed", first, then) == kind_of("crashed", then, first) == kind_of("crashed", first)


def test_a_programs_fault_is_not_a_machines() -> None:
    """The driver reports an illegal access as an Xid, too: that does not make it one to be repeated."""
    text = "CUDA error: an illegal memory access was encountered"
    assert kind_of("crashed", text, facts=Facts(xids=(("GPU 0", 13), ("GPU 0", 43)))) == "illegal access"


def test_silence_is_no_kind() -> None:
    """Nothing is made up: an unexplained crash has no kind, one that was out of memory says so by its outcome."""
    assert kind_of("crashed", "exit status 3") is None
    assert kind_of("hung", "") is None
    assert kind_of("oom", "") == "out of memory"


def watched(path: Path, before: dict[str, Any], after: dict[str, Any]) -> Facts:
    """What a watch sees of a machine that changes from ``before`` to ``after``."""
    path.write_text(json.dumps(before), encoding="utf-8")
    nvml = Recorded(path)
    watch = Watch(nvml, CARDS)
    watch.start()
    path.write_text(json.dumps(after), encoding="utf-8")
    facts = watch.told()
    assert nvml.open == 0
    return facts


def test_health_is_what_changed_meanwhile(tmp_path: Path) -> None:
    """Errors and Xids of before are not this run's."""
    before = machine(2, ecc=3, xids=[31])
    after = json.loads(json.dumps(before))
    assert watched(tmp_path / "nvml.json", before, after) == Facts()
    after["gpus"][1] |= {"ecc": 5, "xids": [31, 48, 45]}
    assert watched(tmp_path / "nvml.json", before, after) == Facts(
        ecc={"GPU 1": 2}, xids=(("GPU 1", 48), ("GPU 1", 45)),
    )


def test_lost_card_is_seen(tmp_path: Path) -> None:
    """A card that answered before and does not any more."""
    after = machine(2)
    after["gpus"][0]["lost"] = {"error": "GpuIsLost"}
    assert watched(tmp_path / "nvml.json", machine(2), after) == Facts(lost=("GPU 0",))


def test_card_without_counters_is_no_failure(tmp_path: Path) -> None:
    """What the driver does not know is left out; without NVML nothing is known."""
    mute = machine(2, ecc={"error": "NotSupported"}, xids={"error": "NotSupported"})
    assert watched(tmp_path / "nvml.json", mute, mute) == Facts()
    watch = Watch(None, CARDS)
    watch.start()
    assert not watch.told()
    assert watch.users() == {}


def test_flight_recorder_writes_into_the_cases_folder(tmp_path: Path) -> None:
    """By its old and its new names; and a collective may not take as long as the case."""
    told = flight_recorder.environment(tmp_path, 120)
    assert told["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == told["TORCH_FR_DUMP_TEMP_FILE"]
    assert told["TORCH_FR_DUMP_TEMP_FILE"].startswith(str(tmp_path))
    assert float(told[flight_recorder.SECONDS]) < 120
    assert flight_recorder.dumps(tmp_path) == []
    Path(told["TORCH_FR_DUMP_TEMP_FILE"] + "0").touch()
    assert flight_recorder.dumps(tmp_path) == ["nccl_trace_rank_0"]
