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
from headtohead.config.recipe_catalog import list_recipes
from headtohead.nn.parts import registry
from tools import recipes, reference

PROJECT_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site with warnings as errors."""
    site_folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        str(PROJECT_ROOT / "docs"),
        str(site_folder),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return site_folder


class Page(HTMLParser):
    """The element ids and links of a page, and the URLs that a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched_urls: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids.add(attributes.get("id", ""))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        self.fetched_urls += [attributes[name] for name in ("src", "srcset", "data", "poster") if name in attributes]
        if tag == "link" and attributes.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.fetched_urls.append(attributes["href"])


@pytest.mark.timeout(600)
def test_links_lead_to_existing_pages_and_headings(site):
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
def test_pages_request_nothing_from_other_hosts(site):
    for path in site.rglob("*.html"):
        for address in Page(path).fetched_urls:
            assert not urlsplit(address).netloc, f"{path.relative_to(site)}: {address}"
    for path in site.rglob("*.css"):
        for address in re.findall(r"url\(([^)]*)\)|@import\s+([^;]+)", path.read_text(encoding="utf-8")):
            assert "//" not in "".join(address).replace("http://www.w3.org", ""), f"{path.name}: {address}"


@pytest.mark.timeout(600)
def test_search_index_needs_no_server(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    assert "equival" in index  # a stemmed word of judging.md


def test_recipe_pages_are_up_to_date():
    for path, text in recipes.build_pages().items():
        if path.suffix == ".md":
            assert path.read_text(encoding="utf-8") == text, "run python -m tools.recipes"
        else:
            assert path.is_file(), "run python -m tools.recipes"


def test_recipes_are_listed_with_what_they_vary():
    text = (PROJECT_ROOT / "docs" / "recipes" / "index.md").read_text(encoding="utf-8")
    for name in list_recipes():
        assert re.search(
            rf"^\| \[{name}\]\({name}\.md\) \| \S.* \| \S+ \| \S.* \| [\d.]+ (min|h) \|$", text, flags=re.MULTILINE
        )


def test_reference_lists_every_command_option_part_and_key():
    commands = reference.build_commands_page()
    for name, command in get_command(app).commands.items():
        assert f"## h2h {name}\n" in commands
        for parameter in command.params:
            assert all(option in commands for option in parameter.opts if option.startswith("--"))
    for part in registry.list_part_classes():
        if part.__module__.startswith("headtohead."):
            assert f"| `{part.kind}` |" in reference.build_slot_page(part.slot)
    keys = reference.expand_placeholders(
        (PROJECT_ROOT / "docs" / "reference" / "experiments.md").read_text(encoding="utf-8")
    )
    assert all(f"| `{key}` |" in keys for key in Experiment.model_fields if key != "name")


def test_keys_of_experiment_files_are_described():
    text = reference.expand_placeholders(
        (PROJECT_ROOT / "docs" / "reference" / "experiments.md").read_text(encoding="utf-8")
    )
    assert "generated:" not in text
    assert [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []
