"""End-to-end test in a browser: start a small experiment from the form, watch it finish and open its verdict."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headtohead.web import training_process

from .conftest import HOSTILE, TEXT, wait_until, write_experiment, write_verdict

pytestmark = pytest.mark.browser
TIMEOUT_MILLISECONDS = 240_000
"""milliseconds: a busy machine takes its time"""
Start = Callable[[], tuple[Any, int]]


@pytest.fixture
def visit(browser: Any, server: Start) -> Iterator[Callable[..., Any]]:
    """Open a page of a new server. Afterwards, check that there were no console errors and no external requests."""
    _, port = server()
    console_errors: list[str] = []
    requests: list[str] = []
    contexts = []

    def open_page(path: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        page.on("console", lambda message: console_errors.append(message.text))
        page.on("pageerror", lambda error: console_errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"http://127.0.0.1:{port}{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert console_errors == []
    assert {url for url in requests if not url.startswith(("data:", f"http://127.0.0.1:{port}/"))} == set()


def test_an_experiment_from_the_form_to_its_verdict(visit: Callable[..., Any]) -> None:
    page = visit("/")
    page.get_by_role("navigation").get_by_role("link", name="Start").click()
    page.get_by_role("link", name="mine.toml").click()
    page.get_by_label("name", exact=True).fill("from-the-form")
    page.get_by_label("batch size", exact=True).fill("nonsense")
    page.get_by_role("button", name="Start").click()
    page.get_by_text("Nothing was started.").wait_for()
    assert page.get_by_label("batch size", exact=True).get_attribute("aria-invalid") == "true"
    page.get_by_label("batch size", exact=True).fill("4")
    page.get_by_label("seeds", exact=True).fill("2")
    page.get_by_role("button", name="Estimate the cost").click()
    page.get_by_role("heading", name="Estimated cost").wait_for()
    assert "4 trials" in page.locator(".cost").inner_text()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile("/experiments/from-the-form$"))
    page.locator("#status .words", has_text="4 of 4 trials finished").wait_for()
    page.locator("#curves svg").first.wait_for(state="attached")
    page.locator("#verdicts .sentence").first.wait_for()
    assert page.locator("#verdicts .sentence").inner_text().startswith("alibi")
    page.get_by_role("link", name="Open the report").click()
    page.frame_locator("iframe.report").get_by_role("heading", name="Does ALiBi help here?").wait_for()


def test_stop_resume_and_it_continues(visit: Callable[..., Any], files: Path, runs: Path) -> None:
    (files / "long.toml").write_text(
        re.sub(r"(evaluate|checkpoint) = 4", r"\1 = 20", TEXT.replace("8 steps", "100000 steps"))
    )
    page = visit("/start/long.toml")
    page.get_by_label("name", exact=True).fill("long")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile("/experiments/long$"))
    page.locator("#trials tr", has_text=re.compile(r"baseline.*running\s*[1-9]\d* of 100,000")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Resume").wait_for()
    before = read_baseline_step(page)
    assert before >= 20 and training_process.find_training_process(runs, "long") is None
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Stop").wait_for()
    wait_until(lambda: read_baseline_step(page) > before)  # the page is drawn again as it goes on
    assert page.locator("#trials .now.running").count() >= 1
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Resume").wait_for()


def read_baseline_step(page: Any) -> int:
    """Return the step of the baseline shown on the page."""
    return int(page.locator("#trials td[data-title=step]").first.inner_text().partition(" of")[0].replace(",", ""))


def test_ticking_the_full_setting_shows_its_values(visit: Callable[..., Any], files: Path) -> None:
    (files / "large.toml").write_text(f"{TEXT}\n[full]\ntraining = {{ budget = '16 steps', batch_size = 2 }}\n")
    page = visit("/start/large.toml")
    page.get_by_label("batch size", exact=True).fill("5")
    page.get_by_label("Full size").check()
    expect = page.locator('input[name="training.budget"][value="16 steps"]')
    expect.wait_for()
    assert page.get_by_label("batch size", exact=True).input_value() == "5", "what was changed stays"
    assert page.get_by_label("Full size").is_checked()
    page.get_by_label("Full size").uncheck()
    page.locator('input[name="training.budget"][value="8 steps"]').wait_for()
    assert not page.get_by_label("Full size").is_checked()


def test_pages_fit_a_phone_follow_the_dark_and_show_markup_as_text(visit: Callable[..., Any], runs: Path) -> None:
    name = HOSTILE.replace("/", "")
    write_verdict(write_experiment(runs / name, question=HOSTILE, finished=4), sentence=HOSTILE)
    page = visit("/", viewport={"width": 360, "height": 800}, color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 24, 29)"
    page.get_by_role("link", name=HOSTILE).click()
    page.locator("#verdicts svg").first.wait_for(state="attached")
    assert page.locator("#verdicts .sentence").inner_text() == HOSTILE
    assert page.locator("script:not([src])").count() == 0
    server = page.url.partition("/experiments")[0]
    for path in ("/", "/experiments/done", "/compare?name=done&name=stopped", "/start", "/start/mine.toml"):
        page.goto(server + path)
        assert page.evaluate("document.documentElement.scrollWidth") == 360, path


def test_two_experiments_are_chosen_from_the_list_and_shown_side_by_side(visit: Callable[..., Any]) -> None:
    page = visit("/", viewport={"width": 1280, "height": 900})
    for name in ("done", "stopped"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("button", name="Compare two experiments").click()
    page.get_by_role("heading", name="Two experiments side by side").wait_for()
    boxes = [page.locator(".compared > section").nth(index).bounding_box() for index in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    assert page.locator(".compared .chart .narrow svg:visible").count() >= 2
    assert page.locator(".compared .sentence").all_inner_texts() == ["alibi helped: perplexity 5 % lower."]
    assert "Not comparable" in page.locator("main").inner_text()


def test_everything_can_be_reached_with_the_keyboard_and_has_a_name(visit: Callable[..., Any]) -> None:
    page = visit("/start/mine.toml")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    names = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        names.add(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
    assert {"name", "quick", "seeds", "training.budget", "training.optimizer", "do"} <= names
    nameless = """[...document.querySelectorAll("input:not([type=hidden]), select, button")].filter(
        (one) => !one.labels?.length && !one.textContent.trim()).map((one) => one.name)"""
    assert page.evaluate(nameless) == []
    assert page.locator("main, nav[aria-label], header").count() >= 3


def test_without_javascript_the_state_is_there(visit: Callable[..., Any]) -> None:
    page = visit("/experiments/done", java_script_enabled=False)
    assert "4 of 4 trials finished" in page.locator("#status").inner_text()
    assert "perplexity 5 % lower" in page.locator("#verdicts").inner_text()
