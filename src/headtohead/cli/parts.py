"""Verbs for parts: list them, examine one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, UseOption, app, print_json

parts_app = typer.Typer(help="List the parts a transformer is built from, or examine your own.", rich_markup_mode=None)
app.add_typer(parts_app, name="parts")


@parts_app.callback(invoke_without_command=True)
def list_parts(context: typer.Context, as_json: JsonOption = False, use: UseOption = None) -> None:
    """List the parts by slot, with their options."""
    if context.invoked_subcommand is not None:
        return
    from headtohead.nn.parts import registry
    from headtohead.report import terminal

    for file in use or ():
        registry.load_part_file(file)
    rows = [
        {"slot": p.slot, "part": p.kind, "options": registry.format_options(p), "about": registry.get_summary(p)}
        for p in registry.list_part_classes()
    ]
    print_json(rows) if as_json else terminal.print_parts(rows)


@parts_app.command("check")
def check_parts(
    file: Annotated[Path, typer.Argument(help="A file with parts of your own.")], as_json: JsonOption = False
) -> None:
    """Examine the parts of a file: gradients, causality, cache, roads, padding, state."""
    from headtohead.report import terminal
    from headtohead.testing import check_part_file

    findings = check_part_file(file)
    print_json([f.to_dict() for f in findings]) if as_json else terminal.print_conformance_results(findings)
    if not all(f.passed for f in findings):
        raise typer.Exit(1)
