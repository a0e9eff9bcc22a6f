"""Rehearsals for real: a pass at full depth agrees, broken settings are caught, and a pretended rank sees all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from conformance import rehearsal
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.judging import outcome_finding
from fixtures.launch import Launcher
from fixtures.observation import Observation, Request
from fixtures.rehearsal.forecast import PHASES, forecast
from fixtures.spec import Case

DEEP = Case(model="llama-deep", engine="fsdp2", precision="bf16-mixed", rows_per_step=4).rehearsal


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Observation]]:
    """``rehearse(case, depths, **settings)``: what the rehearsal showed, whatever its outcome."""
    extensions.ensure_built()
    with Launcher() as launcher:

        def go(case: Case, depths: list[int], platform: str = "cpu", **changes: Any) -> Observation:
            request = Request.of(case, settings(case), platform)
            asked = {**request.settings, **changes, "rehearsal": {"platform": platform, "ranks": [0], "depths": depths}}
            folder = tmp_path_factory.mktemp("run")
            return launcher.run(replace(request, settings=asked), folder, deadline_seconds=300)

        yield go


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "zero3"])
def test_a_pass_at_full_depth_agrees(engine: str, rehearse: Callable[..., Observation]) -> None:
    """The line from three small depths ends where a fake pass over all layers is, within a thousandth."""
    seen = rehearse(DEEP.with_(engine=engine), [3, 4, 5, 8])
    memory = seen.ranks[0].memory
    depths = dict(memory["ranks"]["0"])
    whole = depths.pop("8")
    told = forecast({**memory, "ranks": {"0": depths}})
    for phase in PHASES:
        assert told.peaks[phase] == pytest.approx(max(whole[phase]["stretches"]), rel=1e-3)


def test_a_broken_setting_is_caught(rehearse: Callable[..., Observation]) -> None:
    """What Accelerate raises when it prepares the model fails the case with its message."""
    said = settings(DEEP)["fsdp"]
    seen = rehearse(DEEP, [2], fsdp={**said, "transformer_cls_names_to_wrap": ["NoSuchLayer"]})
    finding = outcome_finding(seen)
    assert not finding.passed
    assert "NoSuchLayer" in finding.observed
    assert not rehearsal.straight(seen).passed


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2"])
def test_a_gpu_steps_over_lists_of_tensors(engine: str, rehearse: Callable[..., Observation]) -> None:
    """Rehearsed for a GPU the step needs a temporary as large as all that is stepped on; on the CPU it does not."""
    case = DEEP.with_(engine=engine)
    peaks = {
        platform: max(rehearse(case, [2], platform).ranks[0].memory["ranks"]["0"]["2"]["step"]["stretches"])
        for platform in ("cpu", "a100")
    }
    assert peaks["a100"] > 1.05 * peaks["cpu"]
