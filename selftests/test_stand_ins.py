"""Stand-ins for GPU cases: small, of the same words, and a broken case does not pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance import nightly, stand_ins
from conformance.catalogue import FITS, KERNELS
from conformance.full_size import TRIALS
from conformance.published import LARGE, real
from conformance.stand_ins import stand_in
from fixtures.dialects import settings
from fixtures.judging import outcome_finding
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.recipes.scaling import scaled_down
from fixtures.spec import Case, Recipe
from fixtures.tables import MODELS, SpecError
from selftests.records import observation

CASES = [param.values[0] for param in nightly.params()]
SEVEN_B = TRIALS[0].case


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_every_stand_in_is_small_and_of_the_same_words(case: Case) -> None:
    """Four ranks at most, rows of a hundred tokens, few steps; and its engine is told what the case's is."""
    small = stand_in(case)
    assert not small.architecture.full_size
    assert small.sequence_length <= 96
    assert small.world_size == case.world_size <= 4
    assert (small.engine, small.precision, small.accumulation_steps, small.loop, small.measure) == (
        case.engine, case.precision, case.accumulation_steps, case.loop, case.measure
    )
    assert stand_ins.same_words(case, small).passed


def test_a_small_case_stands_for_itself() -> None:
    """But for its steps."""
    case = Case(model="llama-tiny", engine="fsdp2", precision="bf16-mixed")
    assert stand_in(case) == case.with_(steps=3)


def test_a_large_model_keeps_its_architecture() -> None:
    """Its class, its unit, whether weights are tied, as many key-value heads per head."""
    small = stand_in(SEVEN_B).architecture
    assert (small.model_class, small.layer_class) == ("LlamaForCausalLM", "LlamaDecoderLayer")
    assert small.config["tie_word_embeddings"] is False
    assert small.config["num_key_value_heads"] == small.config["num_attention_heads"]


def test_what_is_another_is_told() -> None:
    """In words, in each finding."""
    assert "2 layers of 64" in stand_ins.told(SEVEN_B)
    assert "sequence length 64, not 4096" in stand_ins.told(SEVEN_B)
    assert "compiled eager, not inductor" in stand_ins.told(KERNELS[0])
    assert "budget mib 2048" in stand_ins.told(real(LARGE[3].case))


@pytest.mark.parametrize("changes", [
    {"activation_checkpointing": False}, {"engine": "zero2"}, {"precision": "bf16-true"}, {"max_grad_norm": 1.0},
])
def test_other_words_are_another_request(changes: dict[str, Any]) -> None:
    """A stand-in that leaves something out, or is told something else, stands for nothing."""
    case = TRIALS[0].runs["deepspeed"]
    finding = stand_ins.same_words(case, stand_in(case).with_(**changes))
    assert not finding.passed


@pytest.mark.parametrize("losses", [[], [1.0, 2.0], [3.0, float("nan"), 1.0], [3.0, float("inf"), 1.0]])
def test_a_run_without_its_losses_fails(tmp_path: Path, losses: list[float]) -> None:
    """Missing steps and losses that are no numbers."""
    case = Case(model="llama-tiny", engine="fsdp2", precision="fp32", steps=3)
    assert not stand_ins.ran(case, observation(case, tmp_path, losses))[0].passed
    assert stand_ins.ran(case, observation(case, tmp_path / "whole", [3.0, 2.0, 1.0]))[0].passed


@pytest.mark.parametrize(("changes", "words"), [
    ({"rows_per_step": 30}, "30 rows per step cannot be divided over world_size 4"),
    ({"attention": "flash3"}, "unknown attention 'flash3'; did you mean 'flash'"),
    ({"compiled": "tvm"}, "unknown compiled 'tvm'"),
    ({"fused": True, "optimizer": "sgd"}, "fused is AdamW's"),
    ({"sequence_length": 8192}, "sequence_length must be 2 to 4096"),
])
def test_a_case_that_cannot_be_is_refused_before_anything_runs(changes: dict[str, Any], words: str) -> None:
    """A batch that does not divide, a kernel that nobody has: one line, at collection."""
    with pytest.raises(SpecError, match=words):
        SEVEN_B.with_(**changes)


def ran(launcher: Launcher, case: Case, folder: Path, **words: Any) -> Observation:
    """The stand-in of ``case`` for real."""
    small = stand_in(case)
    return launcher.run(Request.of(small, {**settings(small), **words}), folder, deadline_seconds=120)


def test_a_broken_setting_fails_its_stand_in(launcher: Launcher, tmp_path: Path) -> None:
    """FSDP told to wrap a layer that the model does not have: the engine's own message, on the CPU."""
    model = MODELS["granite-7b"]
    config = {**scaled_down(model.config), "architectures": [model.model_class]}
    broken = Recipe(name="granite-7b", model=json.dumps(config), layer="NoSuchLayer")
    case = Case(model="granite-7b", engine="fsdp2", precision="bf16-mixed", recipe=broken, measure="alone")
    finding = outcome_finding(ran(launcher, case, tmp_path))
    assert not finding.passed
    assert "NoSuchLayer" in finding.observed


def test_an_unknown_kernel_fails_its_stand_in(launcher: Launcher, tmp_path: Path) -> None:
    """An implementation of attention that transformers does not know, in the request alone."""
    case = Case(model="llama-tiny", engine="ddp", precision="fp32")
    finding = outcome_finding(ran(launcher, case, tmp_path, attention="no_such_kernel"))
    assert not finding.passed
    assert "no_such_kernel" in finding.observed


def test_a_full_size_run_has_its_stand_in_run(launcher: Launcher, tmp_path: Path) -> None:
    """Granite 7B on four ranks under FSDP2, as two layers of 64: losses, and seconds that could be timed."""
    seen = ran(launcher, SEVEN_B, tmp_path)
    assert all(finding.passed for finding in stand_ins.ran(SEVEN_B, seen)), seen.error
    assert len(seen.ranks) == 4


def test_budgets_of_the_cpu_stay_its_own() -> None:
    """No CPU case with a budget is a GPU case: its stand-in would not bind."""
    assert not {case.id for case in FITS} & {case.id for case in CASES}
