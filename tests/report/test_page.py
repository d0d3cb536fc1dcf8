import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headtohead.report import notebook, page

from .make_findings import make_findings

RawFindings = dict[str, Any]
HOSTILE = "</script><b>bold</b>&\"'"


class PageParser(HTMLParser):
    """HTML parser that collects elements with their attributes, headings and text."""

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

    def find_all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def text(report_path: Path) -> str:
    return report_path.read_text()


def test_the_page_loads_nothing_from_other_places(text: str) -> None:
    result = PageParser(text)
    assert not {tag for tag, _ in result.elements} & {"link", "iframe", "object", "embed", "base", "form"}
    assert all("src" not in attributes for _, attributes in result.elements)
    links = [value for _, attributes in result.elements for key, value in attributes.items() if key.endswith("href")]
    assert links
    assert all(str(link).startswith(("#", "data:image/png;base64,")) for link in links)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text)
    assert "@import" not in text
    (policy,) = [m["content"] for m in result.find_all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none';")


def test_the_page_is_small(text: str) -> None:
    assert len(text) < 1_000_000


def test_sections_come_in_the_order_in_which_they_are_read(text: str) -> None:
    assert PageParser(text).headings == [
        "Does ALiBi help <here>?",
        "Verdicts1 helped, 1 no practical difference",
        "Changed settings",
        "Scores",
        "Training",
        "Seed by seed",
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


def test_the_page_contains_the_sentence_of_every_verdict(text: str, raw_findings: Callable[..., RawFindings]) -> None:
    words = PageParser(text).words
    for row in raw_findings()["verdicts"]:
        assert row["summary"] in words


def test_text_of_users_and_models_is_never_markup(text: str) -> None:
    result = PageParser(text)
    assert result.words.count(HOSTILE) > 5
    assert "bold" not in re.findall(r"<b>(\w+)</b>", text)
    assert len(result.find_all("script")) == 2
    assert not [tag for tag, attributes in result.elements if any(key.startswith("on") for key in attributes)]


def test_the_page_contains_the_findings_as_json(text: str, raw_findings: Callable[..., RawFindings]) -> None:
    (data,) = re.findall(r'<script type="application/json" id="findings">(.*?)</script>', text)
    assert "<" not in data
    assert json.loads(data) == make_findings(raw_findings()).to_json()


def test_every_picture_has_a_text_alternative_and_every_table_a_caption(text: str) -> None:
    result = PageParser(text)
    pictures = [a for _, a in result.elements if a.get("role") == "img"]
    assert len(pictures) >= 4 + 4
    assert all(len(str(a.get("aria-label"))) > 40 for a in pictures)
    assert len(result.find_all("caption")) == len(result.find_all("table"))
    assert [a for a in result.find_all("html") if a.get("lang") == "en"]
    assert all(a.get("scope") in ("col", "row") for a in result.find_all("th"))


def test_every_chart_color_has_a_dark_mode_counterpart(text: str) -> None:
    from headtohead.presentation import style

    for light, dark in style.DARK_MODE_COLORS.items():
        assert f'.h2h svg [fill="{light}"] {{ fill: {dark}; }}' in text.replace("&#34;", '"')
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_the_same_findings_give_the_same_page(raw_findings: Callable[..., RawFindings]) -> None:
    result = {"curves": raw_findings({"v": 0.1})["curves"]}
    assert page.render_page(make_findings(result)) == page.render_page(make_findings(result)), (
        "clip paths are counted anew for each page"
    )


def test_ids_are_unique(text: str) -> None:
    ids = [a["id"] for _, a in PageParser(text).elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_verdicts_alone_make_a_page(raw_findings: Callable[..., RawFindings]) -> None:
    rows = raw_findings({"v": 0.05}, metric="accuracy")["verdicts"]
    result = PageParser(page.render_page(make_findings({"verdicts": rows})))
    assert result.headings == ["Did it help?", "Verdict", "How to reproduce"]
    assert "accuracy" in result.words


def test_warnings_precede_the_verdicts(raw_findings_without_curves: Callable[..., RawFindings]) -> None:
    result = raw_findings_without_curves({"v": 0.05, "w": 0.0})
    result["rows"] = "unseen"
    result["failures"] = [{"variant": "v", "seed": 2, "message": "the worker was killed"}]
    result["pairing"]["w"]["equal_tensors"] = 1
    result["pairing"]["v"]["changes_multiple_settings"] = True
    result["audits"]["v"][0]["passed"] = False
    words = PageParser(page.render_page(make_findings(result))).words
    top = words.split("Verdicts")[0]
    assert "The verdict uses unseen rows only" in top
    assert "1 trial has no result" in top
    assert "Not paired: w." in top
    assert "v changes several settings" in words
    assert "the worker was killed" in words
    assert words.index("procedure of cache") < words.index("baseline: 1 passed, 1 does not apply")


def test_a_classifier_s_page_shows_confusion_matrices(raw_findings_without_curves: Callable[..., RawFindings]) -> None:
    result = raw_findings_without_curves({"v": 0.05}, metric="accuracy")
    result |= {"confusion": {"labels": ["<i>", "b"], "matrices": {"v": [[3, 1], [0, 4]]}}}
    text = page.render_page(make_findings(result))
    assert "Confusion matrices" in PageParser(text).headings
    assert "--share: 0.750" in text
    assert "predicted <i>" in PageParser(text).words


class ResultWithFindings(notebook.NotebookReportMixin):
    """An object with findings."""

    def __init__(self, findings: RawFindings, folder: Path | None = None) -> None:
        self.findings, self.folder = findings, folder

    def shown_findings(self) -> Any:
        return make_findings(self.findings)

    def shown_folder(self) -> Path | None:
        return self.folder


def test_a_notebook_shows_the_report_without_touching_the_rest_of_its_page(
    raw_findings_without_curves: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path]
) -> None:
    result = raw_findings_without_curves({"v": -0.08})
    bundle = ResultWithFindings(result, write_folder(result))._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[0] == "Does ALiBi help <here>?"
    assert bundle["text/plain"].splitlines()[1].startswith("  v helped: ")
    html = bundle["text/html"]
    assert "Attention maps before and after training" in PageParser(html).headings
    assert not {tag for tag, _ in PageParser(html).elements} & {"html", "body", "head", "meta"}
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    selectors = [line.split("{")[0].strip() for line in style.splitlines() if "{" in line and "@media" not in line]
    assert selectors
    assert all(item.startswith(".h2h") for selector in selectors for item in re.split(r", (?=\.)", selector))


def test_charts_display_themselves_in_notebooks(raw_findings: Callable[..., RawFindings]) -> None:
    notebook_charts = notebook.build_notebook_charts(
        make_findings({"verdicts": raw_findings({"v": -0.08})["verdicts"]})
    )
    bundle = notebook_charts["forest"]._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg")
    assert "v: helped" in bundle["text/plain"]


def test_a_mixin_without_findings_is_reported() -> None:
    with pytest.raises(NotImplementedError, match=r"NotebookReportMixin does not implement shown_findings\(\)"):
        notebook.NotebookReportMixin()._repr_html_()
