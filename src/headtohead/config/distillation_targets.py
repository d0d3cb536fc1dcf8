"""What a student learns from: people's texts, the teacher's texts, the teacher's distribution, or both of the last."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import BaseConfig


class DistillationConfig(BaseConfig):
    """How a teacher teaches. Without this table a student learns from people's texts alone."""

    by: Literal["texts", "logits", "both"]
    """texts that the teacher wrote; its distribution over the words of people's texts; or over those of its own"""
    direction: Literal["forward", "reverse"] = "forward"
    """of the divergence: the student covers what the teacher holds possible, or avoids what it holds impossible"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """both distributions are flattened by it before they are compared"""
    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """of the divergence; the rest is for the words of the text"""
    top: Annotated[int, Field(ge=1)] = 50
    """so many of the teacher's likeliest words are kept for each position; all others are one share"""

    @property
    def has_teacher_texts(self) -> bool:
        return self.by != "logits"

    @property
    def has_teacher_logits(self) -> bool:
        return self.by != "texts"
