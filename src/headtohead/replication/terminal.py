"""Print published claims and their answers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from headtohead.experiment.schemas import ClaimResult, DistillationClaimResult
from headtohead.presentation.renderers.terminal import print_indented


def print_claims(claims: Sequence[ClaimResult | DistillationClaimResult]) -> None:
    """Print each claim with its answer."""
    for claim in claims:
        print_indented(escape(f"The {claim.source} says that {claim.statement}:") + f" [bold]{claim.answer}[/]")
