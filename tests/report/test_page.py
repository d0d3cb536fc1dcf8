import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headtohead.report import notebook, page

from .typed import typed

Findings = dict[str, Any]
HOSTILE = "</script><b>bold</b>&\"'"


class Reader(HTMLParser):
    """What a browser would find: elements with their attributes, headings, and the text in between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.inside: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tag)
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"h1", "h2"} & set(self.inside):
            self.headings[-1] += data
        if not {"script", "style"} & set(self.inside):
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def text(written: Path) -> str:
    return written.read_text()


def test_the_page_needs_nothing_from_anywhere(text: str) -> None:
    found = Reader(text)
    assert not {tag for tag, _ in found.elements} & {"link", "iframe", "object", "embed", "base", "form"}
    assert all("src" not in attributes for _, attributes in found.elements)
    links = [value for _, attributes in found.elements for key, value in attributes.items() if key.endswith("href")]
    assert links
    assert all(str(link).startswith(("#", "data:image/png;base64,")) for link in links)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text)
    assert "@import" not in text
    (policy,) = [m["content"] for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none';")


def test_the_page_is_small(text: str) -> None:
    assert len(text) < 1_000_000


def test_sections_come_in_the_order_in_which_they_are_read(text: str) -> None:
    assert Reader(text).headings == [
        "Does ALiBi help <here>?",
        "Verdicts1 helped, 1 no practical difference",
        "Changed settings",
        "Scores",
        "Training",
        "Samples",
        "Probe sentences",
        "Attention maps before and after training",
        "Cost",
        "Proof of pairing",
        "Audits",
        "Data and leakage",
        "Published results",
        "How to reproduce",
    ]


def test_every_verdict_is_there_as_a_sentence(text: str, findings: Callable[..., Findings]) -> None:
    words = Reader(text).words
    for row in findings()["verdicts"]:
        assert row["summary"] in words


def test_what_users_and_models_wrote_is_text_and_never_markup(text: str) -> None:
    found = Reader(text)
    assert found.words.count(HOSTILE) > 5
    assert "bold" not in re.findall(r"<b>(\w+)</b>", text)
    assert len(found.all("script")) == 2
    assert not [tag for tag, attributes in found.elements if any(key.startswith("on") for key in attributes)]


def test_the_findings_travel_with_the_page(text: str, findings: Callable[..., Findings]) -> None:
    (data,) = re.findall(r'<script type="application/json" id="findings">(.*?)</script>', text)
    assert "<" not in data
    assert json.loads(data) == typed(findings()).to_json()


def test_every_picture_has_words_and_every_table_a_caption(text: str) -> None:
    found = Reader(text)
    pictures = [a for _, a in found.elements if a.get("role") == "img"]
    assert len(pictures) >= 4 + 4
    assert all(len(str(a.get("aria-label"))) > 40 for a in pictures)
    assert len(found.all("caption")) == len(found.all("table"))
    assert [a for a in found.all("html") if a.get("lang") == "en"]
    assert all(a.get("scope") in ("col", "row") for a in found.all("th"))


def test_charts_follow_the_dark_in_every_colour_they_use(text: str) -> None:
    from headtohead.presentation import style

    for light, dark in style.DARK_MODE_COLORS.items():
        assert f'.h2h svg [fill="{light}"] {{ fill: {dark}; }}' in text.replace("&#34;", '"')
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_the_same_findings_give_the_same_page(findings: Callable[..., Findings]) -> None:
    found = {"curves": findings({"v": 0.1})["curves"]}
    assert page.render_page(typed(found)) == page.render_page(typed(found)), "clip paths are counted anew for each page"


def test_ids_are_unique(text: str) -> None:
    ids = [a["id"] for _, a in Reader(text).elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_verdicts_alone_make_a_page(findings: Callable[..., Findings]) -> None:
    rows = findings({"v": 0.05}, metric="accuracy")["verdicts"]
    found = Reader(page.render_page(typed({"verdicts": rows})))
    assert found.headings == ["Did it help?", "Verdict", "How to reproduce"]
    assert "accuracy" in found.words


def test_warnings_stand_before_the_verdicts(plain: Callable[..., Findings]) -> None:
    found = plain({"v": 0.05, "w": 0.0})
    found["rows"] = "unseen"
    found["failures"] = [{"variant": "v", "seed": 2, "message": "the worker was killed"}]
    found["pairing"]["w"]["equal_tensors"] = 1
    found["pairing"]["v"]["changes_multiple_settings"] = True
    found["audits"]["v"][0]["passed"] = False
    words = Reader(page.render_page(typed(found))).words
    top = words.split("Verdicts")[0]
    assert "The verdict uses unseen rows only" in top
    assert "1 trial has no result" in top
    assert "Not paired: w." in top
    assert "v changes several settings" in words
    assert "the worker was killed" in words
    assert words.index("procedure of cache") < words.index("baseline: 1 passed, 1 does not apply")


def test_a_classifier_s_page_shows_which_class_is_taken_for_which(plain: Callable[..., Findings]) -> None:
    found = plain({"v": 0.05}, metric="accuracy")
    found |= {"confusion": {"labels": ["<i>", "b"], "matrices": {"v": [[3, 1], [0, 4]]}}}
    text = page.render_page(typed(found))
    assert "Confusion matrices" in Reader(text).headings
    assert "--share: 0.750" in text
    assert "predicted <i>" in Reader(text).words


class Result(notebook.NotebookReportMixin):
    """Something with findings."""

    def __init__(self, found: Findings, folder: Path | None = None) -> None:
        self.found, self.folder = found, folder

    def shown_findings(self) -> Any:
        return typed(self.found)

    def shown_folder(self) -> Path | None:
        return self.folder


def test_a_notebook_shows_the_report_without_touching_the_rest_of_its_page(
    plain: Callable[..., Findings], folder: Callable[[Findings], Path]
) -> None:
    found = plain({"v": -0.08})
    bundle = Result(found, folder(found))._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[0] == "Does ALiBi help <here>?"
    assert bundle["text/plain"].splitlines()[1].startswith("  v helped: ")
    html = bundle["text/html"]
    assert "Attention maps before and after training" in Reader(html).headings
    assert not {tag for tag, _ in Reader(html).elements} & {"html", "body", "head", "meta"}
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    selectors = [line.split("{")[0].strip() for line in style.splitlines() if "{" in line and "@media" not in line]
    assert selectors
    assert all(one.startswith(".h2h") for selector in selectors for one in re.split(r", (?=\.)", selector))


def test_charts_display_by_themselves(findings: Callable[..., Findings]) -> None:
    shown = notebook.build_notebook_charts(typed({"verdicts": findings({"v": -0.08})["verdicts"]}))
    bundle = shown["forest"]._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg")
    assert "v: helped" in bundle["text/plain"]


def test_something_without_findings_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"NotebookReportMixin does not implement shown_findings\(\)"):
        notebook.NotebookReportMixin()._repr_html_()
