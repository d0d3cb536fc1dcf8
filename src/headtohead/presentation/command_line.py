"""Show and build command lines as users type them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from headtohead.verdict.record import Verdict


def format_command(command: Sequence[str]) -> str:
    """Return a recorded command line with shell quoting. `python -m headtohead` is shown as `h2h`."""
    program = Path(command[0])
    is_module = program.parts[-2:] == ("headtohead", "__main__.py")
    return shlex.join(["h2h" if is_module else program.name, *command[1:]])


def wrap_command(command: str, width: int) -> str:
    """Break a shell command between arguments into lines of at most `width` where possible.

    A shell reads the lines as one command.
    """
    lines = [""]
    for argument in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + len(argument) + len("  \\") > width:
            lines.append("")
        lines[-1] += f" {argument}" if lines[-1] else argument
    return " \\\n    ".join(lines)


def build_command_with_more_seeds(verdicts: Sequence[Verdict], command: Sequence[str]) -> str | None:
    """Return the command line that continues with as many seeds as would settle all open verdicts.

    `command` is the command line of the process that computed the verdicts, empty if unknown. Returns None if it is
    unknown or no verdict can be settled by more seeds.
    """
    needed_seeds = [
        max(verdict.seeds, verdict.runs, verdict.baseline_runs) + verdict.additional_seeds
        for verdict in verdicts
        if verdict.additional_seeds
    ]
    if not needed_seeds or not command:
        return None
    options_end = command.index("--") if "--" in command else len(command)
    remaining_arguments, other_arguments = iter(command[1:options_end]), []
    for argument in remaining_arguments:
        if argument == "--seeds":
            next(remaining_arguments, None)
        elif argument not in ("--resume", "--reshard") and not argument.startswith("--seeds="):
            other_arguments.append(argument)
    return shlex.join(["h2h", *other_arguments, "--seeds", str(max(needed_seeds)), "--resume", *command[options_end:]])
