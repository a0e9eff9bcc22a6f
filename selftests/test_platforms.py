"""Which platform the command line means."""

from __future__ import annotations

import pytest

from fixtures import platforms
from fixtures.hardware.cards import PlatformError
from fixtures.tables import PLATFORMS, SpecError

MARKS = (*PLATFORMS, "slow")


@pytest.mark.parametrize(("option", "expression", "platform"), [
    (None, "", "cpu"), (None, "cpu", "cpu"), (None, "slow", "cpu"), (None, "a100", "a100"), (None, "not a100", "cpu"),
    (None, "a100 and not slow", "a100"), (None, "h100 and not (a100 or h200)", "h100"), (None, "slow(level=3)", "cpu"),
    (None, "gpu", "gpu"), (None, "gpu and not slow", "gpu"), ("gpu", "", "gpu"), ("a100", "gpu", "a100"),
    ("h200", "", "h200"), ("h200", "h200 or a100", "h200"), ("a100", "cpu", "a100"), ("cpu", "not h100", "cpu"),
])
def test_words_choose_the_platform(option: str | None, expression: str, platform: str) -> None:
    """--platform first, then the one GPU that -m asks for, then the CPU."""
    assert platforms.choose(option=option, mark_expression=expression, known_marks=MARKS) == platform


@pytest.mark.parametrize(("option", "expression"), [
    (None, "a10"), (None, "cpu or fast"), (None, "a100 or h100"), ("h100", "a100"), (None, "cpu and"),
    (None, "cpu a100"), (None, "gpu or a100"), ("cpu", "gpu"), ("gpu", "a100"),
])
def test_words_that_name_no_platform(option: str | None, expression: str) -> None:
    """An unknown word, two GPUs, a contradiction and a typo of the grammar are all refused."""
    with pytest.raises(PlatformError):
        platforms.choose(option=option, mark_expression=expression, known_marks=MARKS)


def test_unknown_platform_lists_the_known() -> None:
    """The message offers what there is."""
    with pytest.raises(SpecError, match=r"unknown platform 'tpu'.*\(known: cpu, a100, h100, h200, gpu\)"):
        platforms.choose(option="tpu", mark_expression="", known_marks=MARKS)
