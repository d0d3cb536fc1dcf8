"""The design page in a browser: drag keys with mouse, touch and keyboard, and request queries."""

from collections.abc import Callable
from typing import Any

import pytest

from headtohead.key_design import inputs, query_design
from headtohead.key_design.convex_solvers import softmax
from headtohead.web.pages.design import EXAMPLE_KEYS, MAX_KEYS

from . import test_browser

pytestmark = pytest.mark.browser
visit = test_browser.visit
Visit = Callable[..., Any]
STATE = """() => ({
  keys: [...document.querySelectorAll(".key-row")].map(
    (row) => ["x", "y"].map((name) => Number(row.querySelector("." + name).value))),
  query: ["x", "y"].map((name) => Number(document.querySelector("#query-row ." + name).value)),
  weights: [...document.querySelectorAll(".key-row")].map((row) => Number(row.dataset.weight)),
  bars: [...document.querySelectorAll(".gauge")].map((one) => one.firstChild.clientWidth / one.clientWidth),
  shown: [...document.querySelectorAll(".key-row .weight")].map((one) => one.textContent),
})"""


def state(page: Any) -> dict[str, Any]:
    """Return the state of the page; its weights equal those of the library for these keys and this query."""
    result: dict[str, Any] = page.evaluate(STATE)
    keys, query = (inputs.read_matrix(str(result[name])) for name in ("keys", "query"))
    # The numbers are shown with four digits.
    assert result["weights"] == pytest.approx(softmax(keys @ query[0]), abs=2e-3)
    assert sum(result["weights"]) == pytest.approx(1)
    assert result["bars"] == pytest.approx(result["weights"], abs=0.02)
    return result


def middle(page: Any, name: str) -> tuple[float, float]:
    box = page.get_by_role("slider", name=name, exact=True).locator(".grip").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def unit(page: Any) -> float:
    """Return the number of pixels per unit of the plane."""
    width: float = page.locator(".plane svg").bounding_box()["width"]
    return width * 60 / 400


def drag(page: Any, name: str, right: float, up: float) -> None:
    x, y = middle(page, name)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right * unit(page) / 2, y - up * unit(page) / 2)
    page.mouse.move(x + right * unit(page), y - up * unit(page))
    page.mouse.up()


def test_a_key_is_dragged_with_the_mouse_and_the_weights_follow(visit: Visit) -> None:
    page = visit("/")
    page.get_by_role("navigation").get_by_role("link", name="Design").click()
    page.locator(".key-row").first.wait_for()
    before = state(page)
    assert before["keys"] == next(iter(EXAMPLE_KEYS.values()))
    assert before["weights"] == pytest.approx(
        softmax(inputs.read_matrix(str(before["keys"])) @ before["query"]), abs=1e-14
    )
    drag(page, "key 0", 1, -0.5)
    after = state(page)
    assert after["keys"] == [[1, 1.5], *before["keys"][1:]]
    assert after["query"] == before["query"]
    assert after["weights"][0] > before["weights"][0]
    assert after["shown"] != before["shown"]
    drag(page, "query", -0.5, 0.5)
    assert state(page)["query"] == pytest.approx([before["query"][0] - 2, before["query"][1] + 2])
    drag(page, "key 0", 30, 0)
    assert state(page)["keys"][0] == [3, 1.5], "the plane has an end"
    page.locator("#spoken", has_text="Weights: key 0").wait_for(state="attached")


def test_keys_are_moved_added_and_removed_with_the_keyboard(visit: Visit) -> None:
    page = visit("/design")
    page.get_by_role("slider", name="key 1", exact=True).focus()
    before = state(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    after = state(page)
    assert after["keys"][1] == pytest.approx([before["keys"][1][0] + 0.1, before["keys"][1][1] + 0.5])
    assert after["weights"] != before["weights"]
    output = page.get_by_role("slider", name="key 1", exact=True).get_attribute("aria-valuetext")
    assert output == f"x -1.9, y -0.5; weight {after['shown'][1]}"
    page.get_by_role("button", name="Add a key").press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "key 4"
    page.get_by_role("button", name="Remove key 0").press("Enter")
    assert state(page)["keys"][:3] == after["keys"][1:]
    page.get_by_label("x of key 0").fill("2.5")
    assert state(page)["keys"][0][0] == 2.5
    page.get_by_label("Length").fill("0")
    assert state(page)["weights"] == pytest.approx([0.25] * 4)
    for _ in range(MAX_KEYS - 4):
        page.get_by_role("button", name="Add a key").click()
    assert page.get_by_role("button", name="Add a key").is_disabled()
    assert len(set(map(tuple, state(page)["keys"]))) == MAX_KEYS
    nameless = """[...document.querySelectorAll("#design :is(input, select, button, [tabindex])")].filter(
        (one) => !one.labels?.length && !one.textContent.trim() && !one.ariaLabel).length"""
    assert page.evaluate(nameless) == 0


def test_select_and_average_move_the_query_and_give_a_reason(visit: Visit) -> None:
    page = visit("/design")
    page.get_by_role("button", name="Select key 0").click()
    page.get_by_role("heading", name="Select key 0: exact in the limit").wait_for()
    keys = EXAMPLE_KEYS["triangle with a key inside"]
    selecting_query = query_design.find_selecting_query(keys, 0)
    assert page.locator("#reason").inner_text() == selecting_query.reason
    output = page.evaluate(STATE)
    assert output["weights"] == pytest.approx(selecting_query.weights, abs=1e-12)
    assert page.locator("#length-value").inner_text() == f"{selecting_query.norm:.4g}"

    page.get_by_role("button", name="Select key 3").click()
    page.get_by_role("heading", name="Select key 3: not exact").wait_for()
    assert "Key 3 is not a vertex of the convex hull" in page.locator("#reason").inner_text()
    assert page.evaluate(STATE)["weights"] == pytest.approx(
        query_design.find_selecting_query(keys, 3).weights, abs=1e-12
    )

    page.get_by_role("button", name="Average the checked keys").click()
    page.get_by_text("Check the keys to average first.").wait_for()
    page.get_by_label("key 1", exact=True).and_(page.get_by_role("checkbox")).check()
    page.get_by_label("key 2", exact=True).and_(page.get_by_role("checkbox")).check()
    page.get_by_label("Precision").select_option("0.99")
    page.get_by_role("button", name="Average the checked keys").click()
    page.get_by_role("heading", name="Average keys 1 and 2: exact in the limit").wait_for()
    assert page.evaluate(STATE)["weights"] == pytest.approx(
        query_design.find_averaging_query(keys, [1, 2], precision=0.99).weights
    )
    assert page.locator("#stale").is_hidden()
    page.get_by_role("slider", name="key 1", exact=True).press("ArrowUp")
    assert page.locator("#stale").is_visible()


def test_identity_has_a_row_for_each_key(visit: Visit) -> None:
    page = visit("/design")
    page.get_by_label("Examples").select_option("square")
    page.get_by_role("button", name="Identity", exact=True).click()
    page.get_by_role("heading", name="Identity: row i selects key i: exact in the limit").wait_for()
    assert page.locator("#matrix tbody tr").count() == 4
    page.get_by_role("button", name="Move the query to q2").click()
    assert page.evaluate(STATE)["weights"][2] >= 0.999


def test_a_finger_drags_a_key_on_a_phone(visit: Visit) -> None:
    page = visit("/design", viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark")
    before = state(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator(".plane").scroll_into_view_if_needed()
    x, y = middle(page, "key 2")
    touch = page.context.new_cdp_session(page)
    for kind, points in (
        ("touchStart", [{"x": x, "y": y}]),
        ("touchMove", [{"x": x, "y": y - unit(page) / 2}]),
        ("touchMove", [{"x": x, "y": y - unit(page)}]),
        ("touchEnd", []),
    ):
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    after = state(page)
    assert after["keys"][2] == pytest.approx([before["keys"][2][0], before["keys"][2][1] + 1], abs=0.051)
    assert after["weights"] != before["weights"]
