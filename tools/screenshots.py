"""Take screenshots of every page of the web app, light and dark, desktop and phone, from a real server.

python tools/screenshots.py --out FOLDER [--finished RUN_FOLDER] [--only PAGE ...] [--docs]

Trains `speeches-decoder` with two seeds (or copies a finished experiment, with --finished), starts a longer training
from the web app, and uses each page before taking the screenshot. With --docs, updates the pictures of the README and
docs/how-to/serve.md, with a palette of 256 colors if Pillow is installed. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

from playwright.sync_api import Page as Tab
from playwright.sync_api import sync_playwright

PROJECT_ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WINDOW_SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
COLOR_SCHEMES = ("light", "dark")
TIMEOUT_MILLISECONDS = 600_000
"""long enough for busy machines"""
MAX_PICTURE_BYTES = 250_000
"""larger pictures of the documentation are reported"""
FINISHED_NAME = "speeches"
"""name of the finished experiment"""
RUNNING_NAME = "at-work"
"""name of the experiment that runs while screenshots are taken"""
RECIPE = "speeches-decoder"
ATTENTION_TEXT = "the people of this nation will build new schools and honor the law"


@dataclass(frozen=True)
class Page:
    """A page of the web app."""

    name: str
    path: str
    prepare: Callable[[Tab], None] = lambda tab: None
    """actions before the screenshot"""
    top: str | None = None
    """selector of the element at the top of the picture for the docs"""
    height: int | None = None
    """height of the picture for the docs; by default the window height"""


def wait_for_charts(tab: Tab) -> None:
    for region in ("verdicts", "curves"):
        tab.locator(f"#{region} svg").first.wait_for(state="attached")


def wait_for_training(tab: Tab) -> None:
    tab.locator("#trials .now.running").first.wait_for()
    tab.locator("#curves .chart", has_text=re.compile("100.*wbush.*baseline.*alibi")).wait_for()


def show_attention(tab: Tab) -> None:
    tab.get_by_label("Text", exact=True).fill(ATTENTION_TEXT)
    tab.get_by_role("button", name="Show attention", exact=True).click()
    tab.locator(".thumb").nth(3).click()
    tab.locator(".big image").first.wait_for()
    tab.locator(".token", has_text="nation").first.click()


def generate_text(tab: Tab) -> None:
    tab.locator('input[value="top-k"]').check()
    tab.get_by_label("Tokens").fill("24")
    tab.get_by_role("button", name="Generate").click()
    tab.get_by_text("Finished.").wait_for()
    tab.get_by_role("button", name="Next token only").click()
    tab.locator("#kept", has_text="kept").wait_for()
    tab.get_by_label("p", exact=True).and_(tab.locator("input[type=range]")).fill("0.5")
    tab.locator(".column").nth(1).locator(".piece").nth(3).focus()


def find_query(tab: Tab) -> None:
    tab.get_by_role("button", name="Select", exact=False).first.click()
    tab.wait_for_timeout(1500)


def show_cost(tab: Tab) -> None:
    tab.get_by_label("seeds", exact=True).fill("2")
    tab.get_by_label("Full size").hover()


PAGES = (
    Page("at-work", f"/experiments/{RUNNING_NAME}", wait_for_training, "#curves-title"),
    Page("list", "/"),
    Page("experiment", f"/experiments/{FINISHED_NAME}", wait_for_charts, height=1420),
    Page("start", "/start"),
    Page("form", "/start/sst2", show_cost),
    Page("attention", f"/attention?model=run/{FINISHED_NAME}/baseline/0", show_attention),
    Page("playground", f"/playground?model=run/{FINISHED_NAME}/alibi/0", generate_text, "#texts"),
    Page("design", "/design", find_query),
)
DOCS_PICTURES = {
    ("experiment", "light", "desktop"): "serve-experiment.png",
    ("playground", "dark", "desktop"): "serve-playground.png",
    ("at-work", "dark", "phone"): "serve-phone.png",
}
"""file in docs/pictures by page, color scheme and window size"""


@contextmanager
def run_server(runs: Path) -> Iterator[str]:
    """Run `h2h serve` and yield its address."""
    command = [sys.executable, "-m", "headtohead.cli", "serve", str(runs), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.parent) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].rstrip("/")
        finally:
            process.terminate()


def post_json(address: str, body: dict[str, Any]) -> None:
    """Send a request to the web app and print the response."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        print(response.read().decode())


def train_finished_experiment(runs: Path) -> None:
    """Train the experiment whose results are shown."""
    command = [
        sys.executable,
        "-m",
        "headtohead.cli",
        "run",
        RECIPE,
        "--seeds",
        "2",
        "--out",
        str(runs / FINISHED_NAME),
    ]
    subprocess.run(command, check=True, cwd=runs.parent)


def take_page_screenshots(browser: Any, address: str, page: Page, scheme: str, size: str) -> dict[str, bytes]:
    """Return screenshots of the whole page and of the visible part."""
    width, height = WINDOW_SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab = context.new_page()
    tab.set_default_timeout(TIMEOUT_MILLISECONDS)
    tab.goto(address + page.path)
    page.prepare(tab)
    page_width = tab.evaluate("document.documentElement.scrollWidth")
    if page_width > width:
        print(f"{page.name}, {scheme}, {size}: {page_width} pixels wide, more than {width}")
    # Enlarge the window to the page, so that sticky elements are at the end of the page.
    page_height = tab.evaluate("document.documentElement.scrollHeight")
    tab.set_viewport_size({"width": width, "height": page_height})
    whole_page = tab.screenshot()
    tab.set_viewport_size({"width": width, "height": page.height or height})
    tab.evaluate("(top) => top ? document.querySelector(top).scrollIntoView() : scrollTo(0, 0)", page.top)
    screenshots = {"whole": whole_page, "visible": tab.screenshot()}
    context.close()
    return screenshots


def compress_picture(picture: bytes) -> bytes:
    """Return the picture with a palette if Pillow is installed."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return picture
    compressed = BytesIO()
    Image.open(BytesIO(picture)).convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=0).save(
        compressed, "PNG", optimize=True
    )
    return min(picture, compressed.getvalue(), key=len)


def take_screenshots(address: str, options: argparse.Namespace, names: set[str]) -> None:
    """Take screenshots of pages in every color scheme and window size."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        for page, scheme, size in product([page for page in PAGES if page.name in names], COLOR_SCHEMES, WINDOW_SIZES):
            screenshots = take_page_screenshots(browser, address, page, scheme, size)
            (options.out / f"{page.name}-{scheme}-{size}.png").write_bytes(screenshots["whole"])
            docs_file = DOCS_PICTURES.get((page.name, scheme, size))
            if options.docs and docs_file:
                store_picture(PROJECT_ROOT / "docs" / "pictures" / docs_file, compress_picture(screenshots["visible"]))
        browser.close()


def store_picture(path: Path, picture: bytes) -> None:
    """Write a picture of the documentation and print its size."""
    path.write_bytes(picture)
    print(f"{path.name}: {len(picture) / 1000:.0f} kB" + (", too large" if len(picture) > MAX_PICTURE_BYTES else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--finished", type=Path, help=f"finished experiment folder of {RECIPE} to copy instead of training"
    )
    parser.add_argument("--only", nargs="+", choices=[page.name for page in PAGES], help="only these pages")
    parser.add_argument("--docs", action="store_true", help="update docs/pictures")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also stops the processes started here
    options.out.mkdir(parents=True, exist_ok=True)
    names = set(options.only or (page.name for page in PAGES))
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        runs.mkdir()
        if options.finished:
            shutil.copytree(options.finished, runs / FINISHED_NAME)
        else:
            train_finished_experiment(runs)
        with run_server(runs) as address:
            pages_of_running_experiment = names & {"at-work", "list"}
            if pages_of_running_experiment:
                settings = {"training.budget": "20000 steps", "training.eval_every": "20", "seeds": "3"}
                post_json(f"{address}/api/experiments", {"recipe": RECIPE, "name": RUNNING_NAME, "settings": settings})
                try:
                    take_screenshots(address, options, pages_of_running_experiment)
                finally:
                    post_json(f"{address}/api/experiments/{RUNNING_NAME}/stop", {})
            take_screenshots(address, options, names - pages_of_running_experiment)


if __name__ == "__main__":
    main()
