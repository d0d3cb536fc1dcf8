"""Tables as data. The HTML, terminal, Markdown, CSV and LaTeX renderers take the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A cell: formatted `text` for people, and the plain `value` for CSV files."""

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
    """the same data with one number per row, written to CSV files instead"""


def make_text_cell(text: Any) -> Cell:
    """Return a cell that shows `str(text)`."""
    return Cell(str(text), text)


def make_table(name: str, title: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> Table:
    """Return a table; sequences are converted to tuples."""
    return Table(name, title, caption, tuple(columns), tuple(tuple(row) for row in rows))


def make_text_table(name: str, titles: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """Return a table without numeric columns or caption; each value is shown as `str(value)`."""
    return make_table(
        name,
        title,
        "",
        [Column(column_title, column_title) for column_title in titles],
        [map_cells(row) for row in rows],
    )


def map_cells(values: Iterable[Any]) -> list[Cell]:
    """Return a text cell for each value."""
    return [make_text_cell(value) for value in values]
