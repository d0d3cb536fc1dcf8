"""Render sections as one LaTeX document with numbered figures and booktabs tables. All text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from headtohead.presentation import number_format
from headtohead.presentation.file_names import sanitize_file_name
from headtohead.presentation.renderers.user_markdown import MarkupSyntax, render_user_markup
from headtohead.presentation.section import (
    Block,
    BulletList,
    CodeBlock,
    Figure,
    HtmlBlock,
    KeyValueList,
    Paragraph,
    Section,
    Subheading,
    TableBlock,
    UserText,
    VerdictList,
)
from headtohead.presentation.table import Table

MAX_UNWRAPPED_CHARACTERS = 24
"""text columns with a longer cell wrap"""
MAX_NORMAL_SIZE_COLUMNS = 6
"""tables with more columns are set in smaller type"""
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "−": r"$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "–": "--",
    "’": "'",
    "“": "``",
    "”": "''",
    number_format.NO_BREAK_SPACE: r"\,",
}

PREAMBLE = r"""\documentclass[a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[margin=2.2cm]{geometry}
\usepackage{booktabs,graphicx}
"""


def escape_latex(text: str) -> str:
    """Escape LaTeX characters and join lines."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in " ".join(text.splitlines()))


def _render_latex_verbatim(text: str) -> str:
    """Return text as a verbatim environment, which the text cannot end."""
    return (
        "\\begin{verbatim}\n" + text.replace("\\end{verbatim}", "\\ end{verbatim}").rstrip("\n") + "\n\\end{verbatim}\n"
    )


LATEX_SYNTAX = MarkupSyntax(
    escape=escape_latex,
    code=lambda text: rf"\texttt{{{escape_latex(text)}}}",
    code_block=_render_latex_verbatim,
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


def render_latex_sections(
    title: str, introduction: Sequence[str], sections: Iterable[Section], charts_folder: str
) -> str:
    """Return a LaTeX document that includes the charts NAME.pdf from `charts_folder`."""
    lines = [PREAMBLE, rf"\title{{{escape_latex(title)}}}", r"\date{\today}", r"\begin{document}", r"\maketitle"]
    lines += [f"{escape_latex(paragraph)}\n" for paragraph in introduction]
    for section in sections:
        lines.append(rf"\section{{{escape_latex(section.title)}}}")
        for block in section.blocks:
            lines += _render_latex_block(block, charts_folder)
    return "\n".join([*lines, r"\end{document}", ""])


def _render_latex_block(block: Block, charts_folder: str) -> list[str]:
    """Return a section's block as LaTeX lines."""
    match block:
        case UserText():
            return [render_user_markup(block.markdown, LATEX_SYNTAX)]
        case Paragraph():
            lead = rf"\textbf{{{escape_latex(block.lead)}}} " if block.lead else ""
            return [f"{lead}{escape_latex(block.text)}\n"]
        case Subheading():
            return [rf"\subsection*{{{escape_latex(block.text)}}}"]
        case BulletList():
            return _render_latex_list(block.items)
        case VerdictList():
            return [f"{escape_latex(card.summary)}\n" for card in block.cards]
        case KeyValueList():
            return _render_latex_list([f"{name}: {value}" for name, value in block.items.items()])
        case CodeBlock():
            title = [rf"\subsection*{{{escape_latex(block.summary)}}}"] if block.summary else []
            return [*title, _render_latex_verbatim(block.text)]
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


def _render_latex_list(items: Iterable[str]) -> list[str]:
    return [r"\begin{itemize}", *(rf"\item {escape_latex(item)}" for item in items), r"\end{itemize}"]


def render_latex_table(table: Table) -> str:
    r"""Return a floating table with \caption and \label. It needs the booktabs package."""
    columns = "".join(_choose_latex_column_type(table, column_index) for column_index in range(len(table.columns)))
    header = " & ".join(escape_latex(column.title) for column in table.columns) + r" \\"
    rows = [" & ".join(escape_latex(cell.text) for cell in row) + r" \\" for row in table.rows]
    label = re.sub(r"[^a-zA-Z0-9-]+", "-", table.name)
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        *([r"\footnotesize\setlength{\tabcolsep}{3pt}"] if len(table.columns) > MAX_NORMAL_SIZE_COLUMNS else []),
        rf"\caption{{{escape_latex(f'{table.title}. {table.caption}'.strip(' .') + '.')}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        header,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _choose_latex_column_type(table: Table, column_index: int) -> str:
    """Return r for numbers, l for short text, and a wrapping paragraph column for long text."""
    if table.columns[column_index].is_numeric:
        return "r"
    wrapped_columns = [
        index
        for index, column in enumerate(table.columns)
        if not column.is_numeric and table.measure_longest_cell(index) > MAX_UNWRAPPED_CHARACTERS
    ]
    return rf"p{{{min(0.3, 0.5 / len(wrapped_columns)):.2g}\linewidth}}" if column_index in wrapped_columns else "l"
