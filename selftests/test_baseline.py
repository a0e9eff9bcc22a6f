"""Baselines: one file per test and platform, exact, and never deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.baseline import stale
from fixtures.changes import changes
from selftests.plugin_fakes import CASE, OTHER, Suite

BODY = """
SAID = {"deepspeed": {"clip": 0.0, "stages": [1, 2]}, "accelerator": "no"}

@both
def test_settings(case, judge, snapshot):
    judge(unchanged(snapshot, SAID, subject=case.id))
"""
FOLDER = Path("baselines", "cpu", "test_small")
FILE = FOLDER / f"test_settings[{CASE.id}].json"


def stored(suite: Suite, body: str = BODY) -> pytest.Pytester:
    """A suite with its baselines recorded."""
    tester = suite(body)
    result = tester.runpytest_inprocess("--snapshot-update", "--run-dir", "first")
    assert result.ret == 0, result.outlines
    return tester


def say(tester: pytest.Pytester, old: str, new: str) -> None:
    """Change the observed settings."""
    path = tester.path / "conformance" / "test_small.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_file_is_sorted_json_beside_its_platform(suite: Suite) -> None:
    """Reviewers read the file, so it is stable; its path says platform, module, test and case."""
    tester = stored(suite)
    assert (tester.path / FILE).read_text() == json.dumps(
        {"accelerator": "no", "deepspeed": {"clip": 0.0, "stages": [1, 2]}}, indent=2) + "\n"
    assert sorted(path.name for path in (tester.path / FOLDER).iterdir()) == sorted(
        f"test_settings[{case.id}].json" for case in (CASE, OTHER))


@pytest.mark.parametrize("processes", ["0", "2"])
def test_stored_settings_pass(suite: Suite, processes: str) -> None:
    """Equal is equal, in as many processes as there are."""
    result = stored(suite).runpytest_inprocess("-n", processes)
    assert result.ret == 0
    assert result.outlines[-1] == "2 claims judged over 2 of 2 gated cases"


def test_each_changed_key_is_a_claim(suite: Suite) -> None:
    """The failure names the key, what it is and what it was; a key that came or went, too."""
    tester = stored(suite)
    say(tester, '"clip": 0.0, "stages"', '"clip": 1.0, "steps"')
    result = tester.runpytest_inprocess("-k", CASE.id)
    result.assert_outcomes(failed=1, deselected=1)
    reference = f"(baseline cpu/test_small/test_settings[[]{CASE.id}[]].json)"
    result.stdout.fnmatch_lines([
        f"{CASE.id}  deepspeed.clip: 1.0, allowed 0.0 {reference}",
        f"{CASE.id}  deepspeed.stages: (absent), allowed [[]1, 2[]] {reference}",
        f"{CASE.id}  deepspeed.steps: [[]1, 2[]], allowed (absent) {reference}",
        "changed against the baselines:",
        f"  deepspeed.clip: 0.0 -> 1.0  in {CASE.id}",
    ])


def test_int_is_not_float_in_a_baseline(suite: Suite) -> None:
    """Exactly equal means the stored text, so 0 is not 0.0."""
    tester = stored(suite)
    say(tester, '"clip": 0.0', '"clip": 0')
    tester.runpytest_inprocess().assert_outcomes(failed=2)


def test_missing_baseline_fails_with_the_command_that_records_it(suite: Suite) -> None:
    """Nothing to compare with is a failure."""
    result = suite(BODY).runpytest_inprocess("-k", CASE.id)
    result.assert_outcomes(failed=1, deselected=1)
    remedy = f'pytest --snapshot-update "conformance/test_small.py::test_settings[[]{CASE.id}[]]"'
    result.stdout.fnmatch_lines([f"{CASE.id}  settings: no baseline, allowed a recorded one (record it: {remedy})"])


@pytest.mark.parametrize("processes", ["0", "2"])
def test_update_writes_what_changed_and_deletes_nothing(suite: Suite, processes: str) -> None:
    """Under --snapshot-update another platform, a stranger and a crashed test all keep their files."""
    tester = stored(suite)
    shutil.copytree(tester.path / "baselines" / "cpu", tester.path / "baselines" / "a100")
    (tester.path / FOLDER / "test_gone[x].json").write_text("{}\n")
    before = {path: path.read_text() for path in (tester.path / "baselines").rglob("*.json")}
    say(tester, "judge(unchanged", f"assert case.engine != {OTHER.engine!r}\n    judge(unchanged")
    say(tester, '"clip": 0.0', '"clip": 2.5')
    tester.runpytest_inprocess("-n", processes, "--snapshot-update", "-m", "cpu").assert_outcomes(passed=1, failed=1)
    after = {path: path.read_text() for path in (tester.path / "baselines").rglob("*.json")}
    assert after.keys() == before.keys()
    assert [path for path in after if after[path] != before[path]] == [tester.path / FILE]


def test_update_of_one_case_leaves_the_other(suite: Suite) -> None:
    """-k with --snapshot-update touches one file."""
    tester = stored(suite)
    say(tester, '"clip": 0.0', '"clip": 2.5')
    assert tester.runpytest_inprocess("-k", CASE.id, "--snapshot-update").ret == 0
    assert "2.5" in (tester.path / FILE).read_text()
    assert "2.5" not in (tester.path / FOLDER / f"test_settings[{OTHER.id}].json").read_text()


@pytest.mark.parametrize("update", [[], ["--snapshot-update"]])
def test_nan_never_matches(suite: Suite, update: list[str]) -> None:
    """Not even a stored NaN, and it is not recorded either."""
    tester = stored(suite)
    say(tester, '"clip": 0.0', '"clip": float("nan")')
    path = tester.path / FILE
    path.write_text(path.read_text().replace("0.0", "NaN"))
    result = tester.runpytest_inprocess(*update, "-k", CASE.id)
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines([f"{CASE.id}  settings: Out of range float values are not JSON compliant*"])
    assert "NaN" in path.read_text()


@pytest.mark.parametrize("update", [[], ["--snapshot-update"]])
def test_damaged_baseline_fails(suite: Suite, update: list[str]) -> None:
    """Half a file matches nothing; the failure names it, and nothing writes over it."""
    tester = stored(suite)
    (tester.path / FILE).write_text('{"accelerator": ')
    result = tester.runpytest_inprocess(*update, "-k", CASE.id)
    result.assert_outcomes(failed=1, deselected=1)
    where = f"baseline cpu/test_small/{FILE.name.replace('[', '[[]')}"
    result.stdout.fnmatch_lines([f"{CASE.id}  (file): not JSON: *({where})"])
    assert (tester.path / FILE).read_text() == '{"accelerator": '


def test_a_failing_test_records_nothing(suite: Suite) -> None:
    """Neither a new file nor over an old one; its neighbour's is recorded all the same."""
    failing = BODY.replace("judge(unchanged", "judge(finding(case, passed=case is not CASE), unchanged")
    tester = suite(failing)
    tester.runpytest_inprocess("--snapshot-update", "--run-dir", "first").assert_outcomes(passed=1, failed=1)
    assert [path.name for path in (tester.path / FOLDER).iterdir()] == [f"test_settings[{OTHER.id}].json"]


def test_a_session_that_dies_leaves_the_old_files(suite: Suite) -> None:
    """Baselines are written when the session ends, each by rename."""
    tester = stored(suite)
    before = (tester.path / FILE).read_text()
    say(tester, '"clip": 0.0', '"clip": 1.0')
    say(tester, "    judge(unchanged(snapshot, SAID, subject=case.id))",
        "    judge(unchanged(snapshot, SAID, subject=case.id))\n    import os; os._exit(9) if case is OTHER else None")
    assert tester.runpytest_subprocess("--snapshot-update", "--run-dir", "second").ret == 9
    assert (tester.path / FILE).read_text() == before


def test_place_does_not_depend_on_the_working_directory(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started in a subfolder, pytest reads the same baselines."""
    tester = stored(suite)
    monkeypatch.chdir(tester.path / "conformance")
    assert tester.runpytest_inprocess("--run-dir", "../second").ret == 0


def test_bare_assert_reads_well_but_judges_nothing(suite: Suite) -> None:
    """`assert snapshot == data` shows one line per key, and a test with nothing but that has judged nothing."""
    tester = stored(suite, BODY + """
@one
def test_bare(case, snapshot, judge):
    assert snapshot == SAID
    judge(finding(case))
""")
    say(tester, '"clip": 0.0', '"clip": 1.0')
    say(tester, "    judge(finding(case))\n", "")
    result = tester.runpytest_inprocess("-k", "bare")
    result.stdout.fnmatch_lines(["*deepspeed.clip: 0.0 -> 1.0"])
    say(tester, '"clip": 1.0', '"clip": 0.0')
    result = tester.runpytest_inprocess("-k", "bare", "--run-dir", "last")
    result.stdout.fnmatch_lines(["judged nothing: a conformance test hands its findings to judge()"])


@pytest.mark.parametrize("processes", ["0", "2"])
def test_stale_baseline_fails_a_whole_session(suite: Suite, processes: str) -> None:
    """A file that belongs to no test fails the session, also under -m; one of another platform does not."""
    tester = stored(suite)
    for platform in ("cpu", "h100"):
        path = tester.path / "baselines" / platform / "test_small" / "test_gone[x].json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    result = tester.runpytest_inprocess("-n", processes, "-m", "cpu")
    result.assert_outcomes(passed=2)
    assert result.ret == 1
    told = [line for line in result.outlines if line.endswith("belongs to no test: remove it")]
    assert told == [f"{FOLDER}/test_gone[x].json: belongs to no test: remove it"]


def test_stale_knows_a_tests_further_snapshots(tmp_path: Path) -> None:
    """A second and a named snapshot belong to their test; a longer name and another suffix do not."""
    folder = tmp_path / "test_small"
    folder.mkdir()
    for name in ("test_a[x].json", "test_a[x].1.json", "test_a[x][own].json", "test_ab[x].json", "test_a[x].txt"):
        (folder / name).touch()
    found = stale(tmp_path, [("test_small", "test_a[x]")])
    assert [path.name for path in found] == ["test_a[x].txt", "test_ab[x].json"]


@pytest.mark.parametrize(("old", "new", "changed"), [
    ({}, {}, []),
    ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", "1", "2")]),
    ({"a": {}}, {"a": {"b": 2}}, [("a", "{}", "(absent)"), ("a.b", "(absent)", "2")]),
    ({"a": None}, {}, [("a", "null", "(absent)")]),
    ({"a": True}, {"a": 1}, [("a", "true", "1")]),
    ([1], [1, 2], [("value", "[1]", "[1, 2]")]),
])
def test_changes_name_each_key(old: object, new: object, changed: list[tuple[str, str, str]]) -> None:
    """Nested keys are joined with dots; a list is one value."""
    assert changes(old, new) == changed
