"""Chart of head metrics across seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from headtohead.attention_analysis.head_tables import (
    build_measure_cell,
    get_heads_by_variant,
    get_scale,
    get_title,
    select_measures,
)
from headtohead.experiment.schemas import Findings, HeadSummary
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_variant_encodings,
)

MAX_HEADS = 32
"""models with more heads get no chart; the table lists all"""


def build_heads_chart(findings: Findings) -> Chart | None:
    """Return small multiples, one per metric, with a row per head and a mark with its interval per variant."""
    heads_by_variant = get_heads_by_variant(findings)
    names = [name for name in select_measures(heads_by_variant) if name != "padding"]
    count = max((len(rows) for rows in heads_by_variant.values()), default=0)
    if not names or count > MAX_HEADS:
        return None
    top_variant = max(heads_by_variant.items(), key=lambda item: max(_get_mean(row, "rise") for row in item[1]))
    top_head = max(top_variant[1], key=lambda row: _get_mean(row, "rise"))
    alt_text = (
        f"Head metrics, one panel each for {', '.join(get_title(name) for name in names)}. "
        f"Ablating head {top_head.layer}.{top_head.head} of {top_variant[0]} increases the loss most, by "
        f"{_get_mean(top_head, 'rise'):.3f} nats."
    )

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _build_panels(heads_by_variant, names, datasets)

    height = max(90, count * max(16, 9 * len(heads_by_variant)))
    panels: Mapping[Layout, PanelGrid] = {"wide": PanelGrid(150, height, 4, 4), "narrow": PanelGrid(108, height, 2, 2)}
    return Chart("heads", "What each head does", alt_text, build, panels)


def _get_mean(row: HeadSummary, measure: str) -> float:
    estimate = row.measures.get(measure)
    return estimate.mean or 0.0 if estimate else 0.0


def _build_panels(
    heads_by_variant: dict[str, list[HeadSummary]], measures: Sequence[str], datasets: ChartDatasets
) -> AltairChart:
    """Draw one panel per metric, with the mean and confidence interval for every head in every variant."""
    color, shape, _ = build_variant_encodings("variant", list(heads_by_variant))
    order = list(dict.fromkeys(f"{row.layer}.{row.head}" for heads in heads_by_variant.values() for row in heads))
    panels = []
    for name in measures:
        title, scale = get_title(name), get_scale(name)
        rows = []
        for variant, heads in heads_by_variant.items():
            for row in heads:
                estimate = row.measures.get(name)
                if estimate is None or estimate.mean is None:
                    continue
                low, high = estimate.interval or (estimate.mean, estimate.mean)
                head, text = f"{row.layer}.{row.head}", build_measure_cell(name, estimate).text
                values = {"mean": scale * estimate.mean, "low": scale * low, "high": scale * high}
                tip = f"{variant}, head {head}: {title} {text}"
                rows.append({"head": head, "variant": variant, **values, "tip": tip})
        data = datasets.chart(rows)
        y = alt.Y("head:N", sort=order, title=None, axis=alt.Axis(grid=False))
        offset = alt.YOffset("variant:N", sort=list(heads_by_variant))
        axis = alt.Axis(title=None, tickCount=4)
        spread = alt.Scale(zero=name in ("first", "itself", "previous", "induction", "rise"), nice=True)
        x_low, x_mean = (alt.X(f"{field}:Q", scale=spread, axis=axis) for field in ("low", "mean"))
        lines = data.mark_rule(aria=False, strokeWidth=2)
        points = data.mark_point(size=36, filled=True, opacity=1)
        layers = [
            lines.encode(x=x_low, x2="high:Q", y=y, yOffset=offset, color=color),
            points.encode(x=x_mean, y=y, yOffset=offset, color=color, shape=shape, description="tip:N"),
        ]
        panels.append(alt.layer(*layers).properties(title=title))
    return arrange_panels(panels, row_spacing=64, column_spacing=52)
