"""Gathered tensors, read from a safetensors file with the standard library alone."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fixtures.files import RecordError, read_tensors
from fixtures.spec import Case
from selftests.records import observation, safetensors, with_header

CASE = Case(model="llama-tiny", engine="plain", precision="fp32", world_size=1, steps=4)

HEADER = (
    b'{"__metadata__":{"format":"pt"},'
    b'"gradients/w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
    b'"parameters/b":{"dtype":"F32","shape":[],"data_offsets":[16,20]}}   '
)
DATA = bytes.fromhex("0000803f 000000c0 0000807f 0000c07f 00000040")
"""1, -2, infinity, NaN; 2: four bytes each, little endian."""


def write(folder: Path, header: bytes, data: bytes) -> Path:
    """A file of this header and these data."""
    path = folder / "tensors.safetensors"
    path.write_bytes(with_header(header, data))
    return path


def test_a_file_made_by_hand_is_read(tmp_path: Path) -> None:
    """Names, order and every bit of the numbers, whatever the machine's byte order; metadata is skipped."""
    read = read_tensors(write(tmp_path, HEADER, DATA))
    assert list(read) == ["gradients/w", "parameters/b"]
    assert [struct.pack(f"<{len(values)}f", *values) for values in read.values()] == [DATA[:16], DATA[16:]]


@pytest.mark.parametrize("length", range(0, 8 + len(HEADER) + len(DATA), 9))
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    """Cut off in the length, in the header or in the data: one line with the path, and no tensor."""
    path = write(tmp_path, HEADER, DATA)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RecordError) as refused:
        read_tensors(path)
    assert str(refused.value).startswith(f"{path} is truncated or corrupt: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("length", [0, 1, len(HEADER) - 4, len(HEADER) + 1, 2**32 + len(HEADER), 2**64 - 1])
def test_a_length_that_lies_is_refused(tmp_path: Path, length: int) -> None:
    """All eight bytes of the header's length count."""
    path = tmp_path / "tensors.safetensors"
    path.write_bytes(struct.pack("<Q", length) + HEADER + DATA)
    with pytest.raises(RecordError, match="is truncated or corrupt"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b'{"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}', "dtype BF16, expected F32"),
        (b'{"w":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}', "16 bytes where shape [5] needs 20"),
        (b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}', "12 bytes where shape [4] needs 16"),
        (b'{"w":{"dtype":"F32","shape":[2]}}', "data_offsets"),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0]}}', "not enough values"),
        (b'{"w":5}', "not subscriptable"),
        (b"[]", ""),
        (b"5", ""),
        (b'{"w":', "Expecting value"),
        (b"\xff\xff", "decode"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: bytes, words: str) -> None:
    """Another dtype, sizes that do not fit, or no table at all: told in one line, never guessed."""
    path = write(tmp_path, header, DATA)
    with pytest.raises(RecordError) as refused:
        read_tensors(path)
    assert str(refused.value).startswith(f"{path} is truncated or corrupt: ")
    assert words in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A run that kept no tensors has none to compare, which is no agreement."""
    with pytest.raises(RecordError, match=r"tensors\.safetensors cannot be read: No such file or directory"):
        observation(CASE, tmp_path).group("gradients")


def test_groups_are_told_by_their_prefix(tmp_path: Path) -> None:
    """A group holds its parameters by their own names; a name that merely begins alike is not in it."""
    seen = observation(CASE, tmp_path, tensors={"gradients/a.w": [1.0], "gradients_b": [2.0], "parameters/a.w": [3.0]})
    assert {name: list(values) for name, values in seen.group("gradients").items()} == {"a.w": [1.0]}
    assert seen.group("initial") == {}


def test_norms_and_ways_are_two_norms(tmp_path: Path) -> None:
    """A tensor's norm, and how far training has moved a parameter, which is not how long it is."""
    tensors = {"initial/w": [1.0, 1.0], "parameters/w": [4.0, 5.0], "gradients/w": [3.0, 4.0]}
    seen = observation(CASE, tmp_path, tensors=tensors)
    assert seen.norms["gradients/w"] == 5.0
    assert seen.travelled == {"w": 5.0}


@pytest.mark.parametrize("initial", [{}, {"initial/v": [0.0]}, {"initial/v": [0.0], "initial/w": [0.0]}])
def test_a_way_without_its_start_is_refused(tmp_path: Path, initial: dict[str, list[float]]) -> None:
    """Only where start and end of every parameter are on record is there a way."""
    seen = observation(CASE, tmp_path, tensors={**initial, "parameters/w": [1.0]})
    with pytest.raises(RecordError, match="does not hold the start of every parameter"):
        _ = seen.travelled


def test_the_maker_of_these_files_makes_what_the_reader_reads(tmp_path: Path) -> None:
    """Self-tests of the claims write their tensors so."""
    path = tmp_path / "tensors.safetensors"
    path.write_bytes(safetensors({"a": [0.5], "b": [1.0, 2.0]}))
    assert {name: list(values) for name, values in read_tensors(path).items()} == {"a": [0.5], "b": [1.0, 2.0]}
