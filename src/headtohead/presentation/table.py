"""What a table is made of. A cell has the words that people read, and the plain value that a CSV file is to hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What is read, and what is meant."""

    text: str
    value: Any = None


@dataclass(frozen=True)
class Column:
    """A heading; figures stand to the right, words to the left."""

    name: str
    title: str
    is_numeric: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its caption."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def make_text_cell(text: Any) -> Cell:
    return Cell(str(text), text)


def make_table(name: str, title: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> Table:
    return Table(name, title, caption, tuple(columns), tuple(tuple(row) for row in rows))
