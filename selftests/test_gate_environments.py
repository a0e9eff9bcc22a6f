"""Layers: made once, whole or not at all, and nothing of them leaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.environments import Workshop, installed_versions, pinned_versions
from gate.pip import Installer
from gate.problems import BuildError, MachineError, UsageError
from selftests.gate_fakes import INSTALLED, FakePip


def workshop(tmp_path: Path, pip: Installer | None = None) -> Workshop:
    """A workshop with an empty cache."""
    return Workshop(cache=tmp_path / "cache", pip=pip or FakePip(), installed=INSTALLED)


def test_what_is_installed_needs_no_layer(tmp_path: Path) -> None:
    """Local versions count as their public ones: 2.13.0+cpu is 2.13.0."""
    environment = workshop(tmp_path).environment({"torch": "2.13.0", "accelerate": "1.15.0"})
    assert environment.layers == ()
    assert environment.versions["torch"] == "2.13.0"
    assert "PYTHONPATH" not in environment.variables()


def test_a_release_is_laid_over_what_is_installed(tmp_path: Path) -> None:
    """And the environment says which versions it has now."""
    environment = workshop(tmp_path).environment({"accelerate": "1.12.0"})
    assert environment.versions == {
        "torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.12.0", "deepspeed": "0.19.8",
    }
    assert installed_versions([environment.path]) == {"accelerate": "1.12.0"}
    assert environment.variables()["PYTHONPATH"] == environment.path


def test_a_layer_is_made_once(tmp_path: Path) -> None:
    """Also for another workshop over the same cache, and for another environment that needs it."""
    pip = FakePip()
    first = workshop(tmp_path, pip)
    first.environment({"accelerate": "1.12.0"})
    second = workshop(tmp_path, pip)
    second.environment({"accelerate": "1.12.0", "deepspeed": "0.19.6"})
    assert pip.installs == ["accelerate 1.12.0", "deepspeed 0.19.6"]
    assert (first.built, second.built) == (["accelerate 1.12.0"], ["deepspeed 0.19.6"])


def test_what_a_release_requires_is_laid_over_too(tmp_path: Path) -> None:
    """Where what is installed does not meet it."""
    pip = FakePip(requires={("transformers", "5.6.2"): {"huggingface-hub": "1.0"}})
    environment = workshop(tmp_path, pip).environment({"transformers": "5.6.2"})
    assert environment.versions["huggingface-hub"] == "1.0"
    assert environment.conflicts == ()


def test_a_conflict_that_stays_is_told(tmp_path: Path) -> None:
    """Where completing is not wanted, as in a search for the culprit."""
    pip = FakePip(requires={("transformers", "5.6.2"): {"huggingface-hub": "1.0"}})
    environment = workshop(tmp_path, pip).environment({"transformers": "5.6.2"}, complete=False)
    assert environment.conflicts == ("transformers 5.6.2 has requirement huggingface-hub==1.0",)


def test_a_release_that_cannot_be_installed_leaves_nothing(tmp_path: Path) -> None:
    """No half layer that a later run would take for a whole one."""
    made = workshop(tmp_path, FakePip(broken=frozenset({("accelerate", "1.12.0")})))
    with pytest.raises(BuildError, match=r"accelerate 1\.12\.0"):
        made.environment({"accelerate": "1.12.0"})
    assert not made.has_layer("accelerate", "1.12.0")
    assert not list((tmp_path / "cache").rglob("*.part"))


class Interrupted(FakePip):
    """Dies in the middle of its work."""

    def install(self, name: str, version: str, target: Path) -> None:
        """Leaves half a layer behind."""
        target.mkdir(parents=True)
        (target / "half").touch()
        raise KeyboardInterrupt


def test_an_interrupted_build_is_begun_anew(tmp_path: Path) -> None:
    """What it left is not taken for a layer."""
    with pytest.raises(KeyboardInterrupt):
        workshop(tmp_path, Interrupted()).environment({"accelerate": "1.12.0"})
    assert workshop(tmp_path).environment({"accelerate": "1.12.0"}).versions["accelerate"] == "1.12.0"


class Other(FakePip):
    """Installs another release than it was asked for."""

    def install(self, name: str, version: str, target: Path) -> None:
        """As if a constraint had its way."""
        super().install(name, "1.15.0", target)


def test_a_layer_of_another_release_is_refused(tmp_path: Path) -> None:
    """What pip installed is read back."""
    with pytest.raises(BuildError, match=r"pip installed 1\.15\.0"):
        workshop(tmp_path, Other()).environment({"accelerate": "1.12.0"})


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    """One line, and what to do."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(MachineError, match="repeat the command"):
        workshop(tmp_path).environment({"accelerate": "1.12.0"})


def test_the_lock_says_what_is_pinned(tmp_path: Path) -> None:
    """Comments, other packages and loose bounds are passed over; an unpinned one is as installed."""
    (tmp_path / "stack.txt").write_text("# tested\naccelerate==1.14.0\nnumpy==2.0\ntorch>=2.6\n")
    pins = pinned_versions(tmp_path / "stack.txt", INSTALLED)
    assert pins == {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.14.0", "deepspeed": "0.19.8"}


def test_a_package_that_is_neither_pinned_nor_installed_is_told(tmp_path: Path) -> None:
    """Nothing can be compared with it."""
    (tmp_path / "stack.txt").write_text("accelerate==1.14.0\n")
    with pytest.raises(UsageError, match="deepspeed"):
        pinned_versions(tmp_path / "stack.txt", {"torch": "2.13.0", "transformers": "5.24.0"})


def test_layers_of_the_caller_do_not_reach_a_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PYTHONPATH that the gate was started with is dropped on both sides."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert "PYTHONPATH" not in workshop(tmp_path).environment({}).variables()
