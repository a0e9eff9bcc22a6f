"""The prepared script for a lent GPU, on a CPU: only the platform's name is another there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from conformance import first_night
from conformance.catalogue import ORACLE
from conformance.first_night import ENGINES, Night, cards, ladder
from fixtures.launch import Launcher
from fixtures.tables import PLATFORMS, PRECISIONS
from selftests.records import observation


def test_the_ladder_is_of_one_rank() -> None:
    """Every engine, every recipe, every precision of the platform, fp16 on GPUs; no case needs two devices."""
    for platform in PLATFORMS:
        cases = ladder(platform, ENGINES)
        assert {case.world_size for case in cases} == {1}
        assert {case.engine for case in cases} == set(ENGINES)
        assert {case.model for case in cases} == {oracle.model for oracle in ORACLE.values()}
        assert ("fp16-mixed" in {case.precision for case in cases}) is (platform != "cpu")
        assert {case.precision for case in cases} <= set(PRECISIONS)


def test_one_card_has_both_kinds() -> None:
    """What must run out of memory on it and what must train there, each on one device."""
    assert {fits for _, fits in cards()} == {True, False}
    assert {case.world_size for case, _ in cards()} == {1}


def test_it_runs_and_records_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same code for real: cases held, a record that is whole, a line for the README."""
    output = tmp_path / "told.json"
    words = ["--platform", "cpu", "--engines", "fsdp2,zero2", "--recipes", "curve", f"--output={output}"]
    assert first_night.main(words) == 0
    told = json.loads(output.read_text())
    assert told["failed"] == []
    assert told["claims"]["held"] == told["claims"]["all"] > 30
    assert {case["outcome"] for case in told["cases"].values()} == {"ok"}
    assert told["provenance"]["packages"]["torch"] in capsys.readouterr().out


class Scripted:
    """A launcher whose runs end as they are told to."""

    def __init__(self, losses: Any) -> None:
        self.losses = losses

    def run(self, request: Any, run_dir: Path, **_words: Any) -> Any:
        """As the launcher's; an engine other than the oracle has losses of its own."""
        case = request.case
        mine = self.losses if case.engine != "plain" else [3.0, 2.0]
        vector = {"gradients/w": [1.0], "parameters/w": [1.0], "initial/w": [0.5]}
        seen = observation(case, run_dir, mine or [3.0, 2.0], tensors=vector, engaged={"local": {}})
        return seen if mine else replace(seen, outcome="crashed", error={"message": "no such luck"})


@pytest.mark.parametrize("losses", [None, [3.1, 2.0], [float("nan"), 2.0], [3.0, 2.9]])
def test_what_does_not_hold_is_told(tmp_path: Path, losses: Any) -> None:
    """A crash, another loss, none: findings that fail, and stand in the record."""
    night = Night(cast("Launcher", Scripted(losses)), tmp_path, "cpu")
    (case, *_) = ladder("cpu", ["ddp"], ["curve"])
    first_night.go(night, [case.with_(steps=2)], with_cards=False)
    told = first_night.record(night)
    assert told["failed"]
    assert told["claims"]["held"] < told["claims"]["all"]


@pytest.mark.parametrize(("words", "said"), [
    (["--platform", "a100"], "--platform a100 needs an NVIDIA A100"),
    (["--platform", "cpu", "--engines", "zero9"], "nothing is called zero9 (known: ddp"),
    (["--platform", "cpu", "--recipes", ""], "known: curve"),
])
def test_what_cannot_be_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 4: no such card here, no such engine, nothing to run."""
    with pytest.raises(SystemExit) as ended:
        first_night.main(words)
    assert ended.value.code == 4
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_the_line_says_where() -> None:
    """The card by its name, what held of what, and the packages."""
    told = {"platform": "h200", "date": "2026-12-01", "claims": {"held": 3, "all": 4}, "cases": {"a": {}},
            "provenance": {"packages": {"torch": "2.13.0"}}}
    assert first_night.line(told, "1 x NVIDIA H200, 140 GiB each") == (
        "| the small ladder, one rank, on 1 x NVIDIA H200, 140 GiB each (h200) | 2026-12-01 | "
        "3 of 4 claims of 1 runs held | torch 2.13.0 |"
    )
