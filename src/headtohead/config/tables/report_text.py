"""The [[text]] blocks: the user's own text in the report."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import BaseConfig

ReportSection = Literal[
    "introduction",
    "headline",
    "verdicts",
    "settings",
    "failures",
    "distilled",
    "search",
    "comparisons",
    "claims",
    "pairs",
    "curves",
    "seeds",
    "axis",
    "lengths",
    "confusion",
    "samples",
    "sentences",
    "maps",
    "heads",
    "cost",
    "pairing",
    "audits",
    "data",
    "published",
    "reproduce",
]


class ReportText(BaseConfig):
    """A block of the user's own text in the report."""

    markdown: Annotated[str, Field(min_length=1)]
    """the text: paragraphs, headings, lists, emphasis and code in Markdown"""
    section: ReportSection = "introduction"
    """section of the report that the text belongs to, by its name in the address of the page, such as curves"""
    position: Literal["before", "after"] = "before"
    """before or after the figures and tables of the section"""
    title: str = ""
    """makes the text a section of its own, after `section`"""
