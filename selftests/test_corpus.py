"""The training data: the same rows for everyone, unevenly labelled, each once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.calibrate import SEEDS
from conformance.catalogue import EXPERIMENT, MATCHED, STOCK
from fixtures.corpus import IGNORED_LABEL, labelled_tokens_of, row, rows_of, rows_of_step, text, text_hash
from fixtures.spec import Case
from fixtures.tables import MODELS, ROWS_PER_STEP, SEQUENCE_LENGTH

ROOT = Path(__file__).resolve().parent.parent
STEPS = range(1, 21)


def test_rows_are_the_same_in_every_process() -> None:
    """Ranks are processes of their own, with their own order of sets and hashes: they read the same rows."""
    code = "from fixtures.corpus import row, text_hash; print(text_hash(), [row(n, 1) for n in range(8)])"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed.strip() == f"{text_hash()} {[row(n, 1) for n in range(8)]}"


@pytest.mark.parametrize("number", [0, 1, 7, 159])
def test_a_row_is_a_piece_of_the_text(number: int) -> None:
    """64 bytes from its place on; its labels are its tokens, not shifted, up to where none counts any more."""
    piece = row(number)
    kept = sum(label != IGNORED_LABEL for label in piece.labels)
    assert bytes(piece.input_ids) == text()[64 * number:64 * number + 64]
    assert piece.labels == piece.input_ids[:kept] + (IGNORED_LABEL,) * (SEQUENCE_LENGTH - kept)
    assert 20 <= kept <= SEQUENCE_LENGTH
    assert piece.labelled_tokens == kept - 1


@pytest.mark.parametrize("length", [2, 32, 128, 256, 1024])
def test_rows_may_have_another_length(length: int) -> None:
    """They follow each other in the text, keep labels unevenly, and each has at least one that counts."""
    rows = [row(number, length=length) for number in range(16)]
    assert b"".join(bytes(one.input_ids) for one in rows) == text()[:16 * length]
    assert all(1 <= one.labelled_tokens < length for one in rows)
    assert len({one.labelled_tokens for one in rows}) >= min(length - 1, 10)
    case = Case(model="llama-tiny", engine="ddp", precision="fp32", sequence_length=length)
    assert labelled_tokens_of(case, 2) == sum(one.labelled_tokens for one in rows[8:])


def test_every_token_is_in_every_vocabulary() -> None:
    """A byte is below 256, and no model knows fewer words."""
    tokens = {token for step in STEPS for number in rows_of_step(step) for token in row(number).input_ids}
    assert min(tokens) >= 0
    assert max(tokens) < min(model.config["vocab_size"] for model in MODELS.values())


@pytest.mark.parametrize("step", STEPS)
def test_rows_of_a_step_are_labelled_unevenly(step: int) -> None:
    """At least five different counts among eight rows: an average of averages is not the average."""
    assert len({row(number).labelled_tokens for number in rows_of_step(step)}) >= 5


@pytest.mark.parametrize(("world_size", "accumulation_steps"), [(2, 1), (2, 4), (4, 1)])
def test_micro_batches_are_labelled_unevenly(world_size: int, accumulation_steps: int) -> None:
    """However a step is cut, some two of its parts differ in labelled tokens, so that equal weights show."""
    size = ROWS_PER_STEP // (world_size * accumulation_steps)
    for step in STEPS:
        counts = [row(number).labelled_tokens for number in rows_of_step(step)]
        assert len({sum(counts[start:start + size]) for start in range(0, ROWS_PER_STEP, size)}) > 1


def test_no_row_comes_twice() -> None:
    """Not within a step, nor in any other: a rank that repeats a row or falls behind is seen."""
    rows = [number for step in STEPS for number in rows_of_step(step)]
    assert rows == list(range(ROWS_PER_STEP * len(STEPS)))
    assert len({row(number).input_ids for number in rows}) == len(rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_labelled_tokens_of_a_step_are_its_rows_sum(seed: int) -> None:
    """What the loss is divided by: labels that count and have a token before them."""
    case = Case(model="llama-tiny", engine="ddp", precision="fp32", accumulation_steps=4, last_rows=2)
    assert list(rows_of(case, 20)) == [152, 153]
    for step in (1, 2, 20):
        labels = [row(number, seed).labels[1:] for number in rows_of(case, step)]
        assert labelled_tokens_of(case, step, seed) == sum(len(some) - some.count(IGNORED_LABEL) for some in labels)


def test_another_seed_is_other_text() -> None:
    """No row of one seed is a row of another, within what the catalogue trains."""
    first, second = ({row(number, seed).input_ids for number in range(160)} for seed in (0, 1))
    assert not first & second


def test_the_corpus_is_long_enough() -> None:
    """Every step of every case has its rows, under every seed that the noise is measured with."""
    longest = max(case.steps for case in (*MATCHED, *STOCK, *EXPERIMENT.values()))
    assert len(row(rows_of_step(longest)[-1], max(SEEDS)).input_ids) == SEQUENCE_LENGTH


@pytest.mark.parametrize(("number", "seed"), [(10**6, 0), (0, 10**3), (-1, 0), (-2, 0), (len(text()) // 64, 0)])
def test_a_row_beyond_the_text_is_refused(number: int, seed: int) -> None:
    """Before the first, after the last, and where only a part of a row is left."""
    with pytest.raises(ValueError, match=rf"row {number} with seed {seed} is beyond the corpus of {len(text())} bytes"):
        row(number, seed)


def test_the_hash_names_the_text() -> None:
    """It is the text's own, so that runs over different text are told apart by their records."""
    assert text_hash() == hashlib.sha256(text()).hexdigest()[:16]
    assert text_hash() != hashlib.sha256(text()[:-1]).hexdigest()[:16]
