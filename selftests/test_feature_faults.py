"""A way to save memory that is asked for and not there, or that costs what it must not, breaks the rung that it should.

As in ``test_faults``: recorded with a fault and without, then judged as a user would, by ``pytest --replay``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.catalogue import (
    CHECKPOINTED,
    COMPILED,
    LEAKS,
    MATCHED,
    MEMORY,
    OFFLOADED,
    SWAPPED,
    constrained,
    kept_whole,
    references,
    rounds_like,
)
from fixtures import extension_cache
from fixtures.launch import Launcher
from fixtures.spec import Case
from selftests.replayed import assert_breaks, assert_sound, judge, record, without


def one(cases: list[Case], engine: str, **wanted: object) -> Case:
    """The first of ``cases`` on ``engine`` with these fields."""
    return next(c for c in cases if c.engine == engine and all(getattr(c, k) == v for k, v in wanted.items()))


FSDP1_CHECKPOINTED = one(MATCHED, "fsdp1", activation_checkpointing=True)
SEEN = [
    ("checkpointing_off", FSDP1_CHECKPOINTED, "engaged"),
    ("checkpointing_off", one(MATCHED, "zero2", activation_checkpointing=True), "engaged"),
    ("checkpointing_off", one(CHECKPOINTED, "ddp"), "memory"),
    ("checkpointing_off", one(CHECKPOINTED, "fsdp2"), "memory"),
    ("frozen_upcast", one(MATCHED, "fsdp1", frozen="lower"), "dtypes"),
    ("frozen_upcast", one(MATCHED, "fsdp2", frozen="embeddings"), "dtypes"),
    ("frozen_upcast", one(MEMORY, "fsdp2", frozen="lower"), "memory"),
    ("frozen_trained", one(MATCHED, "ddp", frozen="lower"), "engaged"),
    ("frozen_trained", one(MATCHED, "fsdp2", adapters="lora"), "engaged"),
    ("frozen_trained", one(MATCHED, "zero3", adapters="lora"), "engaged"),
    ("frozen_upcast", one(MATCHED, "fsdp2", adapters="lora"), "dtypes"),
    ("adapter_not_reduced", one(MATCHED, "ddp", adapters="lora"), "settings"),
    ("compile_falls_back", one(COMPILED, "ddp", compiled="eager"), "engaged"),
    ("offload_off", one(MATCHED, "fsdp2", offload="parameters"), "engaged"),
    ("offload_off", one(MATCHED, "zero3", offload="parameters"), "engaged"),
    ("offload_off", one(OFFLOADED, "zero2"), "memory"),
    ("offload_off", SWAPPED, "engaged"),
    ("checkpoint_kept", one(LEAKS, "fsdp2"), "memory"),
    # The same through the whole gate as test_memory_faults shows claim by claim.
    ("wrong_stage", one(MEMORY, "zero1", precision="fp32"), "memory"),
    ("wrong_stage", one(MEMORY, "zero3", precision="fp32", world_size=2), "memory"),
    ("gradients_kept", one(MEMORY, "fsdp2", precision="fp32", world_size=2), "memory"),
    ("tensor_leaked", one(LEAKS, "ddp"), "memory"),
]
"""Fault, the case it is put into, and the lowest rung that must break."""

NOT_HERE = "DeepSpeed's file access takes minutes to compile: pytest -m cpu --full -k nvme does it, where libaio is"


def marks(case: Case) -> list[pytest.MarkDecorator]:
    """What keeps ``case`` from being tried here, if something does."""
    missing = case == SWAPPED and not extension_cache.needed(case) <= extension_cache.built()
    return [pytest.mark.skipif(missing, reason=NOT_HERE)]


SOUND = sorted({case for _, case, _ in SEEN}, key=lambda case: case.id)


def needed(case: Case) -> set[Case]:
    """The runs that the gate's claims about ``case`` look at: itself, and what it is compared with."""
    if case == SWAPPED:
        return {case, case.oracle, case.with_(offload="parameters")}
    if case.measure == "training":
        return {case, case.with_(compiled="none"), *(due for due, _ in references(case)), *rounds_like(case)}
    larger = {"zero1": "ddp", "zero2": "zero1"}.get(case.engine, "zero2")
    others = {kept_whole(case)} if case in (*CHECKPOINTED, *OFFLOADED) else set()
    if case in LEAKS and case.engine != "ddp":
        others |= {case.with_(engine=larger), constrained(case) or case}
    return {case, *others}


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """``sound(case)``: a folder of recorded runs without a fault, of the case and of what it is compared with."""
    folder = tmp_path_factory.mktemp("sound")

    def recorded(case: Case) -> Path:
        for other in sorted(needed(case), key=lambda case: case.id):
            if not (folder / other.id).exists():
                record(launcher, folder, other)
        return folder

    return recorded


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=marks(case)) for case in SOUND])
def test_a_sound_run_passes(case: Case, sound: Callable[[Case], Path]) -> None:
    """Without a fault all rungs hold: what fails below fails for its fault."""
    assert_sound(judge(sound(case), case, "--full"))


@pytest.mark.parametrize(
    ("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}", marks=marks(row[1])) for row in SEEN]
)
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Callable[[Case], Path], launcher: Launcher, tmp_path: Path,
) -> None:
    """With the fault the gate fails, and the report names this rung as the lowest that breaks."""
    folder = without(sound(case), tmp_path / "run", case.id)
    record(launcher, folder, case, fault)
    assert_breaks(judge(folder, case, "--full"), case, rung)
