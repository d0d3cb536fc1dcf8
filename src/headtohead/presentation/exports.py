"""Render sections and tables as Markdown, CSV and LaTeX (booktabs). All text is escaped for its format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from headtohead.presentation import number_format
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
from headtohead.presentation.table import Table

MAX_UNWRAPPED_LENGTH = 24
MAX_NORMAL_SIZE_COLUMNS = 6
MARKDOWN_SPECIAL_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#|~])")
FORMULA_START = re.compile(r"[\s\x00-\x1f\u200b\ufeff]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]|[\t\r]")
"""text that spreadsheets evaluate; they skip white space and accept full-width characters"""
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


def sanitize_file_name(name: str) -> str:
    """Replace characters that are invalid in file names. Table names can contain user-defined variant names."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "table"


def escape_markdown(text: str) -> str:
    """Escape Markdown characters and join lines."""
    return MARKDOWN_SPECIAL_CHARACTERS.sub(r"\\\1", " ".join(text.split(" "))).replace("\r", " ").replace("\n", " ")


def render_markdown_table(table: Table) -> str:
    """Return a table in GitHub Flavored Markdown, preceded by its caption."""
    header = [escape_markdown(column.title) for column in table.columns]
    alignments = ["---:" if column.is_numeric else "---" for column in table.columns]
    rows = [[escape_markdown(cell.text) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(line) + " |" for line in (header, alignments, *rows)]
    return "\n".join([*([escape_markdown(table.caption), ""] if table.caption else []), *lines, ""])


def render_markdown_sections(sections: Iterable[Section], charts_folder: str = "") -> str:
    """Return every section with its text and tables. HTML blocks are replaced by their tables.

    Figures link to NAME.svg in `charts_folder`; without it, they are omitted.
    """
    lines: list[str] = []
    num_figures = 0
    for section in sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Figure):
                num_figures += 1
                if charts_folder:
                    path = f"{charts_folder}/{sanitize_file_name(block.chart.name)}.svg"
                    lines += [f"![{escape_markdown(block.chart.alt_text)}]({path})", ""]
                    lines += [f"*Figure {num_figures}: {escape_markdown(block.caption)}*", ""]
            else:
                lines += _render_markdown_block(block, section.title)
    return "\n".join(lines).rstrip() + "\n"


def _render_markdown_block(block: Block, section_title: str) -> list[str]:
    match block:
        case UserText():
            return [block.markdown.strip(), ""]
        case Paragraph():
            lead = f"**{escape_markdown(block.lead)}** " if block.lead else ""
            return [lead + escape_markdown(block.text), ""]
        case Subheading():
            return [f"### {escape_markdown(block.text)}", ""]
        case BulletList():
            return [*(f"- {escape_markdown(item)}" for item in block.items), ""]
        case VerdictList():
            rows = block.rows
            return [*(f"- **{escape_markdown(row.outcome)}**: {escape_markdown(row.summary)}" for row in rows), ""]
        case Facts():
            facts = block.items.items()
            return [*(f"- {escape_markdown(name)}: {escape_markdown(fact)}" for name, fact in facts), ""]
        case Code():
            return [] if block.summary else ["```", *block.text.replace("```", "").splitlines(), "```", ""]
        case TableBlock():
            return _render_titled_table(block.table, section_title)
        case HtmlBlock():
            return [line for table in block.tables for line in _render_titled_table(table, section_title)]
    return []


def _render_titled_table(table: Table, section_title: str) -> list[str]:
    """Return a table below its title, unless that is the title of the section."""
    title = [f"### {escape_markdown(table.title)}", ""] if table.title not in ("", section_title) else []
    return [*title, render_markdown_table(table)]


def render_csv(table: Table) -> str:
    """Return the plain values of a table, in long form if it has one.

    An interval is written to two columns, NAME_low and NAME_high.
    """
    table = table.long_form or table
    file = io.StringIO()
    interval_columns = {
        column_index
        for row in table.rows
        for column_index, cell in enumerate(row)
        if isinstance(cell.value, list | tuple)
    }
    writer = csv.writer(file, lineterminator="\n")
    header: list[str] = []
    for column_index, column in enumerate(table.columns):
        header += [f"{column.name}_low", f"{column.name}_high"] if column_index in interval_columns else [column.name]
    writer.writerow(header)
    for row in table.rows:
        cells: list[Any] = []
        for column_index, cell in enumerate(row):
            cells += (
                _split_interval(cell.value) if column_index in interval_columns else [_format_csv_value(cell.value)]
            )
        writer.writerow(cells)
    return file.getvalue()


def _split_interval(value: Any) -> list[Any]:
    """Return both ends of an interval, or two empty cells if the value is missing."""
    return [_format_csv_value(end) for end in value] if isinstance(value, list | tuple) else ["", ""]


def _format_csv_value(value: Any) -> Any:
    """Return a value that the csv module can write. Missing and non-finite numbers become empty."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and FORMULA_START.match(value):
        return "'" + value  # otherwise a spreadsheet would evaluate it as a formula
    return value if isinstance(value, str | int | float) else json.dumps(value)


def escape_latex(text: str) -> str:
    """Escape LaTeX characters and join lines."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in " ".join(text.splitlines()))


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
    """Return r for numbers, l for short text, and a paragraph column that wraps for long text."""
    if table.columns[column_index].is_numeric:
        return "r"
    wrapped_columns = [
        index
        for index, column in enumerate(table.columns)
        if not column.is_numeric and _measure_longest_cell(table, index) > MAX_UNWRAPPED_LENGTH
    ]
    return rf"p{{{min(0.3, 0.5 / len(wrapped_columns)):.2g}\linewidth}}" if column_index in wrapped_columns else "l"


def _measure_longest_cell(table: Table, column_index: int) -> int:
    """Return the length of the longest cell of a column."""
    return max((len(row[column_index].text) for row in table.rows), default=0)
