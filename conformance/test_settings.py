"""Rung 2: the settings really in force, read back from the live engine, are those on record and those asked for."""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import claims, promises
from conformance.catalogue import MATCHED, STOCK, params, rounds_like
from fixtures import verdict
from fixtures.baseline import unchanged
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(MATCHED))
def test_settings_are_in_force(case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """Rate, accumulation and clipping are the case's; all settings and collectives of a step equal the baseline."""
    seen = trained(case)
    in_force = {**seen.in_force(), **claims.rounding(seen, [trained(due) for due in rounds_like(case)])}

    def claim(metric: str) -> Claim:
        return Claim(subject=case.id, rung="settings", metric=metric, reference="what the case asks for")

    judge(
        verdict.same(claim("learning rates of all steps"), seen.learning_rates, [case.learning_rate]),
        [
            verdict.same(claim(name), promises.look(in_force["settings"], name), due)
            for name, due in promises.numbers(case).items()
        ],
        claims.reductions(seen),
        unchanged(snapshot, in_force, subject=case.id),
    )


@pytest.mark.parametrize("case", params(STOCK))
def test_stock_settings_are_on_record(case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """What a user gets who says nothing is a baseline: a changed default shows here."""
    judge(unchanged(snapshot, trained(case).in_force(), subject=case.id))
