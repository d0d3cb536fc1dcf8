"""Sections of a report: a title and blocks in reading order. Every renderer iterates over the same sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from headtohead.presentation.chart import Chart
from headtohead.presentation.table import Table


@dataclass(frozen=True)
class Paragraph:
    """Text, optionally with a lead-in in bold. The HTML page uses `style` as a CSS class."""

    kind: ClassVar[str] = "paragraph"
    text: str
    style: Literal["", "notes", "about", "warning"] = ""
    lead: str = ""


@dataclass(frozen=True)
class Subheading:
    """A heading inside a section."""

    kind: ClassVar[str] = "subheading"
    text: str


@dataclass(frozen=True)
class BulletList:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    items: Sequence[str]


@dataclass(frozen=True)
class VerdictCard:
    """A verdict as the top of a report shows it."""

    variant: str
    outcome: str
    summary: str
    sign: str
    notes: str = ""


@dataclass(frozen=True)
class VerdictList:
    """Verdicts as cards."""

    kind: ClassVar[str] = "verdicts"
    rows: Sequence[VerdictCard]


@dataclass(frozen=True)
class Figure:
    """A chart with a caption."""

    kind: ClassVar[str] = "figure"
    chart: Chart
    caption: str


@dataclass(frozen=True)
class TableBlock:
    """A table. With a `summary`, the HTML page folds it behind that line. `layout` is a CSS class."""

    kind: ClassVar[str] = "table"
    table: Table
    summary: str = ""
    is_open: bool = False
    layout: str = "stack"


@dataclass(frozen=True)
class Facts:
    """Names and values, such as the versions of the libraries used."""

    kind: ClassVar[str] = "facts"
    items: Mapping[str, str]


@dataclass(frozen=True)
class Code:
    """Preformatted text, folded behind `summary` if there is one."""

    kind: ClassVar[str] = "code"
    text: str
    summary: str = ""


@dataclass(frozen=True)
class HtmlBlock:
    """Content with a template of its own on the HTML page. Other renderers show `tables` instead."""

    kind: ClassVar[str] = "html"
    template: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()


Block = Paragraph | Subheading | BulletList | VerdictList | Figure | TableBlock | Facts | Code | HtmlBlock


@dataclass(frozen=True)
class Section:
    """One section of a report. `short_title` is its entry in the page's navigation; without one it has none."""

    name: str
    title: str
    blocks: Sequence[Block]
    short_title: str = ""
    count: str = ""
    """shown beside the title"""
    is_headline: bool = False
    """precedes the navigation"""

    @property
    def tables(self) -> list[Table]:
        tables: list[Table] = []
        for block in self.blocks:
            if isinstance(block, TableBlock):
                tables.append(block.table)
            elif isinstance(block, HtmlBlock):
                tables += block.tables
        return tables

    @property
    def charts(self) -> list[Chart]:
        return [block.chart for block in self.blocks if isinstance(block, Figure)]


def make_table_blocks(*tables: Table, layout: str = "stack") -> list[Block]:
    """Return a block for each table that has rows."""
    return [TableBlock(table, layout=layout) for table in tables if table.rows]
