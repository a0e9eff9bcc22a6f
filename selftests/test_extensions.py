"""The cache of DeepSpeed's compiled extensions. With a fake deepspeed: nothing is compiled, torch is not imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fixtures import extension_cache, extensions
from fixtures.spec import Case

ROOT = Path(__file__).resolve().parent.parent

BUILDER = """
import os, pathlib, time
class ShareMemCommBuilder:
    name = "deepspeed_shm_comm"
    def is_compatible(self, verbose=True):
        return True
    def load(self, verbose=True):
        folder = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], self.name)
        folder.mkdir(exist_ok=True)
        while (folder / "lock").exists():
            time.sleep(0.01)
        with (folder / "builds").open("a") as stream:
            stream.write("built\\n")
        {ending}
class CPUAdamBuilder(ShareMemCommBuilder):
    name = "cpu_adam"
"""

Command = Callable[..., subprocess.CompletedProcess[str]]


def lay_over(folder: Path, *, version: str, ending: str = "pass", init: str = "") -> Path:
    """A site folder with a fake deepspeed, whose build ends with ``ending``."""
    package = folder / "deepspeed" / "ops" / "op_builder"
    package.mkdir(parents=True)
    for parent in (package, package.parent):
        (parent / "__init__.py").touch()
    (folder / "deepspeed" / "__init__.py").write_text(init)
    (package / "cpu.py").write_text(BUILDER.format(ending=ending))
    metadata = folder / f"deepspeed-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")
    return folder


def variables(cache: Path, site: Path | None, **changes: str) -> dict[str, str]:
    """An environment with ``site`` laid over it and its own cache."""
    laid_over = {"PYTHONPATH": str(site)} if site else {}
    return {**os.environ, "SHARDGATE_CACHE": str(cache), "CXX": sys.executable, **laid_over, **changes}


def build(cache: Path, site: Path, *names: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m fixtures.extensions``."""
    return subprocess.run([sys.executable, "-m", "fixtures.extensions", *names], cwd=ROOT, check=False,
                          capture_output=True, text=True, timeout=60, env=variables(cache, site, **changes))


def directory(cache: Path, site: Path | None) -> Path:
    """What :func:`fixtures.extensions.directory` says in a process of its own that then knows no torch."""
    program = ("import sys; from fixtures import extensions; print(extensions.directory()); "
               "sys.exit('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True,
                          env=variables(cache, site))
    return Path(done.stdout.strip())


def test_versions_and_places_do_not_share_a_folder(tmp_path: Path) -> None:
    """A laid-over deepspeed gets a folder of its own, by version and by place; asking imports no torch."""
    sites = [None] + [lay_over(tmp_path / name, version=version)
                      for name, version in (("a", "0.18.2"), ("b", "0.18.2"), ("c", "0.19.7"))]
    folders = [directory(tmp_path, site) for site in sites]
    assert len(set(folders)) == 4
    assert [("deepspeed-0.18.2" in str(folder)) for folder in folders] == [False, True, True, False]
    assert directory(tmp_path, sites[1]) == folders[1]


def test_it_is_built_once(tmp_path: Path) -> None:
    """Two processes at the same time and one later: one build."""
    site = lay_over(tmp_path / "site", version="1", ending="time.sleep(0.3)")
    together = [
        subprocess.Popen([sys.executable, "-m", "fixtures.extensions"], cwd=ROOT, env=variables(tmp_path, site))
        for _ in range(2)
    ]
    assert [process.wait(60) for process in together] == [0, 0]
    assert build(tmp_path, site).returncode == 0
    assert [path.read_text() for path in tmp_path.rglob("builds")] == ["built\n", "built\n"]


@pytest.mark.parametrize(
    ("marked", "builds"), [("", 2), ("\udcff", 2), ("deepspeed_shm_comm", 1), ("other", 2), ("cpu_adam\nother", 1)]
)
def test_what_is_missing_is_built(marked: str, builds: int, tmp_path: Path) -> None:
    """Of a folder that has one of them, or whose list cannot be read, the rest is built, and no more."""
    site = lay_over(tmp_path / "site", version="1")
    marker = directory(tmp_path, site) / extension_cache.MARKER
    marker.parent.mkdir(parents=True)
    marker.write_bytes(os.fsencode(marked))
    assert build(tmp_path, site).returncode == 0
    assert marker.read_text().split() == sorted(extension_cache.EXTENSIONS)
    assert len(list(tmp_path.rglob("builds"))) == builds


def test_only_what_is_named_is_built(tmp_path: Path) -> None:
    """The gate names what every case needs; an unknown name is a usage error."""
    site = lay_over(tmp_path / "site", version="1")
    assert build(tmp_path, site, extension_cache.ALWAYS).returncode == 0
    assert (directory(tmp_path, site) / extension_cache.MARKER).read_text() == extension_cache.ALWAYS
    wrong = build(tmp_path, site, "abacus")
    assert (wrong.returncode, "'abacus' is no extension" in wrong.stderr) == (4, True)


def test_a_build_that_is_under_way_keeps_its_lock(tmp_path: Path) -> None:
    """Who needs only what is built leaves the lock of another extension alone, however long that has been held."""
    site = lay_over(tmp_path / "site", version="1")
    folder = directory(tmp_path, site)
    for name in extension_cache.EXTENSIONS:
        (folder / name).mkdir(parents=True)
        (folder / name / "lock").touch()
        os.utime(folder / name / "lock", (1, 1))
    (folder / extension_cache.MARKER).write_text("deepspeed_shm_comm")
    program = "from fixtures.extensions import ensure_built; ensure_built(['deepspeed_shm_comm'])"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=variables(tmp_path, site), check=True)
    assert {name: (folder / name / "lock").exists() for name in extension_cache.EXTENSIONS} == {
        "deepspeed_shm_comm": False, "cpu_adam": True,
    }


def test_no_case_waits_for_what_it_does_not_use() -> None:
    """Nothing is compiled for FSDP, DeepSpeed's optimizer only for what offloads, all of it for a user's own config."""
    fsdp = Case(model="llama-tiny", engine="fsdp2", precision="fp32")
    assert extension_cache.needed(fsdp.with_(offload="parameters")) == set()
    assert extension_cache.needed(fsdp.with_(engine="zero3")) == {"deepspeed_shm_comm"}
    assert extension_cache.needed(fsdp.with_(engine="zero3", offload="parameters")) == set(extension_cache.EXTENSIONS)
    assert extension_cache.needed(fsdp.with_(moves_to="zero3", steps=9)) == {"deepspeed_shm_comm"}


@pytest.mark.parametrize("name", extension_cache.EXTENSIONS)
def test_a_killed_build_does_not_block_the_next(name: str, tmp_path: Path) -> None:
    """Torch's lock file of a build that was killed is removed."""
    site = lay_over(tmp_path / "site", version="1")
    lock = directory(tmp_path, site) / name / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert build(tmp_path, site).returncode == 0
    assert not lock.exists()


@pytest.mark.parametrize("name", extension_cache.EXTENSIONS)
def test_an_old_lock_is_removed_even_when_built(name: str, tmp_path: Path) -> None:
    """A rank that was killed while it loaded the extension does not block the ranks after it."""
    site = lay_over(tmp_path / "site", version="1")
    assert build(tmp_path, site).returncode == 0
    lock = directory(tmp_path, site) / name / "lock"
    lock.touch()
    assert build(tmp_path, site).returncode == 0
    assert lock.exists()
    os.utime(lock, (1, 1))
    assert build(tmp_path, site).returncode == 0
    assert not lock.exists()


def test_an_interrupted_build_leaves_no_compiler_running(tmp_path: Path) -> None:
    """Ctrl-C ends a build with its compilers, each of which has a process group of its own, as ninja starts them."""
    told = tmp_path / "compiler"
    start = (f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
             f"process_group=0); open({str(told)!r}, 'w').write(str(c.pid)); c.wait()")
    site = lay_over(tmp_path / "site", version="1", ending=start)
    program = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
               "from fixtures.extensions import main; main()")
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, env=variables(tmp_path, site), stderr=subprocess.DEVNULL) as build:
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        compiler = psutil.Process(int(told.read_text()))
        build.send_signal(signal.SIGINT)
        build.wait(30)
    assert psutil.wait_procs([compiler], timeout=10)[1] == []


def test_a_missing_compiler_is_one_clear_line(tmp_path: Path) -> None:
    """Exit status 4, what is missing, and what to do."""
    done = build(tmp_path, lay_over(tmp_path / "site", version="1"), CXX="no-such-compiler")
    assert done.returncode == 4
    assert done.stderr == (
        "error: building DeepSpeed's extensions needs a C++ compiler (no-such-compiler), and there is none on PATH: "
        "install one (Debian, Ubuntu: apt install g++) or set CXX\n"
    )


def test_a_missing_ninja_is_one_clear_line(tmp_path: Path) -> None:
    """Torch's loader needs ninja as well."""
    with pytest.raises(extensions.ExtensionError, match=r"^building .* needs the ninja .*: pip install ninja$"):
        extensions.check_tools({"PATH": str(tmp_path), "CXX": sys.executable})


def test_a_failed_build_shows_the_last_line_and_the_log(tmp_path: Path) -> None:
    """The compiler's word, where to read the rest, and nothing is taken for built."""
    site = lay_over(tmp_path / "site", version="1", ending="raise RuntimeError('no such header')")
    done = build(tmp_path, site)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "failed to build (RuntimeError: no such header)" in done.stderr
    assert str(directory(tmp_path, site) / "build.log") in done.stderr
    assert build(tmp_path, site).returncode == 4


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    """The folder, the reason, and the variable that helps."""
    cache = tmp_path / "file"
    cache.touch()
    done = build(cache, lay_over(tmp_path / "site", version="1"))
    assert done.returncode == 4
    assert "Not a directory" in done.stderr
    assert "SHARDGATE_CACHE" in done.stderr


def test_a_broken_deepspeed_is_left_to_the_cases(tmp_path: Path) -> None:
    """A release that cannot be imported has nothing to build: the cases that need it will say why."""
    site = lay_over(tmp_path / "site", version="1", init="raise AttributeError('gone')")
    done = build(tmp_path, site)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not built: deepspeed cannot be imported" in done.stdout


def test_a_relative_python_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are started from the repository's root, where a relative entry would mean another folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["overlay", "/elsewhere"]))
    expected = os.pathsep.join([str(Path.cwd() / "overlay"), "/elsewhere"])
    assert extension_cache.environment()["PYTHONPATH"] == expected
