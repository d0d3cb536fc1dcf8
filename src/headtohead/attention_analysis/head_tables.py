"""Tables of head metrics: for one text, and averaged over seeds for the report.

Heads have no identity across seeds: head 1 under two different seeds is two independent draws. A variant's seeds share
only the layer; variants with the same seed start with equal heads.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, HeadMeasures, HeadSummary, SeedEstimate
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns

METRIC_FORMATS = {
    "entropy": ("entropy", "bits", 2),
    "distance": ("distance", "tokens", 2),
    "first": ("on first token", "%", 1),
    "itself": ("on itself", "%", 1),
    "previous": ("on previous token", "%", 1),
    "padding": ("on padding", "%", 1),
    "induction": ("induction", "%", 1),
    "control": ("control", "%", 1),
    "rise": ("loss increase", "nats", 3),
}
"""title, unit and number of decimals of each metric"""


def get_metric_title(metric: str) -> str:
    """Return a metric's title with its unit."""
    title, unit, _ = METRIC_FORMATS[metric]
    return f"{title}, {unit}"


def get_display_scale(metric: str) -> int:
    """Return the factor by which a metric is multiplied for display: 100 for percentages."""
    return 100 if METRIC_FORMATS[metric][1] == "%" else 1


def format_metric_value(metric: str, value: float | None) -> str:
    """Format a head metric without its unit."""
    return number_format.format_fixed(value and get_display_scale(metric) * value, METRIC_FORMATS[metric][2])


def _make_metric_columns(metrics: Sequence[str]) -> list[Column]:
    """Return one table column per metric, with its unit in the title."""
    return make_numeric_columns({name: get_metric_title(name) for name in metrics})


def build_head_metrics_table(title: str, heads: Sequence[HeadMeasures], *, by_layer: bool = False) -> Table:
    """Return every head's metrics for one text, or their means over each layer's heads."""
    metrics = [name for name in METRIC_FORMATS if any(getattr(head, name) is not None for head in heads)]
    if not any(head.padding for head in heads):
        metrics = [name for name in metrics if name != "padding"]
    heads_by_row: dict[tuple[int, ...], list[HeadMeasures]] = {}
    for head in heads:
        heads_by_row.setdefault((head.layer,) if by_layer else (head.layer, head.head), []).append(head)
    rows = []
    for numbers, row_heads in heads_by_row.items():
        cells = [Cell(".".join(map(str, numbers)), numbers)]
        for metric in metrics:
            known_values = [value for head in row_heads if (value := getattr(head, metric)) is not None]
            mean = statistics.fmean(known_values) if known_values else None
            cells.append(Cell(format_metric_value(metric, mean), mean))
        rows.append(cells)
    caption = f"Means over the heads of each layer; --json prints all {len(heads)}." if by_layer else ""
    columns = [Column("head", "layer" if by_layer else "layer.head"), *_make_metric_columns(metrics)]
    return make_table("measures", title, caption, columns, rows)


def build_seed_averaged_table(findings: Findings) -> Table:
    """Return the report's table of heads: each metric's mean over seeds and the half-width of its 95 % interval."""
    heads_by_variant = get_heads_by_variant(findings)
    metrics = select_available_metrics(heads_by_variant)
    columns = make_text_columns(variant="variant", head="layer.head") + _make_metric_columns(metrics)
    columns += make_text_columns("copies", "idle")
    rows = [
        [
            variant,
            f"{head.layer}.{head.head}",
            *(build_seed_mean_cell(metric, head.measures.get(metric)) for metric in metrics),
            *(_build_seed_count_cell(count, head.seeds) for count in (head.copies, head.idle)),
        ]
        for variant, heads in heads_by_variant.items()
        for head in heads
    ]
    caption = ""
    if attention := findings.attention:
        caption = f"Means over seeds ± half the 95 % t interval, on {attention.rows} rows of {attention.split}."
    table = make_table("heads", "Attention heads", caption, columns, rows)
    return replace(table, long_form=_build_long_form_table(findings))


def _build_long_form_table(findings: Findings) -> Table:
    """Return the table of heads with one row per head and metric, for CSV output."""
    columns = make_text_columns("variant", "layer", "head", "measure", "seeds", "mean", "interval")
    rows = [
        [variant, head.layer, head.head, metric, head.seeds, estimate.mean, estimate.interval]
        for variant, heads in get_heads_by_variant(findings).items()
        for head in heads
        for metric in sorted(METRIC_FORMATS, key=lambda metric: metric == "control")
        if (estimate := head.measures.get(metric))
    ]
    return make_table("heads", "Attention heads", "", columns, rows)


def get_heads_by_variant(findings: Findings) -> dict[str, list[HeadSummary]]:
    """Return the rows of a table of heads: the metrics of every variant, in the order of the report."""
    heads_by_variant = findings.attention.variants if findings.attention else {}
    return {
        variant: heads_by_variant[variant]
        for variant in findings_view.list_variant_names(findings)
        if variant in heads_by_variant
    }


def select_available_metrics(heads_by_variant: dict[str, list[HeadSummary]]) -> list[str]:
    """Return the columns of a table of heads: metrics with values except the control, and padding if attended to."""
    estimates_by_metric: dict[str, list[SeedEstimate]] = {}
    for metric in METRIC_FORMATS:
        estimates = (head.measures.get(metric) for heads in heads_by_variant.values() for head in heads)
        estimates_by_metric[metric] = [estimate for estimate in estimates if estimate is not None]
    has_padding = any((estimate.mean or 0) > 0 for estimate in estimates_by_metric["padding"])
    omitted_metrics = ("control",) if has_padding else ("control", "padding")
    return [metric for metric, estimates in estimates_by_metric.items() if estimates and metric not in omitted_metrics]


def build_seed_mean_cell(metric: str, estimate: SeedEstimate | None) -> Cell:
    """Return the table cell for a head metric: its mean across seeds and the half-width of its interval."""
    if estimate is None or estimate.mean is None:
        return Cell(number_format.MISSING_VALUE)
    text = format_metric_value(metric, estimate.mean)
    if estimate.interval:
        low, high = estimate.interval
        half_width = f"{get_display_scale(metric) * (high - low) / 2:.{METRIC_FORMATS[metric][2]}f}"
        text += f"{number_format.NO_BREAK_SPACE}±{number_format.NO_BREAK_SPACE}{half_width}"
    return Cell(text, estimate.mean)


def _build_seed_count_cell(count: int | None, num_seeds: int) -> Cell:
    """Return a cell such as "2 of 3 seeds": for how many seeds a head copies or is idle."""
    if count is None:
        return Cell(number_format.MISSING_VALUE)
    return Cell(f"{count} of {num_seeds} seeds" if count else "no", count)
