"""The case: its id, what it refuses, its oracle, its JSON. And the tables its words come from."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from conformance.catalogue import EXPERIMENT, FITS, MATCHED, MEMORY, OFFLOADED, ORACLE, STOCK
from fixtures.spec import Case
from fixtures.tables import ENGINES, MODELS, PRECISIONS, SpecError, look_up

CASE = Case(model="llama-tiny", engine="zero3", precision="fp32")
EVERY = (*MATCHED, *STOCK, *ORACLE.values(), *EXPERIMENT.values(), *MEMORY, *OFFLOADED, *FITS)

IDS = [
    ({}, "llama-tiny-zero3-fp32-x2"),
    ({"engine": "plain", "world_size": 1}, "llama-tiny-plain-fp32-x1"),
    ({"engine": "fsdp1-grad-op", "precision": "bf16-true"}, "llama-tiny-fsdp1-grad-op-bf16_true-x2"),
    ({"world_size": 4, "max_grad_norm": 0.5}, "llama-tiny-zero3-fp32-x4-clip0.5"),
    ({"learning_rate": 1e-5, "steps": 100}, "llama-tiny-zero3-fp32-x2-s100-lr1e-05"),
    ({"dialect": "stock", "outputs": "loss", "steps": 3}, "llama-tiny-zero3-fp32-x2-stock-loss-s3"),
    ({"rows_per_step": 16, "measure": "memory"}, "llama-tiny-zero3-fp32-x2-b16-memory"),
    ({"measure": "fit", "budget_mib": 72}, "llama-tiny-zero3-fp32-x2-fit-72MiB"),
    ({"sequence_length": 128, "frozen": "lower"}, "llama-tiny-zero3-fp32-x2-t128-frozen_lower"),
    (
        {"activation_checkpointing": True, "offload": "parameters", "measure": "memory"},
        "llama-tiny-zero3-fp32-x2-ckpt-offload_parameters-memory",
    ),
    ({"engine": "fsdp1", "min_num_params": 2000}, "llama-tiny-fsdp1-fp32-x2-wrap2000"),
    (
        {"model": "gpt2-tiny", "engine": "zero2", "precision": "bf16-mixed", "optimizer": "sgd",
         "accumulation_steps": 4, "outputs": "loss", "steps": 6, "learning_rate": 0.1},
        "gpt2-tiny-zero2-bf16_mixed-x2-sgd-acc4-loss-s6-lr0.1",
    ),
]


@pytest.mark.parametrize(("changes", "identity"), IDS)
def test_the_id_spells_what_is_not_default(changes: dict[str, Any], identity: str) -> None:
    """Model, engine, precision and ranks always; every other field in a fixed order, unless it has its default."""
    assert CASE.with_(**changes).id == identity


def test_a_default_that_is_said_is_not_spelled() -> None:
    """A case that names the defaults is the case that does not, so that a new field renames nothing."""
    said = CASE.with_(dialect="matched", optimizer="adamw", steps=20, accumulation_steps=1, outputs="logits")
    assert (said, said.id) == (CASE, "llama-tiny-zero3-fp32-x2")


def test_ids_are_unique_over_the_catalogue() -> None:
    """Two cases never share a run folder or a baseline."""
    assert len({case.id for case in EVERY}) == len(set(EVERY))


def test_every_id_is_a_file_name() -> None:
    """Letters, digits, dot, dash and underscore alone, and short enough to stand in a baseline's name."""
    assert [case.id for case in EVERY if not re.fullmatch(r"[a-z0-9][A-Za-z0-9._-]{0,120}", case.id)] == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"engine": "zero33"}, r"unknown engine 'zero33'; did you mean 'zero3'\? \(known: plain, ddp, .*zero3\)"),
        ({"precision": "bf16"}, r"unknown precision 'bf16'; did you mean 'bf16-\w+'\? \(known: fp32, .*\)"),
        ({"model": "lama-tiny"}, r"unknown model 'lama-tiny'; did you mean 'llama-tiny'\? \(known: .*\)"),
        ({"dialect": "match"}, r"unknown dialect 'match'; did you mean 'matched'\? \(known: matched, stock, config\)"),
        ({"dialect": "config", "engine": "fsdp2"}, "engine 'fsdp2' reads no config file: dialect 'config' .*"),
        ({"optimizer": "adam"}, r"unknown optimizer 'adam'; did you mean 'adamw'\? \(known: adamw, sgd\)"),
        ({"outputs": "logit"}, r"unknown outputs 'logit'; did you mean 'logits'\? \(known: logits, loss, mean\)"),
        ({"measure": "memry"}, r"unknown measure 'memry'; did you mean 'memory'\? \(known: training, memory, .*\)"),
        ({"measure": "fit"}, "measure 'fit' and a positive budget_mib go together, not 'fit' and None"),
        ({"budget_mib": 7}, "measure 'fit' and a positive budget_mib go together, not 'training' and 7"),
        ({"measure": "fit", "budget_mib": -1}, "measure 'fit' and a positive budget_mib go together, not 'fit' and -1"),
        ({"measure": "rehearsal", "budget_mib": 0},
         "measure 'fit' and a positive budget_mib go together, not 'rehearsal' and 0"),
        ({"attention": "flash3"}, r"unknown attention 'flash3'; did you mean 'flash'\? \(known: sdpa, eager, flash\)"),
        ({"rows_per_step": 0}, r"0 rows per step cannot be divided over world_size 2 x accumulation_steps 1"),
        ({"rows_per_step": 9}, r"9 rows per step cannot be divided over world_size 2 x accumulation_steps 1"),
        ({"engine": "xyz"}, r"unknown engine 'xyz' \(known: .*\)"),
        ({"engine": "plain"}, "engine 'plain' is one process, so world_size must be 1, not 2"),
        ({"world_size": 3}, r"8 rows per step cannot be divided over world_size 3 x accumulation_steps 1"),
        ({"accumulation_steps": 8}, r"8 rows per step cannot be divided over world_size 2 x accumulation_steps 8"),
        ({"steps": 0}, r"steps, accumulation_steps and world_size must be at least 1 in .*"),
        ({"accumulation_steps": -1}, r"steps, accumulation_steps and world_size must be at least 1 in .*"),
        ({"world_size": 0}, r"steps, accumulation_steps and world_size must be at least 1 in .*"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive and finite, or None, not 0.0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be positive and finite, or None, not -1.0"),
        ({"max_grad_norm": math.nan}, "max_grad_norm must be positive and finite, or None, not nan"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be positive and finite, or None, not inf"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite, not nan"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, not 0.0"),
        ({"sequence_length": 1}, "sequence_length must be 2 to 1024 for llama-tiny, not 1"),
        ({"sequence_length": 1025}, "sequence_length must be 2 to 1024 for llama-tiny, not 1025"),
        ({"model": "gpt2-tiny", "sequence_length": 65}, "sequence_length must be 2 to 64 for gpt2-tiny, not 65"),
        ({"frozen": "embedding"}, r"unknown frozen 'embedding'; did you mean 'embeddings'\? \(known: none, .*\)"),
        ({"offload": "optimiser"}, r"unknown offload 'optimiser'; did you mean 'optimizer'\? \(known: none, .*\)"),
        ({"engine": "ddp", "offload": "optimizer"}, r"ddp cannot offload 'optimizer' \(it knows: none\)"),
        ({"engine": "zero0", "offload": "optimizer"}, r"zero0 cannot offload 'optimizer' \(it knows: none\)"),
        ({"engine": "zero2", "offload": "parameters"}, r"zero2 cannot .* \(it knows: none, optimizer\)"),
        ({"engine": "fsdp2", "offload": "optimizer"}, r"fsdp2 cannot .* \(it knows: none, parameters\)"),
        ({"offload": "optimizer", "optimizer": "sgd"}, r"Accelerate puts DeepSpeed's CPU Adam .* not 'sgd'"),
        ({"engine": "fsdp2", "min_num_params": 1}, "min_num_params must be positive and is FSDP1's, not 1 on fsdp2"),
        ({"engine": "fsdp1", "min_num_params": 0}, "min_num_params must be positive and is FSDP1's, not 0 on fsdp1"),
        ({"engine": "plain", "world_size": 1, "activation_checkpointing": True}, "the oracle trains without .*"),
    ],
)
def test_a_case_that_cannot_be_is_refused(changes: dict[str, Any], line: str) -> None:
    """One line names the word or the number, and the nearest known word if there is one."""
    with pytest.raises(SpecError) as refused:
        CASE.with_(**changes)
    assert re.fullmatch(line, str(refused.value))


def test_the_oracle_is_the_same_training_in_one_plain_process() -> None:
    """Model, precision, optimizer, rate, steps and clipping stay; engine, ranks, micro-batches and dialect go."""
    case = CASE.with_(
        optimizer="sgd", learning_rate=0.5, steps=6, max_grad_norm=0.5, accumulation_steps=4, outputs="loss",
        dialect="stock", sequence_length=32, activation_checkpointing=True, frozen="lower",
    )
    due = Case(
        model="llama-tiny", engine="plain", precision="fp32", world_size=1, optimizer="sgd", learning_rate=0.5, steps=6,
        max_grad_norm=0.5, sequence_length=32, frozen="lower",
    )
    assert case.oracle == due
    assert due.oracle == due
    assert CASE.with_(offload="parameters").oracle == CASE.oracle
    assert CASE.with_(engine="fsdp1", min_num_params=1).oracle == CASE.oracle


@pytest.mark.parametrize(("world_size", "accumulation_steps", "rows"), [(1, 1, 8), (2, 1, 4), (2, 4, 1), (4, 2, 1)])
def test_micro_batches_divide_the_global_batch(world_size: int, accumulation_steps: int, rows: int) -> None:
    """Ranks times micro-steps times rows is always the global batch of 8."""
    assert CASE.with_(world_size=world_size, accumulation_steps=accumulation_steps).rows_per_micro_batch == rows


@pytest.mark.parametrize("case", [EVERY[0], STOCK[0], *ORACLE.values(), *EXPERIMENT.values()], ids=lambda case: case.id)
def test_a_case_survives_json(case: Case) -> None:
    """Written and read, it is the same case, with the same hash and id."""
    read = Case.from_json(json.loads(json.dumps(case.to_json(), allow_nan=False)))
    assert (read, hash(read), read.id) == (case, hash(case), case.id)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"engine": "zero3", "precision": "fp32"}, r"not a case: .*'model'"),
        ({**CASE.to_json(), "colour": "red"}, r"not a case: .*'colour'"),
        ({**CASE.to_json(), "steps": "6"}, r"not a case: .*'str'.*"),
        ({**CASE.to_json(), "engine": ["zero3"]}, r"not a case: .*'list'.*"),
        ({**CASE.to_json(), "engine": "zero9"}, r"unknown engine 'zero9'.*"),
    ],
    ids=["a field too few", "a field too many", "a word for a number", "a list for a word", "no engine"],
)
def test_json_of_no_case_is_refused(data: dict[str, Any], words: str) -> None:
    """A field too many, too few, or of another type is a SpecError of one line, never a case."""
    with pytest.raises(SpecError) as refused:
        Case.from_json(data)
    assert re.match(words, str(refused.value))
    assert "\n" not in str(refused.value)


def test_with_changes_what_it_names_alone() -> None:
    """The changed case differs in these fields; the case it came from is as it was."""
    changed = CASE.with_(engine="fsdp2", steps=6)
    before, after = CASE.to_json(), changed.to_json()
    assert {name for name in before if before[name] != after[name]} == {"engine", "steps"}
    assert CASE.engine == "zero3"


@pytest.mark.parametrize("table", [ENGINES, MODELS, PRECISIONS], ids=["engines", "models", "precisions"])
def test_every_row_stands_under_its_name(table: dict[str, Any]) -> None:
    """Looking a row up by its name gives that row."""
    assert [look_up(table, name, "word").name for name in table] == list(table)


def test_a_sharding_engine_speaks_one_dialect() -> None:
    """Every row of a sharding family begins with a ZeRO stage or an FSDP version, and no other row has either."""
    spoken = {row.name: (row.zero_stage is not None) + (row.fsdp_version is not None) for row in ENGINES.values()}
    assert spoken == {row.name: int(row.family in ("fsdp", "deepspeed")) for row in ENGINES.values()}
