"""Which weights train, by name, on each architecture: what is frozen and what is expected to be are one answer."""

from __future__ import annotations

import pytest

from fixtures.freezing import trains
from fixtures.spec import Case

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
