"""Render sections as a typeset PDF document with the typst compiler, which works offline.

All text from users and models is passed to typst as string literals, so it cannot contain commands.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from headtohead.errors import ChartError, MissingExtraError
from headtohead.presentation.number_format import MISSING_VALUE
from headtohead.presentation.renderers.user_text import MarkupSyntax, render_markup
from headtohead.presentation.section import (
    Block,
    BulletList,
    Code,
    Figure,
    HtmlBlock,
    ImageGrid,
    KeyValueList,
    Paragraph,
    Section,
    Subheading,
    TableBlock,
    UserText,
    VerdictList,
)
from headtohead.presentation.table import Table

WIDE_COLUMN_LENGTH = 22
"""a text column with a longer cell shares the remaining width and wraps"""
NORMAL_SIZE_COLUMNS, MAX_COLUMNS = 6, 11
TEXT_WIDTH = 476
"""width of the text on an A4 page with the margins below, in points"""
CHART_SCALE = 0.6
"""charts are designed for a screen of about 800 pixels"""
MAX_IMAGE_WIDTH, IMAGE_GUTTER = 48, 6
"""the width of small images and the distance between them, in points"""
MAX_CHART_HEIGHT = 300
"""two charts with their captions fit on a page, so that a chart seldom leaves a gap on the page before it"""
MEDIA_BOX_PATTERN = re.compile(rb"/MediaBox\s*\[\s*\S+\s+\S+\s+([\d.]+)\s+([\d.]+)")
DATE = 'datetime.today().display("[day padding:none] [month repr:long] [year]")'
PREAMBLE = """\
#set page(paper: "a4", margin: (x: 2.1cm, y: 2.2cm), numbering: "1")
#set text(font: "Libertinus Serif", size: 10.5pt, lang: "en")
#set par(justify: true)
#set heading(numbering: "1")
#show heading: set block(above: 1.4em, below: 0.8em, sticky: true)
#show figure.caption: set text(size: 0.86em)
#show figure.caption: set par(justify: false)
#show figure.where(kind: table): set figure.caption(position: top)
#show figure.where(kind: table): set block(breakable: true)
#show figure.caption.where(position: top): it => block(sticky: true, it)
#show raw.where(block: true): set text(size: 8.5pt)
#set table(stroke: none, inset: (x: 4pt, y: 3pt))
"""


def render_pdf(title: str, introduction: Sequence[str], sections: Iterable[Section]) -> bytes:
    """Return a PDF document with a title, introductory paragraphs and sections; figures and tables are numbered."""
    try:
        import typst
    except ImportError:
        raise MissingExtraError("typst", "pdf", "a PDF report") from None
    with tempfile.TemporaryDirectory() as folder_name:
        document = TypstDocument(Path(folder_name))
        source = document.render(title, introduction, sections)
        (document.folder / "report.typ").write_text(source, encoding="utf-8")
        return bytes(typst.compile(document.folder / "report.typ", root=document.folder))


class TypstDocument:
    """A document's typst source. The images that it includes are written to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_images = 0

    def render(self, title: str, introduction: Sequence[str], sections: Iterable[Section]) -> str:
        """Return the complete document source."""
        lines = [PREAMBLE, f"#set document(title: {_quote(title)})"]
        lines.append(f"#block(below: 0.8em, text(size: 18pt, weight: 700, hyphenate: false, {_quote(title)}))")
        lines.append(f"#block(below: 1.4em, text(fill: luma(90), {DATE}))")
        lines += [f"#par[{_render_inline_code(paragraph)}]" for paragraph in introduction]
        for section in sections:
            lines.append(f"#heading(level: 1, {_quote(section.title)})")
            for block in section.blocks:
                lines += self._render_block(block)
        return "\n".join(lines) + "\n"

    def _render_block(self, block: Block) -> list[str]:
        """Return a block as typst markup."""
        match block:
            case Paragraph():
                lead = f"#strong({_quote(block.lead)}) " if block.lead else ""
                return [f"#par[{lead}{_render_inline_code(block.text)}]"]
            case UserText():
                return [render_markup(block.markdown, TYPST_SYNTAX)]
            case Subheading():
                return [f"#heading(level: 2, numbering: none, {_quote(block.text)})"]
            case BulletList():
                return [f"#list({', '.join(_quote(item) for item in block.items)})"]
            case VerdictList():
                return [f"#par({_quote(row.summary)})" for row in block.rows]
            case KeyValueList():
                return [f"#list({', '.join(_quote(f'{name}: {fact}') for name, fact in block.items.items())})"]
            case Code():
                title = [f"#heading(level: 2, numbering: none, {_quote(block.summary)})"] if block.summary else []
                return [*title, f"#raw({_quote(block.text)}, block: true)"]
            case Figure():
                try:
                    data = block.chart.render("pdf")
                except ChartError as error:
                    return [f"#par({_quote(block.chart.warn_not_rendered(error))})"]
                alt_text = _quote(block.chart.alt_text)
                image = f"image({self._save_image(data, 'pdf')}, width: {_choose_chart_width(data)}, alt: {alt_text})"
                return [f"#figure({image}, caption: {_quote(block.caption)})"]
            case TableBlock():
                return [_render_table(block.table)]
            case HtmlBlock():
                tables = [_render_table(table) for table in block.tables if table.rows]
                return tables + [self._render_image_grid(grid) for grid in block.image_grids]

    def _render_image_grid(self, grid: ImageGrid) -> str:
        """Return a figure of small images, each above its label."""
        num_columns = max(len(row) for row in grid.rows)
        cells = []
        for row in grid.rows:
            cells += [
                f'stack(spacing: 2pt, image({self._save_image(image.png, "png")}, width: 100%, scaling: "pixelated", '
                f"alt: {_quote(image.alt_text)}), align(center, text(size: 6pt, {_quote(image.label)})))"
                for image in row
            ]
            cells += ["[]"] * (num_columns - len(row))
        width = min(MAX_IMAGE_WIDTH, (TEXT_WIDTH - IMAGE_GUTTER * num_columns) / num_columns)
        layout = f"columns: ({width:.1f}pt,) * {num_columns}, gutter: {IMAGE_GUTTER}pt"
        return f"#figure(grid({layout}, {', '.join(cells)}), caption: {_quote(grid.caption)})"

    def _save_image(self, data: bytes, suffix: str) -> str:
        self.num_images += 1
        path = self.folder / f"image-{self.num_images}.{suffix}"
        path.write_bytes(data)
        return _quote(path.name)


def _choose_chart_width(pdf: bytes) -> str:
    """Return a chart's width: scaled to match the text size, but never wider or taller than the page."""
    box = MEDIA_BOX_PATTERN.search(pdf)
    if box is None:
        return "100%"
    width, height = float(box[1]), float(box[2])
    return f"{min(TEXT_WIDTH, CHART_SCALE * width, MAX_CHART_HEIGHT * width / height):.0f}pt"


def _quote(text: str) -> str:
    """Return text as a typst string literal."""
    # Typst writes all remaining code points as \u{...}.
    escaped = "".join(
        character if character.isprintable() or character == "\n" else f"\\u{{{ord(character):x}}}"
        for character in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped}"'


def _render_inline_code(text: str) -> str:
    """Return text as typst content, with backticked words set as code."""
    spans = text.split("`")
    if len(spans) % 2 == 0:
        return f"#{_quote(text)}"
    return "".join(f"#raw({_quote(span)})" if index % 2 else f"#{_quote(span)}" for index, span in enumerate(spans))


TYPST_SYNTAX = MarkupSyntax(
    escape=lambda text: f"#{_quote(text)}",
    code=lambda text: f"#raw({_quote(text)})",
    code_block=lambda text: f"#raw({_quote(text)}, block: true)\n",
    templates={
        "strong": "#strong[{}]",
        "em": "#emph[{}]",
        "paragraph": "#par[{}]\n",
        "heading": "#heading(level: 2, numbering: none)[{}]\n",
        "blockquote": "#quote(block: true)[{}]\n",
        "bullet_list": "#list({})\n",
        "ordered_list": "#enum({})\n",
        "list_item": "[{}], ",
    },
)


def _render_table(table: Table) -> str:
    """Return a numbered table with horizontal rules. Its header repeats on every page.

    A table with many columns is split into several tables, one below the other, each of which begins with the columns
    that identify a row.
    """
    groups = _group_columns(table)
    size = "8.5pt" if len(groups) == 1 and len(groups[0]) <= NORMAL_SIZE_COLUMNS else "6.8pt"
    caption = f"{table.title}. {table.caption}".strip(" .") + "."
    bodies = "; v(4pt); ".join(_render_columns(table, group) for group in groups)
    styled_body = f"{{ set text(size: {size}); set par(justify: false); {bodies} }}"
    return f"#figure(kind: table, {styled_body}, caption: {_quote(caption)})"


def _group_columns(table: Table) -> list[list[int]]:
    """Return the column indices for each part of a table, without optional columns that have no values."""
    indices = [
        index
        for index, column in enumerate(table.columns)
        if not column.is_optional or any(row[index].text not in ("", MISSING_VALUE) for row in table.rows)
    ]
    if len(indices) <= MAX_COLUMNS:
        return [indices]
    is_first_unique = len({row[0].text for row in table.rows}) == len(table.rows)
    num_keys = 1 if is_first_unique else 2  # such as variant and step
    keys, others = indices[:num_keys], indices[num_keys:]
    num_groups = math.ceil(len(others) / (MAX_COLUMNS - num_keys))
    size = math.ceil(len(others) / num_groups)
    return [[*keys, *others[index * size : (index + 1) * size]] for index in range(num_groups)]


def _render_columns(table: Table, indices: Sequence[int]) -> str:
    """Return the given table columns as typst code."""
    columns = [table.columns[index] for index in indices]
    widths = ", ".join(_choose_width(table, index) for index in indices)
    alignments = ", ".join("right" if column.is_numeric else "left" for column in columns)
    header = ", ".join(f"strong({_quote(column.title)})" for column in columns)
    rows = [", ".join(_quote(row[index].text) for index in indices) for row in table.rows]
    rule, thin_rule = "table.hline()", "table.hline(stroke: 0.5pt)"
    content = ", ".join([rule, f"table.header({header})", thin_rule, *rows, rule])
    return f"table(columns: ({widths},), align: ({alignments},), {content})"


def _choose_width(table: Table, column_index: int) -> str:
    """Return "1fr" for columns with long text, so that they wrap, and "auto" for all others."""
    is_text = not table.columns[column_index].is_numeric
    return "1fr" if is_text and table.measure_longest_cell(column_index) > WIDE_COLUMN_LENGTH else "auto"
