"""The documentation site builds without warnings, works offline, and its generated parts match the code."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

from headtohead.cli import app
from headtohead.config.experiment import Experiment
from headtohead.config.loading import list_recipes
from headtohead.nn.parts import registry
from tools import recipes, reference

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; warnings are errors."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(ROOT / "docs"), str(out)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return out


class Page(HTMLParser):
    """The ids of a page, its links, and the addresses that a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.fetched += [values[name] for name in ("src", "srcset", "data", "poster") if name in values]
        if tag == "link" and values.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.fetched.append(values["href"])


@pytest.mark.timeout(600)
def test_every_link_of_the_site_leads_to_a_page_and_a_heading(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 60
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            assert target.is_file(), f"{path.relative_to(site)}: {link}"
            if address.fragment and target in pages:
                assert unquote(address.fragment) in pages[target].ids, f"{path.relative_to(site)}: {link}"


@pytest.mark.timeout(600)
def test_no_page_requests_anything_from_another_host(site):
    for path in site.rglob("*.html"):
        for address in Page(path).fetched:
            assert not urlsplit(address).netloc, f"{path.relative_to(site)}: {address}"
    for path in site.rglob("*.css"):
        for address in re.findall(r"url\(([^)]*)\)|@import\s+([^;]+)", path.read_text(encoding="utf-8")):
            assert "//" not in "".join(address).replace("http://www.w3.org", ""), f"{path.name}: {address}"


@pytest.mark.timeout(600)
def test_search_has_an_index_that_needs_no_server(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    assert "equival" in index  # a stemmed word of judging.md


def test_recipe_pages_are_up_to_date():
    for path, text in recipes.build_pages().items():
        if path.suffix == ".md":
            assert path.read_text(encoding="utf-8") == text, "run python -m tools.recipes"
        else:
            assert path.is_file(), "run python -m tools.recipes"


def test_every_recipe_is_listed_under_a_question_with_what_it_varies():
    text = (ROOT / "docs" / "recipes" / "index.md").read_text(encoding="utf-8")
    for name in list_recipes():
        assert re.search(
            rf"^\| \[{name}\]\({name}\.md\) \| \S.* \| \S+ \| [\d.]+ (min|h) \|$", text, flags=re.MULTILINE
        )


def test_the_reference_names_every_command_option_part_and_key():
    commands = reference.commands()
    for name, command in get_command(app).commands.items():
        assert f"## h2h {name}\n" in commands
        for parameter in command.params:
            assert all(option in commands for option in parameter.opts if option.startswith("--"))
    parts = reference.parts()
    for part in registry.list_part_classes():
        if part.__module__.startswith("headtohead.nn"):
            assert f"| `{part.kind}` |" in parts
    keys = reference.expand((ROOT / "docs" / "reference" / "experiments.md").read_text(encoding="utf-8"))
    assert all(f"| `{key}` |" in keys for key in Experiment.model_fields if key != "name")


def test_every_key_of_experiment_files_is_described():
    text = reference.expand((ROOT / "docs" / "reference" / "experiments.md").read_text(encoding="utf-8"))
    assert "generated:" not in text
    assert [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []
