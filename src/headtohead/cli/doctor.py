"""`h2h doctor`: report device, threads, memory and packages of this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def doctor(
    as_json: JsonOption = False,
    deep: Annotated[bool, typer.Option("--deep", help="Verify every byte of the token cache.")] = False,
) -> None:
    """Print devices, memory, versions and the state of the caches.

    The exit code is 1 if a cache is damaged.
    """
    from headtohead.training.hardware.doctor import inspect_machine

    report = inspect_machine(read_caches=deep).to_dict()
    print_json(report) if as_json else _print_machine_report(report)
    if any((report["cache_errors"] or {}).values()):
        raise typer.Exit(1)


def _print_machine_report(machine_report: dict[str, Any]) -> None:
    """Print the report of `h2h doctor`: the result of each check of this machine, with advice."""
    from headtohead.presentation.renderers.terminal import print_text_table

    rows = [
        (check["name"], "\n".join(str(line) for line in (check["value"], check["advice"]) if line))
        for check in machine_report["checks"]
    ]
    print_text_table(("check", "result"), rows)
