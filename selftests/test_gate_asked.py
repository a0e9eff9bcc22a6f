"""The words that name an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate import asked
from gate.problems import UsageError
from selftests.gate_fakes import FakePip

PIP = FakePip()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["accelerate==1.12.0"], {"accelerate": "1.12.0"}),
        (["accelerate"], {"accelerate": "1.15.0"}),
        (["Accelerate<1.13,>1.10"], {"accelerate": "1.12.0"}),
        (["accelerate==1.16.0rc1"], {"accelerate": "1.16.0rc1"}),
        (["accelerate==1.12.0", "deepspeed~=0.19.2"], {"accelerate": "1.12.0", "deepspeed": "0.19.8"}),
        (["accelerate==1.12.0", "accelerate"], {"accelerate": "1.12.0"}),
        (["latest"], {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0", "deepspeed": "0.19.8"}),
        (["latest", "torch==2.12.0"], {
            "torch": "2.12.0", "transformers": "5.24.0", "accelerate": "1.15.0", "deepspeed": "0.19.8",
        }),
    ],
)
def test_words_name_releases(words: list[str], found: dict[str, str]) -> None:
    """A release, the newest of a name or of a range, or of all four; a pre-release only by its whole name."""
    assert asked.read(words, PIP) == found


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("accelerate==9.9", "no such release is published for this interpreter (newest: 1.15.0)"),
        ("accelerate=1.2", "is not NAME==VERSION"),
        ("accelerate @ https://example.org/a.whl", "only published releases"),
        ("transformers[torch]==5.24.0", "only published releases"),
    ],
)
def test_a_word_that_names_nothing_is_a_usage_error(word: str, told: str) -> None:
    """One line says which word, and what is to be had."""
    with pytest.raises(UsageError) as error:
        asked.read([word], PIP)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_two_releases_of_one_package_are_a_usage_error() -> None:
    """Which of them was meant is not ours to guess."""
    with pytest.raises(UsageError, match=r"accelerate is named twice: 1\.13\.0 and 1\.12\.0"):
        asked.read(["accelerate==1.13.0", "accelerate==1.12.0"], PIP)


def test_a_file_names_releases(tmp_path: Path) -> None:
    """One a line, with comments."""
    (tmp_path / "next.txt").write_text("# next week\naccelerate==1.14.0  # asked for by Ann\n\ndeepspeed\n")
    assert asked.read_file(tmp_path / "next.txt", PIP) == {"accelerate": "1.14.0", "deepspeed": "0.19.8"}


@pytest.mark.parametrize("content", [None, "-c other.txt\n"])
def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, content: str | None) -> None:
    """It is not there, or it holds pip's options."""
    if content is not None:
        (tmp_path / "next.txt").write_text(content)
    with pytest.raises(UsageError, match=r"next\.txt"):
        asked.read_file(tmp_path / "next.txt", PIP)


def test_releases_are_in_order_without_pre_releases() -> None:
    """As versions, not as words: 1.9 comes before 1.10."""
    assert asked.releases(PIP, "accelerate")[:3] == ["1.9.0", "1.10.0", "1.10.1"]
    assert "1.16.0rc1" not in asked.releases(PIP, "accelerate")
