"""Model pages in a browser: enter a text, enlarge a head, generate with two strategies and move the sliders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.generation.logits_processors import (
    TemperatureLogitsProcessor,
    TopKLogitsProcessor,
    TopPLogitsProcessor,
)
from headtohead.generation.prompt_encoding import encode_prompt
from headtohead.generation.sampling import compute_sampling_probs
from headtohead.generation.session import DecodingSession
from headtohead.saved_models import model_io

from .conftest import MARKUP
from .test_browser import visit  # noqa: F401

pytestmark = pytest.mark.browser
Visit = Callable[..., Any]


@pytest.fixture
def runs(trained: Path) -> Path:
    """Provide the server of these tests with models."""
    return trained


def test_type_a_text_and_enlarge_a_head(visit: Visit) -> None:  # noqa: F811
    page = visit("/")
    page.get_by_role("navigation").get_by_role("link", name="Attention").click()
    page.get_by_label("Model", exact=True).select_option("run/tiny/baseline/0")
    page.get_by_label("Text", exact=True).fill(f"the people will build {MARKUP} schools")
    page.get_by_role("button", name="Show attention", exact=True).click()
    page.get_by_text("4 heads, after training.").wait_for()
    page.get_by_role("button", name="Layer 2, head 1").click()
    assert page.locator(".which").inner_text() == "Layer 2, head 1"
    page.locator(".big image").wait_for()
    page.keyboard.press("ArrowRight")  # to the next head, with the keyboard
    assert page.locator(".which").inner_text() == "Layer 2, head 2"
    page.locator(".token", has_text="build").click()
    page.locator(".listed li").first.wait_for()
    weights = [float(item) for item in page.locator(".listed b").all_inner_texts()]
    assert weights == sorted(weights, reverse=True) and sum(weights) == pytest.approx(1, abs=2e-3)
    assert page.locator(".big .mark").count() == 1 and page.locator("#maps img[src='x']").count() == 0
    before = page.locator(".thumb img").nth(3).get_attribute("src")
    page.get_by_label("Checkpoint").focus()
    page.keyboard.press("Home")
    page.get_by_text("4 heads, before training.").wait_for()
    assert page.locator(".thumb img").nth(3).get_attribute("src") != before
    assert page.locator(".which").inner_text() == "Layer 2, head 2", "the head that was picked stays"
    assert page.locator('.token[aria-pressed="true"]').inner_text() == "build"
    page.get_by_label("Compare with").select_option("run/tiny/alibi/0")
    page.get_by_role("button", name="Show attention", exact=True).click()
    page.get_by_role("heading", name="alibi, seed 0 − baseline, seed 0").first.wait_for()
    assert page.locator(".big").count() == 3


def test_two_strategies_write_and_the_sliders_keep_what_they_say(visit: Visit, trained: Path) -> None:  # noqa: F811
    page = visit("/playground?model=run/tiny/alibi/0")
    page.get_by_label("Prompt").fill("the people will")
    page.get_by_label("Tokens").fill("12")
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("Finished.").wait_for()
    assert page.locator(".column h3").all_inner_texts() == ["greedy", "top-p=0.9"]
    words = page.locator(".column").nth(1).locator(".piece")
    assert words.count() >= 2 and page.locator("#columns img").count() == 0
    words.first.focus()
    assert page.locator("#detail-words").inner_text().startswith("Token 1 of top-p=0.9")
    page.keyboard.press("ArrowRight")
    assert page.locator("#detail-words").inner_text().startswith("Token 2 of top-p=0.9")
    assert page.locator("#detail-bars .bar.drawn").count() == 1
    page.get_by_role("button", name="Next token only").click()
    page.locator("#kept", has_text="All 15 tokens are kept").wait_for()
    loaded = model_io.load_saved_model(trained / "tiny" / "alibi" / "seed-0")
    logits = DecodingSession(loaded.model, [encode_prompt(loaded.tokenizer, "the people will")]).logits.float()
    for temperature, k, p in ((1.0, 15, 0.5), (0.5, 15, 0.9), (2.0, 4, 1.0), (0.7, 6, 0.6)):
        for name, value in (("temperature", temperature), ("k", k), ("p", p)):
            page.get_by_label(name, exact=True).and_(page.locator("input[type=range]")).fill(str(value))
        remaining = (
            compute_sampling_probs(
                logits, [TemperatureLogitsProcessor(temperature), TopKLogitsProcessor(k), TopPLogitsProcessor(p)]
            )[0]
            > 0
        )
        assert int(page.locator("#kept").get_attribute("data-count")) == int(remaining.sum())
    share = compute_sampling_probs(logits, [TemperatureLogitsProcessor(0.7)])[0][remaining].sum()
    assert f"{100 * float(share):.1f} %" in page.locator("#kept").inner_text()
    assert torch.count_nonzero(remaining) == page.locator("#next-bars .bar:not(.out)").count()


def test_pages_fit_a_phone_after_dark_and_everything_has_a_name(visit: Visit) -> None:  # noqa: F811
    page = visit("/attention", viewport={"width": 360, "height": 800}, color_scheme="dark")
    nameless = """[...document.querySelectorAll("input, select, button, textarea")].filter(
        (one) => !one.labels?.length && !one.textContent.trim() && !one.ariaLabel).map((one) => one.id)"""
    page.get_by_role("button", name="Show attention", exact=True).click()
    page.locator(".thumb").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 360 and page.evaluate(nameless) == []
    page.goto(page.url.replace("attention", "playground"))
    page.get_by_label("Tokens").fill("5")
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("Finished.").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 360 and page.evaluate(nameless) == []
    for name in ("greedy", "top-p"):
        page.locator(f'input[value="{name}"]').uncheck()
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("alert").filter(has_text="choose at least one strategy").wait_for()
