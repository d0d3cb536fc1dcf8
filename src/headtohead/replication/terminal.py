"""Print how published claims fare."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.padding import Padding

from headtohead.experiment.schemas import ClaimResult, DistillationClaimResult
from headtohead.presentation.terminal import get_stdout_console


def print_claims(claims: Sequence[ClaimResult | DistillationClaimResult]) -> None:
    """What others concluded, and what is to be said about it."""
    console = get_stdout_console()
    for one in claims:
        said = escape(f"report {one.source} says that {one.says}:") + f" [bold]{one.answer}[/]"
        console.print(Padding(said, (0, 0, 0, 2)))
