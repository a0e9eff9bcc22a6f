"""A user's own recipe, and its twin in the other dialect, on the ladder: ``pytest --recipe=FILE``.

What is in force is the file's, not ours: settings and dtypes that a mode leaves open are recorded, not compared with a
baseline. See ``fixtures/recipes/__init__.py``.
"""

import pytest

from conformance import claims, own_model, promises
from conformance.catalogue import params
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.plugin import PLAN
from fixtures.spec import Case
from fixtures.verdict import Claim

PROMISED = ("at_rest", "compute", "master", "optimizer_state")
"""dtypes that a precision mode promises under any dialect."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One ``case`` each for the recipe and its twin; both for the test that compares them."""
    plan = metafunc.config.stash[PLAN]
    assert plan is not None, "collected without --recipe"
    if "pair" in metafunc.fixturenames:
        metafunc.parametrize("pair", [pytest.param((plan.own, plan.twin), id=plan.own.id)])
    else:
        metafunc.parametrize("case", params([plan.own, plan.twin]))


def test_engine_is_engaged(case: Case, trained: Trained, judge: Judge) -> None:
    """The engine that the recipe names is really there, and accumulates and clips as it says."""
    force = trained(case).in_force()
    judge(
        promises.engagement(case, force["engaged"]),
        [
            verdict.same(
                Claim(subject=case.id, rung="settings", metric=name, reference="what the recipe says"),
                promises.look(force["settings"], name), due,
            )
            for name, due in promises.numbers(case).items()
        ],
    )


def test_dtypes_are_as_promised(case: Case, trained: Trained, judge: Judge) -> None:
    """Weights, compute, masters and optimizer state have the dtypes of the recipe's precision."""
    seen, due = promises.seen_dtypes(trained(case).agreed("dtypes")), promises.dtypes(case)
    judge(
        verdict.same(
            Claim(subject=case.id, rung="dtypes", metric=f"dtype, {name}", reference=f"{case.precision} promises"),
            seen.get(name), due[name],
        )
        for name in PROMISED
    )


def test_every_row_is_seen_once(case: Case, trained: Trained, judge: Judge) -> None:
    """The ranks together train on the global batch, each row once."""
    judge(claims.rows(trained(case)))


def test_training_is_the_oracles(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients, curve and weights are those of one plain process over the whole batch; the loss falls."""
    oracle = trained(case.oracle)
    measured = own_model.noise(oracle, [trained(cut) for cut in own_model.cuts(case)])
    judge(own_model.trains_as_oracle(trained(case), oracle, measured))


def test_the_other_dialect_trains_the_same(pair: tuple[Case, Case], trained: Trained, judge: Judge) -> None:
    """The recipe and its translation have one curve, within what rounding does to this model."""
    own, twin = (trained(case) for case in pair)
    measured = own_model.noise(trained(own.case.oracle), [trained(cut) for cut in own_model.cuts(own.case)])
    claim = Claim(
        subject=f"{own.case.id} ~ {twin.case.id}", rung="curve", metric="loss, every step",
        reference=f"the recipe translated to {twin.case.engine}",
    )
    allowed = own_model.allowed(own.case, "loss_curve", measured["loss_curve"])
    judge(verdict.curve(claim, own.losses, twin.losses, allowed))
