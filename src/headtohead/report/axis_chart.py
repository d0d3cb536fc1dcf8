"""Results against a number that the variants differ in, such as a depth: one small picture a figure."""

from __future__ import annotations

from typing import Any

import altair as alt

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, PanelGrid

PanelRow = dict[str, Any]


def build_axis_chart(findings: Findings) -> Chart | None:
    """Every split's metric, the last training loss and the time of a step, if the experiment names an axis."""
    found = findings.get("axis") or {}
    values: dict[str, float] = found.get("values") or {}
    if len(values) < 3:
        return None
    panels = {name: rows for name, rows in _build_panel_rows(findings, values).items() if rows}
    setting = str(found["setting"]).rpartition(".")[2]
    said = "; ".join(f"{name}: from {rows[0]['said']} to {rows[-1]['said']}" for name, rows in panels.items())

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        made = []
        for title, rows in panels.items():
            data = sheets.chart(rows)
            x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=alt.Axis(title=setting, grid=False))
            y = alt.Scale(zero=False, padding=6)
            axis = alt.Axis(title=None, tickCount=4, format=",~r")
            layers = [
                data.mark_area(aria=False, opacity=0.16, color=style.assign_variant_styles(["baseline"])[0][0]).encode(
                    x=x, y=alt.Y("low:Q", scale=y, axis=axis), y2="high:Q"
                ),
                data.mark_line(aria=False, strokeWidth=2, color=style.assign_variant_styles(["baseline"])[0][0]).encode(
                    x=x, y=alt.Y("mean:Q", scale=y, axis=axis)
                ),
                data.mark_point(
                    size=34, filled=True, opacity=1, color=style.assign_variant_styles(["baseline"])[0][0]
                ).encode(x=x, y=alt.Y("mean:Q", scale=y, axis=axis), description="tip:N"),
            ]
            made.append(alt.layer(*layers).properties(title=title))
        return alt.concat(*made, bounds="flush", spacing=alt.RowColnumber(row=80, column=58))

    layouts: dict[Layout, PanelGrid] = {"wide": PanelGrid(372, 170, 2, 4), "narrow": PanelGrid(286, 150, 1, 2)}
    return Chart(
        "axis", f"Results against {setting}", f"Against {setting}, from the least to the most. {said}.", build, layouts
    )


def _build_panel_rows(findings: Findings, axis_values: dict[str, float]) -> dict[str, list[PanelRow]]:
    metric = findings_view.get_metric(findings)
    ordered = sorted(axis_values.items(), key=lambda item: item[1])
    panels: dict[str, list[PanelRow]] = {}
    for split in findings_view.list_splits(findings, "results"):
        rows = []
        for name, at in ordered:
            pairs = (findings.get("results") or {}).get(name, {}).get(split, [])
            known = [value for _, value in pairs if number_format.is_finite_number(value)]
            if known:
                mean = findings_view.average_over_seeds(metric, known)
                rows.append(
                    _make_panel_row(name, at, mean, min(known), max(known), number_format.format_score(metric, mean))
                )
        panels[f"{metric} on {split}"] = rows
    last = findings["axis"].get("last_loss") or {}
    rows = []
    for name, at in ordered:
        one = last.get(name) or {}
        if (last_mean := one.get("mean")) is not None:
            low, high = one.get("interval") or (last_mean, last_mean)
            rows.append(_make_panel_row(name, at, last_mean, low, high, number_format.format_score("loss", last_mean)))
    panels["last training loss"] = rows
    return panels


def _make_panel_row(variant: str, axis_value: float, mean: float, low: float, high: float, score_text: str) -> PanelRow:
    return {
        "at": axis_value,
        "mean": mean,
        "low": low,
        "high": high,
        "said": score_text,
        "tip": f"{variant}: {score_text}",
    }
