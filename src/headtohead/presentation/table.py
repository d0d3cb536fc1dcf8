"""Tables as data. The HTML, terminal, Markdown, CSV and LaTeX renderers take the same objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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


def make_table(name: str, title: str, caption: str, columns: Iterable[Column], rows: Iterable[Iterable[Any]]) -> Table:
    """Return a table. Values of `rows` that are not cells are shown as `str(value)`."""
    cells = (tuple(value if isinstance(value, Cell) else Cell(str(value), value) for value in row) for row in rows)
    return Table(name, title, caption, tuple(columns), tuple(cells))


def make_text_columns(*names: str, **titles: str) -> list[Column]:
    """Return left-aligned columns. `names` are also their titles; `titles` maps further names to titles."""
    return [Column(name, title) for name, title in (dict(zip(names, names, strict=True)) | titles).items()]


def make_numeric_columns(*names: str, **titles: str) -> list[Column]:
    """Return right-aligned columns. `names` are also their titles; `titles` maps further names to titles."""
    return [replace(column, is_numeric=True) for column in make_text_columns(*names, **titles)]
