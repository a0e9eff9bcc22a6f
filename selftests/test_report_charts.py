"""Charts are honest: nothing is drawn that was not there, and nothing that was there is left out."""

from __future__ import annotations

import math

import pytest

from conformance import claims
from fixtures.report.charts import MOST_POINTS, SIDE, draw
from fixtures.report.curves import LOSS, NORM
from selftests.records import observation
from selftests.reports import FSDP, LOSSES, ORACLE

NAN = math.nan


def points(piece: str) -> list[tuple[int, int]]:
    """A stroke's piece as pairs of numbers."""
    return [(int(x), int(y)) for x, y in (pair.split(",") for pair in piece.split())]


def test_line_spans_the_chart_and_falls_downwards() -> None:
    """The first step is at the left, the last at the right, the largest value above the smallest."""
    chart = draw("t", "u", [("a", 1.0, [3.0, 2.0, 1.0])])
    assert chart is not None
    (piece,) = chart.strokes[0].pieces
    line = points(piece)
    assert [x for x, _ in line] == [0, SIDE // 2, SIDE]
    assert [y for _, y in line] == sorted(y for _, y in line)
    assert all(0 < y < SIDE for _, y in line)


@pytest.mark.parametrize("values", [[], [None], [NAN, math.inf], [None, NAN]])
def test_nothing_finite_is_no_chart(values: list[float | None]) -> None:
    """An empty frame would look like a flat curve."""
    assert draw("t", "u", [("a", 1.0, values)]) is None


def test_missing_value_is_a_gap() -> None:
    """The line is not led through a step that has no value."""
    chart = draw("t", "u", [("a", 1.0, [1.0, 2.0, None, 3.0, NAN, 4.0, 5.0])])
    assert chart is not None
    pieces = [points(piece) for piece in chart.strokes[0].pieces]
    assert [len(piece) for piece in pieces] == [2, 2, 2]  # the lonely one is a dot: drawn twice


@pytest.mark.parametrize("values", [[0.0, 0.0], [7.0], [1e-30, 2e-30], [1e30, -1e30], [5.0, 5.0 + 1e-15]])
def test_any_range_has_ticks(values: list[float]) -> None:
    """Flat, tiny, huge and single values are drawn inside the chart, with labels that lie in it."""
    chart = draw("t", "u", [("a", 1.0, values)])
    assert chart is not None
    assert all(0 <= tick.percent <= 100 for tick in [*chart.x_ticks, *chart.y_ticks])
    assert chart.x_ticks


def test_ticks_of_a_chart_differ() -> None:
    """Two lines of an axis with one label would be a lie about one of them."""
    for values in ([5.6, 4.5], [2.0, 2.01], [100.0, 20_000.0], [1e-7, 3e-7]):
        chart = draw("t", "u", [("a", 1.0, values)])
        assert chart is not None
        labels = [tick.label for tick in chart.y_ticks]
        assert len(labels) == len(set(labels)) >= 2


def test_long_curve_keeps_its_spike() -> None:
    """A curve of 10,000 steps is thinned, and the single step that left the band is still there."""
    values = [0.1] * 10_000
    values[7_777] = 4.0
    chart = draw("t", "u", [("a", 1.0, values)], band=(-1.0, 1.0))
    assert chart is not None
    (piece,) = chart.strokes[0].pieces
    line = points(piece)
    assert len(line) <= 2 * MOST_POINTS
    assert min(y for _, y in line) < chart.band[0] if chart.band else False


def test_band_is_on_the_scale_of_the_lines() -> None:
    """A line at the limit lies on the edge of the band."""
    chart = draw("t", "u", [("a", 1.0, [1.0, -1.0])], band=(-1.0, 1.0))
    assert chart is not None
    assert chart.band is not None
    top, height = chart.band
    assert points(chart.strokes[0].pieces[0]) == [(0, top), (SIDE, top + height)]


def test_curves_are_held_against_the_claims_that_are_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The names under which the report looks for tolerances are those of the conformance tests."""
    folder = tmp_path_factory.mktemp("curves")
    seen, due = observation(FSDP, folder / "seen", LOSSES), observation(ORACLE, folder / "due", LOSSES)
    made = [*claims.loss_curve(seen, due, "oracle"), *claims.reported_norms(seen, due)]
    by_name = {finding.metric: finding for finding in made}
    assert all(by_name[metric.claim].tolerance for metric in (LOSS, NORM))
    assert all(by_name[metric.claim].rung == metric.rung for metric in (LOSS, NORM))
