"""Chart of head metrics over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from headtohead.attention_analysis.head_tables import (
    MEASURE_FORMATS,
    build_measure_cell,
    get_heads_by_variant,
    select_measures,
)
from headtohead.experiment.schemas import Findings, HeadSummary
from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, PanelGrid

MAX_HEADS = 32
"""models with more heads get no chart; the table lists all"""


def build_heads_chart(findings: Findings) -> Chart | None:
    """Return small multiples, one per metric: heads as rows, one mark with its interval per variant."""
    heads_by_variant = get_heads_by_variant(findings)
    names = [name for name in select_measures(heads_by_variant) if name != "padding"]
    count = max((len(rows) for rows in heads_by_variant.values()), default=0)
    if not names or count > MAX_HEADS:
        return None
    top_variant = max(heads_by_variant.items(), key=lambda item: max(_get_mean(row, "rise") for row in item[1]))
    top_head = max(top_variant[1], key=lambda row: _get_mean(row, "rise"))
    alt_text = (
        f"Head metrics, one panel each for {', '.join(MEASURE_FORMATS[name][0] for name in names)}. "
        f"Ablating head {top_head.layer}.{top_head.head} of {top_variant[0]} increases the loss most, by "
        f"{_get_mean(top_head, 'rise'):.3f} nats."
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        return _build_panels(heads_by_variant, names, sheets)

    height = max(90, count * max(16, 9 * len(heads_by_variant)))
    panels: Mapping[Layout, PanelGrid] = {"wide": PanelGrid(150, height, 4, 4), "narrow": PanelGrid(108, height, 2, 2)}
    return Chart("heads", "What each head does", alt_text, build, panels)


def _get_mean(row: HeadSummary, measure: str) -> float:
    estimate = row.measures.get(measure)
    return estimate.mean or 0.0 if estimate else 0.0


def _build_panels(
    heads_by_variant: dict[str, list[HeadSummary]], measures: Sequence[str], sheets: ChartDatasets
) -> AltairChart:
    hues, shapes, _ = style.assign_variant_styles(list(heads_by_variant))
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    hue = alt.Color("variant:N", scale=alt.Scale(domain=list(heads_by_variant), range=hues), legend=legend)
    shape = alt.Shape("variant:N", scale=alt.Scale(domain=list(heads_by_variant), range=shapes), legend=legend)
    order = list(dict.fromkeys(f"{row.layer}.{row.head}" for heads in heads_by_variant.values() for row in heads))
    panels = []
    for name in measures:
        title, scale, _ = MEASURE_FORMATS[name]
        rows = []
        for variant, heads in heads_by_variant.items():
            for row in heads:
                estimate = row.measures.get(name)
                if estimate is None or estimate.mean is None:
                    continue
                low, high = estimate.interval or (estimate.mean, estimate.mean)
                rows.append(
                    {
                        "head": f"{row.layer}.{row.head}",
                        "variant": variant,
                        "mean": scale * estimate.mean,
                        "low": scale * low,
                        "high": scale * high,
                        "tip": f"{variant}, head {row.layer}.{row.head}: {title} "
                        + build_measure_cell(name, estimate).text,
                    }
                )
        data = sheets.chart(rows)
        y = alt.Y("head:N", sort=order, title=None, axis=alt.Axis(grid=False))
        offset = alt.YOffset("variant:N", sort=list(heads_by_variant))
        axis = alt.Axis(title=None, tickCount=4)
        spread = alt.Scale(zero=name in ("first", "itself", "previous", "induction", "rise"), nice=True)
        lines = data.mark_rule(aria=False, strokeWidth=2).encode(
            x=alt.X("low:Q", scale=spread, axis=axis), x2="high:Q", y=y, yOffset=offset, color=hue
        )
        points = data.mark_point(size=36, filled=True, opacity=1).encode(
            x=alt.X("mean:Q", scale=spread, axis=axis), y=y, yOffset=offset, color=hue, shape=shape, description="tip:N"
        )
        panels.append(alt.layer(lines, points).properties(title=title))
    return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=64, column=52))
