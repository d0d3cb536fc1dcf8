"""The report page in a real browser: no network requests, no console errors, escaped markup, and a phone layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead import report

pytestmark = pytest.mark.browser
RawFindings = dict[str, Any]
HOSTILE = "</script><b>bold</b>&\"'"


def test_the_page_makes_no_requests_and_fits_the_screen(browser: Any, report_path: Path) -> None:
    requested_urls: list[str] = []
    console_messages: list[str] = []

    def record_request(route: Any) -> None:
        requested_urls.append(route.request.url)
        route.continue_() if route.request.url == report_path.as_uri() else route.abort()

    for width, scheme in ((360, "dark"), (1280, "light")):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.route("**/*", record_request)
        page = context.new_page()
        page.on("console", lambda message: console_messages.append(message.text))
        page.on("pageerror", lambda error: console_messages.append(str(error)))
        page.goto(report_path.as_uri())
        assert HOSTILE in page.locator(".sentence").nth(1).inner_text()
        assert HOSTILE in page.locator("blockquote").first.inner_text()
        assert page.locator("b", has_text="bold").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width, "the page does not scroll sideways"
        layout = "narrow" if width == 360 else "wide"
        assert page.locator(f".chart .{layout}").first.is_visible()
        label_color = page.evaluate(
            "getComputedStyle(document.querySelector('.chart svg text[fill=\"#1f2933\"]')).fill"
        )
        assert label_color == ("rgb(232, 236, 241)" if scheme == "dark" else "rgb(31, 41, 51)")
        _check_tooltips(page, layout)
        context.close()
    assert {url for url in requested_urls if not url.startswith("data:")} == {report_path.as_uri()}
    assert console_messages == []


def _check_tooltips(page: Any, layout: str) -> None:
    """Check that hovering over a mark or a cell of an attention map shows the values."""
    page.locator(f".chart .{layout} path[aria-roledescription='point']").first.hover(force=True)
    assert "alibi: helped" in page.locator(".tip").inner_text()
    page.evaluate("document.querySelectorAll('details.maps').forEach(element => element.open = true)")
    cell = page.locator(".map image").first
    cell.hover(position={"x": 5, "y": 25})
    page.wait_for_timeout(200)  # the picture is decoded at the first touch
    cell.hover(position={"x": 6, "y": 26})
    assert page.locator(".tip").inner_text() == "<b> (2) looks at The (1): 0.50"


def test_collapsed_tables_are_printed(
    browser: Any,
    raw_findings_without_curves: Callable[..., RawFindings],
    write_folder: Callable[[RawFindings], Path],
    tmp_path: Path,
) -> None:
    (path,) = report.write(write_folder(raw_findings_without_curves({"v": -0.08})))
    page = browser.new_page()
    page.goto(path.as_uri())
    table = page.locator("#audits details table").first
    assert not table.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert table.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not table.is_visible()
    assert page.pdf(path=tmp_path / "page.pdf").startswith(b"%PDF")
    page.close()


def test_maps_of_further_variants_or_on_a_phone_are_collapsed_and_captions_fit_a_phone(
    browser: Any, raw_findings: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path]
) -> None:
    (path,) = report.write(write_folder(raw_findings({"v": -0.08, "w": 0.1})))
    for width, expected in ((1280, [True, True, False]), (360, [False] * 3)):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(path.as_uri())
        maps = page.locator("details.maps")
        assert [maps.nth(index).get_attribute("open") is not None for index in range(maps.count())] == expected
    page.evaluate("document.querySelectorAll('details').forEach(element => element.open = true)")
    captions = page.locator("caption").all()
    assert max(box["width"] for caption in captions if (box := caption.bounding_box())) <= 360
    page.close()


def test_the_page_is_complete_without_javascript(browser: Any, report_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(report_path.as_uri())
    assert page.locator(".sentence").first.is_visible()
    assert page.locator(".chart .wide svg").first.bounding_box()["width"] > 400
    context.close()
