"""`h2h doctor`: report device, threads, memory and packages of this machine."""

from __future__ import annotations

from headtohead.cli.app import JsonOption, app, print_json


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Print device, threads, memory, package versions and bfloat16 support."""
    from headtohead.report import terminal
    from headtohead.training.doctor import inspect_machine

    report = inspect_machine().to_dict()
    print_json(report) if as_json else terminal.print_device_report(report)
