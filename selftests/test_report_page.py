"""What the page and the job summary say, from sessions made by hand."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fixtures.report import pages
from fixtures.report.facts import Ending, Place, gather, sentence
from fixtures.report.junit import plain
from fixtures.tables import ENGINES, MODELS, PRECISIONS
from selftests import reports
from selftests.reports import FSDP, ZERO, Session, claims, record


class Outline(HTMLParser):
    """Balanced tags, all ids, all targets of links, and the headings."""

    VOID = frozenset({"meta", "link", "input", "br", "img", "rect", "path", "polyline"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what the tests ask for."""
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name == "href" and str(value).startswith("#"):
                self.targets.add(str(value)[1:])
            if name in ("src", "srcset", "data") or (tag == "link" and name == "href"):
                self.loads.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        """:raises AssertionError: at a tag that closes another one."""
        if tag not in self.VOID and self.open.pop() != tag:
            raise AssertionError(f"</{tag}> at {self.getpos()}")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page that shows everything."""
    return reports.mixed(tmp_path_factory.mktemp("mixed")).end(1, problems=(f"not judged: {ZERO.id}",))


def test_page_is_whole(page: str) -> None:
    """Every tag is closed, every id is there once, every link within the page leads somewhere, nothing is loaded."""
    outline = Outline(page)
    assert not outline.open
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.targets <= set(outline.ids)
    assert all(load.startswith("data:") for load in outline.loads)


def test_what_a_rank_printed_is_text(page: str) -> None:
    """Markup, colours and control characters in an error message are shown, never obeyed."""
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page)
    assert "[31m" not in page


def test_verdict_comes_first_and_failures_before_cases(page: str) -> None:
    """The order of the page is the order of the questions that a reader has."""
    words = [
        "Failed</h1>", "2 cases failed, lowest on the rung engaged", "exit status 1", "Failures, lowest rung first",
        "llama-tiny-zero1-", "dtype, master", "Since the last run</h2>", "Engine by precision", "Curves</h2>",
    ]
    body = page[page.index("<body>"):]
    places = [body.index(word) for word in words]
    assert places == sorted(places)


def test_each_failure_can_be_run_again(page: str) -> None:
    """The command that trains and the one that judges stand in the failing case."""
    assert f"torchrun --nproc-per-node 2 -m fixtures.worker runs/first/{FSDP.id}</code>" in page
    assert f"pytest --replay=runs/first &#34;conformance/test_small.py::test_all[{FSDP.id}]&#34;</code>" in page


def test_curve_that_leaves_its_band_shows_it(page: str) -> None:
    """Curves are drawn over the reference; the distance is told in units of the tolerance."""
    assert "difference to the reference" in page
    assert "2.5 times" in page
    assert 'class="fsdp2 d0"' in page
    assert 'class="plain"' in page


def test_dtypes_follow_the_published_table(page: str) -> None:
    """The published columns come first, and the one that breaks a promise is marked."""
    heads = re.findall(r'<th scope="col">([^<]+)</th>', page[page.index('<table class="dtypes">'):])
    assert heads[:5] == ["engine", "load", "prepared (local)", "train", "optimizer"]
    assert "<td class=bad>✗ bf16</td>" in page


def test_memory_is_told_in_words_too(page: str) -> None:
    """A bar has the numbers of its parts, its peak and its budget as text for those who do not see it."""
    assert "zero2 bf16-mixed: parameters 3.8 MiB, masters 1.9 MiB" in page
    assert "budget 63.0 MiB" in page


def test_what_is_known_or_not_judged_is_not_hidden(page: str) -> None:
    """A known failure has its link, a case that was not judged its name."""
    assert 'href="https://example.org/issues/5104"' in page
    assert "1 case not judged" in page


@pytest.mark.parametrize(("status", "stopped", "words"), [
    (0, None, ["✓ passed", "Every claim holds: 2 of 2 gated cases judged, 4 claims.", "exit status 0: all claims"]),
    (2, "interrupted from the keyboard", ["◐ interrupted", "This report is partial", "interrupted from the keyboard"]),
    (4, "No space left on device", ["◐ stopped", "This report is partial", "exit status 4: No space left on device"]),
    (1, "stopping after 1 failures", ["✗ failed", "No case failed; 2 of 2", "1: stopping after 1 failures"]),
])
def test_verdict_is_the_exit_status(tmp_path: Path, status: int, stopped: str | None, words: list[str]) -> None:
    """Only exit status 0 passes, and what was cut short says so."""
    session = Session(root=tmp_path)
    session.gate([FSDP, ZERO])
    for case in (FSDP, ZERO):
        session.judge(*claims(case))
    page = session.end(status, stopped=stopped)
    assert [word for word in words if word not in page] == []
    assert ("Passed</h1>" in page) is (status == 0)


def test_nothing_judged_is_no_pass(tmp_path: Path) -> None:
    """A session without a single claim says that none of its cases was judged."""
    session = Session(root=tmp_path)
    session.gate([FSDP, ZERO])
    facts = gather(session.tally, {}, Ending(exit_status=1), began=0.0, seconds=1.0)
    assert sentence(facts) == "No case failed; 0 of 2 gated cases judged, 0 claims."
    assert {subject.state for subject in facts.subjects} == {"unjudged"}


def test_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The page is made of what can be read, and says what it could not."""
    session = Session(root=tmp_path)
    session.gate([FSDP])
    record(session.folder, FSDP)
    (session.folder / "broken").mkdir()
    (session.folder / "broken" / "observation.json").write_text("{")
    session.judge(*claims(FSDP))
    assert "broken/observation.json is truncated or corrupt" in session.end(0)


def test_values_that_are_no_numbers_interrupt_the_line(tmp_path: Path) -> None:
    """A NaN in the middle of a curve leaves a gap, and its claim is not comparable."""
    session = Session(root=tmp_path)
    session.gate([FSDP])
    record(session.folder, FSDP.oracle)
    record(session.folder, FSDP, (5.6, 5.4, float("nan"), 5.1, 5.0, 4.9, 4.8, 4.7))
    session.judge(*(replace(claim, passed=False, used=float("inf")) for claim in claims(FSDP)))
    page = session.end(1)
    assert "not comparable" in page
    assert "nan" not in "".join(re.findall(r'points="([^"]*)"', page))


def test_id_tells_the_place_in_the_matrix() -> None:
    """Whatever the words of the tables: a shorter one never hides a longer one."""
    for model, engine, precision in itertools.product(MODELS, ENGINES, PRECISIONS):
        place = Place.of(FSDP.with_(model=model, engine=engine, precision=precision, world_size=1).id)
        assert place is not None
        assert (place.model, place.engine, place.precision, place.ranks) == (model, engine, precision, "1")


def test_what_is_no_case_has_no_place() -> None:
    """A subject that is no case id is left out of the matrix, not forced into it."""
    assert Place.of("settings of the suite") is None
    assert Place.of("llama-tiny-zero9-fp32-x2") is None


@pytest.mark.parametrize(("used", "told"), [
    (None, ""), (0.0, "0 %"), (0.0004, "< 0.1 %"), (0.042, "4.2 %"), (0.9999, "99 %"), (1.0, "100 %"),
    (1.0004, "1 times"), (2.34, "2.34 times"), (float("inf"), "not comparable"), (float("nan"), "not comparable"),
])
def test_share_never_rounds_over_the_limit(used: float | None, told: str) -> None:
    """A share below the limit is never told as all of it, and one above it never in percents."""
    assert pages.share(used) == told


@pytest.mark.parametrize("text", ["a", "``", "`x`", "a | b", "<b>", "@all", "two\nlines", "\x1b[1mbold\x1b[0m"])
def test_code_span_holds_any_text(text: str) -> None:
    """The fence is longer than any run of backticks within, and a line stays a line."""
    span = pages.code(text)
    fence = re.match("`+", span)
    assert fence is not None
    assert span.endswith(fence.group())
    assert fence.group() not in span[len(fence.group()):-len(fence.group())].replace(" ", "  ").split("  ")
    assert "\n" not in span


def test_summary_is_short_and_escaped(tmp_path: Path) -> None:
    """The summary of a CI job holds the verdict, the failures and their re-runs, and nothing in it is markup."""
    session = reports.mixed(tmp_path)
    session.end(1)
    text = (session.folder / "report.md").read_text(encoding="utf-8")
    assert text.startswith("## ✗ shardgate: failed\n")
    assert f"re-run: `torchrun --nproc-per-node 2 -m fixtures.worker runs/first/{FSDP.id}`" in text
    assert "| dtypes | 0 | 1 |  |" in text
    outside = re.sub(r"(`+)(?:.*?[^`])??\1(?!`)", "", text)
    assert not re.search(r"[<\x1b]|(?<!\\)@", outside)
    assert len(text) < 4000


def test_terminal_colours_are_dropped() -> None:
    """Control sequences go, other unprintable characters are shown as such."""
    assert plain("\x1b[31mred\x1b[0m \x1b]0;title\x07ok\x00 \ud800") == "red ok\ufffd \ufffd"
