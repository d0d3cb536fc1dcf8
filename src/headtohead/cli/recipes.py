"""`h2h recipes` and `h2h schema`: the experiment files that ship with the package, and their JSON schema."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def recipes(
    show: Annotated[
        str | None, typer.Option("--show", metavar="NAME", help="Print a recipe as a starting point for your own file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes: experiments to run or copy."""
    from headtohead.config import loading, recipe_catalog

    if show:
        typer.echo(loading.find_recipe(show).read_text(encoding="utf-8"), nl=False)
        return
    summaries = recipe_catalog.list_recipe_summaries()
    if as_json:
        print_json([asdict(summary) for summary in summaries])
        return
    from headtohead.report import terminal

    terminal.print_recipes(summaries)


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    from headtohead.experiment.loading import build_json_schema

    print_json(build_json_schema())
