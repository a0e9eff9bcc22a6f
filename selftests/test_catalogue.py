"""The gate covers what it says it covers, and every file that belongs to a case belongs to one that exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from conformance.catalogue import (
    ARCHITECTURES,
    BUFFERS,
    CHECKPOINTED,
    CHECKPOINTS,
    COMPILED,
    CONTINUED,
    DISTRIBUTED,
    DROPOUT,
    EFFORTS,
    ELSEWHERE,
    EPOCHS,
    EXPERIMENT,
    FITS,
    FIVE,
    LAST_WINDOW,
    LEAKS,
    MATCHED,
    MEMORY,
    MIGRATION,
    OFFLOADED,
    PROGRAMS,
    RANKS,
    REHEARSED,
    SCHEDULED,
    STOCK,
    SWAPPED,
    TRAINER,
    TRAINER_RESUMED,
    TRAINER_SAVED,
    TRAINER_SCHEDULED,
    at_depths,
    params,
    partners,
    peer,
    platforms,
    references,
    rounds_like,
    without,
)
from conformance.full_size import FULL_SIZE
from conformance.published import TABLES
from fixtures import known_failures
from fixtures.baseline import stale
from fixtures.spec import Case
from fixtures.tables import (
    ADAPTERS,
    ENGINES,
    GRAPHS,
    LOADINGS,
    LOOPS,
    MODELS,
    OFFLOADS,
    OPTIMIZERS,
    OUTPUTS,
    PLATFORMS,
    PRECISIONS,
    SCHEDULES,
)
from fixtures.tables import CHECKPOINTS as CHECKPOINT_FORMS
from fixtures.tables import COMPILED as COMPILERS
from fixtures.tables import FROZEN as FROZEN_WORDS

ROOT = Path(__file__).resolve().parent.parent
OVER_TIME = (
    *SCHEDULED, *CONTINUED, *EPOCHS, *LAST_WINDOW, *TRAINER, *TRAINER_SCHEDULED, *TRAINER_SAVED, *TRAINER_RESUMED,
)
EVERY = (*MATCHED, *STOCK, *EXPERIMENT.values(), *MEMORY, *OFFLOADED, *FITS, *OVER_TIME)
ON_CPU = [case for case in EVERY if "cpu" in platforms(case)]
PAIRS = [(engine, name) for engine in DISTRIBUTED for name, row in PRECISIONS.items() if "cpu" in row.platforms]


@pytest.fixture(scope="module")
def nodeids() -> list[str]:
    """The tests of the CPU gate, the slower ones too, as pytest collects them."""
    return collected("cpu", "--full")


def collected(platform: str, *words: str) -> list[str]:
    """The tests of a platform's gate."""
    command = [sys.executable, "-m", "pytest", "-m", platform, *words, "--collect-only", "-q", "-p", "no:cacheprovider"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    return [line for line in told.splitlines() if "::" in line]


def matched(engine: str, precision: str) -> list[Case]:
    """The matched cases of an engine at a precision."""
    return [case for case in MATCHED if (case.engine, case.precision) == (engine, precision)]


@pytest.mark.parametrize(("engine", "precision"), PAIRS)
def test_every_engine_runs_every_recipe_at_every_precision(engine: str, precision: str) -> None:
    """A curve under AdamW; SGD with four micro-batches and no clipping; a clipping norm: each at each CPU precision."""
    cases = matched(engine, precision)
    assert any(case.optimizer == "adamw" and case.steps >= 20 for case in cases)
    unclipped = [case for case in cases if case.max_grad_norm is None]
    assert any(case.optimizer == "sgd" and case.accumulation_steps == 4 for case in unclipped)
    assert any(case.max_grad_norm == 0.5 for case in cases)


def test_every_word_of_the_tables_is_used() -> None:
    """No model, engine, precision, optimizer or kind of output stands in a table and in no gated case."""
    every = [*MATCHED, *STOCK, *MEMORY, *FITS, *RANKS, *ARCHITECTURES, *DROPOUT, *MIGRATION, *REHEARSED, *BUFFERS,
             *(one for case in EFFORTS for one in at_depths(case)),
             *(one.case for one in FULL_SIZE), *(row.case for rows in TABLES.values() for row in rows)]
    assert {case.model for case in every} == set(MODELS)
    assert {case.precision for case in every} == set(PRECISIONS)
    assert {case.engine for case in every} == set(ENGINES) - {"plain"}
    assert {case.optimizer for case in every} == set(OPTIMIZERS)
    assert {case.outputs for case in (*MATCHED, *TRAINER)} == set(OUTPUTS)
    assert {case.schedule for case in (*MATCHED, *SCHEDULED)} == set(SCHEDULES)
    assert {case.checkpoint for case in (*MATCHED, *CHECKPOINTS, *ELSEWHERE)} == set(CHECKPOINT_FORMS)
    assert {case.adapters for case in MATCHED} == set(ADAPTERS)
    assert {case.compiled for case in (*MATCHED, *COMPILED)} == set(COMPILERS)
    assert {case.loading for case in (*MATCHED, *STOCK, *PROGRAMS)} == set(LOADINGS)
    assert {case.loop for case in (*MATCHED, *TRAINER)} == set(LOOPS)
    assert {case.graph for case in PROGRAMS} == set(GRAPHS)


def test_the_gate_is_as_wide_as_promised() -> None:
    """More than sixty cases on the CPU, each on two ranks at least, and none twice."""
    assert len({case.id for case in ON_CPU}) >= 60
    assert min(case.world_size for case in ON_CPU) == 2
    assert len({case.id for case in MATCHED}) == len(MATCHED)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_case_is_marked_for_where_it_can_run(precision: str) -> None:
    """GPUs run everything; the CPU everything but fp16, whose reference arithmetic it lacks."""
    due = set(PLATFORMS) - ({"cpu"} if precision == "fp16-mixed" else set())
    marked = [{mark.name for mark in param.marks} for param in params(matched("zero3", precision))]
    assert marked
    assert all(marks == due for marks in marked)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in MATCHED])
def test_every_case_has_its_references(case: Case) -> None:
    """First its oracle, one plain process over the same batch; then, if any, a peer that is itself in the gate.

    A case that saves memory is compared with itself without that, on the same engine.
    """
    (oracle, _), *peers = references(case)
    assert (oracle.engine, oracle.world_size, oracle.accumulation_steps, oracle.outputs) == ("plain", 1, 1, "logits")
    training = (
        "model", "precision", "optimizer", "learning_rate", "steps", "max_grad_norm", "frozen", "sequence_length"
    )
    assert [getattr(oracle, name) for name in training] == [getattr(case, name) for name in training]
    saving = [] if without(case) == case or without(case) == peer(case) else [without(case)]
    assert [due for due, _ in peers] in (saving, [peer(case), *saving])
    assert {kind for _, kind in peers} <= {"peer"}
    assert case == without(case) or without(case) in [due for due, _ in peers]


def test_every_fp32_case_is_compared_directly() -> None:
    """In fp32 all engines round at the same places, so each stands against ZeRO-3 but ZeRO-3 itself."""
    compared = {case.engine for case in MATCHED if case.precision == "fp32" and len(references(case)) == 2}
    assert compared == set(DISTRIBUTED) - {"zero3"}


def test_rounding_is_on_record_for_low_precision_alone() -> None:
    """In fp32 there is nothing to tell: gradients agree or the gate fails."""
    compared = [case for case in MATCHED if rounds_like(case)]
    assert {case.precision for case in compared} == set(PRECISIONS) - {"fp32"}
    # With adapters, ZeRO-3 is not the peer but compared with it.
    assert {case.engine for case in compared if case.adapters == "none"} == set(DISTRIBUTED) - {"zero3"}
    assert {case.engine for case in compared if case.adapters != "none"} == set(FIVE) - {"zero2"}


def test_every_way_to_save_memory_is_gated() -> None:
    """Activation checkpointing and frozen weights on every family, each kind of offload, size-based units."""
    five = {"ddp", "fsdp1", "fsdp2", "zero2", "zero3"}
    assert {case.engine for case in MATCHED if case.activation_checkpointing} == five
    assert {case.engine for case in CHECKPOINTED} == five
    assert {case.engine for case in MATCHED if case.frozen == "lower"} == five
    assert {case.frozen for case in MATCHED} == set(FROZEN_WORDS)
    assert {case.offload for case in (*OFFLOADED, SWAPPED)} == set(OFFLOADS) - {"none"}
    assert {(case.engine, case.offload) for case in OFFLOADED} <= {(case.engine, case.offload) for case in MATCHED}
    assert any(case.min_num_params for case in MATCHED)


def test_fsdp1_offloads_on_a_device_alone() -> None:
    """On a CPU it would add the last step's gradient to each: host and device are one."""
    (case,) = (case for case in MATCHED if case.engine == "fsdp1" and case.offload != "none")
    assert set(platforms(case)) == set(PLATFORMS) - {"cpu"}


def test_every_engine_is_held_to_its_arithmetic() -> None:
    """The bytes of each engine are judged; of each sharding family also at four ranks and with bf16 weights."""
    assert {case.engine for case in MEMORY} == set(DISTRIBUTED)
    assert {case.engine[:4] for case in MEMORY if case.world_size == 4} == {"fsdp", "zero"}
    assert {case.engine[:4] for case in MEMORY if case.precision == "bf16-true"} == {"fsdp", "zero"}
    assert min(case.steps for case in LEAKS) >= 15
    assert {case.measure for case in LEAKS} == {"resume"}


def test_every_target_has_partners_that_must_not_fit() -> None:
    """DDP at the same batch, and more rows on the same engine, under the same budget."""
    for case in FITS:
        ddp, larger = partners(case)
        assert ddp == case.with_(engine="ddp")
        assert larger == case.with_(rows_per_step=larger.rows_per_step)
        assert case.rows_per_step < larger.rows_per_step <= 2 * case.rows_per_step
    assert {case.engine for case in FITS} == {"fsdp1", "fsdp2", "zero3"}


def snapshotted() -> Mapping[str, set[str]]:
    """By module, the tests that take the fixture ``snapshot``, read from the source."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "conformance").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "snapshot" in {arg.arg for arg in node.args.args}:
                found.setdefault(path.stem, set()).add(node.name)
    return found


def split(nodeid: str) -> tuple[str, str]:
    """Module and test name: what a baseline's path is made of."""
    file, _, name = nodeid.partition("::")
    return Path(file).stem, name


def test_every_baseline_belongs_to_a_test(nodeids: list[str]) -> None:
    """A file that no test of the gate owns any more is a record that nobody reads."""
    assert stale(ROOT / "baselines" / "cpu", [split(nodeid) for nodeid in nodeids]) == []


def crashes(entries: Sequence[known_failures.KnownFailure], nodeid: str) -> bool:
    """Whether the test's case is known not to come to its end."""
    return any(entry.metric == known_failures.OUTCOME for entry in known_failures.find(entries, nodeid))


def test_every_snapshotted_test_has_its_baseline(nodeids: list[str]) -> None:
    """A clean checkout judges everything: only what is known to fail may have nothing on record."""
    entries = known_failures.read(ROOT / "known_failures.txt")
    tests = snapshotted()
    owed = [
        ROOT / "baselines" / "cpu" / module / f"{name}.json"
        for nodeid in nodeids for module, name in [split(nodeid)]
        if name.partition("[")[0] in tests.get(module, ()) and not crashes(entries, nodeid)
    ]
    assert len(owed) > len(MATCHED) // 2
    assert [path.name for path in owed if not path.is_file()] == []


def test_every_known_failure_is_of_a_test_that_exists(nodeids: list[str]) -> None:
    """An entry about no test, of the CPU's or a GPU's gate, excuses nothing today and anything tomorrow."""
    entries = known_failures.read(ROOT / "known_failures.txt")
    assert known_failures.stale(entries, [*nodeids, *collected("a100")]) == []


def test_every_known_failure_has_its_link() -> None:
    """Whoever reads it can follow what upstream does about it."""
    entries = known_failures.read(ROOT / "known_failures.txt")
    assert [entry.where for entry in entries if not re.fullmatch(r"https://[\w.]+/\S+", entry.link)] == []


def named(text: str, words: Mapping[str, object]) -> Iterator[str]:
    """Those of ``words`` that ``text`` does not hold as words of their own."""
    return (word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text))


@pytest.mark.parametrize("table", [ENGINES, PRECISIONS], ids=["engines", "precisions"])
def test_the_readme_names_every_word_of_an_id(table: Mapping[str, object]) -> None:
    """Who reads a case's id finds its engine and its precision in the README, spelled the same."""
    assert list(named((ROOT / "README.md").read_text(encoding="utf-8"), table)) == []
