"""The user's own text appears next to the charts, in the same order in every format, and its markup is escaped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from headtohead.config.tables.report_text import ReportSection
from headtohead.errors import ConfigError
from headtohead.presentation.renderers import user_markdown
from headtohead.presentation.renderers.latex import LATEX_SYNTAX
from headtohead.presentation.renderers.typst import render_pdf
from headtohead.report import page, write
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_latex_document, render_markdown_document
from headtohead.report.sections import build_sections

from .make_findings import make_findings

RawFindings = dict[str, Any]
TEXTS = [
    {"markdown": "We *compare* two models. <script>alert(1)</script> [link](javascript:alert(1)) $5 & 50 % #1"},
    {"section": "cost", "markdown": "The loss falls.\n\n- first\n- **second**"},
    {"section": "cost", "title": "Discussion", "markdown": "## Why\n\n`code_1`\n\n```\nverbatim_2\n```"},
    {"section": "claims", "markdown": "This report has no claims."},
]


@pytest.fixture
def context(raw_findings_without_curves: Callable[..., RawFindings]) -> ReportContext:
    result = raw_findings_without_curves({"v": -0.08})
    result["experiment"]["text"] = TEXTS
    return ReportContext(make_findings(result))


def test_texts_stand_in_their_sections(context: ReportContext) -> None:
    sections = build_sections(context)
    names = [section.name for section in sections]
    assert names[:2] == ["text-1", "verdicts"]
    cost = names.index("cost")
    assert sections[cost].blocks[0].markdown.startswith("The loss falls.")
    assert (sections[cost + 1].title, names[-1], sections[-1].title) == ("Discussion", "text-4", "Remarks")


def test_every_format_has_the_same_order_and_escapes_the_text(context: ReportContext) -> None:
    html = page.render_page(context.findings)
    assert "&lt;script&gt;alert(1)" in html and "<em>compare</em>" in html and 'href="javascript' not in html
    latex = render_latex_document(context)
    assert r"We \emph{compare} two models" in latex
    assert r"\$5 \& 50 \% \#1" in latex
    assert "\\begin{verbatim}\nverbatim_2\n\\end{verbatim}" in latex
    assert r"\includegraphics[" in latex and "{report-charts/forest.pdf}" in latex and r"\caption{" in latex
    markdown = render_markdown_document(context)
    assert "](report-charts/forest.svg)\n\n*Figure 1: " in markdown
    for document in (html, latex, markdown):
        places = [document.index(text) for text in ("compare", "The loss falls", "verbatim_2", "has no claims")]
        assert places == sorted(places)


def test_the_pdf_compiles_whatever_the_text_contains(context: ReportContext) -> None:
    sections = [section for section in build_sections(context) if section.name.startswith("text-")]
    assert render_pdf("Title", [], sections).startswith(b"%PDF")


def test_texts_can_be_written_after_the_run(
    raw_findings_without_curves: Callable[..., RawFindings], write_folder: Callable[[RawFindings], Path], tmp_path: Path
) -> None:
    runs, file = write_folder(raw_findings_without_curves({"v": -0.08})), tmp_path / "text.toml"
    file.write_text('[[text]]\nsection = "curves"\nmarkdown = "Written later."\n')
    (report, *_) = write(runs, ["tex"], text_file=file)
    assert "Written later." in report.read_text()
    file.write_text('[[text]]\nmarkdown = "x"\n\n[[text]]\nsection = "curvs"\nmarkdown = "x"\n')
    with pytest.raises(ConfigError, match=r"text\.1\.section \(line 5\): .*\n *did you mean 'curves'"):
        write(runs, ["tex"], text_file=file)


@pytest.mark.parametrize(
    ("text", "html", "latex"),
    [
        (r"scaled by $\sqrt{d_k} * 2 * x_1$.", r"<code>\sqrt{d_k} * 2 * x_1</code>.", r"\texttt{\textbackslash{}sqrt"),
        ("$$\na^2\n$$", "<code>a^2</code>", r"\texttt{a\textasciicircum{}2}"),
        ("costs $5 and $6", "costs $5 and $6", r"costs \$5 and \$6"),
        ("`$HOME$`", "<code>$HOME$</code>", r"\texttt{\$HOME\$}"),
    ],
)
def test_formulas_are_shown_as_code(text: str, html: str, latex: str) -> None:
    assert html in user_markdown.render_user_html(text)
    assert latex in user_markdown.render_user_markup(text, LATEX_SYNTAX)


def test_every_section_can_be_named(raw_findings: Callable[..., RawFindings]) -> None:
    names = {section.name for section in build_sections(ReportContext(make_findings(raw_findings({"v": -0.08}))))}
    assert names <= set(get_args(ReportSection))
    assert {"verdicts", "curves", "pairs", "maps", "cost"} <= names | {"maps"}
