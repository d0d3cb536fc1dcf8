"""The attention page in a real browser: no network requests, heads and tokens can be selected, markup is escaped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead.attention_analysis import page as attention_analysis_page
from headtohead.attention_analysis.figure import AttentionFigure
from headtohead.attention_analysis.map_checks import AttentionCheck
from headtohead.attention_analysis.maps import AttentionMaps
from headtohead.experiment.schemas import HeadMeasures

pytestmark = pytest.mark.browser
TOKENS = ("We", "</script>", "<b>", "people", "·", "·")
REAL = 4


def made(seed: int) -> np.ndarray[Any, Any]:
    """Return two heads over four tokens and two padding positions."""
    weights = np.random.default_rng(seed).random((2, 6, 6)).astype(np.float32)
    weights[:, :, REAL:] = 0
    return weights / weights.sum(-1, keepdims=True)


LAYERS = (made(1), made(2))
AFTER = (made(3), made(4))


def panel(name: str, layers: tuple[np.ndarray[Any, Any], ...], *, is_difference: bool = False) -> AttentionMaps:
    return AttentionMaps(
        name,
        " ".join(TOKENS),
        TOKENS,
        np.arange(6) < REAL,
        layers,
        is_causal=False,
        notes=("Cut.",),
        layer_numbers=(1, 2),
        head_numbers=(1, 2),
        is_difference=is_difference,
    )


def sheet(*panels: AttentionMaps) -> AttentionFigure:
    rows = [HeadMeasures(layer=layer, head=head, entropy=1.0) for layer in (1, 2) for head in (1, 2)]
    checks = [AttentionCheck("rows sum to 1", True, "They <do>.")]
    return AttentionFigure("a <model>", panels, {"": rows}, {"": checks})


ALONE = sheet(panel("", LAYERS))
DIFFERENCE = tuple(b - a for a, b in zip(LAYERS, AFTER, strict=True))
BOTH = sheet(panel("before", LAYERS), panel("after", AFTER), panel("after − before", DIFFERENCE, is_difference=True))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("attention")
    result = {"alone": folder / "alone.html", "both": folder / "both.html"}
    result["alone"].write_text(attention_analysis_page.render_page(ALONE), encoding="utf-8")
    result["both"].write_text(attention_analysis_page.render_page(BOTH), encoding="utf-8")
    return result


class Visit:
    """An open page, its requests, and its console errors."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, **how: Any) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.path = path
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        self.context.route("**/*", self._watch)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())

    def _watch(self, route: Any) -> None:
        self.asked.append(route.request.url)
        route.continue_() if route.request.url == self.path.as_uri() else route.abort()

    def point(self, row: int, column: int, panel: int = 0) -> str:
        """Hover over a cell of the large map; return the tooltip."""
        image = self.page.locator(".big image").nth(panel)
        image.scroll_into_view_if_needed()
        box = image.bounding_box()
        cell = box["width"] / len(TOKENS)
        self.page.mouse.move(box["x"] + (column + 0.5) * cell, box["y"] + (row + 0.5) * cell)
        return self.told()

    def told(self) -> str:
        self.page.locator(".tip:not([hidden])").wait_for()
        self.page.wait_for_timeout(100)  # a picture is read at the first touch
        return str(self.page.locator(".tip").inner_text())

    def chosen(self, words: str) -> None:
        self.page.locator(".chosen", has_text=words).wait_for()

    def leave(self) -> None:
        assert {url for url in self.asked if not url.startswith("data:")} == {self.path.as_uri()}
        assert self.complaints == []
        self.context.close()


def said(weights: np.ndarray[Any, Any], head: int, row: int, column: int) -> str:
    return f"“{TOKENS[row]}” ({row + 1}) looks at “{TOKENS[column]}” ({column + 1}): {weights[head, row, column]:.4f}"


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_hover_click_and_pick_work_and_nothing_is_fetched(
    browser: Any, written: dict[str, Path], width: int, scheme: str
) -> None:
    visit = Visit(browser, written["alone"], width, color_scheme=scheme)
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") == width, "the page does not scroll sideways"
    assert visit.point(2, 1) == said(LAYERS[0], 0, 2, 1)
    assert visit.point(3, 0) == said(LAYERS[0], 0, 3, 0)
    page.locator(".thumb[data-layer='2'][data-head='2']").click()
    assert page.locator(".which").inner_text() == "Layer 2, head 2"
    assert visit.point(2, 1) == said(LAYERS[1], 1, 2, 1), "the head that was clicked is the one enlarged"
    assert "padding" in visit.point(1, 5)
    page.locator(".token", has_text="people").click()
    visit.chosen("“people” (4) looks here")
    painted = page.eval_on_selector_all(".token", "all => all.map((one) => getComputedStyle(one).backgroundColor)")
    shades = [float(item.rpartition(", ")[2].rstrip(")")) for item in painted]
    samples = LAYERS[1][1, 3]
    assert np.abs(np.array(shades) - 0.75 * np.sqrt(samples)).max() < 0.02, "as strong as the weight's square root"
    visit.leave()


def test_markup_in_tokens_is_text(browser: Any, written: dict[str, Path]) -> None:
    visit = Visit(browser, written["alone"])
    page = visit.page
    assert page.locator(".token").all_inner_texts() == list(TOKENS)
    assert page.locator(".attention b").count() == 0
    assert "</script>" in page.locator(".big text").all_text_contents()
    assert page.locator("h1").inner_text() == "a <model>"
    assert "They <do>." in page.locator(".rules").inner_text()
    visit.leave()


def test_who_looks_at_a_token_is_shown_too(browser: Any, written: dict[str, Path]) -> None:
    visit = Visit(browser, written["alone"])
    page = visit.page
    page.locator(".token").nth(1).click()
    page.locator("[data-turn='to']").click()
    visit.chosen("is looked at from here")
    page.locator(".token").nth(3).hover()
    assert visit.told() == said(LAYERS[0], 0, 3, 1)
    visit.leave()


def test_everything_can_be_done_with_the_keyboard(browser: Any, written: dict[str, Path]) -> None:
    visit = Visit(browser, written["alone"])
    page = visit.page
    page.locator(".token").first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert page.locator(".token[aria-pressed='true']").inner_text() == "<b>"
    page.locator(".thumb[aria-pressed='true']").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".which").inner_text() == "Layer 2, head 1"
    page.locator(".big").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert visit.told() == said(LAYERS[1], 0, 1, 1)
    page.keyboard.press("Enter")
    visit.chosen("“</script>” (2) looks here")
    visit.leave()


def test_panels_are_read_together_and_a_difference_has_its_sign(browser: Any, written: dict[str, Path]) -> None:
    visit = Visit(browser, written["both"])
    words = visit.point(2, 1, panel=1).splitlines()
    item, other = LAYERS[0][0, 2, 1], AFTER[0][0, 2, 1]
    assert words[1:3] == [f"before: {item:.4f}", f"after: {other:.4f}"]
    name, _, figure = words[3].rpartition(": ")
    assert name == "after − before"
    assert abs(float(figure.replace("−", "-")) - (other - item)) < 2e-4
    assert figure[0] == ("+" if other > item else "−")
    visit.leave()


def test_without_javascript_every_map_is_there(browser: Any, written: dict[str, Path]) -> None:
    visit = Visit(browser, written["alone"], java_script_enabled=False)
    assert visit.page.locator(".thumb img").count() == 4
    assert all(item.bounding_box()["width"] > 70 for item in visit.page.locator(".thumb img").all())
    assert not visit.page.locator(".closer").is_visible()
    visit.leave()


def test_two_notebook_cells_do_not_disturb_each_other(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(
        "<meta charset=utf-8>"
        + attention_analysis_page.render_fragment(ALONE)
        + attention_analysis_page.render_fragment(BOTH)
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    page.locator(".attention").nth(0).locator(".thumb").nth(3).click()
    assert page.locator(".which").all_inner_texts() == ["Layer 2, head 2", "Layer 1, head 1"]
    page.close()
