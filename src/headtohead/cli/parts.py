"""`h2h parts`: list the available parts; `h2h parts check`: run the conformance suite on custom parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, PluginsOption, app, print_json

parts_app = typer.Typer(help="List the parts that models are built from, or check your own.", rich_markup_mode=None)
app.add_typer(parts_app, name="parts")


@parts_app.callback(invoke_without_command=True)
def list_parts(context: typer.Context, as_json: JsonOption = False, plugins: PluginsOption = None) -> None:
    """List the parts that models are built from, by slot, with their options."""
    if context.invoked_subcommand is not None:
        return
    from headtohead.config.validation.component_options import format_options, get_summary
    from headtohead.nn.parts import registry
    from headtohead.report import terminal

    for file in plugins or ():
        registry.load_plugin(file)
    rows = [
        {
            "slot": part_class.slot,
            "part": part_class.kind,
            "options": format_options(part_class),
            "about": get_summary(part_class),
        }
        for part_class in registry.list_part_classes()
    ]
    print_json(rows) if as_json else terminal.print_parts(rows)


@parts_app.command("check")
def check_parts(
    file: Annotated[Path, typer.Argument(help="Python file with custom parts.")],
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every check with its measurement.")] = False,
) -> None:
    """Run the conformance suite: gradients, causality, KV cache, implementations, padding."""
    from headtohead.report import terminal
    from headtohead.testing import check_part_file

    results = check_part_file(file)
    if as_json:
        print_json([result.to_dict() for result in results])
    else:
        terminal.print_conformance_results(results, verbose=verbose)
    if not all(result.passed for result in results):
        raise typer.Exit(1)
