"""The `Section` of a report: a title and blocks in reading order. Every renderer iterates over the same sections."""

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
    """One verdict in the summary at the top of a report."""

    variant: str
    outcome: str
    summary: str
    notes: str = ""


@dataclass(frozen=True)
class VerdictList:
    """Verdicts, shown as cards on the HTML page."""

    kind: ClassVar[str] = "verdicts"
    cards: Sequence[VerdictCard]


@dataclass(frozen=True)
class Figure:
    """A chart with a caption."""

    kind: ClassVar[str] = "figure"
    chart: Chart
    caption: str


@dataclass(frozen=True)
class TableBlock:
    """A table. The HTML page collapses it under `summary`, if there is one; `layout` is a CSS class.

    Short documents omit the table if `is_detail`.
    """

    kind: ClassVar[str] = "table"
    table: Table
    summary: str = ""
    is_open: bool = False
    layout: str = "stack"
    is_detail: bool = False


@dataclass(frozen=True)
class KeyValueList:
    """Names and values, such as the versions of the libraries used."""

    kind: ClassVar[str] = "facts"
    items: Mapping[str, str]


@dataclass(frozen=True)
class CodeBlock:
    """Preformatted text. If it has a `summary`, the HTML page collapses it under that, and short documents omit it."""

    kind: ClassVar[str] = "code"
    text: str
    summary: str = ""

    @property
    def is_detail(self) -> bool:
        return bool(self.summary)


@dataclass(frozen=True)
class Image:
    """A small PNG image with a label below it."""

    png: bytes
    label: str
    alt_text: str


@dataclass(frozen=True)
class ImageGrid:
    """Rows of small images with a shared caption.

    `pixel_labels` name the pixel rows of every image, from top to bottom.
    """

    rows: Sequence[Sequence[Image]]
    caption: str
    pixel_labels: Sequence[str] = ()


@dataclass(frozen=True)
class HtmlBlock:
    """Content that the HTML page renders with its own `template`.

    Other renderers show `tables` instead and, where supported, `image_grids`.
    """

    kind: ClassVar[str] = "html"
    template: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    image_grids: Sequence[ImageGrid] = ()


@dataclass(frozen=True)
class UserText:
    """The user's Markdown text."""

    kind: ClassVar[str] = "markdown"
    markdown: str


Block = (
    UserText
    | Paragraph
    | Subheading
    | BulletList
    | VerdictList
    | Figure
    | TableBlock
    | KeyValueList
    | CodeBlock
    | HtmlBlock
)


@dataclass(frozen=True)
class Section:
    """One section of a report. The HTML page lists sections with a `short_title` in its navigation."""

    name: str
    title: str
    blocks: Sequence[Block]
    short_title: str = ""
    count: str = ""
    """shown next to the title"""
    is_headline: bool = False
    """shown before the navigation"""
    summary: str = ""
    """one sentence that replaces the section in short documents; the HTML page collapses the section behind it"""

    @property
    def tables(self) -> list[Table]:
        """The tables in all blocks."""
        tables: list[Table] = []
        for block in self.blocks:
            if isinstance(block, TableBlock):
                tables.append(block.table)
            elif isinstance(block, HtmlBlock):
                tables += block.tables
        return tables

    @property
    def charts(self) -> list[Chart]:
        """The charts in all figures."""
        return [block.chart for block in self.blocks if isinstance(block, Figure)]


def make_table_blocks(*tables: Table, layout: str = "stack") -> list[Block]:
    """Return one table block per table that has rows."""
    return [TableBlock(table, layout=layout) for table in tables if table.rows]
