"""A session on GPUs, as its user sees it: pretended ones, the real plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.files import read_json
from selftests.plugin_fakes import CASE, Suite, assert_usage_error, gpu, machine

BODY = """
SMALL, LARGE = CASE.with_(engine="plain", world_size=1), CASE.with_(world_size=4)
MEMORY = CASE.with_(measure="memory")

def on_gpus(*cases):
    marks = [pytest.mark.a100, pytest.mark.gpu]
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=marks) for case in cases])
"""

JUDGED = BODY + """
@on_gpus(SMALL, CASE, LARGE)
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).outcome)))
"""

MEASURED = BODY + """
@on_gpus(CASE, MEMORY)
def test_bytes(case, trained, judge):
    judge(finding(case, observed=str(trained(case).outcome)))
"""

RACED = BODY + """
RACING = tuple(CASE.with_(engine=engine, measure="throughput") for engine in ("zero3", "ddp"))

@pytest.mark.parametrize("cases", [pytest.param(RACING, id="race", marks=pytest.mark.a100)])
def test_speed(cases, raced, judge):
    race = raced(cases)
    judge(finding(case, observed=str(race.first[case.id].outcome)) for case in cases)
"""

NVML = 'nvml=lambda: Recorded(Path("nvml.json").absolute())'


def on(suite: Suite, answers: dict[str, Any], body: str = JUDGED) -> pytest.Pytester:
    """The suite on a machine whose driver answers so."""
    tester = suite(body, f"{NVML}, settle_seconds=0.1")
    (tester.path / "nvml.json").write_text(json.dumps(answers), encoding="utf-8")
    return tester


def launched(tester: pytest.Pytester) -> list[str]:
    """What was run, in order."""
    return [line for line in (tester.path / "launched.txt").read_text().splitlines() if line != "closed"]


@pytest.mark.parametrize("words", [["-m", "a100"], ["-m", "gpu"], ["-m", "gpu", "--platform", "a100"]])
def test_each_case_sees_its_own_cards(suite: Suite, words: list[str]) -> None:
    """As many as it has ranks, by their numbers on the bus; the header says what the session has."""
    tester = on(suite, machine(4))
    result = tester.runpytest_inprocess(*words)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["GPUs: 4 x NVIDIA A100-SXM4-80GB, 80 GiB each"])
    seen = [line.partition(" on ")[2] for line in launched(tester)]
    assert seen == ["0 by PCI_BUS_ID", "0,1 by PCI_BUS_ID", "0,1,2,3 by PCI_BUS_ID, alone"]


def test_workers_run_the_largest_first(suite: Suite) -> None:
    """Whatever test a worker was dealt: the case on four GPUs is started before the others, and each runs once."""
    tester = on(suite, machine(4))
    tester.runpytest_inprocess("-m", "a100", "-n", "2").assert_outcomes(passed=3)
    assert [line.split()[0].partition("-x")[2] for line in launched(tester)] == ["4", "2", "1"]


def test_first_failure_ends_a_session_without_running_others(suite: Suite) -> None:
    """With -x tests run as they come: nobody runs what is due for others."""
    tester = on(suite, machine(4))
    tester.runpytest_inprocess("-m", "a100", "-n", "1", "-x").assert_outcomes(passed=3)
    assert [line.split()[0].partition("-x")[2] for line in launched(tester)] == ["1", "2", "4"]


@pytest.mark.parametrize("processes", ["0", "2"])
def test_too_few_cards_are_a_failure(suite: Suite, processes: str) -> None:
    """The case that needs four fails in a sentence and counts as judged; what fits on two passes."""
    tester = on(suite, {"gpus": [gpu(0), gpu(1), gpu(2, mig=[1, 1])]})
    result = tester.runpytest_inprocess("-m", "a100", "-n", processes)
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == 1
    large = f"{CASE.id.removesuffix('2')}4"
    result.stdout.fnmatch_lines([
        f"{large}  GPUs: 2 x NVIDIA A100-SXM4-80GB, 80 GiB each (left out: GPU 2: MIG is on*, allowed at least 4 GPUs*",
        f're-run: *pytest --platform a100 "conformance/test_small.py::test_loss[[]{large}[]]"',
        f"  [[]engaged] {large}  GPUs: *",
    ])
    assert result.outlines[-1] == "3 claims judged over 3 of 3 gated cases"


@pytest.mark.parametrize(("answers", "words"), [
    (machine(2, mig=[1, 1]), "no GPU of this machine can be used (GPU 0: MIG is on"),
    (machine(2, processes=[4242]), "somebody else computes here (GPU 0: process 4242, GPU 1: process 4242)"),
    ({"gpus": [gpu(0), gpu(1, "NVIDIA A100-PCIE-40GB")]}, "these cards differ"),
    (machine(2, name="NVIDIA L4"), "-m a100 needs an NVIDIA A100; this machine has 2 x NVIDIA L4"),
])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_cards_that_cannot_be_judged_on_are_a_usage_error(
    suite: Suite, answers: dict[str, Any], words: str, processes: str
) -> None:
    """One line, exit status 4, nothing launched."""
    tester = on(suite, answers)
    assert_usage_error(tester.runpytest_inprocess("-m", "a100", "-n", processes), words)
    assert not launched(tester)


def test_visible_devices_are_respected(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the user left visible is leased, in the order in which he named it."""
    tester = on(suite, machine(4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    tester.runpytest_inprocess("-m", "a100", "-k", CASE.engine).assert_outcomes(passed=1, failed=1, deselected=1)
    assert [line.partition(" on ")[2] for line in launched(tester)] == ["3,1 by PCI_BUS_ID"]


def test_shared_cards_need_the_word(suite: Suite) -> None:
    """With --shared-gpus a crowded machine is judged on; what is measured is measured, too."""
    tester = on(suite, machine(2, processes=[4242]), MEASURED)
    tester.runpytest_inprocess("-m", "a100", "--shared-gpus").assert_outcomes(passed=2)


def test_who_comes_later_fails_what_is_measured(suite: Suite) -> None:
    """Somebody starts on a card when the session is under way: bytes mean nothing any more, numerics still do."""
    tester = on(suite, machine(2), MEASURED + """
@pytest.fixture(autouse=True, scope="module")
def somebody():
    import json, pathlib
    from selftests.plugin_fakes import machine
    pathlib.Path("nvml.json").write_text(json.dumps(machine(2, processes=[4242])))
""")
    result = tester.runpytest_inprocess("-m", "a100")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"{CASE.id}-memory  GPUs: somebody else computes on its cards (GPU 0: process 4242*"])


def test_races_are_alone_on_the_machine(suite: Suite) -> None:
    """All GPUs are leased while cases take turns on the first of them; no other case is."""
    tester = on(suite, machine(4), RACED)
    tester.runpytest_inprocess("-m", "a100").assert_outcomes(passed=1)
    assert launched(tester)
    assert {line.partition(" on ")[2] for line in launched(tester)} == {"0,1 by PCI_BUS_ID, alone"}
    other = on_again(tester, JUDGED)
    other.runpytest_inprocess("-m", "a100", "-k", "plain", "--run-dir=other").assert_outcomes(passed=1, deselected=2)
    assert launched(other)[-1].endswith("on 0 by PCI_BUS_ID")


def on_again(tester: pytest.Pytester, body: str) -> pytest.Pytester:
    """Another module in the same suite."""
    module = tester.path / "conformance" / "test_small.py"
    module.write_text(module.read_text().partition("\nSMALL")[0] + body, encoding="utf-8")
    return tester


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
TIMEOUT = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE)"


@pytest.mark.parametrize("processes", ["0", "2"])
def test_failure_of_the_machine_is_repeated_once_and_told(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    """The case passes on other cards; the first attempt is kept, and summary, record and report say so."""
    monkeypatch.setenv("FAKE_LAST_WORDS", f"once:{ECC}")
    tester = on(suite, machine(4))
    result = tester.runpytest_inprocess("-m", "a100", "-n", processes, "-k", "x2", "--run-dir=here")
    result.assert_outcomes(passed=1, deselected=2 if processes == "0" else 0)
    told = f"{CASE.id}  ECC error on GPU 0, GPU 1 ({ECC}); the second run ended"
    result.stdout.fnmatch_lines(["run twice, because the machine failed:", f"  {told}"])
    assert [line.partition(" on ")[2] for line in launched(tester)] == ["0,1 by PCI_BUS_ID", "2,3 by PCI_BUS_ID"]
    record = tester.path / "here" / CASE.id
    assert ECC in (record / "first-attempt" / "rank1.log").read_text()
    story = read_json(record / "observation.json")["provenance"]["retried"]
    assert (story["failure"], story["gpus"], story["outcome"]) == ("ECC error", ["GPU 0", "GPU 1"], "crashed")
    for name in ("report.html", "report.md"):
        assert "Run twice, because the machine failed" in (tester.path / "here" / name).read_text()
    again = tester.runpytest_inprocess("--replay=here", "--platform=a100", "-k", "x2")
    again.stdout.fnmatch_lines(["run twice, because the machine failed:", f"  {told}"])


def test_machine_that_fails_twice_fails_the_case(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts and no more; the failure is named."""
    monkeypatch.setenv("FAKE_LAST_WORDS", ECC)
    tester = on(suite, machine(4))
    result = tester.runpytest_inprocess("-m", "a100", "-k", "x2")
    result.assert_outcomes(failed=1, deselected=2)
    assert len(launched(tester)) == 2
    result.stdout.fnmatch_lines([
        f"{CASE.id}  outcome: crashed by ECC error (rank 1: *", f"-- known by: {ECC}", "  *the second run crashed too",
    ])


@pytest.mark.parametrize(("words", "kind"), [
    (ILLEGAL, "illegal access"), (TIMEOUT, "NCCL timeout"), ("CUDA out of memory. Tried to allocate", "out of memory"),
])
def test_programs_fault_is_not_repeated(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, words: str, kind: str
) -> None:
    """It is named, run once, and what NCCL's flight recorder left is told."""
    monkeypatch.setenv("FAKE_LAST_WORDS", words)
    tester = on(suite, machine(4))
    result = tester.runpytest_inprocess("-m", "a100", "-k", "x2", "--run-dir=here")
    result.assert_outcomes(failed=1, deselected=2)
    assert len(launched(tester)) == 1
    result.stdout.fnmatch_lines([
        f"{CASE.id}  outcome: crashed by {kind} (rank 1: *",
        f"-- flight recorder (torchfrtrace reads it): *here/{CASE.id}/nccl_trace_rank_1",
    ])
    result.stdout.no_fnmatch_line("run twice*")


def test_numbers_are_never_repeated(suite: Suite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mismatch, or a NaN, in a run that ended is judged as it is, whatever the driver counts meanwhile."""
    tester = on(suite, machine(4), BODY + """
@on_gpus(CASE)
def test_loss(case, trained, judge):
    trained(case)
    judge(finding(case, observed="nan", passed=False))
""")
    result = tester.runpytest_inprocess("-m", "a100")
    result.assert_outcomes(failed=1)
    assert len(launched(tester)) == 1
    result.stdout.no_fnmatch_line("run twice*")


def test_leases_that_cannot_be_taken_end_the_session(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of locks that is no folder is one line for the user."""
    tester = on(suite, machine(4))
    blocked = tester.path / "file"
    blocked.touch()
    monkeypatch.setenv("SHARDGATE_LEASES", str(blocked))
    result = tester.runpytest_inprocess("-m", "a100")
    assert_usage_error(result, "cannot lease GPUs in", "SHARDGATE_LEASES")


def test_cpu_sessions_know_no_cards(suite: Suite) -> None:
    """On the CPU nothing is leased, sorted, retried or said of GPUs."""
    tester = on(suite, machine(4), """
@both
def test_loss(case, trained, judge):
    judge(finding(case, observed=str(trained(case).outcome)))
""")
    result = tester.runpytest_inprocess("-n", "2")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("GPUs:*")
    assert not (tester.path / "leases").exists()
    assert not any(" on " in line for line in launched(tester))
