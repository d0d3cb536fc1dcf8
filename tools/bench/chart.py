"""One chart of all measurements with a target: how far each result is from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import altair as alt

from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout

from . import formatting
from .measurements import BenchmarkResults, Measurement

MET_COLOR = style.VERDICT_COLORS["helped"]
MISSED_COLOR = style.VERDICT_COLORS["hurt"]
MARGIN = 120
"""pixels on both sides, for fonts that are wider than the one used for measuring"""
MAX_RATIO = 20.0
"""largest ratio of a result to its target on the chart's axis"""


def compute_target_ratio(measurement: Measurement) -> float:
    """Return the ratio of the result to its target: 1 at the target, larger is better."""
    assert measurement.target is not None
    assert measurement.result is not None
    target, result = measurement.target.value, measurement.result
    if not target:
        return 1.0 if measurement.is_met else 1 / MAX_RATIO
    ratio = target / max(result, target / MAX_RATIO) if measurement.target.is_maximum else result / target
    return min(MAX_RATIO, ratio)


def build_targets_chart(results: dict[str, BenchmarkResults]) -> Chart:
    """Return a dot plot of all measurements with a target, on a scale where 1 is the target."""
    rows: list[dict[str, Any]] = []
    for benchmark, benchmark_results in results.items():
        for measurement in benchmark_results.measurements:
            if measurement.target is None or measurement.result is None:
                continue
            result = formatting.format_value(measurement.result, measurement.kind)
            label = f"{result}, target {formatting.format_target(measurement.target, measurement.kind)}"
            name = measurement.name if measurement.name.startswith(benchmark) else f"{benchmark}: {measurement.name}"
            ratio, is_met = compute_target_ratio(measurement), formatting.format_is_met(measurement)
            rows.append({"name": name, "ratio": ratio, "met": is_met, "text": label})
    alt_text = " ".join(f"{row['name']}: {row['text']}." for row in rows)

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        data, target = datasets.chart(rows), datasets.chart([{"ratio": 1}])
        name_axis = alt.Axis(title=None, labelLimit=700, grid=False, ticks=False)
        y = alt.Y("name:N", sort=[row["name"] for row in rows], axis=name_axis)
        scale = alt.Scale(type="log", nice=False, padding=24)
        x = alt.X("ratio:Q", scale=scale, axis=alt.Axis(title="result relative to the target", format="~g"))
        colors = alt.Scale(domain=["yes", "NO"], range=[MET_COLOR, MISSED_COLOR])
        shapes = alt.Scale(domain=["yes", "NO"], range=["circle", "cross"])
        color, shape = alt.Color("met:N", scale=colors, legend=None), alt.Shape("met:N", scale=shapes, legend=None)
        dots = data.mark_point(filled=True, size=80, opacity=1).encode(x=x, y=y, color=color, shape=shape)
        labels = data.mark_text(align="left", dx=9, fontSize=10, color=style.MUTED_TEXT_COLOR)
        rule = target.mark_rule(color=style.ZERO_LINE_COLOR, strokeDash=[4, 3]).encode(x="ratio:Q")
        layers = (rule, dots, labels.encode(x=x, y=y, text="text:N"))
        return alt.layer(*layers).properties(width=420, height=alt.Step(22))

    return Chart("performance", "Targets and results", alt_text, build_altair_chart)


def write_chart(results: dict[str, BenchmarkResults], path: Path) -> None:
    """Write the chart as SVG on a white background, which is legible on dark pages too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = build_targets_chart(results).to_svg()
    width, height = (float(size) for size in re.findall(r'(?:width|height)="([\d.]+)"', svg)[:2])
    content = svg.split(">", 1)[1]
    full_width = width + 2 * MARGIN
    attributes = f'viewBox="{-MARGIN} 0 {full_width} {height}" width="{full_width}" height="{height}"'
    background = f'<rect x="{-MARGIN}" width="100%" height="100%" fill="white"/>'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {attributes}>{background}{content}', encoding="utf-8")
