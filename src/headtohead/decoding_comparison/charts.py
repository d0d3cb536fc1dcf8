"""The charts of the decoding comparison: every measure with its interval, likelihood against variety, and token by
token what the model offered, what a strategy kept of it and what was drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from headtohead.decoding_comparison import phrasing as say
from headtohead.presentation import style
from headtohead.presentation.chart import Built, Chart, Layout, Panels, Sheets
from headtohead.report.charts import _log_ticks

Found = dict[str, Any]
Panel = alt.LayerChart | alt.FacetChart

PEOPLE = "people"
LIKELIHOODS = ("perplexity", "second")
VARIETIES = ("self-bleu", "distinct-2")
"""the first that is known; BLEU tells apart what nearly all pairs of words being different cannot"""
LEAST = 0.1
"""a logarithm needs more than no BLEU at all"""
FAMILIES = {"temperature": "temperature", "top-k": "top-k", "top-p": "top-p"}
FATES = {"drawn": style.HUES[5], "kept": style.HUES[0], "dropped": style.BASELINE_HUE}
READABLE = {"wide": 0.012, "narrow": 0.03}
"""the share of a bar that a letter takes"""
Place = tuple[Literal["left", "right"], Literal["top", "middle", "bottom"], int, int]
PLACES: Sequence[Place] = (("right", "bottom", -6, -3), ("left", "middle", 8, 2), ("right", "top", -4, 5))
"""where the words stand beside a mark"""
SHARE = "format(datum.value * 100, ',~r') + '\u00a0%'"


def charts(found: Found) -> list[Chart]:
    """Those for which there is something to draw, in the page's order."""
    made = [intervals(found)]
    if found["sweep"]["points"]:
        made.append(tradeoff(found))
    return made + [trace(one) for one in found["traces"]]


def intervals(found: Found) -> Chart:
    """A small multiple for each measure: every strategy's figure with its interval over prompts; people's as a line."""
    names = list(found["figures"])
    measures = [one for one in found["measures"] if any(one["name"] in found["figures"][name] for name in names)]
    said = "; ".join(
        f"{one['title']}: "
        + ", ".join(f"{name} {say.with_span(one['kind'], found['figures'][name].get(one['name']))}" for name in names)
        for one in measures
    )

    def build(layout: Layout, sheets: Sheets) -> Built:
        panels = [_intervals(found, one, names, sheets) for one in measures]
        return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=66, column=128))

    high = 24 * len(names) + 8
    sizes: dict[Layout, Panels] = {"wide": Panels(170, high, 3, 4), "narrow": Panels(190, high, 1, 2)}
    return Chart("measures", "Every measure, strategy by strategy", f"Figures with intervals. {said}.", build, sizes)


def _intervals(found: Found, measure: Found, names: Sequence[str], sheets: Sheets) -> Panel:
    rows = []
    for name in names:
        if figure := found["figures"][name].get(measure["name"]):
            low, high = figure["interval"] or (figure["value"], figure["value"])
            tip = f"{name}: {measure['title']} {say.with_span(measure['kind'], figure)}"
            rows.append({"strategy": name, "value": figure["value"], "low": low, "high": high, "tip": tip})
    hues, shapes, _ = style.scales(list(names))
    hue = alt.Color("strategy:N", scale=alt.Scale(domain=list(names), range=hues), legend=None)
    shape = alt.Shape("strategy:N", scale=alt.Scale(domain=list(names), range=shapes), legend=None)
    data = sheets.chart(rows)
    label = (
        "format(datum.value * 100, ',~r') + '\u00a0%'" if measure["kind"] == "share" else "format(datum.value, ',~r')"
    )
    axis = alt.Axis(title=None, tickCount=4, labelExpr=label)
    scale = alt.Scale(zero=False, padding=10, nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    named = alt.Axis(labelFontSize=11, labelLimit=120, labelColor=style.INK, ticks=False, domain=False, grid=True)
    y = alt.Y("strategy:N", sort=list(names), title=None, axis=named)
    layers = [
        *_people_rule(found, measure, sheets, x),
        data.mark_rule(strokeWidth=2).encode(x=x("low:Q"), x2="high:Q", y=y, color=hue, description="tip:N"),
        data.mark_point(size=70, filled=True, opacity=1).encode(
            x=x("value:Q"), y=y, color=hue, shape=shape, description="tip:N"
        ),
    ]
    better = {"lower": "lower is better", "higher": "higher is better"}.get(measure["better"] or "", "")
    return alt.layer(*layers).properties(title=alt.TitleParams(measure["title"], subtitle=better))


def _people_rule(found: Found, measure: Found, sheets: Sheets, x: Any) -> list[alt.Chart]:
    figure = found["people"].get(measure["name"])
    if figure is None:
        return []
    tip = f"people: {measure['title']} {say.with_span(measure['kind'], figure)}"
    mark = sheets.chart([{"people": figure["value"], "tip": tip}]).mark_rule(
        color=style.ZERO, strokeDash=[4, 3], strokeWidth=1.5
    )
    return [mark.encode(x=x("people:Q"), description="tip:N")]


def tradeoff(found: Found) -> Chart:
    """How likely the text is against how varied, along temperature, k and p."""
    points = found["sweep"]["points"]
    likelihoods = [name for name in LIKELIHOODS if any(name in point["figures"] for point in points)]
    titles = {one["name"]: one for one in found["measures"]}
    variety = titles[next(name for name in VARIETIES if name in titles)]
    said = "; ".join(
        f"{point['family']} {point['label']}: {variety['title']} {_of(point, variety)}, "
        + ", ".join(f"{titles[name]['title']} {_of(point, titles[name])}" for name in likelihoods)
        for point in points
    )

    def build(layout: Layout, sheets: Sheets) -> Built:
        panels = [_tradeoff(found, variety, titles[name], sheets) for name in likelihoods]
        return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=80, column=70))

    wide = Panels(370, 320, 2, 4) if len(likelihoods) > 1 else Panels(700, 340, 1, 4)
    sizes: dict[Layout, Panels] = {"wide": wide, "narrow": Panels(270, 290, 1, 2)}
    return Chart("tradeoff", "Likelihood against variety", f"The sweep. {said}.", build, sizes)


def _of(point: Found, measure: Found) -> str:
    found = point["figures"].get(measure["name"])
    return say.value(measure["kind"], found["value"]) if found else "unknown"


def _tradeoff(found: Found, variety: Found, likelihood: Found, sheets: Sheets) -> Panel:
    made = (_point_row(point, variety, likelihood) for point in found["sweep"]["points"])
    rows = [row for row in made if row is not None]
    families = [name for name in FAMILIES if any(row["family"] == name for row in rows)]
    hues, shapes, dashes = style.scales(["", *families])
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    hue = alt.Color("family:N", scale=alt.Scale(domain=families, range=hues[1:]), legend=legend)
    shape = alt.Shape("family:N", scale=alt.Scale(domain=families, range=shapes[1:]), legend=legend)
    dash = alt.StrokeDash("family:N", scale=alt.Scale(domain=families, range=dashes[1:]), legend=None)
    data = sheets.chart(rows)
    x, across = _variety_axis(rows, variety), [row["x"] for row in rows]
    y = _likelihood_axis(rows, found["people"].get(likelihood["name"]), likelihood)
    layers = [
        *_people_level(found, likelihood, x, y, math.sqrt(min(across) * max(across)), sheets),
        data.mark_line(aria=False, strokeWidth=1.5, opacity=0.8).encode(
            x=x, y=y, color=hue, strokeDash=dash, order="order:Q", detail="family:N"
        ),
        data.mark_point(size=46, filled=True, opacity=1).encode(x=x, y=y, color=hue, shape=shape, description="tip:N"),
        *_labels(rows, families, hues[1:], x, y, sheets),
    ]
    return alt.layer(*layers).properties(title=f"{likelihood['title']} (likelier ↓)")


def _point_row(point: Found, variety: Found, likelihood: Found) -> Found | None:
    across, up = point["figures"].get(variety["name"]), point["figures"].get(likelihood["name"])
    if across is None or up is None:
        return None
    tip = (
        f"{point['family']} {point['label']}: {variety['title']} {say.with_span(variety['kind'], across)}, "
        f"{likelihood['title']} {say.with_span(likelihood['kind'], up)}"
    )
    return {
        "family": point["family"],
        "label": point["label"],
        "order": point["order"],
        "end": point["end"],
        "x": across["value"] if variety["kind"] == "share" else max(LEAST, across["value"]),
        "y": up["value"],
        "tip": tip,
    }


def _variety_axis(rows: Sequence[Found], variety: Found) -> alt.X:
    """More varied to the right: for BLEU that is from 100 down, by its logarithm."""
    title = f"{variety['title']} (more varied →)"
    if variety["kind"] == "share":
        scale = alt.Scale(zero=False, padding=22, nice=False)
        return alt.X("x:Q", scale=scale, axis=alt.Axis(title=title, tickCount=5, labelExpr=SHARE))
    low, high = min(row["x"] for row in rows), max(row["x"] for row in rows)
    scale = alt.Scale(type="log", domain=[high * 2.1, low / 1.5], nice=False)
    return alt.X("x:Q", scale=scale, axis=alt.Axis(title=title, values=_log_ticks(low, high), format=",~r"))


def _likelihood_axis(rows: Sequence[Found], people: Found | None, likelihood: Found) -> alt.Y:
    values = [row["y"] for row in rows] + ([people["value"]] if people else [])
    low, high = min(values), max(values)
    if likelihood["kind"] != "perplexity":
        return alt.Y("y:Q", scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(title=None, tickCount=5))
    scale = alt.Scale(type="log", domain=[low * 0.9, high * 1.12], nice=False)
    return alt.Y("y:Q", scale=scale, axis=alt.Axis(title=None, values=_log_ticks(low, high), format=",~r"))


def _people_level(
    found: Found, likelihood: Found, x: alt.X, y: alt.Y, middle: float, sheets: Sheets
) -> list[alt.Chart]:
    figure = found["people"].get(likelihood["name"])
    if figure is None:
        return []
    tip = f"people: {likelihood['title']} {say.with_span(likelihood['kind'], figure)}"
    data = sheets.chart([{"x": middle, "y": figure["value"], "said": "people", "tip": tip}])
    rule = data.mark_rule(color=style.ZERO, strokeDash=[4, 3], strokeWidth=1.5).encode(y=y, description="tip:N")
    text = data.mark_text(aria=False, align="center", baseline="bottom", dy=-3, fontSize=11, color=style.SOFT)
    return [rule, text.encode(x=x, y=y, text="said:N")]


def _labels(
    rows: Sequence[Found], families: Sequence[str], hues: Sequence[str], x: alt.X, y: alt.Y, sheets: Sheets
) -> list[alt.Chart]:
    """The setting beside its mark: one family above its line, the next below, so that they do not meet."""
    made = []
    for family, hue, (align, baseline, dx, dy) in zip(families, hues, PLACES, strict=False):
        own = [row for row in rows if row["family"] == family and not row["end"]]
        mark = sheets.chart(own).mark_text(
            aria=False, align=align, baseline=baseline, dx=dx, dy=dy, fontSize=10, color=hue
        )
        made.append(mark.encode(x=x, y=y, text="label:N"))
    ends = {row["end"]: row for row in rows if row["end"]}
    if ends:
        text = sheets.chart(list(ends.values())).mark_text(
            aria=False, align="right", dx=-9, fontSize=11, fontWeight=600, color=style.INK
        )
        made.append(text.encode(x=x, y=y, text="end:N"))
    return made


def trace(found: Found) -> Chart:
    """A bar for each token: the model's likeliest tokens in their order, coloured by what became of them."""
    steps = found["steps"]
    said = "; ".join(f"{step['at']}: {step_words(step)}" for step in steps)

    def build(layout: Layout, sheets: Sheets) -> Built:
        return _trace(steps, layout, sheets)

    title = f"{found['strategy']}, token by token"
    return Chart(f"trace-{found['strategy']}", title, f"{title}. {said}.", build)


def step_words(step: Found) -> str:
    """What happened at a step, in words."""
    drawn = f"drew {say.token(step['token'])}, rank {step['rank']:,}, {say.percent(step['probability'])} of the model's"
    if step["kept"] is None:
        return drawn
    tokens = "token" if step["kept"] == 1 else "tokens"
    return f"{drawn}; kept {step['kept']:,} {tokens} with {say.percent(step['mass'])}"


def _trace(steps: Sequence[Found], layout: Layout, sheets: Sheets) -> Built:
    wide = layout == "wide"
    width = 640 if wide else 220
    rows = [row for step in steps for row in _segments(step, READABLE[layout])]
    order = [_step_name(step) for step in steps]
    fates = [fate for fate in FATES if any(row["fate"] == fate for row in rows)]
    hue = alt.Color(
        "fate:N",
        scale=alt.Scale(domain=fates, range=[FATES[fate] for fate in fates]),
        legend=alt.Legend(symbolType="square", symbolOpacity=0.6, symbolStrokeWidth=0),
    )
    data = sheets.chart(rows)
    axis = alt.Axis(title="the model’s probability", format="%", tickCount=5, grid=False)
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    names = alt.Axis(
        labelFontSize=11, labelLimit=150 if wide else 84, labelColor=style.INK, ticks=False, domain=False, grid=False
    )
    y = alt.Y("step:N", sort=order, title=None, axis=names)
    # Half see-through, so that dark words stand on light colours by day and light words on dark ones by night.
    opacity = alt.Opacity(
        "fate:N", scale=alt.Scale(domain=fates, range=[{"drawn": 0.75, "kept": 0.4}.get(f, 0.18) for f in fates])
    ).legend(None)
    layers = [
        data.mark_bar(height=17, stroke=style.GRID, strokeWidth=0.7).encode(
            x=x, x2="to:Q", y=y, color=hue, opacity=opacity, description="tip:N"
        ),
        sheets.chart([row for row in rows if row["shown"]])
        .mark_text(aria=False, align="center", baseline="middle", fontSize=10.5, color=style.INK)
        .encode(x=alt.X("middle:Q", scale=alt.Scale(domain=[0, 1]), axis=axis), y=y, text="shown:N"),
    ]
    return alt.layer(*layers).properties(width=width, height=22 * len(steps))


def _step_name(step: Found) -> str:
    return f"{step['at']}  {say.token(step['token'])}"


def _segments(step: Found, letter: float) -> list[Found]:
    rows, at = [], 0.0
    for one in step["top"]:
        text = say.token(one["token"]) if one["token"] is not None else f"{one['count']:,} others"
        fate = "drawn" if one["drawn"] else "kept" if one["kept"] else "dropped"
        after = f", {say.percent(one['after'])} after the strategy" if one["kept"] and one["after"] is not None else ""
        rows.append(
            {
                "step": _step_name(step),
                "from": at,
                "to": min(at + one["probability"], 1.0),
                "middle": at + one["probability"] / 2,
                "fate": fate,
                "shown": text if one["probability"] >= letter * (len(text) + 1) else "",
                "tip": f"step {step['at']}, {text}: {say.percent(one['probability'])} of the model’s, {fate}{after}",
            }
        )
        at += one["probability"]
    return rows
