"""`h2h recipes` and `h2h schema`: the experiment files that ship with the package, and their JSON schema."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json

if TYPE_CHECKING:
    from headtohead.config.recipe_catalog import RecipeSummary


@app.command()
def recipes(
    show: Annotated[
        str | None,
        typer.Option("--show", metavar="NAME", help="Print the file of a recipe, as a starting point for your own."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes: ready-made experiments to run or to copy."""
    from headtohead.config import recipe_catalog

    if show:
        typer.echo(recipe_catalog.find_recipe(show).read_text(encoding="utf-8"), nl=False)
        return
    summaries = recipe_catalog.list_recipe_summaries()
    if as_json:
        print_json([asdict(summary) for summary in summaries])
        return
    print_recipes(summaries)


def print_recipes(summaries: Sequence[RecipeSummary]) -> None:
    """Print the recipes grouped by question, with what they vary, their corpus and their duration."""
    from headtohead.presentation.renderers.terminal import get_stdout_console, print_text_table

    for topic, topic_recipes in itertools.groupby(summaries, key=lambda recipe: recipe.topic):
        rows = [
            (f"{recipe.name}\n{max(1, round(recipe.seconds / 60))} min, {recipe.corpus}", recipe.varies)
            for recipe in topic_recipes
        ]
        print_text_table(("recipe, duration, corpus", "what is varied"), rows, topic)
    full_recipes = ", ".join(recipe.name for recipe in summaries if recipe.full)
    console = get_stdout_console()
    console.print(
        "h2h run NAME trains a recipe; --data trains it on your own text. h2h recipes --show NAME > mine.toml copies "
        "it to start your own. Durations are for the cores of this machine at the speed of a small server; h2h plan "
        "NAME measures them here."
    )
    console.print(
        f"--quick takes a look in two minutes, without verdicts; --full is for a larger machine ({full_recipes})."
    )


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    from headtohead.experiment.settings.registry_json_schema import build_full_json_schema

    print_json(build_full_json_schema())
