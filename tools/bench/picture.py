"""One picture of all figures that have a bar: how far each is from what was promised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import altair as alt

from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout

from . import words
from .findings import Finding, Results

HOLDS, FAILS = style.VERDICT_COLORS["helped"], style.VERDICT_COLORS["hurt"]


ROOM = 120
"""on both sides, for fonts that are wider than the one that was measured with"""
MOST = 20.0
"""where the scale ends: what is further is as good as this"""


def margin(finding: Finding) -> float:
    """1 at the bar, above it where more was reached than promised, whichever way the bar is meant."""
    assert finding.bar is not None
    assert finding.figure is not None
    wanted, figure = finding.bar.wanted, finding.figure
    if not wanted:  # none at all is promised
        return 1.0 if finding.holds else 1 / MOST
    return min(MOST, wanted / max(figure, wanted / MOST) if finding.bar.at_most else figure / wanted)


def chart(found: dict[str, Results]) -> Chart:
    """A dot for each promise, on a scale where 1 is the promise itself."""
    rows: list[dict[str, Any]] = []
    for family, results in found.items():
        for one in results.findings:
            if one.bar is None or one.figure is None:
                continue
            shown = f"{words.figure(one.figure, one.kind)}, wanted {words.bar(one.bar, one.kind)}"
            what = one.what if one.what.startswith(family) else f"{family}: {one.what}"
            rows.append({"what": what, "margin": margin(one), "holds": words.holds(one), "shown": shown})
    text = " ".join(f"{row['what']}: {row['shown']}." for row in rows)

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        data, line = sheets.chart(rows), sheets.chart([{"at": 1}])
        order = [row["what"] for row in rows]
        y = alt.Y("what:N", sort=order, axis=alt.Axis(title=None, labelLimit=700, grid=False, ticks=False))
        scale = alt.Scale(type="log", nice=False, padding=24)
        x = alt.X("margin:Q", scale=scale, axis=alt.Axis(title="of what was promised", format="~g"))
        hue = alt.Color("holds:N", scale=alt.Scale(domain=["yes", "NO"], range=[HOLDS, FAILS]), legend=None)
        dots = data.mark_point(filled=True, size=80, opacity=1).encode(
            x=x,
            y=y,
            color=hue,
            shape=alt.Shape("holds:N", scale=alt.Scale(domain=["yes", "NO"], range=["circle", "cross"]), legend=None),
        )
        figures = data.mark_text(align="left", dx=9, fontSize=10, color=style.MUTED_TEXT_COLOR).encode(
            x=x, y=y, text="shown:N"
        )
        rule = line.mark_rule(color=style.ZERO_LINE_COLOR, strokeDash=[4, 3]).encode(x="at:Q")
        return alt.layer(rule, dots, figures).properties(width=420, height=alt.Step(22))

    return Chart("performance", "What was promised and what was measured", text, build)


def write(found: dict[str, Results], path: Path) -> None:
    """As SVG, which is a thirtieth of the PNG; on white, since dark pages would swallow its words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = chart(found).to_svg()
    width, height = (float(one) for one in re.findall(r'(?:width|height)="([\d.]+)"', drawn)[:2])
    rest = drawn.split(">", 1)[1]
    head = f'viewBox="{-ROOM} 0 {width + 2 * ROOM} {height}" width="{width + 2 * ROOM}" height="{height}"'
    page = f'<rect x="{-ROOM}" width="100%" height="100%" fill="white"/>'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {head}>{page}{rest}', encoding="utf-8")
