"""The `Table` of a report, as data. The HTML, terminal, Markdown, CSV and LaTeX renderers accept the same objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headtohead.presentation.number_format import MISSING_VALUE


@dataclass(frozen=True)
class Cell:
    """A cell: formatted `text` for people, and the plain `value` for CSV files."""

    text: str
    value: Any = None
    short_text: str = ""
    """replaces `text` where a table would otherwise be too wide, such as a score without its interval"""
    color: str = ""
    """color of the text in the terminal"""


def format_plain_value(value: Any) -> str:
    """Return `str(value)`, or a dash for None."""
    return MISSING_VALUE if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """A column heading. Numeric columns are right-aligned."""

    name: str
    title: str
    is_numeric: bool = False
    is_optional: bool = False
    """dropped by the terminal, rightmost first, if the table does not fit"""
    format: Callable[[Any], str] = format_plain_value
    """converts the values that `make_table` gets for this column to text, unless they are cells"""


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

    def measure_longest_cell(self, column_index: int) -> int:
        """Return the length of the longest cell in a column, excluding its title."""
        return max((len(row[column_index].text) for row in self.rows), default=0)


def make_table(name: str, title: str, caption: str, columns: Iterable[Column], rows: Iterable[Iterable[Any]]) -> Table:
    """Return a table. Values in `rows` that are not cells are formatted by their column."""
    columns = tuple(columns)
    cells = (
        tuple(
            value if isinstance(value, Cell) else Cell(column.format(value), value)
            for column, value in zip(columns, row, strict=True)
        )
        for row in rows
    )
    return Table(name, title, caption, columns, tuple(cells))


def make_text_columns(*names: str | Mapping[str, str], **titles: str) -> list[Column]:
    """Return left-aligned columns. Plain names double as titles; mappings and keyword arguments map names to titles."""
    mappings = ({name: name} if isinstance(name, str) else name for name in names)
    return [Column(name, title) for mapping in (*mappings, titles) for name, title in mapping.items()]


def make_numeric_columns(
    *names: str | Mapping[str, str],
    format: Callable[[Any], str] = format_plain_value,
    is_optional: bool = False,
    **titles: str,
) -> list[Column]:
    """Return right-aligned columns of a table, named as in `make_text_columns`; `format` converts values to text."""
    columns = make_text_columns(*names, **titles)
    return [replace(column, is_numeric=True, is_optional=is_optional, format=format) for column in columns]
