"""A gate run from its words to its exit status and report, in a world where every release does as it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.spec import Case
from gate.environments import Environment
from gate.gating import Gate
from gate.plan import Orders, World
from gate.problems import MachineError, UsageError
from gate.runs import Imported
from selftests.gate_fakes import FSDP2, ZERO3, FakePip, FakeRuns, Versions, imports, world

UPCAST = {"fails": (("dtypes", "dtype, at_rest"),)}


def in_1_13(versions: Versions, case: Case) -> Mapping[str, Any]:
    """accelerate 1.13.0 skips the upcast of FSDP2."""
    return UPCAST if versions["accelerate"] == "1.13.0" and case == FSDP2 else {}


def since_1_11(versions: Versions, case: Case) -> Mapping[str, Any]:
    """Since accelerate 1.11.0."""
    return UPCAST if versions["accelerate"] in ("1.11.0", "1.12.0", "1.13.0") and case == FSDP2 else {}


def where_two_meet(versions: Versions, case: Case) -> Mapping[str, Any]:
    """accelerate since 1.12.0 with deepspeed since 0.19.6."""
    new = versions["accelerate"] in ("1.12.0", "1.13.0") and versions["deepspeed"] in ("0.19.6", "0.19.7", "0.19.8")
    return {"outcome": "crashed", "message": "ValueError: no_sync"} if new and case == ZERO3 else {}


def run(tmp_path: Path, here: World, *to: str, since: tuple[str, ...] = (), **more: Any) -> tuple[int, dict[str, Any]]:
    """The exit status and ``gate.json`` of a gate run; what it tells goes to ``told.txt``."""
    told = tmp_path / "told.txt"

    def tell(line: str) -> None:
        with told.open("a") as stream:
            stream.write(line + "\n")

    orders = Orders(to=to, since=since, folder=tmp_path / "gate", **more)
    status = Gate(orders=orders, tell=tell, world=here).run()
    path = tmp_path / "gate" / "gate.json"
    return status, json.loads(path.read_text()) if path.exists() else {}


def test_a_sound_release_may_be_moved_to(tmp_path: Path) -> None:
    """Exit status 0, and a report that says what was judged."""
    status, told = run(tmp_path, world(tmp_path), "accelerate==1.14.0")
    assert (status, told["verdict"], told["claims"]) == (0, "move", 9)
    assert told["moved"] == {"accelerate": ["1.15.0", "1.14.0"]}
    assert (tmp_path / "gate" / "gate.md").read_text().startswith("# Move\n")


def test_a_broken_release_is_named(tmp_path: Path) -> None:
    """Exit status 1, the rung, the release and the last good one."""
    status, told = run(
        tmp_path, world(tmp_path, runs=FakeRuns(in_1_13)), "accelerate==1.13.0", since=("accelerate==1.12.0",)
    )
    assert (status, told["verdict"]) == (1, "do not move")
    (cause,) = told["attributions"]
    assert "[dtypes]" in cause["sentence"]
    assert cause["sentence"].endswith("breaks in accelerate 1.13.0 (1.12.0 is good)")


def test_the_culprit_is_found_among_all_that_moved(tmp_path: Path) -> None:
    """In at most log2 of the releases plus three builds, and with a report to paste."""
    pip = FakePip()
    status, told = run(
        tmp_path, world(tmp_path, pip=pip, runs=FakeRuns(since_1_11)),
        "accelerate==1.13.0", "transformers==5.24.0", "deepspeed==0.19.8",
        since=("accelerate==1.9.0", "transformers==5.6.2", "deepspeed==0.19.2"),
    )
    (cause,) = told["attributions"]
    assert status == 1
    assert cause["sentence"].endswith("breaks in accelerate 1.11.0 (1.10.1 is good)")
    assert cause["builds"] <= 3 + 3
    assert cause["trials"] <= 3 + 3
    page = (tmp_path / "gate" / "upstream-1.md").read_text()
    assert "`accelerate` 1.11.0 (not in 1.10.1)" in page
    assert "torchrun --nproc-per-node 2 -m fixtures.worker" in page
    assert '"engine": "fsdp2"' in page


def test_two_that_must_meet_are_both_named(tmp_path: Path) -> None:
    """With the release of each since which they do, and the sentence says that neither alone is at fault."""
    status, told = run(
        tmp_path, world(tmp_path, runs=FakeRuns(where_two_meet)), "accelerate==1.13.0", "deepspeed==0.19.8",
        since=("accelerate==1.9.0", "deepspeed==0.19.2"),
    )
    (cause,) = told["attributions"]
    assert status == 1
    assert "accelerate 1.12.0 (1.11.0 is good)" in cause["sentence"]
    assert "deepspeed 0.19.6 (0.19.3 is good)" in cause["sentence"]
    assert cause["sentence"].endswith("neither alone brings it")


def test_releases_that_cannot_be_installed_are_passed_over(tmp_path: Path) -> None:
    """The answer says what could not be tested, where it matters."""
    pip = FakePip(broken=frozenset({("accelerate", "1.10.1"), ("accelerate", "1.11.0")}))
    _, told = run(
        tmp_path, world(tmp_path, pip=pip, runs=FakeRuns(since_1_11)), "accelerate==1.13.0",
        since=("accelerate==1.9.0",),
    )
    (cause,) = told["attributions"]
    assert cause["sentence"].endswith(
        "breaks in accelerate 1.12.0 (1.10.0 is good; 1.10.1, 1.11.0 could not be tested)"
    )


def test_a_candidate_that_cannot_be_installed_cannot_be_told(tmp_path: Path) -> None:
    """Exit status 2, with pip's reason."""
    pip = FakePip(broken=frozenset({("accelerate", "1.13.0")}))
    status, told = run(tmp_path, world(tmp_path, pip=pip), "accelerate==1.13.0")
    assert (status, told["verdict"]) == (2, "cannot tell")
    assert "no compiler" in told["headline"]


def broken_import(environment: Environment, platform: str) -> Imported:
    """accelerate since 1.12.0 cannot be imported."""
    seen = imports(environment, platform)
    if environment.versions["accelerate"] not in ("1.12.0", "1.13.0"):
        return seen
    error = {"version": environment.versions["accelerate"], "error": "ImportError: no Y in X"}
    return Imported(found={**seen.found, "accelerate": error})


def test_a_candidate_that_cannot_be_imported_is_attributed(tmp_path: Path) -> None:
    """No case runs, nothing can be told of training, and yet the release is named."""
    runs = FakeRuns()
    status, told = run(
        tmp_path, world(tmp_path, runs=runs, imported=broken_import), "accelerate==1.13.0",
        since=("accelerate==1.9.0",),
    )
    assert (status, told["verdict"]) == (2, "cannot tell")
    assert not runs.runs
    (cause,) = told["attributions"]
    assert cause["sentence"].endswith("breaks in accelerate 1.12.0 (1.11.0 is good)")


def test_a_pinned_side_that_cannot_be_imported_is_this_machines_fault(tmp_path: Path) -> None:
    """Exit status 3: there is nothing to compare with."""
    with pytest.raises(MachineError, match="pinned environment is broken"):
        run(tmp_path, world(tmp_path, imported=broken_import), "accelerate==1.9.0", since=("accelerate==1.12.0",))


def leaking(environment: Environment, platform: str) -> Imported:
    """Whatever was asked for, accelerate 1.15.0 is imported."""
    seen = imports(environment, platform)
    return Imported(found={**seen.found, "accelerate": {"version": "1.15.0"}})


def test_an_environment_that_is_not_what_was_asked_for_is_refused(tmp_path: Path) -> None:
    """What is imported is read back before anything runs."""
    with pytest.raises(MachineError, match=r"it imports accelerate 1.15.0 instead of 1.13.0"):
        run(tmp_path, world(tmp_path, imported=leaking), "accelerate==1.13.0")


def test_ranks_that_ran_something_else_cannot_be_told(tmp_path: Path) -> None:
    """What every rank wrote down is compared with what was asked for."""
    def shows(versions: Versions, case: Case) -> Mapping[str, Any]:
        return {"packages": {**versions, "accelerate": "1.15.0"}}

    status, told = run(tmp_path, world(tmp_path, runs=FakeRuns(shows)), "accelerate==1.13.0")
    assert status == 2
    assert "accelerate 1.15.0 instead of 1.13.0" in told["headline"]


def test_a_break_that_does_not_repeat_cannot_be_told(tmp_path: Path) -> None:
    """A machine that was busy for a moment raises no alarm, and gives no clearance."""
    once = iter([UPCAST])

    def shows(versions: Versions, case: Case) -> Mapping[str, Any]:
        return next(once, {}) if versions["accelerate"] == "1.13.0" and case == FSDP2 else {}

    status, told = run(tmp_path, world(tmp_path, runs=FakeRuns(shows)), "accelerate==1.13.0")
    assert (status, told["attributions"]) == (2, [])
    assert "broke once and not again" in told["headline"]


def test_an_interrupted_gate_goes_on_with_what_it_planned(tmp_path: Path) -> None:
    """The releases of the first command, whatever is published since."""
    class Interrupted(FakeRuns):
        def __call__(self, *arguments: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    gate = Gate(
        orders=Orders(to=("accelerate==1.13.0",), folder=tmp_path / "gate"), tell=lambda line: None,
        world=world(tmp_path, runs=Interrupted()),
    )
    with pytest.raises(KeyboardInterrupt):
        gate.run()
    assert gate.how_to_go_on.endswith(f"python -m gate --resume {tmp_path / 'gate'}")
    resumed = Gate(
        orders=Orders(resume=tmp_path / "gate"), tell=lambda line: None,
        world=world(tmp_path, runs=FakeRuns(in_1_13), pip=FakePip(down=True)),
    )
    with pytest.raises(MachineError, match="cannot be reached"):
        resumed.world.pip.versions("accelerate")
    assert resumed.run() == 1


def test_a_dry_run_installs_and_runs_nothing(tmp_path: Path) -> None:
    """It says what it would."""
    pip, runs = FakePip(), FakeRuns()
    status, told = run(tmp_path, world(tmp_path, pip=pip, runs=runs), "accelerate==1.13.0", dry=True)
    assert (status, told, pip.installs, runs.runs) == (0, {}, [], [])
    lines = (tmp_path / "told.txt").read_text()
    assert "accelerate 1.13.0 (to be installed" in lines
    assert "-m pytest" in lines


def test_an_unreachable_registry_is_a_clear_error(tmp_path: Path) -> None:
    """Exit status 3, before anything is run."""
    with pytest.raises(MachineError, match="cannot be reached"):
        run(tmp_path, world(tmp_path, pip=FakePip(down=True)), "accelerate")


def test_an_index_that_goes_away_does_not_take_the_verdict_along(tmp_path: Path) -> None:
    """The verdict stands, and says why the search ended."""
    class GoesAway(FakePip):
        asked = 0

        def versions(self, name: str) -> list[str]:
            self.asked += 1
            self.down = self.asked > 2
            return super().versions(name)

    status, told = run(
        tmp_path, world(tmp_path, pip=GoesAway(), runs=FakeRuns(in_1_13)), "accelerate==1.13.0",
        since=("accelerate==1.9.0",),
    )
    assert status == 1
    assert "the search ended: the package index cannot be reached" in told["attributions"][0]["sentence"]


@pytest.mark.parametrize("orders", [
    Orders(), Orders(to=("accelerate==9.9",)), Orders(resume=Path("nowhere")),
    Orders(resume=Path("nowhere"), to=("accelerate",)),
])
def test_a_command_that_asks_for_nothing_is_a_usage_error(tmp_path: Path, orders: Orders) -> None:
    """No release, an unpublished one, no run to go on with, another release than was planned."""
    with pytest.raises(UsageError):
        Gate(orders=orders, tell=lambda line: None, world=world(tmp_path)).run()


def test_a_move_to_what_is_pinned_judges_nothing(tmp_path: Path) -> None:
    """``latest`` on a stack that is the latest."""
    runs = FakeRuns()
    assert run(tmp_path, world(tmp_path, runs=runs), "latest")[0] == 0
    assert not runs.runs


def test_a_folder_is_not_begun_twice(tmp_path: Path) -> None:
    """Two gates in one folder would mix their records."""
    run(tmp_path, world(tmp_path), "accelerate==1.14.0")
    with pytest.raises(UsageError, match="--resume"):
        run(tmp_path, world(tmp_path), "accelerate==1.13.0")


def test_a_side_that_cannot_run_is_told(tmp_path: Path) -> None:
    """pytest's own error, with the log to read."""
    with pytest.raises(MachineError, match=r"pinned side did not run to its end \(status 4\): as told"):
        run(tmp_path, replace(world(tmp_path), run=FakeRuns(status=4)), "accelerate==1.13.0")
