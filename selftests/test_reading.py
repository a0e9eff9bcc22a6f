"""What a rank reads of a checkpoint is counted where it leaves the file, and the claim about it can fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from conformance import programs
from conformance.catalogue import FRUGAL
from fixtures import reading
from fixtures.spec import Case
from selftests.records import observation

FSDP2, ZERO3 = (next(case for case in FRUGAL if case.engine == engine) for engine in ("fsdp2", "zero3"))


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    """Two tensors, of 6 and of 4 elements."""
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_tensors_and_parts_of_them_count(file: Path) -> None:
    """Names, shapes and dtypes are no weights; what is read twice counts twice."""
    with reading.counted() as read, transformers.modeling_utils.safe_open(file, framework="pt") as opened:
        assert sorted(opened.keys()) == ["a", "b"]
        lazy = opened.get_slice("a")
        assert (lazy.get_shape(), read.elements) == ([2, 3], 0)
        assert lazy[:1].shape == (1, 3)
        assert read.elements == 3
        opened.get_tensor("b")
        lazy[...]
    assert read.elements == 3 + 4 + 6


def test_a_model_is_read_once_and_afterwards_nothing_counts(tmp_path: Path) -> None:
    """``from_pretrained`` goes through what is counted, in this release."""
    config = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    with reading.counted() as read:
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert read.elements == sum(weight.numel() for weight in model.parameters())
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert read.elements == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("case", "read", "passes"), [
    (FSDP2, (10, 0), True),
    (FSDP2, (10, 10), False),
    (FSDP2, (0, 0), False),
    (FSDP2, (10, None), False),
    (ZERO3, (5, 5), True),
    (ZERO3, (10, 10), False),
    (ZERO3, (4, 5), False),
    (ZERO3, (5, None), False),
])
def test_loaded_once_for_all(case: Case, read: tuple[int | None, ...], passes: bool, tmp_path: Path) -> None:
    """FSDP's rank 0 reads all and the other nothing; ZeRO-3's ranks hold a half each; no number is no pass."""
    seen = observation(case, tmp_path, tensors={"parameters/a": [0.0] * 6, "parameters/b": [0.0] * 4})
    ranks = tuple(
        dataclasses.replace(one, engaged={"local": {} if count is None else {"read_elements": count}})
        for one, count in zip(seen.ranks, read, strict=True)
    )
    found = list(programs.loaded_once(dataclasses.replace(seen, ranks=ranks)))
    assert len(found) == 2
    assert all(finding.passed for finding in found) is passes
