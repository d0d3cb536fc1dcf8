"""Catalog of recipes, grouped by question: varied settings, corpus and duration."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources

from headtohead.config.loading import find_recipe, list_recipes, read_raw_experiment

TOPICS = (
    "Which position encoding is better?",
    "Does a change to attention help?",
    "How much do training settings matter?",
    "Does pre-training or fine-tuning help?",
    "Does a small model learn from a larger one?",
)
CORPORA = {"sotu": "State of the Union", "summaries": "your documents (--data)"}


@dataclass(frozen=True)
class RecipeSummary:
    """Summary of a recipe, for lists of recipes."""

    name: str
    topic: str
    question: str
    varies: str
    """what the variants change, in words"""
    task: str
    corpus: str
    variants: tuple[str, ...]
    cpu_seconds: float
    """CPU time of all trials, measured on two cores of a small server"""
    full: bool
    """whether there is a [full] table"""

    @property
    def seconds(self) -> float:
        """Estimated duration on the cores of this machine."""
        return self.cpu_seconds / (os.cpu_count() or 1)


@cache
def list_recipe_summaries() -> tuple[RecipeSummary, ...]:
    """Return all recipes in the order of `TOPICS`."""
    durations = json.loads((resources.files(__package__) / "recipes" / "durations.json").read_text(encoding="utf-8"))
    summaries = [_summarize_recipe(name, durations[name]) for name in list_recipes()]
    return tuple(sorted(summaries, key=lambda summary: TOPICS.index(summary.topic)))


def _summarize_recipe(name: str, cpu_seconds: float) -> RecipeSummary:
    """Return the catalog entry of a recipe."""
    raw = read_raw_experiment(find_recipe(name)).raw
    source = raw.get("data", {}).get("source", "sotu")
    return RecipeSummary(
        name,
        topic=raw["topic"],
        question=raw["question"],
        varies=raw["varies"],
        task=raw["task"],
        corpus=CORPORA[source],
        variants=tuple(raw.get("variants", {})),
        cpu_seconds=cpu_seconds,
        full="full" in raw,
    )
