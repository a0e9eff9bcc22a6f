"""Every GPU case, on a machine without a GPU: the same request, scaled down, over gloo. Only with ``--rehearse``.

What each needs of a card is rehearsed at full size in ``test_full_size.py`` and ``test_published.py``.
"""

import pytest

from conformance import nightly, promises, scaling, stand_ins
from conformance.catalogue import OVERFLOWING, SCALED
from conformance.stand_ins import stand_in
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.tables import ENGINES


@pytest.mark.parametrize("case", nightly.params())
def test_gpu_case_runs_here(case: Case, trained: Trained, judge: Judge) -> None:
    """Its words for the engine, its engine and its steps: no case meets its code for the first time on a GPU night."""
    small = stand_in(case)
    seen = trained(small)
    engaged = promises.engagement(small, seen.in_force()["engaged"]) if ENGINES[case.engine].distributed else []
    judge(
        stand_ins.same_words(case, small), stand_ins.ran(case, seen), stand_ins.renamed(engaged, case),
        stand_ins.renamed(list(scaling.way(seen)), case) if case in (*SCALED, *OVERFLOWING) else [],
    )
