"""docs/calibration.md: every figure on it is computed from cached results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from .coverage import DRAWS, REFINED_DRAWS, SEED_COUNTS, CoverageCell
from .power import EFFECTS, ERROR_SEEDS, PairingRow, SharedVarianceRow

Section = Callable[[], str]


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; columns after the first are right-aligned."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def format_share(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_coverage_table(cells: Sequence[CoverageCell]) -> str:
    """Return lowest to highest coverage over the simulations of a group, by lengths, documents and seeds."""
    head = ["documents", "lengths", *(f"{seeds} seeds" for seeds in SEED_COUNTS), "median half width"]
    rows = []
    ordered = sorted(cells, key=lambda cell: (cell.documents, cell.lengths))
    for (documents, lengths), group in groupby(ordered, key=lambda cell: (cell.documents, cell.lengths)):
        members = list(group)
        by_seeds = [[cell.coverage for cell in members if cell.seeds == seeds] for seeds in SEED_COUNTS]
        widths = sorted(cell.half_width for cell in members)
        rows.append(
            [documents, lengths, *(_format_range(values) for values in by_seeds), f"{widths[len(widths) // 2]:.1f}"]
        )
    return format_table(head, rows)


def _format_range(shares: Sequence[float]) -> str:
    low, high = f"{100 * min(shares):.1f}", f"{100 * max(shares):.1f}"
    return low if low == high else f"{low} to {high}"


def format_misses(cells: Sequence[CoverageCell]) -> str:
    """Return the cells that miss their target."""
    misses = [cell for cell in cells if cell.misses_target]
    if not misses:
        return "No cell misses its target.\n"
    rows = [
        (cell.simulation, cell.lengths, cell.documents, cell.seeds, f"{cell.draws:,}", format_share(cell.coverage))
        for cell in sorted(misses, key=lambda cell: (cell.documents, cell.coverage))
    ]
    return f"{len(misses)} of {len(cells)} cells miss their target:\n\n" + format_table(
        ["simulation", "lengths", "documents", "seeds", "draws", "coverage"], rows
    )


def format_shared_variance(rows: Sequence[SharedVarianceRow]) -> str:
    """Return familywise error and seeds needed by method."""
    base = rows[0]
    head = ["method", *(f"error, {seeds} seeds" for seeds in ERROR_SEEDS), *(f"{e:g} sd" for e in EFFECTS)]
    lines = []
    for row in rows:
        errors = [_format_range([by[str(seeds)] for by in row.familywise_error.values()]) for seeds in ERROR_SEEDS]
        needed = [
            f"{row.seeds_needed_uniform[f'{effect:g}']:.1f} "
            f"({100 * (row.seeds_needed_uniform[f'{effect:g}'] / base.seeds_needed_uniform[f'{effect:g}'] - 1):+.0f} %)"
            for effect in EFFECTS
        ]
        lines.append([row.method, *errors, *needed])
    return format_table(head, lines)


def format_pairing(rows: Sequence[PairingRow]) -> str:
    """Return errors and widths of paired and unpaired tests."""
    head = ["correlation", "seeds", "paired error", "unpaired error", "narrower of both", "paired width / unpaired"]
    return format_table(
        head,
        (
            (
                f"{row.correlation:g}",
                row.seeds,
                format_share(row.paired_error),
                format_share(row.unpaired_error),
                format_share(row.narrower_error),
                f"{row.paired_width / row.unpaired_width:.2f}",
            )
            for row in rows
        ),
    )


INTRODUCTION = f"""# Calibration

Can a verdict be trusted? `make calibration` writes this page; it measured every number below. Percentages of `n` draws
have a binomial error of about ±{196 * (0.95 * 0.05 / DRAWS) ** 0.5:.1f} points at {DRAWS:,} draws (95 %). Cells that
miss their target at {DRAWS:,} draws are measured again with {REFINED_DRAWS:,}.
"""
