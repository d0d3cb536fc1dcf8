"""The sections on coverage of docs/calibration.md."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from headtohead.verdict.phrasing import FEW_DOCUMENTS, MAX_SKEWED_DOCUMENTS

from . import comparison_training
from .coverage import SEED_COUNTS, CoverageCell
from .markdown import format_range, format_share, format_table
from .simulations import LENGTH_SPREAD


def format_coverage_table(cells: Sequence[CoverageCell]) -> str:
    """Return lowest to highest coverage over the simulations of a group, by lengths, documents and seeds."""
    head = ["documents", "lengths", *(f"{seeds} seeds" for seeds in SEED_COUNTS), "median half width"]
    rows = []
    sorted_cells = sorted(cells, key=lambda cell: (cell.documents, cell.lengths))
    for (documents, lengths), group in groupby(sorted_cells, key=lambda cell: (cell.documents, cell.lengths)):
        group_cells = list(group)
        coverages_by_seeds = [[cell.coverage for cell in group_cells if cell.seeds == seeds] for seeds in SEED_COUNTS]
        widths = sorted(cell.half_width for cell in group_cells)
        rows.append(
            [
                documents,
                lengths,
                *(format_range(coverages) for coverages in coverages_by_seeds),
                f"{widths[len(widths) // 2]:.1f}",
            ]
        )
    return format_table(head, rows)


def format_misses(cells: Sequence[CoverageCell]) -> str:
    """Return the cells that miss their target."""
    missed_cells = [cell for cell in cells if cell.misses_target]
    if not missed_cells:
        return "No cell misses its target.\n"
    rows = [
        (cell.simulation, cell.lengths, cell.documents, cell.seeds, f"{cell.draws:,}", format_share(cell.coverage))
        for cell in sorted(missed_cells, key=lambda cell: (cell.documents, cell.coverage))
    ]
    num_with_few_documents = sum(cell.documents < FEW_DOCUMENTS for cell in missed_cells)
    note = (
        f"{len(missed_cells)} of {len(cells)} cells miss their target. {num_with_few_documents} of them have fewer "
        f"than {FEW_DOCUMENTS} documents, where verdicts speak of these documents first and give the interval for new "
        f"text beside it; the other {len(missed_cells) - num_with_few_documents} are a shortfall."
    )
    return f"{note}\n\n" + format_table(["simulation", "lengths", "documents", "seeds", "draws", "coverage"], rows)


COVERAGE_NOTES = {
    "real addresses": f"""ALiBi, a sliding window and dropout against a base model (2 layers, width 24,
{comparison_training.SEEDS} seeds), scored on addresses that no model was trained on. The differences are centred,
and whole
documents and seeds are redrawn with replacement, so the true difference is 0.
""",
    "Gaussian": f"""Seeds, documents, their interaction, and examples within documents, with known standard
deviations. Unequal
lengths are lognormal; the standard deviation of their logarithm is {LENGTH_SPREAD:g}.
""",
    "heavy tails": """Student's t with 3 degrees of freedom. A t interval of such values covers 96.2 % with 3 and
96.0 % with 10 of them by itself; the bounds for two sources of noise and the correction for skewness add the rest.
Without the correction, up to 97.6 % are left, and skewed documents are covered as little as 89.4 instead of 92.1 %
(docs/log.md).
""",
    "skewed": f"""Exponential effects of documents. Reported as they are: an interval that is symmetric around the
mean covers too little with few skewed documents. Settled verdicts on {FEW_DOCUMENTS} to {MAX_SKEWED_DOCUMENTS}
documents therefore state that the interval is too narrow if the difference is far larger for a few documents than for
the others.
""",
}


def format_coverage(group: str, cells: Sequence[CoverageCell]) -> str:
    """Return the section on a group of simulations."""
    return "\n".join([COVERAGE_NOTES[group], format_coverage_table(cells), format_misses(cells)])
