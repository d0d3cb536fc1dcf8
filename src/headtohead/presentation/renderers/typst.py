"""Render sections as a typeset PDF document with the typst compiler, which works offline.

All text from users and models is passed to typst as string literals, so it cannot contain commands.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from headtohead.errors import ChartError, MissingExtraError
from headtohead.presentation.number_format import MISSING_VALUE
from headtohead.presentation.renderers.user_markdown import MarkupSyntax, render_user_markup
from headtohead.presentation.section import (
    Block,
    BulletList,
    CodeBlock,
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

MAX_UNWRAPPED_CHARACTERS = 22
"""text columns with a longer cell share the remaining width and wrap"""
FONT_SIZES_POINTS = (8.5, 7.6, 6.8)
"""font sizes of tables; the largest that fits the page is used"""
CHARACTER_WIDTH = 0.5
"""mean width of a character relative to the font size, rounded up"""
COLUMN_PADDING_POINTS = 8
MIN_WRAPPED_COLUMN_POINTS = 80
MAX_COLUMNS = 11
"""tables with more columns are split"""
MAX_UNBROKEN_ROWS = 20
"""shorter tables stay on one page"""
TEXT_WIDTH_POINTS = 476
"""width of the text on an A4 page with the margins below"""
MAX_IMAGE_WIDTH_POINTS = 48
IMAGE_GUTTER_POINTS = 6
"""distance between small images"""
PIXEL_LABEL_SIZE_POINTS = 5
CHART_SCALE = 0.6
"""charts are designed for a screen of about 800 pixels"""
MIN_CHART_SCALE = 0.5
"""charts are too small to read below this scale"""
MAX_CHART_HEIGHT_POINTS = 300
"""two charts with their captions fit on a page, so that a chart seldom leaves a gap on the page before it"""
MAX_PAGE_CHART_HEIGHT_POINTS = 620
"""height of charts that the limit above would make too small to read: up to a page"""
MAX_INLINE_HEIGHT_POINTS = 400
"""higher charts float to the top of a page, and the text after them fills the gap"""
MEDIA_BOX_PATTERN = re.compile(rb"/MediaBox\s*\[\s*\S+\s+\S+\s+([\d.]+)\s+([\d.]+)")
TODAY_EXPRESSION = 'datetime.today().display("[day padding:none] [month repr:long] [year]")'
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
    """Typeset a PDF document with a title, introductory paragraphs and sections; figures and tables are numbered."""
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
        lines = [PREAMBLE, f"#set document(title: {_quote_typst(title)})"]
        lines.append(f"#block(below: 0.8em, text(size: 18pt, weight: 700, hyphenate: false, {_quote_typst(title)}))")
        lines.append(f"#block(below: 1.4em, text(fill: luma(90), {TODAY_EXPRESSION}))")
        lines += [f"#par[{_render_typst_inline_code(paragraph)}]" for paragraph in introduction]
        sections = list(sections)
        for section in sections:
            if section is sections[-1]:
                lines.append("#place.flush()")  # no floating chart after the last section
            lines.append(f"#heading(level: 1, {_quote_typst(section.title)})")
            for block in section.blocks:
                lines += self._render_typst_block(block)
        return "\n".join(lines) + "\n"

    def _render_typst_block(self, block: Block) -> list[str]:
        """Return a section's block as typst markup."""
        match block:
            case Paragraph():
                lead = f"#strong({_quote_typst(block.lead)}) " if block.lead else ""
                return [f"#par[{lead}{_render_typst_inline_code(block.text)}]"]
            case UserText():
                return [render_user_markup(block.markdown, TYPST_SYNTAX)]
            case Subheading():
                return [f"#heading(level: 2, numbering: none, {_quote_typst(block.text)})"]
            case BulletList():
                return [f"#list({', '.join(_quote_typst(item) for item in block.items)})"]
            case VerdictList():
                return [f"#par({_quote_typst(card.summary)})" for card in block.cards]
            case KeyValueList():
                return [f"#list({', '.join(_quote_typst(f'{name}: {value}') for name, value in block.items.items())})"]
            case CodeBlock():
                title = [f"#heading(level: 2, numbering: none, {_quote_typst(block.summary)})"] if block.summary else []
                return [*title, f"#raw({_quote_typst(block.text)}, block: true)"]
            case Figure():
                try:
                    data = block.chart.render("pdf")
                except ChartError as error:
                    return [f"#par({_quote_typst(block.chart.warn_not_rendered(error))})"]
                alt_text = _quote_typst(block.chart.alt_text)
                image = (
                    f"image({self._save_image(data, 'pdf')}, width: {_choose_typst_chart_width(data)}, alt: {alt_text})"
                )
                is_high = _choose_typst_max_chart_height(_measure_pdf_page(data)[1]) > MAX_INLINE_HEIGHT_POINTS
                placement = "auto" if is_high else "none"
                return [f"#figure({image}, caption: {_quote_typst(block.caption)}, placement: {placement})"]
            case TableBlock():
                return [_render_typst_table(block.table)]
            case HtmlBlock():
                tables = [_render_typst_table(table) for table in block.tables if table.rows]
                return tables + [self._render_image_grid(grid) for grid in block.image_grids]

    def _render_image_grid(self, grid: ImageGrid) -> str:
        """Return a figure of small images, each above its label."""
        num_columns = max(len(row) for row in grid.rows)
        label_width = CHARACTER_WIDTH * PIXEL_LABEL_SIZE_POINTS * max(map(len, grid.pixel_labels), default=0)
        image_space = TEXT_WIDTH_POINTS - label_width - IMAGE_GUTTER_POINTS * (num_columns + 1)
        width = min(MAX_IMAGE_WIDTH_POINTS, image_space / num_columns)
        cells = []
        for row in grid.rows:
            cells += [_render_pixel_labels(grid.pixel_labels, width)] if grid.pixel_labels else []
            cells += [
                f'stack(spacing: 2pt, image({self._save_image(image.png, "png")}, width: 100%, scaling: "pixelated", '
                f"alt: {_quote_typst(image.alt_text)}), align(center, text(size: 6pt, {_quote_typst(image.label)})))"
                for image in row
            ]
            cells += ["[]"] * (num_columns - len(row))
        label_columns = "(auto,) + " if grid.pixel_labels else ""
        layout = f"columns: {label_columns}({width:.1f}pt,) * {num_columns}, gutter: {IMAGE_GUTTER_POINTS}pt"
        return f"#figure(grid({layout}, {', '.join(cells)}), caption: {_quote_typst(grid.caption)})"

    def _save_image(self, data: bytes, suffix: str) -> str:
        """Write an image into the folder and return its file name as a typst string."""
        self.num_images += 1
        path = self.folder / f"image-{self.num_images}.{suffix}"
        path.write_bytes(data)
        return _quote_typst(path.name)


def _render_pixel_labels(labels: Sequence[str], height: float) -> str:
    """Return the labels of the pixel rows of a square image, as tall as the image."""
    texts = ", ".join(f"text(size: {PIXEL_LABEL_SIZE_POINTS}pt, {_quote_typst(label)})" for label in labels)
    return f"grid(rows: ({height / len(labels):.2f}pt,) * {len(labels)}, align: right + horizon, {texts})"


def _choose_typst_chart_width(pdf: bytes) -> str:
    """Return a chart's width in a PDF: scaled to match the text size, but never wider or higher than the page."""
    width, height = _measure_pdf_page(pdf)
    if not width:
        return "100%"
    return (
        f"{min(TEXT_WIDTH_POINTS, CHART_SCALE * width, _choose_typst_max_chart_height(height) * width / height):.0f}pt"
    )


def _choose_typst_max_chart_height(height: float) -> float:
    """Return the height in points to which a chart is limited: more for charts that would be too small to read."""
    return max(MAX_CHART_HEIGHT_POINTS, min(MAX_PAGE_CHART_HEIGHT_POINTS, MIN_CHART_SCALE * height))


def _measure_pdf_page(pdf: bytes) -> tuple[float, float]:
    """Return the width and height of a PDF's first page, or zeros if they are not found."""
    box = MEDIA_BOX_PATTERN.search(pdf)
    return (float(box[1]), float(box[2])) if box else (0.0, 0.0)


def _quote_typst(text: str) -> str:
    """Return text as a typst string literal."""
    # Typst writes all remaining code points as \u{...}.
    escaped_text = "".join(
        character if character.isprintable() or character == "\n" else f"\\u{{{ord(character):x}}}"
        for character in text.replace("\\", "\\\\").replace('"', '\\"')
    )
    return f'"{escaped_text}"'


def _render_typst_inline_code(text: str) -> str:
    """Return text as typst content, with backticked words set as code."""
    spans = text.split("`")
    if len(spans) % 2 == 0:
        return f"#{_quote_typst(text)}"
    return "".join(
        f"#raw({_quote_typst(span)})" if index % 2 else f"#{_quote_typst(span)}" for index, span in enumerate(spans)
    )


TYPST_SYNTAX = MarkupSyntax(
    escape=lambda text: f"#{_quote_typst(text)}",
    code=lambda text: f"#raw({_quote_typst(text)})",
    code_block=lambda text: f"#raw({_quote_typst(text)}, block: true)\n",
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


def _render_typst_table(table: Table) -> str:
    """Return a numbered typst table with horizontal rules. Its header repeats on every page.

    A table with many columns is split into several tables, one below the other, each of which begins with the columns
    that identify a row.
    """
    column_groups = _split_typst_columns(table)
    font_size = _choose_typst_font_size(table, column_groups)
    caption = f"{table.title}. {table.caption}".strip(" .") + "."
    bodies = "; v(4pt); ".join(_render_typst_columns(table, group) for group in column_groups)
    styled_body = f"{{ set text(size: {font_size}pt); set par(justify: false); {bodies} }}"
    is_short = len(column_groups) * len(table.rows) <= MAX_UNBROKEN_ROWS and not _has_wrapped_typst_column(table)
    keep_together = "show figure: set block(breakable: false); " if is_short else ""
    return f"#{{ {keep_together}figure(kind: table, {styled_body}, caption: {_quote_typst(caption)}) }}"


def _choose_typst_font_size(table: Table, column_groups: Sequence[Sequence[int]]) -> float:
    """Return the largest font size in points at which no cell except column titles has to wrap."""
    widest = max(sum(_measure_typst_column(table, index) for index in group) for group in column_groups)
    paddings = max(len(group) for group in column_groups) * COLUMN_PADDING_POINTS
    wrapped = max(sum(_wraps_in_typst(table, index) for index in group) for group in column_groups)
    available = TEXT_WIDTH_POINTS - paddings - wrapped * MIN_WRAPPED_COLUMN_POINTS
    fitting_sizes = [size for size in FONT_SIZES_POINTS if widest * size <= available]
    return fitting_sizes[0] if fitting_sizes else FONT_SIZES_POINTS[-1]


def _measure_typst_column(table: Table, column_index: int) -> float:
    """Return the width of a column's longest cell, or of the longest word of its title, relative to the font size.

    Columns whose text wraps have no minimum width.
    """
    if _wraps_in_typst(table, column_index):
        return 0.0
    longest_title_word = max(map(len, table.columns[column_index].title.split()), default=0)
    return CHARACTER_WIDTH * max(longest_title_word, table.measure_longest_cell(column_index))


def _split_typst_columns(table: Table) -> list[list[int]]:
    """Return the column indices of each part of a table that is too wide for a PDF page.

    Optional columns without values are omitted.
    """
    indices = [
        index
        for index, column in enumerate(table.columns)
        if not column.is_optional or any(row[index].text not in ("", MISSING_VALUE) for row in table.rows)
    ]
    if len(indices) <= MAX_COLUMNS:
        return [indices]
    is_first_unique = len({row[0].text for row in table.rows}) == len(table.rows)
    num_key_columns = 1 if is_first_unique else 2  # such as variant and step
    key_columns, value_columns = indices[:num_key_columns], indices[num_key_columns:]
    num_groups = math.ceil(len(value_columns) / (MAX_COLUMNS - num_key_columns))
    group_size = math.ceil(len(value_columns) / num_groups)
    return [
        [*key_columns, *value_columns[index * group_size : (index + 1) * group_size]] for index in range(num_groups)
    ]


def _render_typst_columns(table: Table, indices: Sequence[int]) -> str:
    """Return the given columns of a table as typst code."""
    columns = [table.columns[index] for index in indices]
    widths = ", ".join(_choose_typst_column_width(table, index) for index in indices)
    alignments = ", ".join("right" if column.is_numeric else "left" for column in columns)
    header = ", ".join(f"strong({_quote_typst(column.title)})" for column in columns)
    rule, thin_rule = "table.hline()", "table.hline(stroke: 0.5pt)"
    groups = [list(rows) for _, rows in itertools.groupby(table.rows, key=lambda row: row[0].text)]
    # Groups of rows that begin with the same text, such as the evaluations of a variant, are separated.
    separator = ["table.hline(stroke: 0.5pt + luma(180))"] if len(groups) < len(table.rows) else []
    lines: list[str] = []
    for group in groups:
        lines += separator if lines else []
        lines += [", ".join(_quote_typst(row[index].text) for index in indices) for row in group]
    content = ", ".join([rule, f"table.header({header})", thin_rule, *lines, rule])
    return f"table(columns: ({widths},), align: ({alignments},), {content})"


def _choose_typst_column_width(table: Table, column_index: int) -> str:
    """Return "1fr" for columns with long text, so that they wrap, and "auto" for all others."""
    return "1fr" if _wraps_in_typst(table, column_index) else "auto"


def _has_wrapped_typst_column(table: Table) -> bool:
    """Return whether a column of the table wraps, so that the table may be longer than its number of rows."""
    return any(_wraps_in_typst(table, index) for index in range(len(table.columns)))


def _wraps_in_typst(table: Table, column_index: int) -> bool:
    """Return whether a column has text so long that it wraps."""
    is_text = not table.columns[column_index].is_numeric
    return is_text and table.measure_longest_cell(column_index) > MAX_UNWRAPPED_CHARACTERS
