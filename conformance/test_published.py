"""The published batches of GPT-2 on 24 GB cards, rehearsed (with ``--rehearse``), and run on cards made as small."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import memory, published
from fixtures import plots
from fixtures.judging import Judge, Observe, Trained
from fixtures.spec import Case


@pytest.mark.parametrize(("case", "row"), published.rehearsed_rows())
def test_predicted_batch_is_near_the_published(case: Case, row: published.Row, observe: Observe, judge: Judge) -> None:
    """The largest batch that a rehearsal fits on a 24 GB card is the published one, by a factor that is stated."""
    assert row.case == case
    judge(published.near(published.predict(row, observe)))


@pytest.mark.parametrize(("name", "cases"), published.rehearsed_tables())
def test_predicted_order_is_the_published(
    name: str, cases: list[Case], observe: Observe, judge: Judge, artifact: Callable[[str], Path | None],
) -> None:
    """What let users choose a larger batch then, does so in rehearsals; table and picture go into the run's folder."""
    told = [published.predict(row, observe) for row in published.TABLES[name] if row.case in cases]
    path = artifact(f"published-{name.lower().replace(' ', '-')}.md")
    if path is not None:
        path.write_text(published.table(name, told), encoding="utf-8")
        ranges = [[value for value in published.sensitivity(one).values() if value is not None] for one in told]
        plots.pairs(
            path.with_suffix(".png"), [one.row.label for one in told], [one.row.published for one in told],
            [one.batch or 0 for one in told], [(min(found), max(found)) if found else None for found in ranges],
            title=f"{name}, 24 GB cards: rows per GPU, published and rehearsed",
        )
    judge(published.ordered(told))


@pytest.mark.parametrize("case", published.rehearsed_partners())
def test_partner_is_foretold_not_to_fit(case: Case, observe: Observe, judge: Judge) -> None:
    """At a batch that another way of training takes, DDP, or sharding without offload, needs more than the card."""
    judge(published.too_large(observe(case)))


@pytest.mark.parametrize(("case", "fits"), published.real_rows())
def test_published_batch_on_a_small_card(
    case: Case, fits: bool, observe: Observe, trained: Trained, judge: Judge,
) -> None:
    """On a card made as small as the published one, the published batch runs; what ran out of memory, does so.

    So does DDP, or sharding without offload, at the batch that sharding, or offload, was chosen for.
    """
    judge(memory.fits(trained(case)) if fits else memory.must_not_fit(observe(case)))
