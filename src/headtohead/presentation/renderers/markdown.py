"""Render sections and tables as Markdown. All text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headtohead.presentation.file_names import sanitize_file_name
from headtohead.presentation.section import (
    Block,
    BulletList,
    CodeBlock,
    Figure,
    HtmlBlock,
    KeyValueList,
    Paragraph,
    Section,
    Subheading,
    TableBlock,
    UserText,
    VerdictList,
)
from headtohead.presentation.table import Table

MARKDOWN_SPECIAL_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#|~])")


def escape_markdown(text: str) -> str:
    """Escape Markdown characters and join lines."""
    return MARKDOWN_SPECIAL_CHARACTERS.sub(r"\\\1", " ".join(text.split(" "))).replace("\r", " ").replace("\n", " ")


def render_markdown_table(table: Table) -> str:
    """Return a table in GitHub Flavored Markdown, preceded by its caption."""
    header = [escape_markdown(column.title) for column in table.columns]
    alignments = ["---:" if column.is_numeric else "---" for column in table.columns]
    rows = [[escape_markdown(cell.text) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(line) + " |" for line in (header, alignments, *rows)]
    return "\n".join([*([escape_markdown(table.caption), ""] if table.caption else []), *lines, ""])


def render_markdown_sections(sections: Iterable[Section], charts_folder: str = "") -> str:
    """Return sections as Markdown, with their text and tables. HTML blocks are replaced with their tables.

    Figures link to NAME.svg in `charts_folder`; without it, they are omitted.
    """
    lines: list[str] = []
    num_figures = 0
    for section in sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Figure):
                num_figures += 1
                if charts_folder:
                    path = f"{charts_folder}/{sanitize_file_name(block.chart.name)}.svg"
                    lines += [f"![{escape_markdown(block.chart.alt_text)}]({path})", ""]
                    lines += [f"*Figure {num_figures}: {escape_markdown(block.caption)}*", ""]
            else:
                lines += _render_markdown_block(block, section.title)
    return "\n".join(lines).rstrip() + "\n"


def _render_markdown_block(block: Block, section_title: str) -> list[str]:
    """Return a section's block as Markdown lines."""
    match block:
        case UserText():
            return [block.markdown.strip(), ""]
        case Paragraph():
            lead = f"**{escape_markdown(block.lead)}** " if block.lead else ""
            return [lead + escape_markdown(block.text), ""]
        case Subheading():
            return [f"### {escape_markdown(block.text)}", ""]
        case BulletList():
            return [*(f"- {escape_markdown(item)}" for item in block.items), ""]
        case VerdictList():
            cards = block.cards
            return [*(f"- **{escape_markdown(card.outcome)}**: {escape_markdown(card.summary)}" for card in cards), ""]
        case KeyValueList():
            facts = block.items.items()
            return [*(f"- {escape_markdown(name)}: {escape_markdown(value)}" for name, value in facts), ""]
        case CodeBlock():
            title = [f"### {escape_markdown(block.summary)}", ""] if block.summary else []
            return [*title, "```", *block.text.replace("```", "").splitlines(), "```", ""]
        case TableBlock():
            return _render_titled_markdown_table(block.table, section_title)
        case HtmlBlock():
            return [line for table in block.tables for line in _render_titled_markdown_table(table, section_title)]
    return []


def _render_titled_markdown_table(table: Table, section_title: str) -> list[str]:
    """Return a table as Markdown below its title, which is omitted if it repeats the section's title."""
    title = [f"### {escape_markdown(table.title)}", ""] if table.title not in ("", section_title) else []
    return [*title, render_markdown_table(table)]
