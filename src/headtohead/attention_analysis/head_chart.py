"""Chart of head metrics averaged over seeds, for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from headtohead.attention_analysis.head_tables import (
    build_seed_mean_cell,
    get_display_scale,
    get_heads_by_variant,
    get_metric_title,
    select_available_metrics,
)
from headtohead.experiment.schemas import Findings, HeadSummary
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_chart_encodings,
)

MAX_HEADS = 32
"""models with more heads get no chart; the table lists all"""


def build_heads_chart(findings: Findings) -> Chart | None:
    """Return small multiples, one per metric, with a row per head and a mark with its interval per variant."""
    heads_by_variant = get_heads_by_variant(findings)
    metrics = [metric for metric in select_available_metrics(heads_by_variant) if metric != "padding"]
    num_heads = max((len(heads) for heads in heads_by_variant.values()), default=0)
    if not metrics or num_heads > MAX_HEADS:
        return None
    top_variant, top_head = max(
        ((variant, head) for variant, heads in heads_by_variant.items() for head in heads),
        key=lambda variant_and_head: _get_metric_mean(variant_and_head[1], "rise"),
    )
    alt_text = (
        f"Head metrics, one panel each for {', '.join(get_metric_title(metric) for metric in metrics)}. "
        f"Ablating head {top_head.layer}.{top_head.head} of {top_variant} increases the loss most, by "
        f"{_get_metric_mean(top_head, 'rise'):.3f} nats."
    )

    def build_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _build_metric_panels(heads_by_variant, metrics, datasets)

    height = max(90, num_heads * max(16, 6 * len(heads_by_variant)))
    panels: Mapping[Layout, PanelGrid] = {"wide": PanelGrid(150, height, 4, 4), "narrow": PanelGrid(108, height, 2, 2)}
    return Chart("heads", "What each head does", alt_text, build_chart, panels)


def _get_metric_mean(head: HeadSummary, metric: str) -> float:
    """Return the mean over seeds of a head's metric, or 0 if it was not measured."""
    estimate = head.measures.get(metric)
    return estimate.mean or 0.0 if estimate else 0.0


def _build_metric_panels(
    heads_by_variant: dict[str, list[HeadSummary]], metrics: Sequence[str], datasets: ChartDatasets
) -> AltairChart:
    """Draw one panel per metric, with the mean and confidence interval for every head in every variant."""
    color, shape, _ = build_chart_encodings("variant", list(heads_by_variant))
    head_order = list(
        dict.fromkeys(f"{head.layer}.{head.head}" for heads in heads_by_variant.values() for head in heads)
    )
    panels = []
    for metric in metrics:
        title, scale = get_metric_title(metric), get_display_scale(metric)
        marks = []
        for variant, heads in heads_by_variant.items():
            for head in heads:
                estimate = head.measures.get(metric)
                if estimate is None or estimate.mean is None:
                    continue
                low, high = estimate.interval or (estimate.mean, estimate.mean)
                head_label = f"{head.layer}.{head.head}"
                scaled_estimate = {"mean": scale * estimate.mean, "low": scale * low, "high": scale * high}
                tooltip = f"{variant}, head {head_label}: {title} {build_seed_mean_cell(metric, estimate).text}"
                marks.append({"head": head_label, "variant": variant, **scaled_estimate, "tip": tooltip})
        data = datasets.chart(marks)
        y = alt.Y("head:N", sort=head_order, title=None, axis=alt.Axis(grid=False))
        offset = alt.YOffset("variant:N", sort=list(heads_by_variant))
        axis = alt.Axis(title=None, tickCount=4)
        x_scale = alt.Scale(zero=metric in ("first", "itself", "previous", "induction", "rise"), nice=True)
        x_low, x_mean = (alt.X(f"{field}:Q", scale=x_scale, axis=axis) for field in ("low", "mean"))
        lines = data.mark_rule(aria=False, strokeWidth=2)
        points = data.mark_point(size=36, filled=True, opacity=1)
        layers = [
            lines.encode(x=x_low, x2="high:Q", y=y, yOffset=offset, color=color),
            points.encode(x=x_mean, y=y, yOffset=offset, color=color, shape=shape, description="tip:N"),
        ]
        panels.append(alt.layer(*layers).properties(title=title))
    return arrange_panels(panels, row_spacing=64, column_spacing=52)
