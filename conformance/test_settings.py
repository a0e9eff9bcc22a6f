"""Rung 2: the settings really in force, read back from the live engine, are the ones on record."""

import pytest

from conformance import promises
from conformance.catalogue import MATCHED, SNAPSHOTTED, params
from fixtures import verdict
from fixtures.baseline import unchanged
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(SNAPSHOTTED))
def test_effective_settings_are_on_record(case, trained, judge, snapshot):
    """Engine, settings and collectives per optimizer step equal the baseline: a changed default shows here."""
    judge(unchanged(snapshot, trained(case).in_force(), subject=case.id))


@pytest.mark.parametrize("case", params(MATCHED))
def test_asked_numbers_are_in_force(case, trained, judge):
    """Learning rate, accumulation and clipping are what the case asks for, in every step."""
    seen = trained(case)
    settings = seen.agreed("settings")

    def claim(metric):
        return Claim(subject=case.id, rung="settings", metric=metric, reference="what the case asks for")

    judge(
        verdict.same(claim("learning rates of all steps"), seen.learning_rates, [case.learning_rate]),
        [
            verdict.same(claim(name), promises.look(settings, name), due)
            for name, due in promises.numbers(case).items()
        ],
    )
