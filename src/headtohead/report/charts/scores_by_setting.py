"""A chart of scores against a numeric setting that differs between variants, such as the number of layers."""

from __future__ import annotations

from typing import Any

import altair as alt

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import AxisFindings, Findings
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    draw_curve,
)

MIN_AXIS_VALUES = 3
PanelRow = dict[str, Any]


def build_axis_chart(findings: Findings) -> Chart | None:
    """Return a panel for the metric on each split and for the final training loss, by the setting.

    Returns None if the setting has fewer than 3 values.
    """
    axis_findings = findings.axis
    if axis_findings is None or len(axis_findings.values) < MIN_AXIS_VALUES:
        return None
    panels = {title: rows for title, rows in _build_panel_rows(findings, axis_findings).items() if rows}
    setting = axis_findings.setting.rpartition(".")[2]
    range_texts = "; ".join(f"{title}: from {rows[0]['text']} to {rows[-1]['text']}" for title, rows in panels.items())

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw one panel per quantity."""

        def y(field: str) -> alt.Y:
            axis = alt.Axis(title=None, tickCount=4, format=",~r")
            return alt.Y(field, scale=alt.Scale(zero=False, padding=6), axis=axis)

        x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=alt.Axis(title=setting, grid=False))
        return arrange_panels(
            alt.layer(*draw_curve(datasets.chart(rows), x, y)).properties(title=title) for title, rows in panels.items()
        )

    layouts: dict[Layout, PanelGrid] = {"wide": PanelGrid(372, 170, 2, 4), "narrow": PanelGrid(286, 150, 1, 2)}
    alt_text = f"Scores by {setting}, lowest to highest. {range_texts}."
    return Chart("axis", f"Scores by {setting}", alt_text, build, layouts)


def _build_panel_rows(findings: Findings, axis: AxisFindings) -> dict[str, list[PanelRow]]:
    """Return each panel's data rows by title, ordered by the setting's value."""
    metric = findings_view.get_metric(findings)
    ordered_variants = sorted(axis.values.items(), key=lambda item: item[1])
    panels: dict[str, list[PanelRow]] = {}
    for split in findings_view.list_score_splits(findings):
        rows = []
        for name, value in ordered_variants:
            seed_scores = findings.scores.get(name, {}).get(split, [])
            scores = [score for _, score in seed_scores if number_format.is_finite_number(score)]
            if scores:
                mean = average_over_seeds(metric, scores)
                rows.append(_make_panel_row(name, value, metric, mean, min(scores), max(scores)))
        panels[f"{metric} on {split}"] = rows
    loss_rows = []
    for name, value in ordered_variants:
        estimate = axis.last_loss.get(name)
        if estimate is not None and (loss := estimate.mean) is not None:
            loss_rows.append(_make_panel_row(name, value, "loss", loss, *(estimate.interval or (loss, loss))))
    panels["final training loss"] = loss_rows
    return panels


def _make_panel_row(variant: str, axis_value: float, metric: str, mean: float, low: float, high: float) -> PanelRow:
    """Return a data row of the chart by setting, with its tooltip."""
    text = number_format.format_score(metric, mean)
    return {"at": axis_value, "mean": mean, "low": low, "high": high, "text": text, "tip": f"{variant}: {text}"}
