"""The recipes: experiment files that ship with the package, and a catalog of them grouped by question."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from headtohead.errors import RequestError, format_suggestion

TOPICS = (
    "Which position encoding is better?",
    "Does a change to attention help?",
    "How much do training settings matter?",
    "Does pre-training or fine-tuning help?",
    "Does a small model learn from a larger one?",
)


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
    """Return all recipes in the order of `TOPICS`.

    They are read from catalog.json, which `python -m tools.recipes` writes: parsing all recipes takes longer.
    """
    text = (resources.files(__package__) / "recipes" / "catalog.json").read_text(encoding="utf-8")
    return tuple(RecipeSummary(**{**entry, "variants": tuple(entry["variants"])}) for entry in json.loads(text))
