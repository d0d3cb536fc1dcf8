"""A chart of scores by seed, with a line from the baseline's score to the variant's for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from headtohead.experiment.findings_view import PairedScore
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_score_axis_labels,
)

MAX_PANELS = 24
OUTCOME_STYLES = {
    "better": (style.VERDICT_COLORS["helped"], [1, 0]),
    "worse": (style.VERDICT_COLORS["hurt"], [5, 3]),
    "equal": (style.MUTED_TEXT_COLOR, [2, 2]),
}


def build_paired_score_chart(pairs: Sequence[PairedScore], metric: str) -> Chart | None:
    """Return one panel per variant and evaluation set, or None if there are no pairs."""
    panels: dict[tuple[str, str], list[PairedScore]] = {}
    for pair in pairs:
        panels.setdefault((pair.variant, pair.evaluation_set), []).append(pair)
    panels = dict(list(panels.items())[:MAX_PANELS])
    if not panels:
        return None
    counts = []
    for (variant, text), scores in panels.items():
        better = sum(number_format.is_improvement(metric, pair.effect) for pair in scores)
        counts.append(f"{variant} on {text}: better than the baseline with {better} of {len(scores)} seeds")
    alt_text = f"The score of each seed, from the baseline to the variant. {'; '.join(counts)}."

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _draw_panels(panels, metric, datasets)

    title = f"{metric.capitalize()} by seed, from the baseline to the variant"
    return Chart("pairs", title, alt_text, build, _size_panels(len(panels)))


def _size_panels(num_panels: int) -> Mapping[Layout, PanelGrid]:
    """Return the paired chart's panel sizes and columns for the wide and the narrow layout."""
    wide, narrow = min(num_panels, 4), min(num_panels, 2)
    return {
        "wide": PanelGrid({1: 300, 2: 280, 3: 210}.get(wide, 150), 170, wide, 3),
        "narrow": PanelGrid({1: 260}.get(narrow, 112), 170, narrow, 3),
    }


def _draw_panels(
    panels: Mapping[tuple[str, str], Sequence[PairedScore]], metric: str, datasets: ChartDatasets
) -> AltairChart:
    """Draw a line per seed from the baseline's score to the variant's, one panel per variant and evaluation set."""
    present_outcomes = {_classify_pair(pair, metric) for scores in panels.values() for pair in scores}
    outcomes = [outcome for outcome in OUTCOME_STYLES if outcome in present_outcomes]
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    colors = alt.Scale(domain=outcomes, range=[OUTCOME_STYLES[outcome][0] for outcome in outcomes])
    dashes = alt.Scale(domain=outcomes, range=[OUTCOME_STYLES[outcome][1] for outcome in outcomes])
    color = alt.Color("outcome:N", scale=colors, legend=legend)
    dash = alt.StrokeDash("outcome:N", scale=dashes, legend=legend)
    x_axis = alt.Axis(labelAngle=0, grid=False)
    x = alt.X("side:N", sort=None, title=None, scale=alt.Scale(padding=0.35), axis=x_axis)
    y_axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(metric))
    y = alt.Y("value:Q", scale=alt.Scale(zero=False, padding=10, nice=False), axis=y_axis)
    panel_charts = []
    for (variant, text), scores in panels.items():
        data = datasets.chart([row for pair in scores for row in _make_rows(pair, metric)])
        lines = data.mark_line(aria=False, strokeWidth=2).encode(
            x=x, y=y, detail="seed:N", color=color, strokeDash=dash
        )
        points = data.mark_point(size=42, filled=True, opacity=1).encode(x=x, y=y, color=color, description="tip:N")
        panel_charts.append(alt.layer(lines, points).properties(title=alt.TitleParams(variant, subtitle=text)))
    return arrange_panels(panel_charts)


def _classify_pair(pair: PairedScore, metric: str) -> str:
    """Return whether the variant is better than the baseline, worse, or equal."""
    if pair.effect == 0:
        return "equal"
    return "better" if number_format.is_improvement(metric, pair.effect) else "worse"


def _make_rows(pair: PairedScore, metric: str) -> list[dict[str, Any]]:
    """Return the two data points that define one line."""
    baseline, variant = (number_format.format_score(metric, score) for score in (pair.baseline, pair.value))
    effect = number_format.format_effect(metric, pair.effect)
    tip = f"seed {pair.seed}: baseline {baseline}, {pair.variant} {variant} ({effect})"
    row = {"seed": pair.seed, "outcome": _classify_pair(pair, metric), "tip": tip}
    return [{**row, "side": "baseline", "value": pair.baseline}, {**row, "side": "variant", "value": pair.value}]
