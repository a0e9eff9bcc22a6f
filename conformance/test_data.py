"""Rung 4: the ranks together train on the global batch, each row once."""

import pytest

from conformance.catalogue import LAST_WINDOW, MATCHED, SCHEDULED, TRAINER, TRAINER_SCHEDULED, params
from fixtures import corpus, verdict
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params([*MATCHED, *SCHEDULED, *LAST_WINDOW, *TRAINER, *TRAINER_SCHEDULED]))
def test_every_row_is_seen_once(case: Case, trained: Trained, judge: Judge) -> None:
    """In every step, the rows of all ranks and micro-steps are the step's rows: none twice, none lost."""
    due = [list(corpus.rows_of(case, step)) for step in range(1, case.steps + 1)]
    claim = Claim(subject=case.id, rung="data", metric="rows of every step", reference="the corpus in order")
    judge(verdict.sequence(claim, [sorted(rows) for rows in trained(case).rows], due))
