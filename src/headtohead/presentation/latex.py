"""Render sections as one LaTeX document with numbered figures and tables. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headtohead.presentation.exports import escape_latex, render_latex_table, sanitize_file_name
from headtohead.presentation.section import (
    Block,
    BulletList,
    Code,
    Facts,
    Figure,
    HtmlBlock,
    Paragraph,
    Section,
    Subheading,
    TableBlock,
    UserText,
    VerdictList,
)
from headtohead.presentation.user_text import MarkupSyntax, render_markup

PREAMBLE = r"""\documentclass[a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[margin=2.2cm]{geometry}
\usepackage{booktabs,graphicx}
"""


def _write_verbatim(text: str) -> str:
    return (
        "\\begin{verbatim}\n" + text.replace("\\end{verbatim}", "\\ end{verbatim}").rstrip("\n") + "\n\\end{verbatim}\n"
    )


LATEX_SYNTAX = MarkupSyntax(
    escape=escape_latex,
    code=lambda text: rf"\texttt{{{escape_latex(text)}}}",
    code_block=_write_verbatim,
    templates={
        "strong": r"\textbf{{}}",
        "em": r"\emph{{}}",
        "paragraph": "{}\n\n",
        "heading": "\\subsection*{{}}\n",
        "blockquote": "\\begin{quote}\n{}\\end{quote}\n",
        "bullet_list": "\\begin{itemize}\n{}\\end{itemize}\n",
        "ordered_list": "\\begin{enumerate}\n{}\\end{enumerate}\n",
        "list_item": "\\item {}",
    },
)


def render_document(title: str, introduction: Sequence[str], sections: Iterable[Section], charts_folder: str) -> str:
    """Return a LaTeX document that includes the charts NAME.pdf of `charts_folder`."""
    lines = [PREAMBLE, rf"\title{{{escape_latex(title)}}}", r"\date{}", r"\begin{document}", r"\maketitle"]
    lines += [f"{escape_latex(paragraph)}\n" for paragraph in introduction]
    for section in sections:
        lines.append(rf"\section{{{escape_latex(section.title)}}}")
        for block in section.blocks:
            lines += _render_block(block, charts_folder)
    return "\n".join([*lines, r"\end{document}", ""])


def _render_block(block: Block, charts_folder: str) -> list[str]:
    match block:
        case UserText():
            return [render_markup(block.markdown, LATEX_SYNTAX)]
        case Paragraph():
            lead = rf"\textbf{{{escape_latex(block.lead)}}} " if block.lead else ""
            return [f"{lead}{escape_latex(block.text)}\n"]
        case Subheading():
            return [rf"\subsection*{{{escape_latex(block.text)}}}"]
        case BulletList():
            return _render_list(block.items)
        case VerdictList():
            return [f"{escape_latex(row.summary)}\n" for row in block.rows]
        case Facts():
            return _render_list([f"{name}: {fact}" for name, fact in block.items.items()])
        case Code():
            return [] if block.summary else [_write_verbatim(block.text)]
        case Figure():
            name = sanitize_file_name(block.chart.name)
            size = r"width=\linewidth,height=0.8\textheight,keepaspectratio"
            image = rf"\includegraphics[{size}]{{{charts_folder}/{name}.pdf}}"
            caption = rf"\caption{{{escape_latex(block.caption)}}}"
            return [r"\begin{figure}[htbp]", r"\centering", image, caption, rf"\label{{fig:{name}}}", r"\end{figure}"]
        case TableBlock():
            return [render_latex_table(block.table)]
        case HtmlBlock():
            return [render_latex_table(table) for table in block.tables if table.rows]


def _render_list(items: Iterable[str]) -> list[str]:
    return [r"\begin{itemize}", *(rf"\item {escape_latex(item)}" for item in items), r"\end{itemize}"]
