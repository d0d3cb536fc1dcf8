"""A picture of what each head does, over seeds: heads down, a mark and its interval for each variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from headtohead.attention_analysis.head_tables import (
    MEASURE_FORMATS,
    HeadSummary,
    build_measure_cell,
    get_heads_by_variant,
    select_measures,
)
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, PanelGrid

MAX_HEADS = 32
"""more are not drawn; the table has them all"""


def build_heads_chart(findings: Findings) -> Chart | None:
    """Every measure as a small multiple: heads down, a mark and its interval for each variant."""
    found = get_heads_by_variant(findings)
    names = [name for name in select_measures(found) if name != "padding"]
    count = max((len(own) for own in found.values()), default=0)
    if not names or count > MAX_HEADS:
        return None
    most = max(found.items(), key=lambda one: max(_get_mean(row, "rise") for row in one[1]))
    worth = max(most[1], key=lambda row: _get_mean(row, "rise"))
    said = (
        f"What each head does, one picture for each of {', '.join(MEASURE_FORMATS[name][0] for name in names)}. "
        f"The head worth most is {worth['layer']}.{worth['head']} of {most[0]}: without it the loss rises by "
        f"{_get_mean(worth, 'rise'):.3f} nats."
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        return _build_panels(found, names, sheets)

    height = max(90, count * max(16, 9 * len(found)))
    panels: Mapping[Layout, PanelGrid] = {"wide": PanelGrid(150, height, 4, 4), "narrow": PanelGrid(108, height, 2, 2)}
    return Chart("heads", "What each head does", said, build, panels)


def _get_mean(row: HeadSummary, measure: str) -> float:
    figure = row.get(measure)
    return float(figure["mean"]) if figure else 0.0


def _build_panels(
    heads_by_variant: dict[str, list[HeadSummary]], measures: Sequence[str], sheets: ChartDatasets
) -> AltairChart:
    hues, shapes, _ = style.assign_variant_styles(list(heads_by_variant))
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    hue = alt.Color("variant:N", scale=alt.Scale(domain=list(heads_by_variant), range=hues), legend=legend)
    shape = alt.Shape("variant:N", scale=alt.Scale(domain=list(heads_by_variant), range=shapes), legend=legend)
    order = list(dict.fromkeys(f"{row['layer']}.{row['head']}" for own in heads_by_variant.values() for row in own))
    panels = []
    for name in measures:
        title, scale, _ = MEASURE_FORMATS[name]
        rows = []
        for variant, own in heads_by_variant.items():
            for row in own:
                if not row.get(name):
                    continue
                low, high = row[name]["interval"] or [row[name]["mean"]] * 2
                rows.append(
                    {
                        "head": f"{row['layer']}.{row['head']}",
                        "variant": variant,
                        "mean": scale * row[name]["mean"],
                        "low": scale * low,
                        "high": scale * high,
                        "tip": f"{variant}, head {row['layer']}.{row['head']}: {title} {build_measure_cell(name, row[name]).text}",  # noqa: E501
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
