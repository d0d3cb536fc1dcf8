"""Command lines as users type them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def format_command(command: Sequence[str]) -> str:
    """Return a recorded command line with shell quoting. `python -m headtohead.cli` is shown as `h2h`."""
    program = Path(command[0])
    is_module = program.parts[-3:] == ("headtohead", "cli", "__main__.py")
    return shlex.join(["h2h" if is_module else program.name, *command[1:]])
