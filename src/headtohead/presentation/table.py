"""Tables as data: every renderer (HTML, terminal, Markdown, CSV, LaTeX) takes the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """The text that people read and the plain value that a CSV file holds."""

    text: str
    value: Any = None
    short_text: str = ""
    """replaces `text` where a table would otherwise be too wide, such as a score without its interval"""


@dataclass(frozen=True)
class Column:
    """A column heading. Numeric columns are aligned right."""

    name: str
    title: str
    is_numeric: bool = False
    is_optional: bool = False
    """dropped by the terminal, rightmost first, if the table does not fit"""


@dataclass(frozen=True)
class Table:
    """A table with a title and a caption."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    long_form: Table | None = None
    """the same data with one number per row, which CSV files hold instead"""


def make_text_cell(text: Any) -> Cell:
    return Cell(str(text), text)


def make_table(name: str, title: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> Table:
    return Table(name, title, caption, tuple(columns), tuple(tuple(row) for row in rows))


def make_text_table(name: str, titles: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """Return a table without numeric columns or caption; each value is shown as `str(value)`."""
    return make_table(name, title, "", [Column(one, one) for one in titles], [map_cells(row) for row in rows])


def map_cells(values: Iterable[Any]) -> list[Cell]:
    return [make_text_cell(value) for value in values]
