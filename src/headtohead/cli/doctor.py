"""`h2h doctor`: report device, threads, memory and packages of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def doctor(
    as_json: JsonOption = False,
    deep: Annotated[bool, typer.Option("--deep", help="Compare every byte of the token cache.")] = False,
) -> None:
    """Print device, memory, versions and the state of caches.

    The exit code is 1 if a cache is damaged.
    """
    from headtohead.report import terminal
    from headtohead.training.doctor import inspect_machine

    report = inspect_machine(read_caches=deep).to_dict()
    print_json(report) if as_json else terminal.print_device_report(report)
    if any((report["cache_errors"] or {}).values()):
        raise typer.Exit(1)
