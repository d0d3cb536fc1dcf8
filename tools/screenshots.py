"""Pictures of the web app: every page, light and dark, on a desktop and on a phone, from a real server with real runs.

python tools/screenshots.py --out FOLDER [--finished RUN_FOLDER] [--only PAGE ...] [--docs]

Trains `speeches-decoder` with two seeds (or takes an experiment that is finished, with --finished), starts the same
with more steps from the web app so that one is at work, and visits each page as a person would: a text is looked at,
strategies write, a query is asked for. With --docs, the few that the README and docs/serve.md show are renewed in
docs/pictures, with a palette of 256 colours where Pillow is installed. Needs playwright and a Chromium.
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

HERE = Path(__file__).resolve().parents[1]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
SCHEMES = ("light", "dark")
LONG = 600_000
"""milliseconds: a busy machine takes its time"""
MOST_BYTES = 250_000
DONE, AT_WORK = "speeches", "at-work"
RECIPE = "speeches-decoder"
TEXT = "the people of this nation will build new schools and honor the law"


@dataclass(frozen=True)
class Page:
    """A page of the web app, and what a person does there before the picture is taken."""

    name: str
    path: str
    act: Callable[[Tab], None] = lambda tab: None
    top: str | None = None
    """what stands at the top of the picture for the docs; the page's own top unless given"""
    height: int | None = None
    """of the picture for the docs; the window's unless given"""


def see_charts(tab: Tab) -> None:
    for region in ("verdicts", "curves"):
        tab.locator(f"#{region} svg").first.wait_for(state="attached")


def see_it_train(tab: Tab) -> None:
    tab.locator("#trials .now.running").first.wait_for()
    tab.locator("#curves .chart", has_text=re.compile("100.*wbush.*baseline.*alibi")).wait_for()


def look(tab: Tab) -> None:
    tab.get_by_label("Text", exact=True).fill(TEXT)
    tab.get_by_role("button", name="Look", exact=True).click()
    tab.locator(".thumb").nth(3).click()
    tab.locator(".big image").first.wait_for()
    tab.locator(".token", has_text="nation").first.click()


def write(tab: Tab) -> None:
    tab.locator('input[value="top-k"]').check()
    tab.get_by_label("Tokens").fill("24")
    tab.get_by_role("button", name="Write").click()
    tab.get_by_text("All 3 texts are written.").wait_for()
    tab.get_by_role("button", name="Only the next token").click()
    tab.locator("#kept", has_text="kept").wait_for()
    tab.get_by_label("p", exact=True).and_(tab.locator("input[type=range]")).fill("0.5")
    tab.locator(".column").nth(1).locator(".piece").nth(3).focus()


def ask_for_a_query(tab: Tab) -> None:
    tab.get_by_role("button", name="Select", exact=False).first.click()
    tab.wait_for_timeout(1500)


def see_the_cost(tab: Tab) -> None:
    tab.get_by_label("seeds", exact=True).fill("2")
    tab.get_by_label("The full setting").hover()


PAGES = (
    Page("at-work", f"/experiments/{AT_WORK}", see_it_train, "#curves-title"),
    Page("list", "/"),
    Page("experiment", f"/experiments/{DONE}", see_charts, height=1420),
    Page("start", "/start"),
    Page("form", "/start/sst2", see_the_cost),
    Page("attention", f"/attention?model=run/{DONE}/baseline/0", look),
    Page("playground", f"/playground?model=run/{DONE}/alibi/0", write, "#texts"),
    Page("design", "/design", ask_for_a_query),
)
DOCS = {
    ("experiment", "light", "desktop"): "serve-experiment.png",
    ("playground", "dark", "desktop"): "serve-playground.png",
    ("at-work", "dark", "phone"): "serve-phone.png",
}
"""the pictures that are shown: page, scheme and size, and the file in docs/pictures"""


@contextmanager
def server(runs: Path) -> Iterator[str]:
    """The address of a real `h2h serve`."""
    command = [sys.executable, "-m", "headtohead.cli", "serve", str(runs), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.parent) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].rstrip("/")
        finally:
            process.terminate()


def post(address: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        print(answer.read().decode())


def train(runs: Path) -> None:
    command = [sys.executable, "-m", "headtohead.cli", "run", RECIPE, "--seeds", "2", "--out", str(runs / DONE)]
    subprocess.run(command, check=True, cwd=runs.parent)


def visit(browser: Any, address: str, page: Page, scheme: str, size: str) -> dict[str, bytes]:
    """The whole page, and what is seen of it at once."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab = context.new_page()
    tab.set_default_timeout(LONG)
    tab.goto(address + page.path)
    page.act(tab)
    wide = tab.evaluate("document.documentElement.scrollWidth")
    if wide > width:
        print(f"{page.name}, {scheme}, {size}: {wide} pixels wide, more than {width}")
    # All of it in one window: what sticks to the window's edge then stands at the page's.
    tall = tab.evaluate("document.documentElement.scrollHeight")
    tab.set_viewport_size({"width": width, "height": tall})
    whole = tab.screenshot()
    tab.set_viewport_size({"width": width, "height": page.height or height})
    tab.evaluate("(top) => top ? document.querySelector(top).scrollIntoView() : scrollTo(0, 0)", page.top)
    found = {"whole": whole, "seen": tab.screenshot()}
    context.close()
    return found


def small(picture: bytes) -> bytes:
    """With a palette, where Pillow is installed."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return picture
    out = BytesIO()
    Image.open(BytesIO(picture)).convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=0).save(
        out, "PNG", optimize=True
    )
    return min(picture, out.getvalue(), key=len)


def take(address: str, asked: argparse.Namespace, names: set[str]) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        for page, scheme, size in product([one for one in PAGES if one.name in names], SCHEMES, SIZES):
            found = visit(browser, address, page, scheme, size)
            (asked.out / f"{page.name}-{scheme}-{size}.png").write_bytes(found["whole"])
            shown = DOCS.get((page.name, scheme, size))
            if asked.docs and shown:
                keep(HERE / "docs" / "pictures" / shown, small(found["seen"]))
        browser.close()


def keep(path: Path, picture: bytes) -> None:
    path.write_bytes(picture)
    print(f"{path.name}: {len(picture) / 1000:.0f} kB" + (", too large" if len(picture) > MOST_BYTES else ""))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--out", type=Path, required=True, help="the folder for all pictures")
    given.add_argument("--finished", type=Path, help=f"a run folder of {RECIPE}, to be copied and not trained anew")
    given.add_argument("--only", nargs="+", choices=[page.name for page in PAGES], help="these pages")
    given.add_argument("--docs", action="store_true", help="renew the pictures of the docs")
    asked = given.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started here is ended then too
    asked.out.mkdir(parents=True, exist_ok=True)
    names = set(asked.select_experiment or (page.name for page in PAGES))
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place) / "runs"
        runs.mkdir()
        if asked.finished:
            shutil.copytree(asked.finished, runs / DONE)
        else:
            train(runs)
        with server(runs) as address:
            while_at_work = names & {"at-work", "list"}
            if while_at_work:
                more = {"training.steps": "20000", "training.eval_every": "20", "seeds": "3"}
                post(f"{address}/api/experiments", {"recipe": RECIPE, "name": AT_WORK, "settings": more})
                try:
                    take(address, asked, while_at_work)
                finally:
                    post(f"{address}/api/experiments/{AT_WORK}/stop", {})
            take(address, asked, names - while_at_work)


if __name__ == "__main__":
    main()
