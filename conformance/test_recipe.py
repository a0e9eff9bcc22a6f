"""A user's own recipe, and its twin in the other dialect, on the ladder: ``pytest --recipe=FILE``.

What is in force is the file's, not ours: settings and dtypes that a mode leaves open are recorded, not compared with a
baseline. See ``fixtures/recipes/__init__.py``.
"""

import pytest

from conformance import claims, promises
from conformance.catalogue import params
from conformance.tolerances import reference_kind, tolerance
from fixtures import corpus, verdict
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
        [
            verdict.same(
                Claim(subject=case.id, rung="engaged", metric=name, reference="what the recipe says"),
                promises.look(force["engaged"], name), due,
            )
            for name, due in promises.engaged(case).items()
        ],
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
    due = [list(corpus.rows_of_step(step, case.rows_per_step)) for step in range(1, case.steps + 1)]
    claim = Claim(subject=case.id, rung="data", metric="rows of every step", reference="the corpus in order")
    judge(verdict.sequence(claim, [sorted(rows) for rows in trained(case).rows], due))


def test_training_is_the_oracles(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients, curve and weights are those of one plain process over the whole batch; the loss falls."""
    seen, due, kind = trained(case), trained(case.oracle), reference_kind(case)
    judge(
        claims.first_loss(seen, due, kind),
        claims.first_gradients(seen, due, kind),
        claims.later_norms(seen, due, kind),
        claims.loss_curve(seen, due, kind),
        claims.falling(seen),
        claims.last_parameters(seen, due, due, kind),
    )


def test_the_other_dialect_trains_the_same(pair: tuple[Case, Case], trained: Trained, judge: Judge) -> None:
    """The recipe and its translation have one curve, within what low precision may differ by."""
    own, twin = (trained(case) for case in pair)
    claim = Claim(
        subject=f"{own.case.id} ~ {twin.case.id}", rung="curve", metric="loss, every step",
        reference=f"the recipe translated to {twin.case.engine}",
    )
    judge(verdict.curve(claim, own.losses, twin.losses, tolerance(own.case, "loss_curve", reference_kind(own.case))))
