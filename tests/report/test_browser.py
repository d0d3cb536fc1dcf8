"""The page in a real browser: nothing is fetched, nothing complains, markup in names is text, it fits a phone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead import report

pytestmark = pytest.mark.browser
Findings = dict[str, Any]
HOSTILE = "</script><b>bold</b>&\"'"


def test_the_page_stands_on_its_own_in_a_browser(browser: Any, written: Path) -> None:
    asked: list[str] = []
    complaints: list[str] = []

    def watch(route: Any) -> None:
        asked.append(route.request.url)
        route.continue_() if route.request.url == written.as_uri() else route.abort()

    for width, scheme in ((360, "dark"), (1280, "light")):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.route("**/*", watch)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(written.as_uri())
        assert HOSTILE in page.locator(".sentence").nth(1).inner_text()
        assert HOSTILE in page.locator("blockquote").first.inner_text()
        assert page.locator("b", has_text="bold").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width, "the page does not scroll sideways"
        layout = "narrow" if width == 360 else "wide"
        assert page.locator(f".chart .{layout}").first.is_visible()
        ink = page.evaluate("getComputedStyle(document.querySelector('.chart svg text[fill=\"#1f2933\"]')).fill")
        assert ink == ("rgb(232, 236, 241)" if scheme == "dark" else "rgb(31, 41, 51)")
        _point(page, layout)
        context.close()
    assert {url for url in asked if not url.startswith("data:")} == {written.as_uri()}
    assert complaints == []


def _point(page: Any, layout: str) -> None:
    """Pointing at a mark, and at a cell of a map, shows the figures."""
    page.locator(f".chart .{layout} path[aria-roledescription='point']").first.hover(force=True)
    assert "alibi: helped" in page.locator(".tip").inner_text()
    cell = page.locator(".map image").first
    cell.hover(position={"x": 5, "y": 25})
    page.wait_for_timeout(200)  # the picture is decoded at the first touch
    cell.hover(position={"x": 6, "y": 26})
    assert page.locator(".tip").inner_text() == "<b> (2) looks at The (1): 0.50"


def test_paper_shows_what_is_folded_away_on_the_screen(
    browser: Any, plain: Callable[..., Findings], folder: Callable[[Findings], Path], tmp_path: Path
) -> None:
    (written,) = report.write(folder(plain({"v": -0.08})))
    page = browser.new_page()
    page.goto(written.as_uri())
    table = page.locator("#audits details table").first
    assert not table.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert table.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not table.is_visible()
    assert page.pdf(path=tmp_path / "page.pdf").startswith(b"%PDF")
    page.close()


def test_without_javascript_the_page_is_whole(browser: Any, written: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(written.as_uri())
    assert page.locator(".sentence").first.is_visible()
    assert page.locator(".chart .wide svg").first.bounding_box()["width"] > 400
    context.close()
