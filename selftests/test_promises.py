"""What an engine promises: a record that keeps it passes, every record of another engine or precision does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from conformance import claims, promises, test_data, test_dtypes, test_engaged
from conformance.catalogue import DISTRIBUTED, MATCHED
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.verdict import Finding
from selftests.records import observation

CASE = Case(model="llama-tiny", engine="zero3", precision="bf16-mixed", steps=4)
ENGINES = {name: CASE.with_(engine=name) for name in DISTRIBUTED}
WHOLE = 100
"""Elements that the weights have in these records."""

Test = Callable[..., None]


ZERO3 = {"wrapper": "DeepSpeedEngine", "world_size": 2, "zero_stage": 3, "whole_parameters": 0}
SPELLED: list[tuple[Case, dict[str, Any]]] = [
    (ENGINES["ddp"], {"wrapper": "DistributedDataParallel", "world_size": 2}),
    (ENGINES["fsdp1"], {
        "wrapper": "FullyShardedDataParallel", "world_size": 2, "sharding_strategy": ["FULL_SHARD"],
        "units.LlamaDecoderLayer": 2,
    }),
    (ENGINES["fsdp2"], {
        "wrapper": "FSDPModule", "world_size": 2, "placements": ["(Shard(dim=0),)"], "whole_parameters": 0,
        "units.LlamaDecoderLayer": 2, "reshard_after_forward.LlamaDecoderLayer": [True],
    }),
    (ENGINES["zero2"], {"wrapper": "DeepSpeedEngine", "world_size": 2, "zero_stage": 2}),
    (ENGINES["zero3"], {**ZERO3, "persistent_parameters": 0}),
    # By default ZeRO-3 leaves models as small as these whole on every rank.
    (CASE.with_(dialect="stock"), ZERO3),
]

MASTERS = ("gradient", "master", "optimizer_state")
PLACES: list[tuple[str, str, tuple[str, ...], str]] = [
    ("zero3", "fp32", ("at_rest", "compute", *MASTERS, "reduction", "outputs", "buffers"), "float32"),
    # The aligned mode: low precision computes, fp32 is trained; DeepSpeed keeps its working weights low, FSDP none.
    ("zero3", "bf16-mixed", ("at_rest", "compute", "outputs"), "bfloat16"),
    ("zero3", "bf16-mixed", (*MASTERS, "reduction", "buffers"), "float32"),
    ("fsdp2", "bf16-mixed", ("compute", "outputs"), "bfloat16"),
    ("fsdp2", "bf16-mixed", ("at_rest", *MASTERS, "reduction", "buffers"), "float32"),
    ("fsdp1", "bf16-mixed", ("compute",), "bfloat16"),
    ("fsdp1", "bf16-mixed", ("at_rest", *MASTERS, "reduction", "buffers", "outputs"), "float32"),
    # The memory-constrained mode: all is low but what ranks add up.
    ("zero3", "bf16-true", ("at_rest", "compute", *MASTERS, "outputs"), "bfloat16"),
    ("zero3", "bf16-true", ("reduction", "buffers"), "float32"),
    ("fsdp1", "bf16-true", ("at_rest", "compute", *MASTERS, "outputs"), "bfloat16"),
    ("fsdp2", "bf16-true", ("reduction", "buffers"), "float32"),
    # DDP has no policy: it reduces in the gradient's own dtype.
    ("ddp", "bf16-true", ("at_rest", "compute", *MASTERS, "reduction"), "bfloat16"),
    ("ddp", "bf16-mixed", ("at_rest", *MASTERS, "reduction", "outputs"), "float32"),
]


@pytest.mark.parametrize(("case", "due"), SPELLED, ids=lambda value: getattr(value, "id", ""))
def test_what_is_engaged_is_spelled_out(case: Case, due: dict[str, Any]) -> None:
    """Wrapper, ranks, stage or strategy, one unit per layer, and on a fully sharding engine no parameter left whole."""
    assert promises.engaged(case) == due


@pytest.mark.parametrize(("engine", "precision", "places", "dtype"), PLACES)
def test_dtypes_are_spelled_out(engine: str, precision: str, places: tuple[str, ...], dtype: str) -> None:
    """The table of the published comparison, place by place."""
    due = promises.dtypes(CASE.with_(engine=engine, precision=precision))
    assert {place: due[place] for place in places} == {place: [dtype] for place in places}


HOST = ["cpu"]
OFFLOADS: list[tuple[str, str, dict[str, Any]]] = [
    ("fsdp1", "parameters", {
        "units": ["True"], "on": {"parameters": HOST, "gradients": [], "optimizer_state": HOST},
    }),
    ("fsdp2", "parameters", {
        "units": ["CPUOffloadPolicy"], "on": {"parameters": HOST, "gradients": [], "optimizer_state": HOST},
    }),
    ("zero2", "optimizer", {
        "optimizer": True, "parameters": False, "stepped_by": "DeepSpeedCPUAdam",
        "on": {"masters": HOST, "gradients": HOST, "optimizer_state": HOST},
    }),
    ("zero3", "parameters", {
        "optimizer": True, "parameters": True, "stepped_by": "DeepSpeedCPUAdam",
        "on": {"parameters": HOST, "masters": HOST, "gradients": HOST, "optimizer_state": HOST},
    }),
]


@pytest.mark.parametrize(("engine", "offload", "due"), OFFLOADS)
def test_what_offload_promises_is_spelled_out(engine: str, offload: str, due: dict[str, Any]) -> None:
    """By which class, and where each part is; without it nothing is promised of it."""
    case = CASE.with_(engine=engine)
    assert promises.engaged(case.with_(offload=offload))["offload"] == due
    assert "offload" not in promises.engaged(case)


def test_checkpointing_promises_every_block() -> None:
    """One that is left out, or that is on where it was not asked for, shows."""
    assert promises.engaged(CASE.with_(activation_checkpointing=True))["checkpointed.LlamaDecoderLayer"] == 2
    assert "checkpointed.LlamaDecoderLayer" not in promises.engaged(CASE)


@pytest.mark.parametrize(
    ("engine", "lower", "embeddings"),
    [
        ("ddp", ["float32"], ["float32"]), ("fsdp1", ["bfloat16", "float32"], ["float32"]),
        ("fsdp2", ["bfloat16"], ["bfloat16"]), ("zero2", ["bfloat16"], ["bfloat16"]),
        ("zero3", ["bfloat16"], ["bfloat16"]),
    ],
)
def test_frozen_weights_are_not_upcast(engine: str, lower: list[str], embeddings: list[str]) -> None:
    """They keep the dtype they came in; but FSDP1 upcasts a unit as a whole, and embeddings share one with the head."""
    case = CASE.with_(engine=engine)
    assert promises.dtypes(case.with_(frozen="lower"))["frozen"] == lower
    assert promises.dtypes(case.with_(frozen="embeddings"))["frozen"] == embeddings
    assert promises.dtypes(case.with_(frozen="lower", precision="fp32"))["frozen"] == ["float32"]
    assert "frozen" not in promises.dtypes(case)


def test_gradients_cross_of_what_trains() -> None:
    """And, on FSDP1 alone, of what shares a unit with it; nothing of a frozen block."""
    names = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight")
    crossing = {
        engine: [promises.crosses(CASE.with_(engine=engine, frozen="lower"), name) for name in names]
        for engine in ("ddp", "fsdp1", "fsdp2", "zero3")
    }
    assert crossing.pop("fsdp1") == [True, False, True]
    assert set(map(tuple, crossing.values())) == {(False, False, True)}
    assert all(promises.crosses(CASE, name) for name in names)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values at dotted paths, as the record nests them."""
    found: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return found


def record(case: Case, folder: Path, *, share: int | None = None, **changes: Any) -> Observation:
    """A run of ``case`` that keeps all promises, unless ``share`` (elements on each rank) or ``changes`` say no."""
    part = WHOLE // case.world_size
    local = {
        "parameter_elements": share or (part if promises.shards_parameters(case) else WHOLE),
        "stepped_elements": share or (part if promises.shards_optimizer(case) else WHOLE),
    }
    due = promises.dtypes(case)
    said: dict[str, Any] = {
        "engaged": {**nested(promises.engaged(case)), "local": local},
        "dtypes": {**due, "compute": {"Linear": due["compute"], "LlamaRMSNorm": ["float32"]}},
    }
    return observation(case, folder, tensors={"parameters/w": [0.5] * WHOLE}, **{**said, **changes})


def broken(test: Any, case: Case, seen: Observation) -> set[str]:
    """The metrics of the claims that the conformance test makes of ``case`` and that fail for this record."""
    found: list[Finding] = []

    def judge(*claims: Any) -> None:
        for claim in claims:
            found.extend([claim] if isinstance(claim, Finding) else claim)

    test(case, lambda _: seen, judge)
    assert found
    return {finding.metric for finding in found if not finding.passed}


ENGAGED, DTYPES, DATA = (
    test_engaged.test_engine_is_engaged, test_dtypes.test_dtypes_are_as_promised, test_data.test_every_row_is_seen_once,
)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_keeps_its_promises_passes(engine: str, tmp_path: Path) -> None:
    """Engine, shares, dtypes and rows: nothing is asked that no engine could give."""
    case = ENGINES[engine]
    seen = record(case, tmp_path)
    assert [broken(test, case, seen) for test in (ENGAGED, DTYPES, DATA)] == [set()] * 3


@pytest.mark.parametrize(("asked", "got"), list(permutations(ENGINES, 2)))
def test_no_engine_passes_for_another(asked: str, got: str, tmp_path: Path) -> None:
    """Whichever engine was asked for, a perfect record of any other breaks a claim: a quiet fallback is seen."""
    assert broken(ENGAGED, ENGINES[asked], record(ENGINES[got], tmp_path))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_word_of_the_engaged_counts(engine: str, tmp_path: Path) -> None:
    """Each promise alone, when it is missing, breaks its own claim; an empty record breaks them all."""
    case = ENGINES[engine]
    due = promises.engaged(case)
    local = record(case, tmp_path).ranks[0].engaged["local"]
    for path in due:
        kept = nested({name: value for name, value in due.items() if name != path})
        assert broken(ENGAGED, case, record(case, tmp_path, engaged={**kept, "local": local})) == {path}
    assert broken(ENGAGED, case, record(case, tmp_path, engaged={"local": local})) == set(due)


@pytest.mark.parametrize("engine", [name for name, case in ENGINES.items() if promises.shards_parameters(case)])
@pytest.mark.parametrize("share", [WHOLE, WHOLE // 2 - 1, WHOLE // 2 + 3])
def test_shares_must_add_up(engine: str, share: int, tmp_path: Path) -> None:
    """Every rank holding all of a sharded model is no sharding; a little less than half of it each loses some."""
    metrics = {"parameter_elements by rank", "stepped_elements by rank"}
    assert broken(ENGAGED, ENGINES[engine], record(ENGINES[engine], tmp_path, share=share)) == metrics


def test_an_engine_that_shards_nothing_must_hold_all(tmp_path: Path) -> None:
    """Half the weights on each rank of DDP is another engine."""
    seen = record(ENGINES["ddp"], tmp_path, share=WHOLE // 2)
    assert broken(ENGAGED, ENGINES["ddp"], seen) == {"parameter_elements by rank", "stepped_elements by rank"}


@pytest.mark.parametrize(("asked", "got"), list(permutations(["fp32", "bf16-mixed", "bf16-true"], 2)))
@pytest.mark.parametrize("engine", ENGINES)
def test_no_precision_passes_for_another(engine: str, asked: str, got: str, tmp_path: Path) -> None:
    """A skipped upcast, or one too many, breaks a dtype claim on every engine."""
    case, other = (ENGINES[engine].with_(precision=precision) for precision in (asked, got))
    assert broken(DTYPES, case, record(other, tmp_path))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_dtype_counts(engine: str, tmp_path: Path) -> None:
    """Each place alone, with a second dtype in it or without any record, breaks its own claim."""
    case = ENGINES[engine]
    kept = record(case, tmp_path).ranks[0].dtypes
    for name, due in promises.dtypes(case).items():
        mixed: Any = {"Linear": [*due, "float64"]} if name == "compute" else [*due, "float64"]
        for torn in ({**kept, name: mixed}, {key: value for key, value in kept.items() if key != name}):
            assert broken(DTYPES, case, record(case, tmp_path, dtypes=torn)) == {f"dtype, {name}"}


def test_ranks_that_disagree_on_dtypes_break_them_all(tmp_path: Path) -> None:
    """One rank in another dtype is no rank in the promised one."""
    seen, other = record(CASE, tmp_path), record(CASE, tmp_path, dtypes={})
    torn = replace(seen, ranks=(seen.ranks[0], other.ranks[1]))
    assert broken(DTYPES, CASE, torn) == {f"dtype, {name}" for name in promises.dtypes(CASE)}


def test_only_layers_that_multiply_have_the_compute_dtype() -> None:
    """Norms may run in fp32, and do; a linear layer in two dtypes is shown with both."""
    compute = {"LlamaRMSNorm": ["float32"], "Linear": ["bfloat16"], "Conv1D": ["float16"]}
    recorded = {"compute": compute, "master": ["x"]}
    assert promises.seen_dtypes(recorded) == {"compute": ["bfloat16", "float16"], "master": ["x"]}
    assert promises.seen_dtypes({}) == {"compute": []}


@pytest.mark.parametrize("path", ["b", "a.x", "a.b.c", "a.b.c.d", "", "a."])
def test_a_path_to_nothing_finds_nothing(path: str) -> None:
    """Not in the record, below a leaf, below a list, or no path at all: None, which no promise equals."""
    assert promises.look({"a": {"b": [1]}, "c": {"ranks disagree": []}}, path) is None
    assert promises.look({"a": {"b": [1]}}, "a.b") == [1]


def test_rows_must_be_the_steps_own(tmp_path: Path) -> None:
    """Ranks that train on the same rows are seen, and ranks that together train on all rows but on some twice."""
    first, second = record(CASE, tmp_path).ranks
    every = replace(first, steps=tuple(
        replace(one, rows=one.rows + other.rows) for one, other in zip(first.steps, second.steps, strict=True)
    ))
    for torn in ((first, first), (every, second), (first,)):
        seen = replace(record(CASE, tmp_path), ranks=torn)
        assert broken(DATA, CASE, seen) == {"rows of every step"}


@pytest.mark.parametrize(
    ("optimizer", "counted", "passed"),
    [
        ("adamw", ([4], [4]), True), ("adamw", ([5], [5]), False), ("adamw", ([4], [5]), False),
        ("adamw", ([4, 5], [4, 5]), False), ("adamw", ([], []), False), ("sgd", ([], []), True),
    ],
)
def test_adam_counts_the_steps_that_were_made(
    tmp_path: Path, optimizer: str, counted: tuple[list[int], list[int]], passed: bool,
) -> None:
    """On every rank and in every state; SGD without momentum has none to count in."""
    seen = record(CASE.with_(optimizer=optimizer), tmp_path)
    ranks = tuple(
        replace(rank, engaged={"local": {"optimizer_steps": steps}})
        for rank, steps in zip(seen.ranks, counted, strict=True)
    )
    assert [finding.passed for finding in claims.counted_steps(replace(seen, ranks=ranks))] == [passed]


def test_numbers_repeat_the_case() -> None:
    """Every gated case: accumulation always; on DeepSpeed also clipping, which is off where the case does not clip."""
    deepspeed = [promises.numbers(case) for case in MATCHED if case.engine.startswith("zero")]
    assert {due["engine_gradient_clipping"] for due in deepspeed} == {0.0, 0.5}
    assert {due["deepspeed.gradient_accumulation_steps"] for due in deepspeed} == {1, 4}
    others = [promises.numbers(case) for case in MATCHED if not case.engine.startswith("zero")]
    assert {tuple(due.items()) for due in others} == {(("accelerate.gradient_accumulation_steps", n),) for n in (1, 4)}
