"""Tables for other people's documents: Markdown, CSV, LaTeX (booktabs). Everything is escaped for where it goes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from headtohead.distillation import tables as distillation_tables
from headtohead.presentation import number_format
from headtohead.presentation.table import Table
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings
from headtohead.search import phrasing

LONG = 24
MANY = 6
MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~])")
LATEX = {
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
    number_format.SPACE: r"\,",
}


def markdown_text(text: str) -> str:
    """One line of plain words, whatever is in it."""
    return MARKDOWN.sub(r"\\\1", " ".join(text.split(" "))).replace("\r", " ").replace("\n", " ")


def markdown(table: Table) -> str:
    """A table of the kind that GitHub and most others read, its caption above."""
    head = [markdown_text(column.title) for column in table.columns]
    rule = ["---:" if column.is_figure else "---" for column in table.columns]
    rows = [[markdown_text(cell.text) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *rows)]
    return "\n".join([markdown_text(table.caption), "", *lines, ""])


def markdown_report(findings: Findings, tables: Sequence[Table]) -> str:
    """The question, the verdicts, and every table."""
    lines = [f"# {markdown_text(findings_view.question(findings))}", ""]
    for row in (*distillation_tables.lead(findings), *findings_view.verdicts(findings)):
        lines += [f"- **{markdown_text(row['word'])}**: {markdown_text(row['sentence'])}"]
    if said := phrasing.sentences(findings):
        lines += ["", *(f"- {markdown_text(sentence)}" for sentence in said)]
    for table in tables:
        lines += ["", f"## {markdown_text(table.title)}", "", markdown(table).rstrip()]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
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
            cells += _two(cell.value) if i in pairs else [_plain(cell.value)]
        write.writerow(cells)
    return file.getvalue()


def _two(value: Any) -> list[Any]:
    return [_plain(end) for end in value] if isinstance(value, list | tuple) else ["", ""]


def _plain(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value  # a spreadsheet would run it as a formula
    return value if isinstance(value, str | int | float) else json.dumps(value)


def latex_text(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.splitlines()))


def latex(table: Table) -> str:
    r"""A floating table with \caption and \label; it needs the booktabs package."""
    columns = "".join(_latex_column(table, i) for i in range(len(table.columns)))
    head = " & ".join(latex_text(column.title) for column in table.columns) + r" \\"
    rows = [" & ".join(latex_text(cell.text) for cell in row) + r" \\" for row in table.rows]
    label = re.sub(r"[^a-zA-Z0-9-]+", "-", table.name)
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        *([r"\footnotesize\setlength{\tabcolsep}{3pt}"] if len(table.columns) > MANY else []),
        rf"\caption{{{latex_text(f'{table.title}. {table.caption}'.strip())}}}",
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


def _latex_column(table: Table, at: int) -> str:
    """Figures to the right; long words, such as an audit's sentences, in a column that breaks lines."""
    if table.columns[at].is_figure:
        return "r"
    long = [i for i, column in enumerate(table.columns) if not column.is_figure and _longest(table, i) > LONG]
    return rf"p{{{min(0.3, 0.5 / len(long)):.2g}\linewidth}}" if at in long else "l"


def _longest(table: Table, at: int) -> int:
    return max((len(row[at].text) for row in table.rows), default=0)
