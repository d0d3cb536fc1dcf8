"""Place the user's own text, the `[[text]]` blocks in an experiment file, among a report's sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headtohead.config.tables.report_text import ReportText
from headtohead.presentation.section import Section, UserText


def place_user_texts(sections: Sequence[Section], texts: Sequence[ReportText]) -> list[Section]:
    """Add each text to its section or, if it has a title, as a separate section after it.

    A text whose section does not appear in this report is placed at the end.
    """
    placed_sections = list(sections)
    for number, text in enumerate(texts, start=1):
        index = next((i for i, section in enumerate(placed_sections) if section.name == text.section), None)
        text_block = UserText(text.markdown)
        if text.section == "introduction":
            title = text.title or "Introduction"
            placed_sections.insert(
                _count_introduction_sections(placed_sections),
                Section(f"text-{number}", title, [text_block], is_headline=True),
            )
        elif text.title or index is None:
            title = text.title or "Remarks"
            own_section = Section(f"text-{number}", title, [text_block], title)
            placed_sections.insert(len(placed_sections) if index is None else index + 1, own_section)
        else:
            section = placed_sections[index]
            blocks = [text_block, *section.blocks] if text.position == "before" else [*section.blocks, text_block]
            # The user's text is always shown, so the section is no longer replaced with its summary.
            placed_sections[index] = replace(section, blocks=blocks, summary="")
    return placed_sections


def _count_introduction_sections(sections: Sequence[Section]) -> int:
    """Return the number of introductions placed so far, which come first in the report."""
    return sum(section.name.startswith("text-") and section.is_headline for section in sections)
