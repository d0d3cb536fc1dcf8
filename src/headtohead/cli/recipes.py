"""`h2h recipes` and `h2h schema`: the experiment files that ship with the package, and their JSON schema."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def recipes(
    show: Annotated[
        str | None, typer.Option("--show", metavar="NAME", help="Print a recipe as a starting point for your own file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, the experiments that ship with the package."""
    from headtohead.config import loading

    if show:
        typer.echo(loading.find_recipe(show).read_text(encoding="utf-8"), nl=False)
        return
    rows = [
        {"name": name, **_summarize_recipe(loading.read_raw_experiment(loading.find_recipe(name)).raw)}
        for name in loading.list_recipes()
    ]
    if as_json:
        print_json(rows)
        return
    from headtohead.report import terminal

    terminal.print_recipes(rows)


def _summarize_recipe(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the task, question and variants of a recipe."""
    return {
        "task": raw["task"],
        "question": raw["question"],
        "variants": list(raw.get("variants", {})),
        "full": "full" in raw,
    }


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors."""
    from headtohead.experiment.loading import build_json_schema

    print_json(build_json_schema())
