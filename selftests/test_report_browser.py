"""The page in a real browser: nothing breaks or is fetched, and it can be read on a phone, at night, by keyboard."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selftests import reports
from selftests.browser import HINT, Browser, browsing, find

WIDE, NARROW = 1280, 390

CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (c) => c.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (at) => {
    for (; at; at = at.parentElement) {
      const c = rgba(getComputedStyle(at).backgroundColor);
      if (c[3] === 255) return c;
    }
    return [255, 255, 255];
  };
  const poor = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const at = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !at.checkVisibility() || at.closest(".sr, script")) continue;
    const [a, b] = [light(rgba(getComputedStyle(at).color)), light(ground(at))].sort((x, y) => y - x);
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.add(`${at.tagName}.${at.className}: ${walk.currentNode.data.trim()}`);
  }
  return [seen, [...poor]];
})()
"""
"""How many texts are visible, and those whose contrast is below 4.5 to 1 (WCAG 2.2, 1.4.3: relative luminance)."""


IMAGES = "[...document.images].map((one) => one.complete && one.naturalWidth > 100 && one.alt.length > 9)"

DRAWN = """
[...document.querySelectorAll("svg[role=img]")].map((one) => one.getBoundingClientRect().width > 99
  && one.getBoundingClientRect().height > 19 && one.getAttribute("aria-label").length > 9
  && one.querySelectorAll("polyline").length > 0)
"""
"""By picture and by chart, whether it is there, has a size and says in words what it is."""

FOCUS = """
(() => {
  const at = document.activeElement;
  return `${at.tagName}${at.closest(".failure") ? " in a failure" : ""}${at.matches(":focus-visible") ? ", seen" : ""}`;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all of these tests. On a machine without one they are skipped, which says how to get it."""
    if find() is None:
        pytest.skip(HINT)
    with browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page that shows everything and failed, one that passed, and one of 500 cases."""
    root = tmp_path_factory.mktemp("pages")
    failed, large = reports.mixed(root / "failed"), reports.large(root / "large")
    picture = Path(__file__).resolve().parent.parent / "docs" / "published-experiment.png"
    (failed.folder / "published-experiment.png").write_bytes(picture.read_bytes())
    failed.end(1)
    large.end(1)
    passed = reports.Session(root=root / "passed")
    passed.gate([reports.FSDP, reports.ZERO])
    for case in (reports.ORACLE, reports.FSDP, reports.ZERO):
        reports.record(passed.folder, case)
    for case in (reports.FSDP, reports.ZERO):
        passed.judge(*reports.claims(case))
    passed.end(0)
    return {name: one.folder / "report.html" for name, one in
            {"failed": failed, "passed": passed, "large": large}.items()}


def problems(browser: Browser) -> list[Any]:
    """Script errors, refusals of the content security policy, console messages, and requests that left the page."""
    fetched = [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")]
    return [
        *browser.told("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"),
        *[url for url in fetched if not re.match(r"data:|file:.*/report\.html$", url)],
    ]


@pytest.mark.parametrize(("name", "width", "dark"), [
    ("failed", NARROW, False), ("failed", NARROW, True), ("failed", 800, False), ("failed", WIDE, False),
    ("failed", WIDE, True), ("passed", NARROW, False), ("passed", WIDE, True), ("large", NARROW, True),
    ("large", 800, False), ("large", WIDE, False),
])
def test_page_is_sound(browser: Browser, pages: dict[str, Path], name: str, dark: bool, width: int) -> None:
    """No script error, no request, every image there, and nothing wider than the screen, light and dark."""
    browser.open(pages[name], width=width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    images, drawn = browser.run(IMAGES), browser.run(DRAWN)
    assert problems(browser) == []
    assert images == [True] * (name == "failed")
    assert drawn
    assert all(drawn)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_problems_are_seen(browser: Browser, tmp_path: Path) -> None:
    """The same look at a page with faults sees each of them: a script error, a request, an image that is not there."""
    page = tmp_path / "report.html"
    page.write_text("<img src='missing.png' alt='a'><script>nothing()</script><p style='width:2000px'>x", "utf-8")
    browser.open(page, width=NARROW)
    told = str(problems(browser))
    assert "nothing is not defined" in told
    assert "missing.png" in told
    assert browser.run("document.images[0].naturalWidth") == 0
    assert browser.run("document.documentElement.scrollWidth") > NARROW


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    """Every text has a contrast of 4.5 to 1 or more; dark mode is dark."""
    browser.open(pages["failed"], dark=dark)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    seen, poor = browser.run(CONTRAST)
    assert seen > 200
    assert poor == []
    shade = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 3 * 64) is dark


@pytest.mark.parametrize("script", [True, False])
def test_failures_are_what_one_sees_first(browser: Browser, pages: dict[str, Path], script: bool) -> None:
    """On a phone, with or without scripts: the verdict and the first failing case are on the first screen."""
    browser.open(pages["failed"], width=NARROW, height=844, script=script)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    places = browser.run("""['h1', '.sentence', '#failures h3 .rung', '#failures .bad', '#matrix h2'].map((one) =>
        document.querySelector(one).getBoundingClientRect().top)""")
    assert places == sorted(places)
    assert places[0] < 60
    assert places[3] < 844
    rungs = browser.run("[...document.querySelectorAll('.failure .rung')].map((one) => one.textContent)")
    assert rungs == ["engaged", "dtypes"]


def test_keyboard_reaches_the_failures(browser: Browser, pages: dict[str, Path]) -> None:
    """One Tab and Enter skip to them; the next Tabs go through what can be followed, opened and copied."""
    browser.open(pages["failed"])
    browser.press("Tab", 9)
    assert browser.run("document.activeElement.textContent") == "Skip to the failures"
    browser.press("Enter", 13, text="\r")
    assert browser.run("location.hash") == "#failures"
    reached = []
    for _ in range(12):
        browser.press("Tab", 9)
        reached.append(browser.run(FOCUS))
    assert {"A in a failure, seen", "SUMMARY in a failure, seen", "BUTTON in a failure, seen"} <= set(reached)
    browser.run("document.querySelector('.failure summary').focus()")
    before = browser.run("document.activeElement.parentElement.open")
    browser.press("Enter", 13, text="\r")
    assert browser.run("document.activeElement.parentElement.open") is not before


def test_landmarks_and_headings_lead_through_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    """One header, one main, one named navigation, one h1, and no level of headings left out."""
    browser.open(pages["failed"])
    counts = browser.run("['header', 'main', 'nav', 'h1'].map((one) => document.querySelectorAll(one).length)")
    assert counts == [1, 1, 1, 1]
    assert browser.run("document.querySelector('nav').getAttribute('aria-label')") == "Chapters"
    levels = browser.run("[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert browser.run("[...document.querySelectorAll('[aria-labelledby]')].every((one) => "
                       "document.getElementById(one.getAttribute('aria-labelledby')))")


def test_filter_narrows_the_cases(browser: Browser, pages: dict[str, Path]) -> None:
    """All words must fit; state words count, too; an empty box shows everything again."""
    browser.open(pages["large"])
    shown = "document.querySelectorAll('.cases tbody tr:not([hidden])').length"
    fill = ("(() => { const box = document.getElementById('filter'); box.value = %r;"
            "box.dispatchEvent(new Event('input')); })()")
    assert browser.run(shown) == 500
    browser.run(fill % "failed")
    assert browser.run(shown) == 10
    browser.run(fill % "zero3 bf16-mixed llama-tiny")
    assert 0 < browser.run(shown) < 100
    browser.run(fill % "")
    assert browser.run(shown) == 500


def test_command_is_copied(browser: Browser, pages: dict[str, Path]) -> None:
    """The button puts the command, and nothing else, on the clipboard, or at least selects it."""
    browser.open(pages["failed"])
    browser.run("document.querySelector('.command button').click()")
    browser.run("new Promise((done) => setTimeout(done, 200))")
    label = browser.run("document.querySelector('.command button').textContent")
    assert label in ("Copied", "Selected: Ctrl+C")
    if label != "Copied":
        assert browser.run("getSelection().toString()").startswith("torchrun --nproc-per-node 2")
