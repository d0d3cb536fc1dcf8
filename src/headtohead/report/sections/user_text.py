"""Place the user's own text, the `[[text]]` blocks in an experiment file, among a report's sections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headtohead.config.report_text import ReportText
from headtohead.presentation.section import Section, UserText


def place_texts(sections: Sequence[Section], texts: Sequence[ReportText]) -> list[Section]:
    """Add each text to its section or, if it has a title, as a separate section after it.

    A text whose section does not appear in this report is placed at the end.
    """
    placed = list(sections)
    for number, text in enumerate(texts, start=1):
        index = next((i for i, section in enumerate(placed) if section.name == text.section), None)
        block = UserText(text.markdown)
        if text.section == "introduction":
            title = text.title or "Introduction"
            placed.insert(_count_introductions(placed), Section(f"text-{number}", title, [block], is_headline=True))
        elif text.title or index is None:
            title = text.title or "Remarks"
            own_section = Section(f"text-{number}", title, [block], title)
            placed.insert(len(placed) if index is None else index + 1, own_section)
        else:
            section = placed[index]
            blocks = [block, *section.blocks] if text.position == "before" else [*section.blocks, block]
            # The user's text is always shown, so the section is no longer replaced with its summary.
            placed[index] = replace(section, blocks=blocks, summary="")
    return placed


def _count_introductions(sections: Sequence[Section]) -> int:
    return sum(section.name.startswith("text-") and section.is_headline for section in sections)
