"""Rung 4: the rows that ranks are handed through Accelerate's prepared DataLoader, as users call it."""

import pytest

from conformance import epochs
from conformance.catalogue import EPOCHS, params
from fixtures.judging import Judge, Trained
from fixtures.spec import Case


@pytest.mark.parametrize("case", params(EPOCHS))
def test_ranks_together_get_the_epoch(case: Case, trained: Trained, judge: Judge) -> None:
    """No row is lost, none comes twice but for documented padding, and ``gather_for_metrics`` takes that away again."""
    seen = trained(case)
    judge(epochs.whole(seen), epochs.gathered(seen))


@pytest.mark.parametrize("case", params(EPOCHS))
def test_resumed_epochs_go_on(case: Case, trained: Trained, judge: Judge) -> None:
    """Orders differ from epoch to epoch, and a run that resumes in one of them gets what is left, in its order."""
    seen = trained(case)
    judge(epochs.orders(seen), epochs.resumed(seen), epochs.stateful(seen))


@pytest.mark.parametrize("case", params(EPOCHS))
def test_incomplete_window_is_stepped(case: Case, trained: Trained, judge: Judge) -> None:
    """The last window of an epoch is synchronised, however few micro-batches it has."""
    judge(epochs.windows(trained(case)))


@pytest.mark.parametrize("case", params(EPOCHS))
def test_loaders_are_collected(case: Case, trained: Trained, judge: Judge) -> None:
    """A prepared loader does not outlive its last user."""
    judge(epochs.collected(trained(case)))
