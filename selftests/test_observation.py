"""Records on disk: what is written is read at full precision, and what is damaged is refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.files import RecordError, read_json, write_json
from fixtures.observation import Observation, RankRecord, Request, Step
from fixtures.spec import Case
from selftests.records import STEP, observation, rank

CASE = Case(model="llama-tiny", engine="zero3", precision="bf16-mixed", steps=4, max_grad_norm=0.1 + 0.2)
AWKWARD = [0.1 + 0.2, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf]
"""Numbers that a careless format loses or refuses."""

REQUEST = Request(case=CASE, settings={"load_dtype": "float32", "numbers": AWKWARD}, fault="rank_hangs", seed=3)
RANK = rank(
    1, *(replace(STEP, loss=number, grad_norm=number, learning_rates=(number,)) for number in AWKWARD),
    replace(STEP, model_loss=None, grad_norm=None, measured_grad_norm=None),
    outcome="crashed", error={"type": "ValueError", "message": "größer\nthan allowed", "traceback": ""},
    engaged={"units": [1, 2], "local": {"elements": 7}}, settings={"deep": {"er": [None, True, AWKWARD]}},
    seconds={"train": 1 / 3},
)

READERS: dict[str, Callable[[Path], object]] = {
    "request.json": Request.read,
    "rank1.json": lambda folder: RankRecord.from_json(read_json(folder / "rank1.json"), str(folder / "rank1.json")),
    "observation.json": Observation.read,
}
FILES = list(READERS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with all three kinds of records."""
    seen = replace(observation(CASE, tmp_path), ranks=(replace(RANK, rank=0), RANK), error={"rank": 1, "type": "E"})
    write_json(tmp_path / "request.json", REQUEST.to_json())
    write_json(tmp_path / "rank1.json", RANK.to_json())
    write_json(tmp_path / "observation.json", seen.to_json())
    return tmp_path


def spelled(record: Request | RankRecord) -> str:
    """Every digit of a record: two of them with the same NaN are the same text, and -0.0 is not 0.0."""
    return json.dumps(record.to_json(), sort_keys=True)


def refused(folder: Path, name: str) -> str:
    """What the reader says of a damaged file: one line that begins with the file's path."""
    with pytest.raises(RecordError) as error:
        READERS[name](folder)
    line = str(error.value)
    assert line.startswith(f"{folder / name} ")
    assert "\n" not in line
    return line.removeprefix(f"{folder / name} ")


def damage(path: Path, **changes: Any) -> None:
    """Replace fields of a record; ``None`` stands for itself."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_request_survives_the_disk(folder: Path) -> None:
    """Case, settings, probes, fault and seed come back, every number to its last bit, NaN and infinities too."""
    assert spelled(Request.read(folder)) == spelled(REQUEST)


def test_a_rank_record_survives_the_disk(folder: Path) -> None:
    """Steps and nested settings come back to the last bit; what a rank did not see comes back as None."""
    assert spelled(RankRecord.from_json(read_json(folder / "rank1.json"), "it")) == spelled(RANK)


def test_an_observation_survives_the_disk(folder: Path) -> None:
    """All ranks, the case and the account of what went wrong come back; the folder is where it was read."""
    seen = Observation.read(folder)
    assert [spelled(one) for one in seen.ranks] == [spelled(replace(RANK, rank=0)), spelled(RANK)]
    assert (seen.case, seen.folder, seen.error) == (CASE, folder, {"rank": 1, "type": "E"})
    assert (seen.outcome, seen.fault, seen.wall_seconds) == ("ok", None, 1.5)


def test_a_record_is_json_that_any_reader_takes(folder: Path) -> None:
    """NaN and infinities are words: JSON has no numbers for them, and other readers refuse Python's."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (folder / "rank1.json").read_text()
    assert json.loads(text, parse_constant=refuse)["steps"][5]["loss"] == "nan"


@pytest.mark.parametrize("tenth", range(10))
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_record_is_refused(folder: Path, name: str, tenth: int) -> None:
    """Wherever a write was cut off, nothing is read from what is left."""
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:len(whole) * tenth // 10])
    assert refused(folder, name).startswith("is truncated or corrupt: ")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_record_is_told(folder: Path, name: str) -> None:
    """No file, no record."""
    (folder / name).unlink()
    assert refused(folder, name) == "is missing"


@pytest.mark.parametrize("name", FILES)
def test_a_record_that_cannot_be_opened_is_told(folder: Path, name: str) -> None:
    """The system's reason is in the line."""
    (folder / name).unlink()
    (folder / name).mkdir()
    assert refused(folder, name) == "cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00", "is truncated or corrupt: 'utf-8' codec can't decode"),
        (b"[1, 2]", "holds list, not an object"),
        (b'"ok"', "holds str, not an object"),
        (b"null", "holds NoneType, not an object"),
        (b"{}", "has schema None, this suite reads 3: record it again"),
        (b'{"schema": 0}', "has schema 0, this suite reads 3: record it again"),
        (b'{"schema": "3"}', "has schema '3', this suite reads 3: record it again"),
        (b'{"schema": 4}', "has schema 4, this suite reads 3: record it again"),
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_record_is_refused(folder: Path, name: str, content: bytes, words: str) -> None:
    """Bytes, lists, words, and records of an older or a newer schema are told apart."""
    (folder / name).write_bytes(content)
    assert refused(folder, name).startswith(words)


FIELDS = [(name, one.name) for name, kind in zip(FILES, (Request, RankRecord, Observation), strict=True)
          for one in fields(kind) if one.name != "folder"]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_record_that_lacks_a_field_is_refused(folder: Path, name: str, field: str) -> None:
    """Every field is needed, also one that has a default where records are made."""
    data = json.loads((folder / name).read_text())
    del data[field]
    (folder / name).write_text(json.dumps(data))
    assert f"'{field}'" in refused(folder, name)


@pytest.mark.parametrize("field", [one.name for one in fields(Step)])
def test_a_step_that_lacks_a_field_is_refused(folder: Path, field: str) -> None:
    """A step is whole or the record is none."""
    steps = json.loads((folder / "rank1.json").read_text())["steps"]
    del steps[-1][field]
    damage(folder / "rank1.json", steps=steps)
    assert f"'{field}'" in refused(folder, "rank1.json")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("request.json", {"case": {**CASE.to_json(), "engine": "zero9"}}, "unknown engine 'zero9'"),
        ("request.json", {"case": 5}, "not a case"),
        ("request.json", {"probe_steps": None}, "is not a request"),
        ("rank1.json", {"outcome": "fine"}, "has unknown outcome 'fine' (known: ok, oom, crashed, hung)"),
        ("rank1.json", {"steps": None}, "is not a rank record"),
        ("rank1.json", {"steps": [5]}, "is not a rank record"),
        ("rank1.json", {"colour": "red"}, "'colour'"),
        ("observation.json", {"outcome": "fine"}, "has unknown outcome 'fine'"),
        ("observation.json", {"ranks": [5]}, "is not a rank record"),
        ("observation.json", {"ranks": None}, "is not an observation"),
        ("observation.json", {"case": {**CASE.to_json(), "world_size": 3}}, "cannot be divided"),
    ],
)
def test_a_record_of_another_shape_is_refused(folder: Path, name: str, changes: dict[str, Any], words: str) -> None:
    """A word, a number or a list in the wrong place is told in one line, never a traceback."""
    damage(folder / name, **changes)
    assert words in refused(folder, name)


@pytest.mark.parametrize(
    "changes",
    [{"loss": None}, {"loss": "low"}, {"loss": [1]}, {"rows": 5}, {"rows": ["a"]}, {"learning_rates": [None]}],
)
def test_a_step_without_numbers_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    """Losses and rates are numbers, rows are whole ones: a missing one is not read as nothing."""
    steps = json.loads((folder / "rank1.json").read_text())["steps"]
    damage(folder / "rank1.json", steps=[{**steps[0], **changes}])
    assert "is not a rank record" in refused(folder, "rank1.json")


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    """What cannot be written leaves the file that was there, whole, and no other file beside it."""
    path = tmp_path / "rank0.json"
    write_json(path, {"schema": 3, "first": True})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, {"schema": 3, "aaa": list(range(9999)), "zzz": object()})
    assert read_json(path) == {"schema": 3, "first": True}
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_one_file_or_the_other(tmp_path: Path) -> None:
    """The new record takes the old one's place at once: who has the old one open reads all of it."""
    path = tmp_path / "rank0.json"
    write_json(path, {"schema": 3, "first": True})
    whole = path.read_text()
    with path.open() as reader:
        write_json(path, {"schema": 3, "first": False})
        assert reader.read() == whole
    assert read_json(path)["first"] is False


def test_writing_into_no_folder_is_an_os_error(tmp_path: Path) -> None:
    """The caller is told; nothing is made in the folder's place."""
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "gone" / "rank0.json", {"schema": 3})
    assert list(tmp_path.iterdir()) == []
