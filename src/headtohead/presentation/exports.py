"""Tables for other people's documents: Markdown, CSV, LaTeX (booktabs). Everything is escaped for where it goes."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

from headtohead.presentation import number_format
from headtohead.presentation.table import Table

MAX_UNWRAPPED_LENGTH = 24
MAX_NORMAL_SIZE_COLUMNS = 6
MARKDOWN_SPECIAL_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#|~])")
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


def escape_markdown(text: str) -> str:
    """One line of plain words, whatever is in it."""
    return MARKDOWN_SPECIAL_CHARACTERS.sub(r"\\\1", " ".join(text.split(" "))).replace("\r", " ").replace("\n", " ")


def render_markdown_table(table: Table) -> str:
    """A table of the kind that GitHub and most others read, its caption above."""
    head = [escape_markdown(column.title) for column in table.columns]
    rule = ["---:" if column.is_numeric else "---" for column in table.columns]
    rows = [[escape_markdown(cell.text) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *rows)]
    return "\n".join([escape_markdown(table.caption), "", *lines, ""])


def render_csv(table: Table) -> str:
    """The plain values; an interval takes two columns, low and high."""
    file = io.StringIO()
    pairs = {i for row in table.rows for i, cell in enumerate(row) if isinstance(cell.value, list | tuple)}
    write = csv.writer(file, lineterminator="\n")
    head: list[str] = []
    for i, column in enumerate(table.columns):
        head += [f"{column.name}_low", f"{column.name}_high"] if i in pairs else [column.name]
    write.writerow(head)
    for row in table.rows:
        cells: list[Any] = []
        for i, cell in enumerate(row):
            cells += _split_interval(cell.value) if i in pairs else [_format_csv_value(cell.value)]
        write.writerow(cells)
    return file.getvalue()


def _split_interval(value: Any) -> list[Any]:
    return [_format_csv_value(end) for end in value] if isinstance(value, list | tuple) else ["", ""]


def _format_csv_value(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value  # a spreadsheet would run it as a formula
    return value if isinstance(value, str | int | float) else json.dumps(value)


def escape_latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(letter, letter) for letter in " ".join(text.splitlines()))


def render_latex_table(table: Table) -> str:
    r"""A floating table with \caption and \label; it needs the booktabs package."""
    columns = "".join(_choose_latex_column_type(table, i) for i in range(len(table.columns)))
    head = " & ".join(escape_latex(column.title) for column in table.columns) + r" \\"
    rows = [" & ".join(escape_latex(cell.text) for cell in row) + r" \\" for row in table.rows]
    label = re.sub(r"[^a-zA-Z0-9-]+", "-", table.name)
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        *([r"\footnotesize\setlength{\tabcolsep}{3pt}"] if len(table.columns) > MAX_NORMAL_SIZE_COLUMNS else []),
        rf"\caption{{{escape_latex(f'{table.title}. {table.caption}'.strip())}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _choose_latex_column_type(table: Table, column_index: int) -> str:
    """Figures to the right; long words, such as an audit's sentences, in a column that breaks lines."""
    if table.columns[column_index].is_numeric:
        return "r"
    long = [
        i
        for i, column in enumerate(table.columns)
        if not column.is_numeric and _measure_longest_cell(table, i) > MAX_UNWRAPPED_LENGTH
    ]
    return rf"p{{{min(0.3, 0.5 / len(long)):.2g}\linewidth}}" if column_index in long else "l"


def _measure_longest_cell(table: Table, column_index: int) -> int:
    return max((len(row[column_index].text) for row in table.rows), default=0)
