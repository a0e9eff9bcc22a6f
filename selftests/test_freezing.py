"""Which weights train, by name, on each architecture: what is frozen and what is expected to be are one answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import claims
from fixtures.freezing import trains
from fixtures.spec import Case
from selftests.records import observation

NAMES = {
    "llama-tiny": (
        ("model.embed_tokens.weight",),
        ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight"),
        ("model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"),
    ),
    "gpt2-tiny-untied": (
        ("transformer.wte.weight", "transformer.wpe.weight"),
        ("transformer.h.0.attn.c_attn.bias", "transformer.h.0.ln_1.weight"),
        ("transformer.h.1.mlp.c_proj.weight", "transformer.ln_f.bias", "lm_head.weight"),
    ),
}
"""By model: embeddings, weights of the lower blocks, all others."""


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize(("frozen", "groups"), [("none", 0), ("embeddings", 1), ("lower", 2)])
def test_names_tell_what_trains(model: str, frozen: str, groups: int) -> None:
    """Nothing, the embeddings, or all below the last block is frozen, and nothing else."""
    case = Case(model=model, engine="ddp", precision="fp32", frozen=frozen)
    trained = [{trains(case, name) for name in names} for names in NAMES[model]]
    assert trained == [{False}] * groups + [{True}] * (3 - groups)


def test_a_model_of_more_blocks_trains_its_last() -> None:
    """The last, whatever its number."""
    case = Case(model="llama-small", engine="ddp", precision="fp32", frozen="lower")
    assert [trains(case, f"model.layers.{block}.mlp.up_proj.weight") for block in range(4)] == [False] * 3 + [True]


BLOCK, HEAD = "model.layers.0.mlp.up_proj.weight", "lm_head.weight"
STAYS = {f"parameters/{BLOCK}": [1.0, 2.0], f"parameters/{HEAD}": [3.5], f"gradients/{HEAD}": [1.0]}
MOVED, GRADIENT = "frozen weights that moved", "frozen weights with a gradient"


@pytest.mark.parametrize(
    ("tensors", "broken"),
    [
        (STAYS, set()), ({**STAYS, f"parameters/{BLOCK}": [1.0, 2.0000002]}, {MOVED}),
        ({**STAYS, f"parameters/{BLOCK}": [1.0, float("nan")]}, {MOVED}),
        ({**STAYS, f"parameters/{BLOCK}": [1.0]}, {MOVED}), ({f"parameters/{HEAD}": [3.0]}, {MOVED}),
        ({**STAYS, f"gradients/{BLOCK}": [0.0, 0.0]}, {GRADIENT}),
    ],
    ids=["stays", "one bit", "not a number", "an element less", "not there", "a gradient of nothing"],
)
def test_frozen_weights_stay_to_the_last_bit(tensors: dict[str, list[float]], broken: set[str], tmp_path: Path) -> None:
    """What moves by a bit, is missing or has a gradient fails; what trains may do as it likes."""
    case = Case(model="llama-tiny", engine="fsdp2", precision="fp32", frozen="lower", steps=4)
    start = {f"initial/{BLOCK}": [1.0, 2.0], f"initial/{HEAD}": [3.0]}
    oracle = observation(case.oracle, tmp_path / "oracle", tensors=start)
    seen = observation(case, tmp_path / "seen", tensors=tensors)
    assert {finding.metric for finding in claims.unmoved(seen, oracle) if not finding.passed} == broken


def test_nothing_frozen_proves_nothing(tmp_path: Path) -> None:
    """Where no weight is frozen, none stayed because it was."""
    case = Case(model="llama-tiny", engine="fsdp2", precision="fp32", steps=4)
    seen = observation(case, tmp_path, tensors={**STAYS, f"initial/{BLOCK}": [1.0, 2.0]})
    assert not any(finding.passed for finding in claims.unmoved(seen, seen))
