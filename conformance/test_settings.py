"""Rung 2: the settings really in force, read back from the live engine, are the ones on record and the ones asked for."""

import pytest

from conformance import promises
from conformance.catalogue import MATCHED, STOCK, params
from fixtures import verdict
from fixtures.baseline import unchanged
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(MATCHED))
def test_settings_are_in_force(case, trained, judge, snapshot):
    """Rate, accumulation and clipping are the case's; all settings and collectives of a step equal the baseline."""
    seen = trained(case)
    in_force = seen.in_force()

    def claim(metric):
        return Claim(subject=case.id, rung="settings", metric=metric, reference="what the case asks for")

    judge(
        verdict.same(claim("learning rates of all steps"), seen.learning_rates, [case.learning_rate]),
        [
            verdict.same(claim(name), promises.look(in_force["settings"], name), due)
            for name, due in promises.numbers(case).items()
        ],
        unchanged(snapshot, in_force, subject=case.id),
    )


@pytest.mark.parametrize("case", params(STOCK))
def test_stock_settings_are_on_record(case, trained, judge, snapshot):
    """What a user gets who says nothing is a baseline: a changed default shows here."""
    judge(unchanged(snapshot, trained(case).in_force(), subject=case.id))
