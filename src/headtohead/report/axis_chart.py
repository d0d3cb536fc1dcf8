"""Scores against a numeric setting in which the variants differ, such as depth."""

from __future__ import annotations

from typing import Any

import altair as alt

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
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

MIN_VALUES = 3
PanelRow = dict[str, Any]


def build_axis_chart(findings: Findings) -> Chart | None:
    """Return panels for the metric on every split and the final training loss, or None with fewer than 3 values."""
    axis = findings.get("axis") or {}
    values: dict[str, float] = axis.get("values") or {}
    if len(values) < MIN_VALUES:
        return None
    panels = {title: rows for title, rows in _build_panel_rows(findings, values).items() if rows}
    setting = str(axis["setting"]).rpartition(".")[2]
    ranges = "; ".join(f"{title}: from {rows[0]['text']} to {rows[-1]['text']}" for title, rows in panels.items())

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        def y(field: str) -> alt.Y:
            axis = alt.Axis(title=None, tickCount=4, format=",~r")
            return alt.Y(field, scale=alt.Scale(zero=False, padding=6), axis=axis)

        x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=alt.Axis(title=setting, grid=False))
        return arrange_panels(
            alt.layer(*draw_curve(datasets.chart(rows), x, y)).properties(title=title) for title, rows in panels.items()
        )

    layouts: dict[Layout, PanelGrid] = {"wide": PanelGrid(372, 170, 2, 4), "narrow": PanelGrid(286, 150, 1, 2)}
    alt_text = f"Scores by {setting}, lowest to highest. {ranges}."
    return Chart("axis", f"Scores by {setting}", alt_text, build, layouts)


def _build_panel_rows(findings: Findings, axis_values: dict[str, float]) -> dict[str, list[PanelRow]]:
    metric = findings_view.get_metric(findings)
    ordered = sorted(axis_values.items(), key=lambda item: item[1])
    panels: dict[str, list[PanelRow]] = {}
    for split in findings_view.list_splits(findings, "results"):
        rows = []
        for name, value in ordered:
            pairs = (findings.get("results") or {}).get(name, {}).get(split, [])
            scores = [score for _, score in pairs if number_format.is_finite_number(score)]
            if scores:
                mean = findings_view.average_over_seeds(metric, scores)
                rows.append(_make_panel_row(name, value, metric, mean, min(scores), max(scores)))
        panels[f"{metric} on {split}"] = rows
    last_losses = findings["axis"].get("last_loss") or {}
    rows = []
    for name, value in ordered:
        estimate = last_losses.get(name) or {}
        if (loss := estimate.get("mean")) is not None:
            rows.append(_make_panel_row(name, value, "loss", loss, *(estimate.get("interval") or (loss, loss))))
    panels["final training loss"] = rows
    return panels


def _make_panel_row(variant: str, axis_value: float, metric: str, mean: float, low: float, high: float) -> PanelRow:
    text = number_format.format_score(metric, mean)
    return {"at": axis_value, "mean": mean, "low": low, "high": high, "text": text, "tip": f"{variant}: {text}"}
