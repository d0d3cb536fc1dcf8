"""Print published claims and their answers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.padding import Padding

from headtohead.experiment.schemas import ClaimResult, DistillationClaimResult
from headtohead.presentation.terminal import get_stdout_console


def print_claims(claims: Sequence[ClaimResult | DistillationClaimResult]) -> None:
    """Print each claim with its answer."""
    console = get_stdout_console()
    for claim in claims:
        line = escape(f"report {claim.source} says that {claim.says}:") + f" [bold]{claim.answer}[/]"
        console.print(Padding(line, (0, 0, 0, 2)))
