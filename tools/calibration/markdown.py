"""Markdown tables and figures of docs/calibration.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; columns after the first are right-aligned."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def format_share(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_range(shares: Sequence[float]) -> str:
    """Return lowest and highest share in per cent."""
    low, high = f"{100 * min(shares):.1f}", f"{100 * max(shares):.1f}"
    return low if low == high else f"{low} to {high}"
