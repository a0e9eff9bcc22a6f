"""No process outlives its launcher, whatever ends it; and a template that cannot start is a case's failure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from fixtures.launch import Launcher
from fixtures.observation import Request
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent
REQUEST = Request(case=Case(model="gpt2-tiny", engine="ddp", precision="fp32"), settings={})
PATIENCE_SECONDS = 20.0


def wait_for(true: Callable[[], bool], what: str) -> None:
    """:raises AssertionError: if ``true()`` does not hold within :data:`PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s in vain for {what}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has, even where nobody buries it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_ends(pid: int) -> None:
    """:raises AssertionError: if the process lives on."""
    wait_for(lambda: is_gone(pid), f"the end of process {pid}")


def assert_all_end(processes: Iterable[psutil.Process]) -> None:
    """:raises AssertionError: if one of them lives on."""
    for process in processes:
        assert_ends(process.pid)


Family = tuple[subprocess.Popen[bytes], list[psutil.Process]]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    """A running launch_driver, which owns a launcher, and its descendants: a template, two ranks, a child of each."""
    command = [sys.executable, "-m", "selftests.launch_driver", str(tmp_path)]
    owner = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    wait_for(lambda: all((tmp_path / f"waiting{rank}").exists() for rank in range(2)), "the ranks' start")
    yield owner, psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    owner.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_leaves_no_orphan(family: Family, number: signal.Signals) -> None:
    """Whether it can clean up after itself or not: with the launcher's owner go template, ranks and their children."""
    owner, descendants = family
    assert len(descendants) == 5
    owner.send_signal(number)
    owner.wait(PATIENCE_SECONDS)
    assert owner.returncode != 0
    assert_all_end(descendants)


def test_leaving_from_a_callback_leaves_no_orphan(family: Family, tmp_path: Path) -> None:
    """``SystemExit`` in the middle of a run passes through, and everything has ended by then."""
    owner, descendants = family
    (tmp_path / "leave").touch()
    assert owner.wait(PATIENCE_SECONDS) == 7
    assert_all_end(descendants)


def test_a_killed_template_takes_its_ranks_along(family: Family) -> None:
    """The template cannot be asked any more, and still nothing of it stays; its owner ends normally."""
    owner, (template, *others) = family
    template.kill()
    assert owner.wait(PATIENCE_SECONDS) == 0
    assert_all_end(others)


def test_ranks_do_not_outlive_both(family: Family) -> None:
    """With nobody left to end them, ranks end by themselves."""
    owner, (template, *others) = family
    ranks = template.children()
    assert len(ranks) == 2
    owner.kill()
    template.kill()
    assert_all_end(ranks)
    for process in others:  # what such ranks had started is beyond anybody's reach but ours
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_rank_can_watch_its_parent() -> None:
    """Where the kernel does not end a rank with its template, the rank itself sees that it has another parent."""
    program = ("import os, time; from fixtures import template; parent = os.getpid(); pid = os.fork()\n"
               "if pid: print(pid, flush=True); time.sleep(0.2); os._exit(0)\n"
               "os.setsid(); os.close(1); template._watch(parent)")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert_ends(int(done.stdout))


def test_a_stopped_template_cannot_keep_its_ranks(family: Family) -> None:
    """A template that does not answer is killed with all its ranks when its owner leaves."""
    owner, descendants = family
    descendants[0].suspend()
    owner.send_signal(signal.SIGINT)
    owner.wait(PATIENCE_SECONDS)
    assert_all_end(descendants)


@pytest.mark.parametrize(("fault", "outcome"), [("has_children", "ok"), ("has_children_and_hangs", "hung")])
def test_what_a_rank_started_ends_with_it(tmp_path: Path, fault: str, outcome: str) -> None:
    """Processes of a rank are gone when the case is over, whether the rank left or was killed."""
    request = Request(case=REQUEST.case, settings={}, fault=fault)
    with Launcher(worker="selftests.fake_worker", preload=()) as launcher:
        assert launcher.run(request, tmp_path, deadline_seconds=0.6).outcome == outcome
        for rank in range(2):
            assert_ends(int((tmp_path / f"child{rank}").read_text()))


def test_a_closed_launcher_has_no_processes(tmp_path: Path) -> None:
    """``close`` ends the template, and may be called twice."""
    before = set(psutil.Process().children())
    launcher = Launcher(worker="selftests.fake_worker", preload=())
    assert launcher.run(REQUEST, tmp_path, deadline_seconds=PATIENCE_SECONDS).outcome == "ok"
    assert set(psutil.Process().children()) > before
    launcher.close()
    launcher.close()
    assert set(psutil.Process().children()) == before


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Launcher]:
    """A launcher that imports a package ``a_framework`` with the given source."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    def make(source: str, start_seconds: float = PATIENCE_SECONDS) -> Launcher:
        (folder / "a_framework.py").write_text(source)
        return Launcher(worker="selftests.fake_worker", preload=("a_framework", "json"),
                        start_seconds=start_seconds)

    return make


def test_a_broken_framework_fails_the_cases_that_need_it(
    framework: Callable[..., Launcher], tmp_path: Path
) -> None:
    """The first error of a release that cannot be imported is in the case's traceback; other cases go on."""
    outcomes = []
    with framework("import torch_of_last_year\n") as launcher:
        for fault in ("imports_framework", None):
            folder = tmp_path / str(fault)
            folder.mkdir()
            request = Request(case=REQUEST.case, settings={}, fault=fault)
            observation = launcher.run(request, folder, deadline_seconds=PATIENCE_SECONDS)
            outcomes.append(observation.outcome)
            if fault:
                assert observation.error is not None
                assert observation.error["message"] == (
                    "a_framework cannot be imported: ModuleNotFoundError: No module named 'torch_of_last_year'"
                )
                assert "a_framework.py" in observation.error["traceback"]
    assert outcomes == ["crashed", "ok"]


def test_a_framework_that_leaves_the_interpreter_is_only_broken(
    framework: Callable[..., Launcher], tmp_path: Path
) -> None:
    """``SystemExit`` at import does not end the template."""
    with framework("raise SystemExit('no driver')\n") as launcher:
        assert launcher.run(REQUEST, tmp_path, deadline_seconds=PATIENCE_SECONDS).outcome == "ok"


def test_an_import_that_kills_is_a_crash_with_its_name(framework: Callable[..., Launcher], tmp_path: Path) -> None:
    """A release that takes the process down at import is named, once per case, and nothing waits for it."""
    with framework("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n") as launcher:
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            observation = launcher.run(REQUEST, folder, deadline_seconds=PATIENCE_SECONDS)
            assert observation.outcome == "crashed"
            assert observation.error is not None
            assert observation.error["message"] == (
                "the template process ended while importing a_framework: killed by SIGSEGV"
            )
            assert "a_framework.py" in observation.error["traceback"]


def test_an_import_that_hangs_is_told_with_its_stack(framework: Callable[..., Launcher], tmp_path: Path) -> None:
    """A release that never finishes to import is named, with where it stands."""
    with framework("import time\ntime.sleep(600)\n", start_seconds=1.5) as launcher:
        observation = launcher.run(REQUEST, tmp_path, deadline_seconds=PATIENCE_SECONDS)
    assert observation.outcome == "hung"
    assert observation.error is not None
    assert observation.error["message"] == "importing a_framework took longer than 1.5 s"
    assert "a_framework.py" in observation.error["traceback"]


@pytest.mark.parametrize(("initialised", "outcome"), [(True, "crashed"), (False, "ok")])
def test_no_rank_is_forked_from_a_template_that_has_initialised_cuda(
    framework: Callable[..., Launcher], tmp_path: Path, initialised: bool, outcome: str
) -> None:
    """The case fails with the reason, and none of its ranks was started; asked and not initialised, it runs."""
    source = (
        "import sys, types\ntorch = sys.modules['torch'] = types.ModuleType('torch')\n"
        f"torch.cuda = types.SimpleNamespace(is_initialized=lambda: {initialised})\n"
    )
    with framework(source) as launcher:
        observation = launcher.run(REQUEST, tmp_path, deadline_seconds=PATIENCE_SECONDS)
    assert observation.outcome == outcome
    assert (tmp_path / "rank0.log").exists() is (outcome == "ok")
    if initialised:
        assert observation.error is not None
        assert observation.error["message"].startswith(
            "CUDA was initialised in the template (torch.cuda.is_initialized()), so no rank can be forked from it"
        )


def test_a_module_that_does_not_exist_is_passed_over(tmp_path: Path) -> None:
    """A release without one of the preloaded modules is not broken."""
    names = ("json.not_in_this_release", "not_installed.at_all", "json")
    with Launcher(worker="selftests.fake_worker", preload=names) as launcher:
        assert launcher.run(REQUEST, tmp_path, deadline_seconds=PATIENCE_SECONDS).outcome == "ok"


def test_settings_of_a_surrounding_launcher_do_not_reach_the_ranks(
    framework: Callable[..., Launcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of torchrun and accelerate launch around pytest are not taken for the case's own."""
    for name in ("MASTER_ADDR", "ACCELERATE_USE_FSDP", "FSDP_VERSION", "TORCHELASTIC_RUN_ID", "LOCAL_SIZE"):
        monkeypatch.setenv(name, "surrounding")
    seen = tmp_path / "seen.json"
    with framework(f"import json, os\njson.dump(dict(os.environ), open({str(seen)!r}, 'w'))\n") as launcher:
        launcher.run(REQUEST, tmp_path, deadline_seconds=PATIENCE_SECONDS)
    assert "surrounding" not in json.loads(seen.read_text()).values()
