"""A race in a real session: what is recorded, what fails, and with which command it is mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.throughput.floor import HEATS_TO_FAIL, HEATS_TO_RECORD
from fixtures.throughput.race import FIRST_HEATS
from selftests.plugin_fakes import Suite, assert_usage_error
from selftests.races import FSDP2

BODY = """
import dataclasses, itertools, os
from pathlib import Path
from conformance.catalogue import RACE
from fixtures.files import write_json
from fixtures.throughput.judged import kept
from selftests.races import FSDP2, PACE, Noise

@pytest.mark.parametrize("case", [pytest.param(FSDP2, id=FSDP2.id)])
def test_pace(case, raced, judge, snapshot):
    judge(kept(snapshot, raced(RACE), PACE))
"""
CONFTEST = """
import dataclasses, json, os
from pathlib import Path
from fixtures.files import write_json
from selftests.plugin_fakes import FakeLauncher, outside
from selftests.races import FSDP2, Noise

pytest_plugins = ["fixtures.plugin"]
SLOW = {FSDP2.id: float(os.environ.get("FAKE_SLOW", "1"))}
NOISE = Noise(1, slow=SLOW, block=float(os.environ.get("FAKE_NOISE", "0.02")))

class Racing(FakeLauncher):
    def run_together(self, members, *, deadline_seconds, on_progress=None, env=None):
        with Path(os.environ["FAKE_LOG"]).open("a") as log:
            log.write("heat\\n")
        if os.environ.get("FAKE_CRASH"):
            return super().run_together(members, deadline_seconds=deadline_seconds)
        seen = []
        for one, (request, folder) in zip(NOISE.heat([r.case for r, _ in members], 1), members):
            seen.append(dataclasses.replace(one, folder=folder))
            write_json(folder / "request.json", request.to_json())
            write_json(folder / "observation.json", seen[-1].to_json())
        return seen

def pytest_shardgate_outside(config):
    return outside(launcher=Racing)
"""
FILE = Path("baselines", "cpu", "test_small", f"test_pace[{FSDP2.id}].json")
NODE = f"conformance/test_small.py::test_pace[{FSDP2.id}]"
MEND = f'(record it: pytest --snapshot-update "{NODE}")'


@pytest.fixture
def racing(suite: Suite) -> pytest.Pytester:
    """A suite with one claim about speed, on a fake machine of little noise, without a baseline."""
    tester = suite(BODY)
    tester.makeconftest(CONFTEST)
    return tester


@pytest.fixture
def stored(racing: pytest.Pytester) -> pytest.Pytester:
    """The same with its baseline recorded."""
    result = racing.runpytest_inprocess("--snapshot-update", "--run-dir", "first")
    assert result.ret == 0, result.outlines
    return racing


def edit(tester: pytest.Pytester, **changes: Any) -> None:
    """Change what stands beside the judged number."""
    data = json.loads((tester.path / FILE).read_text())
    data["recorded"] |= changes
    (tester.path / FILE).write_text(json.dumps(data))


def told(result: pytest.RunResult) -> str:
    """The claim's line in the failure."""
    return next(line for line in result.outlines if line.startswith(f"{FSDP2.id}  "))


def heats(tester: pytest.Pytester) -> int:
    """How many heats were run since the log was made."""
    return (tester.path / "launched.txt").read_text().count("heat")


def test_a_baseline_is_one_number_with_its_origin(stored: pytest.Pytester) -> None:
    """Few digits are judged; machine, spread, date and rates stand beside them; sixteen heats went into it."""
    data = json.loads((stored.path / FILE).read_text())
    assert set(data) == {"judged", "recorded"}
    assert data["judged"] == {"times_as_long": pytest.approx(3.0, abs=0.05)}
    assert len(str(data["judged"]["times_as_long"])) <= 5
    assert {"machine", "spread", "date", "packages", "settings", "tokens_per_second"} <= set(data["recorded"])
    assert data["recorded"]["heats"] == heats(stored) == HEATS_TO_RECORD


def test_unchanged_passes_in_the_first_heats_and_replays(stored: pytest.Pytester) -> None:
    """A verdict takes three heats, and their record is judged again without a launch; date and packages may move."""
    before = heats(stored)
    edit(stored, date="1999-01-01", packages={"torch": "0"})
    assert stored.runpytest_inprocess("--run-dir", "second").ret == 0
    assert heats(stored) == before + FIRST_HEATS
    assert (stored.path / "second" / FSDP2.id / "heat2" / "observation.json").is_file()
    assert stored.runpytest_inprocess("--replay=second").ret == 0
    assert heats(stored) == before + FIRST_HEATS


def test_slower_fails_when_confirmed(stored: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten per cent: confirmed by a fourth heat, told with its interval, and judged again from the record."""
    before = heats(stored)
    monkeypatch.setenv("FAKE_SLOW", "1.1")
    result = stored.runpytest_inprocess("--run-dir", "second")
    assert result.ret == 1
    assert heats(stored) == before + HEATS_TO_FAIL
    assert "step time, of that of ddp: slower by " in told(result)
    assert f'judge again: pytest --replay=second "{NODE}"' in result.outlines
    assert any(line.startswith("re-run: ") and line.endswith(f'pytest "{NODE}"') for line in result.outlines)
    assert stored.runpytest_inprocess("--replay=second").ret == 1


def test_unstable_fails(stored: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last heat nobody knows: that is no pass."""
    monkeypatch.setenv("FAKE_NOISE", "0.8")
    result = stored.runpytest_inprocess("--run-dir", "second")
    assert result.ret == 1
    assert "unstable (slower by " in told(result)


def test_faster_passes_and_offers_itself(stored: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding holds the command; the file stays as it is."""
    before = (stored.path / FILE).read_text()
    monkeypatch.setenv("FAKE_SLOW", "0.8")
    assert stored.runpytest_inprocess("--run-dir", "second").ret == 0
    (line,) = (stored.path / "second" / "findings.jsonl").read_text().splitlines()
    assert f'; faster, take it: pytest --snapshot-update "{NODE}"' in json.loads(line)["observed"]
    assert (stored.path / FILE).read_text() == before


def test_missing_and_stale_fail_with_the_command(racing: pytest.Pytester) -> None:
    """No baseline, and one of other settings."""
    result = racing.runpytest_inprocess("--run-dir", "first")
    assert told(result).endswith(f"no baseline, allowed a recorded one {MEND}")
    assert racing.runpytest_inprocess("--snapshot-update", "--run-dir", "second").ret == 0
    edit(racing, settings="000000000000")
    assert f"stale baseline: recorded with other settings, allowed one of these settings {MEND}" in told(
        racing.runpytest_inprocess("--run-dir", "third"))


def test_another_machine_is_named(stored: pytest.Pytester) -> None:
    """A laptop is not judged by the build server's last per cent, and the claim says so."""
    here = json.loads((stored.path / FILE).read_text())["recorded"]["machine"]
    edit(stored, machine={**here, "cores": 640})
    result = stored.runpytest_inprocess("--run-dir", "second")
    assert result.ret == 0
    (line,) = (stored.path / "second" / "findings.jsonl").read_text().splitlines()
    named = f"baseline of another machine (cores: 640 there, {here['cores']} here), so only 100% more fails"
    assert json.loads(line)["widened"] == named
    assert f"judged more widely than should be: | 1 claim: {named}" in " | ".join(map(str.strip, result.outlines))


@pytest.mark.parametrize("text", ["{", "[]", '{"judged": {}}', '{"judged": {"times_as_long": NaN}, "recorded": {}}'])
@pytest.mark.parametrize("update", [[], ["--snapshot-update"]])
def test_a_damaged_baseline_is_named_and_left(stored: pytest.Pytester, text: str, update: list[str]) -> None:
    """Exit status 4 and the file's name; nothing writes over it."""
    (stored.path / FILE).write_text(text)
    result = stored.runpytest_inprocess(*update, "--run-dir", "second")
    assert_usage_error(result, FILE.name, "is not a baseline of throughput")
    assert (stored.path / FILE).read_text() == text


def test_noise_is_not_recorded(racing: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unstable run leaves no baseline."""
    monkeypatch.setenv("FAKE_NOISE", "0.8")
    result = racing.runpytest_inprocess("--snapshot-update", "--run-dir", "first")
    assert result.ret == 1
    assert "nothing recorded" in told(result)
    assert not (racing.path / FILE).exists()


def test_what_was_recorded_is_shown_as_a_table(stored: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed differences of the judged numbers, for the review; the date beside them is not in it."""
    monkeypatch.setenv("FAKE_SLOW", "1.5")
    result = stored.runpytest_inprocess("--snapshot-update", "--run-dir", "second")
    assert result.ret == 0
    (row,) = [line for line in result.outlines if "judged.times_as_long" in line]
    assert "+1.5" in row.replace("+1.49", "+1.5").replace("+1.51", "+1.5")
    assert "%)" in row
    assert not any("recorded." in line for line in result.outlines)


def test_a_race_that_crashes_fails_with_its_cause(stored: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any case: the outcome is the claim that fails."""
    monkeypatch.setenv("FAKE_CRASH", "1")
    monkeypatch.setenv("FAKE_FAULT", "crash")
    result = stored.runpytest_inprocess("--run-dir", "second")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*outcome: crashed (rank 1: ValueError: weights are upside down), allowed ok*"])
