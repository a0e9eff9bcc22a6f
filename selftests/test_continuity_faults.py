"""The suite can see what goes wrong over time: schedules, saving and loading, epochs, and the Trainer's bookkeeping.

As in ``test_faults.py``, runs with a fault are judged as a user would, and the lowest rung that breaks is known.
Checkpoints are damaged, too: loading one must end in an error, or the gate must see what became of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.catalogue import BUFFERS, CHECKPOINTS, ELSEWHERE, EPOCHS, TRAINER, TRAINER_RESUMED
from fixtures.launch import Launcher
from fixtures.spec import Case
from selftests.replayed import assert_breaks, assert_sound, judge, record, without


def checkpoint(engine: str, form: str) -> Case:
    """The fp32 case of ``engine`` that saves in this form."""
    return next(c for c in CHECKPOINTS if (c.engine, c.checkpoint, c.precision) == (engine, form, "fp32"))


def by_trainer(engine: str, outputs: str = "logits") -> Case:
    """The Trainer's case of ``engine`` that does not clip."""
    cases = [c for c in TRAINER if c.max_grad_norm is None and c.last_rows is not None]
    return next(c for c in cases if (c.engine, c.outputs) == (engine, outputs))


def resumed_by_trainer(engine: str) -> Case:
    """The Trainer's case of ``engine`` that continues from its own checkpoint."""
    return next(c for c in TRAINER_RESUMED if c.engine == engine)


DDP, FSDP2, ZERO2 = checkpoint("ddp", "full"), checkpoint("fsdp2", "sharded"), checkpoint("zero2", "sharded")
EPOCH = EPOCHS[0]
ON_FOUR = ELSEWHERE[0]
assert ON_FOUR.source is not None
UNIVERSAL = ON_FOUR.source


def continues(case: Case) -> Case:
    """The case that goes on from what ``case`` saves."""
    return ON_FOUR if case == UNIVERSAL else case.with_(resumed=True)


SEEN = [
    ("scheduler_stepped_per_rank", FSDP2, "schedule"),
    ("scheduler_stepped_per_rank", ZERO2, "schedule"),
    ("saving_changes_weights", DDP, "curve"),
    ("tied_weights_untied", FSDP2, "checkpoint"),
    ("export_in_bf16", ZERO2, "checkpoint"),
    ("loader_kept", DDP, "memory"),
    ("optimizer_not_restored", FSDP2, "checkpoint"),
    ("random_not_restored", ZERO2, "checkpoint"),
    ("optimizer_not_restored", FSDP2.with_(resumed=True), "checkpoint"),
    ("optimizer_not_restored", DDP.with_(resumed=True), "checkpoint"),
    ("random_not_restored", DDP.with_(resumed=True), "checkpoint"),
    ("scheduler_not_restored", ZERO2.with_(resumed=True), "schedule"),
    ("optimizer_not_restored", ON_FOUR, "parameters"),
    ("buffers_not_broadcast", BUFFERS[0], "parameters"),
    ("buffers_in_bf16", BUFFERS[1], "dtypes"),
    ("buffers_not_restored", BUFFERS[1].with_(resumed=True), "parameters"),
    ("loader_not_sharded", EPOCH, "data"),
    ("epoch_forgotten", EPOCH, "data"),
    ("loader_kept", EPOCH, "memory"),
    ("division_missing", by_trainer("ddp"), "gradients"),
    ("division_missing", by_trainer("zero2", "mean"), "gradients"),
    ("division_doubled", by_trainer("fsdp2"), "gradients"),
    ("tokens_miscounted", by_trainer("ddp"), "loss"),
    ("last_window_skipped", by_trainer("ddp"), "data"),
    ("rows_not_skipped", resumed_by_trainer("ddp"), "checkpoint"),
    ("rows_not_skipped", resumed_by_trainer("zero3"), "checkpoint"),
    ("optimizer_not_restored", resumed_by_trainer("fsdp2"), "checkpoint"),
]
"""Fault, the case it is put into, and the lowest rung that must break."""

_SOURCES = [case.source or case for _, case, _ in SEEN]
SOUND = sorted({*(case for _, case, _ in SEEN), *_SOURCES}, key=lambda case: (case.resumed, case.id))


@pytest.fixture(scope="module")
def sound(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run, without a fault, of every case here and its oracle; what continues comes after its source."""
    folder = tmp_path_factory.mktemp("sound")
    trained = [case for case in SOUND if case.measure == "training"]
    for case in [*dict.fromkeys(case.oracle for case in trained), *SOUND]:
        assert record(launcher, folder, case).outcome == "ok"
    return folder


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in SOUND if case != UNIVERSAL])
def test_a_sound_run_passes(case: Case, sound: Path) -> None:
    """Without a fault, all rungs hold: what fails below fails for its fault."""
    assert_sound(judge(sound, case))


@pytest.mark.parametrize(("fault", "case", "rung"), [pytest.param(*row, id=f"{row[0]}-{row[1].id}") for row in SEEN])
def test_a_fault_breaks_its_rung(
    fault: str, case: Case, rung: str, *, sound: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """With the fault, the gate fails, and the report names this rung as the lowest that breaks."""
    folder = without(sound, tmp_path / "run", case.id)
    record(launcher, folder, case, fault)
    assert_breaks(judge(folder, case), case, rung)


TRUNCATED, MISSING = "truncated", "missing"
DAMAGED = [
    (DDP, "model.safetensors", TRUNCATED),
    (DDP, "optimizer.bin", TRUNCATED),
    (DDP, "optimizer.bin", MISSING),
    (FSDP2, "pytorch_model_fsdp_0/__1_0.distcp", TRUNCATED),
    (FSDP2, "optimizer_0/__1_0.distcp", MISSING),
    (FSDP2, "optimizer_0/.metadata", MISSING),
    (ZERO2, "pytorch_model/zero_pp_rank_1_mp_rank_00_optim_states.pt", TRUNCATED),
    (ZERO2, "pytorch_model/mp_rank_00_model_states.pt", MISSING),
    (UNIVERSAL, "universal/pytorch_model/zero/lm_head.weight/fp32.pt", TRUNCATED),
    (UNIVERSAL, "universal/pytorch_model/zero/lm_head.weight/exp_avg.pt", TRUNCATED),
    (UNIVERSAL, "universal/pytorch_model/zero/lm_head.weight/exp_avg_sq.pt", MISSING),
    (UNIVERSAL, "universal/pytorch_model/zero/optimizer_state.pt", TRUNCATED),
]
"""What is done to which file of a checkpoint."""

UNNOTICED = [
    # Accelerate logs, at a level that nobody sees, that it could not load them.
    (DDP, "random_states_1.pkl", MISSING),
    (FSDP2, "random_states_1.pkl", TRUNCATED),
]
"""Damage that Accelerate passes over in silence."""


def damage(path: Path, how: str) -> None:
    """Cut a file of a checkpoint to half of its size, or take it away."""
    size = path.stat().st_size
    if how == MISSING:
        path.unlink()
    else:
        with path.open("r+b") as stream:
            stream.truncate(size // 2)


def damaged(rows: list[tuple[Case, str, str]]) -> list[object]:
    """Parameters with ids."""
    return [pytest.param(*row, id=f"{row[0].engine}-{row[1].rpartition('/')[2]}-{row[2]}") for row in rows]


@pytest.mark.parametrize(("case", "name", "how"), damaged(DAMAGED))
def test_a_damaged_checkpoint_is_refused(
    case: Case, name: str, how: str, *, sound: Path, launcher: Launcher, tmp_path: Path
) -> None:
    """Loading a truncated or missing part ends in an error that says something, never in another model."""
    resumed = continues(case)
    folder = without(sound, tmp_path / "run", resumed.id)
    damage(folder / case.id / "checkpoint" / name, how)
    seen = record(launcher, folder, resumed)
    assert (seen.outcome, bool((seen.error or {})["message"])) == ("crashed", True)


@pytest.mark.parametrize(("case", "name", "how"), damaged(UNNOTICED))
def test_damage_that_is_passed_over_is_seen(
    case: Case, name: str, how: str, *, sound: Path, launcher: Launcher, tmp_path: Path
) -> None:
    """Where Accelerate goes on with fresh random generators, the gate says so."""
    resumed = case.with_(resumed=True)
    folder = without(sound, tmp_path / "run", resumed.id)
    damage(folder / case.id / "checkpoint" / name, how)
    assert record(launcher, folder, resumed).outcome == "ok"
    assert "random after loading" in judge(folder, resumed).stdout


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in (DDP, FSDP2, ZERO2)])
def test_a_checkpoint_cut_short_by_a_killed_rank_is_refused(
    case: Case, sound: Path, launcher: Launcher, tmp_path: Path
) -> None:
    """A rank that dies while it saves leaves nothing behind that loads as if it were whole.

    Under DDP rank 0 may get to the end of what it writes; then the gate fails by the run that died.
    """
    resumed = case.with_(resumed=True)
    folder = without(sound, tmp_path / "run", case.id, resumed.id)
    assert record(launcher, folder, case, "killed_while_saving").outcome == "crashed"
    seen = record(launcher, folder, resumed)
    if case == DDP and seen.outcome == "ok":
        assert judge(folder, resumed).returncode == 1
    else:
        assert (seen.outcome, bool((seen.error or {})["message"])) == ("crashed", True)
