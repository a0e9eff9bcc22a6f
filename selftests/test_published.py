"""The published tables: what a rehearsal says of them is judged by factor and by order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance import published
from conformance.published import LARGE, OTHERWISE, TABLES, XL, Predicted, Row
from fixtures.max_batch.search import Probe, search
from fixtures.rehearsal.cards import ASSUMED, GIB
from fixtures.tables import ENGINES

ROOM_GIB = (published.CARD_MIB / 1024 - ASSUMED.outside_gib) / ASSUMED.allocator_factor


def told(row: Row, *, fixed_gib: float, row_gib: float = 1.0) -> Predicted:
    """What rehearsals would say of a model that needs so much, and so much more per row."""
    peaks: dict[int, int] = {}

    def probe(batch: int) -> Probe:
        peaks[batch] = round((fixed_gib + row_gib * batch) * GIB)
        return Probe(batch=batch, outcome="ok" if peaks[batch] <= ROOM_GIB * GIB else "oom")

    return Predicted(row=row, found=search(probe, start=row.subject.start, most=1000), peaks=peaks)


def at(row: Row, batch: int) -> Predicted:
    """A prediction of just so many rows."""
    return told(row, fixed_gib=ROOM_GIB - batch - 0.5)


def test_the_tables_are_the_published_ones() -> None:
    """Batch per GPU of each row, as https://huggingface.co/blog/pytorch-fsdp gives it; 0 is out of memory."""
    assert [row.published for row in LARGE] == [7, 7, 11, 15, 15, 20, 22]
    assert [row.published for row in XL] == [0, 0, 0, 5, 10, 14]
    assert [row.case.world_size for row in XL] == [1, 2, 1, 2, 1, 2]


def test_every_row_is_on_the_same_card_and_as_long() -> None:
    """Only what a row names differs between rows: one card, one row length, one kind of attention."""
    cases = [row.case for rows in TABLES.values() for row in rows]
    assert {(case.budget_mib, case.sequence_length, case.attention) for case in cases} == {(24217, 128, "eager")}
    assert {case.measure for case in cases} == {"rehearsal"}


def test_size_based_units_have_two_embeddings() -> None:
    """One weight cannot be in two of FSDP1's units, so those rows rehearse a model without tying."""
    for row in (*LARGE, *XL):
        assert row.case.model.endswith("-untied") is (ENGINES[row.case.engine].family == "fsdp")


@pytest.mark.parametrize(("batch", "passes"), [(7, True), (4, True), (14, True), (3, False), (15, False)])
def test_a_prediction_is_near_by_a_factor_of_two(batch: int, passes: bool) -> None:
    """Of 7 published rows, 4 to 14 are near; less and more is a failure."""
    finding = published.near(at(LARGE[0], batch))
    assert (finding.passed, finding.observed.split(" rows")[0]) == (passes, str(batch))


def test_what_ran_out_of_memory_must_do_so() -> None:
    """Where not one row fitted, a rehearsal in which one does is wrong; and the other way round."""
    assert published.near(told(XL[0], fixed_gib=30)).passed
    assert not published.near(at(XL[0], 1)).passed
    assert not published.near(told(XL[3], fixed_gib=30)).passed


def test_a_search_without_an_answer_is_a_failure() -> None:
    """A rehearsal that crashes, or a budget that is never met, foretells nothing."""
    endless = told(LARGE[0], fixed_gib=1, row_gib=0.0)
    assert endless.found.end == "no limit"
    assert (endless.batch, published.near(endless).passed) == (None, False)
    assert not all(finding.passed for finding in published.ordered([endless, at(LARGE[2], 11)]))


def test_the_published_numbers_are_in_order() -> None:
    """The tables themselves hold what is asked of predictions."""
    for rows in TABLES.values():
        findings = list(published.ordered([at(row, row.published) if row.published else told(row, fixed_gib=30)
                                           for row in rows]))
        assert findings
        assert all(finding.passed for finding in findings)


@pytest.mark.parametrize(("large", "passes"), [(11, False), (12, True), (10, False)])
def test_a_turned_order_is_a_failure(large: int, passes: bool) -> None:
    """SHARD_GRAD_OP (11) holds less than FULL_SHARD (15): equal or more the other way fails."""
    (finding,) = published.ordered([at(LARGE[2], 11), at(LARGE[3], large)])
    assert finding.passed is passes


@pytest.mark.parametrize(("more", "passes"), [(26, True), (27, True), (25, False)])
def test_close_neighbours_may_come_out_equal(more: int, passes: bool) -> None:
    """20 and 22 are within a tenth: equal passes, turned does not."""
    (finding,) = published.ordered([at(LARGE[5], 26), at(LARGE[6], more)])
    assert finding.passed is passes


def test_assumptions_move_the_batch_as_arithmetic_says() -> None:
    """Twice as long rows halve what is left for them; a card that loses nothing holds more; never fewer than none."""
    one = told(LARGE[3], fixed_gib=6.0)
    assert one.batch == int(ROOM_GIB - 6.0)
    other = published.sensitivity(one)
    assert other["256 tokens"] == int((ROOM_GIB - 6.0) / 2)
    assert other["64 tokens"] == int((ROOM_GIB - 6.0) * 2)
    assert other["nothing lost"] == int(published.CARD_MIB / 1024 - 6.0)
    assert list(other) == list(OTHERWISE)
    assert published.sensitivity(replace(one, peaks={}))["64 tokens"] is None


def test_the_table_shows_both_and_their_ratio() -> None:
    """One line per row, in Markdown: published, predicted, ratio."""
    lines = published.table("GPT-2 XL", [told(XL[0], fixed_gib=30), at(XL[3], 6)]).splitlines()
    assert any(line.startswith("| DDP fp32, 1 GPU | 0 | 0 |") for line in lines)
    assert any(line.startswith("| FSDP 2K, 2 GPUs | 5 | 6 | 1.20 |") for line in lines)
