"""Pictures of design by hand: the keys and their hull, the query, and the weights it yields. Made from the plain rows
that answers give (`as_row`), so that it knows nothing of how they were found.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from headtohead.key_design.views.facts import Row, figure, heading, legend, outcome, words
from headtohead.key_design.views.geometry import Edge, View, by_score, view
from headtohead.presentation import style
from headtohead.presentation.chart import Built, Chart, Layout, Sheets

PLANE = {"wide": 300, "narrow": 280}
BARS = {"wide": 190, "narrow": 210}
MOST_BARS = 11
MOST_LABELS = 40
MOST_NAMES = 8
NEAR = 0.06
"""keys nearer on paper than this part of the picture share a name"""
Panel = alt.LayerChart | alt.FacetChart
WANTED, OTHER, QUERY = style.HUES[0], style.BASELINE_HUE, style.HUES[5]


def picture(row: Row, *, titled: bool = True, theirs: Sequence[float] | None = None) -> Chart:
    """The picture of an answer, with its question and outcome as a title; `theirs` are another's weights beside."""
    if row["kind"] == "tour":
        return _tour(row)
    name = "".join(letter if letter.isalnum() else "-" for letter in row["question"]).strip("-")

    def build(layout: Layout, sheets: Sheets) -> Built:
        built = _panels(row, layout, sheets, theirs)
        return built.properties(title=_title(row, layout)) if titled else built

    return Chart(name, heading(row), words(row), build)


def _title(row: Row, layout: Layout) -> alt.TitleParams:
    width = 104 if layout == "wide" else 52
    lines = [line for text in (row["reason"], legend(row)) for line in textwrap.wrap(text, width)]
    return alt.TitleParams(heading(row), subtitle=lines, subtitleFontSize=11, offset=14)


def _tour(row: Row) -> Chart:
    """All steps below one another."""

    def build(layout: Layout, sheets: Sheets) -> Built:
        steps = []
        for step in row["steps"]:
            theirs = step["theirs"] and step["theirs"]["weights"]
            ours = _panels(step["ours"], layout, sheets, theirs)
            subtitle = f"{outcome(step['ours']).capitalize()}; precision {figure(step['ours']['precision'])}"
            if theirs:
                subtitle += f" (report: {figure(step['theirs']['precision'])})"
            steps.append(ours.properties(title=alt.TitleParams(step["asks"], subtitle=subtitle, offset=10)))
        return alt.vconcat(*steps, spacing=44)

    said = " ".join(f"{step['asks']}: {words(step['ours'])}" for step in row["steps"])
    return Chart("tour", "The questions of report C, part 1", said, build)


def _panels(
    row: Row, layout: Layout, sheets: Sheets, theirs: Sequence[float] | None = None
) -> alt.HConcatChart | alt.VConcatChart:
    keys = np.array(row["keys"])
    old = np.array([row["old"][row["at"]]]) if row["kind"] == "replacement" else None
    query = np.array(row["query"])
    seen = view(keys, np.atleast_2d(query), old)
    panels: list[Any] = [] if seen is None else [_plane(row, seen, layout, sheets)]
    if row["kind"] == "identity":
        panels.append(_matrix(row, layout, sheets))
    else:
        if keys.shape[1] != 2 and query.any():
            panels.append(_heights(row, layout, sheets))
        panels.append(_bars(row, layout, sheets, theirs))
    return alt.hconcat(*panels, spacing=34) if layout == "wide" else alt.vconcat(*panels, spacing=34)


def _plane(row: Row, seen: View, layout: Layout, sheets: Sheets) -> Panel:
    """Keys and hull as they lie, and the query's direction."""
    is_flat = not seen.axes
    x, y = (_axis(at, seen.limits[at], "xy"[at] if is_flat else None) for at in (0, 1))
    layers = [_lines(seen.edges, sheets, x, y, style.BASELINE_HUE, 1, [1, 0])]
    if seen.axes:
        layers += _axes(seen, sheets, x, y)
    if row["kind"] == "replacement":
        layers += _old_key(row, seen, sheets, x, y)
    elif row["kind"] == "answer" and is_flat:
        layers += _level(row, seen, sheets, x, y)
    layers += _dots(row, seen.keys, sheets, x, y)
    layers += _arrows(_directions(row, seen), sheets, x, y)
    size = PLANE[layout]
    return alt.layer(*layers).properties(width=size, height=size)


def _axis(at: int, limits: tuple[float, float], title: str | None) -> Any:
    make = alt.X if at == 0 else alt.Y
    axis = None if title is None else alt.Axis(title=title, tickCount=5, grid=True)
    return make(f"{'xy'[at]}:Q", scale=alt.Scale(domain=list(limits), nice=False, zero=False), axis=axis)


def _lines(
    edges: Sequence[Edge], sheets: Sheets, x: Any, y: Any, colour: str, width: float, dash: list[int]
) -> alt.Chart:
    rows = [
        {"x": point[0], "y": point[1], "line": at, "end": end}
        for at, edge in enumerate(edges)
        for end, point in enumerate(edge)
    ]
    mark = sheets.chart(rows).mark_line(aria=False, color=colour, strokeWidth=width, strokeDash=dash, opacity=0.7)
    made: alt.Chart = mark.encode(x=x, y=y, detail="line:N", order="end:Q")
    return made


def _axes(seen: View, sheets: Sheets, x: Any, y: Any) -> list[alt.Chart]:
    ends = [
        {"x": x1 + 0.09 * (x1 - x0), "y": y1 + 0.09 * (y1 - y0), "name": name}
        for name, ((x0, y0), (x1, y1)) in seen.axes
    ]
    return [
        _lines([edge for _, edge in seen.axes], sheets, x, y, style.SOFT, 1, [2, 3]),
        sheets.chart(ends)
        .mark_text(aria=False, color=style.SOFT, fill=style.SOFT, fontSize=11)
        .encode(x=x, y=y, text="name:N"),
    ]


def _dots(row: Row, places: Any, sheets: Sheets, x: Any, y: Any) -> list[alt.Chart]:
    """Each key: the more weight, the larger; wanted ones in colour."""
    weights = _own_weights(row)
    rows = [
        {
            "x": float(place[0]),
            "y": float(place[1]),
            "key": str(at),
            "wanted": is_wanted,
            "size": 40 + 420 * weight,
            "tip": _tip(row, at, weight),
        }
        for at, (place, weight, is_wanted) in enumerate(zip(places, weights, _wanted(row), strict=True))
    ]
    data = sheets.chart(rows)
    colour = alt.Color("wanted:N", scale=alt.Scale(domain=[True, False], range=[WANTED, OTHER]), legend=None)
    shape = alt.Shape("wanted:N", scale=alt.Scale(domain=[True, False], range=["circle", "square"]), legend=None)
    size = alt.Size("size:Q", scale=None, legend=None)
    dots = data.mark_point(filled=True, opacity=1).encode(
        x=x, y=y, color=colour, shape=shape, size=size, description="tip:N"
    )
    if len(rows) > MOST_LABELS:
        return [dots]
    names = sheets.chart(_names(np.asarray(places)))
    labels = names.mark_text(aria=False, align="left", dx=13, dy=-9, fontSize=12, fontWeight=600)
    return [dots, labels.encode(x=x, y=y, text="name:N")]


def _names(places: Any) -> list[dict[str, Any]]:
    """One name for each place: keys that lie on one another on paper share it."""
    size = np.maximum(places.max(axis=0) - places.min(axis=0), 1e-300)
    named: list[tuple[Any, list[int]]] = []
    for at, place in enumerate(places):
        near = next((keys for first, keys in named if np.abs((place - first) / size).max() < NEAR), None)
        if near is None:
            named.append((place, [at]))
        else:
            near.append(at)
    return [{"x": float(at[0]), "y": float(at[1]), "name": ", ".join(map(str, keys))} for at, keys in named]


def _tip(row: Row, at: int, weight: float) -> str:
    place = ", ".join(f"{number:.4g}" for number in row["keys"][at])
    return f"key {at} ({place}): weight {figure(weight)}"


def _own_weights(row: Row) -> list[float]:
    return [line[at] for at, line in enumerate(row["weights"])] if row["kind"] == "identity" else row["weights"]


def _wanted(row: Row) -> list[bool]:
    if row["kind"] == "identity":
        return [bool(one["exact"]) for one in row["rows"]]
    return [weight > 0 for weight in row["target"]]


def _old_key(row: Row, seen: View, sheets: Sheets, x: Any, y: Any) -> list[alt.Chart]:
    """Where the key was, and its way to where it is."""
    place = np.array(row["old"][row["at"]]) @ seen.turn
    old = (float(place[0]), float(place[1]))
    new = (float(seen.keys[row["at"]][0]), float(seen.keys[row["at"]][1]))
    tip = f"the old key {row['at']}, moved by {row['moved']:.4g}"
    hollow = sheets.chart([{"x": old[0], "y": old[1], "tip": tip}]).mark_point(
        filled=False, size=90, stroke=style.SOFT, strokeWidth=1.5
    )
    return [
        _lines([(old, new)], sheets, x, y, style.SOFT, 1.5, [3, 3]),
        hollow.encode(x=x, y=y, description="tip:N"),
    ]


def _level(row: Row, seen: View, sheets: Sheets, x: Any, y: Any) -> list[alt.Chart]:
    """The line on which every point has the highest score that a key has."""
    query = np.array(row["query"])
    if not query.any():
        return []
    top = seen.keys[int(np.argmax(seen.keys @ query))]
    along = np.array([-query[1], query[0]]) / np.linalg.norm(query) * 4 * seen.reach
    ends = ((float(top[0] - along[0]), float(top[1] - along[1])), (float(top[0] + along[0]), float(top[1] + along[1])))
    lines = _lines([ends], sheets, x, y, QUERY, 1.2, [5, 4])
    return [lines.mark_line(aria=False, color=QUERY, strokeWidth=1.2, strokeDash=[5, 4], opacity=0.7, clip=True)]


def _directions(row: Row, seen: View) -> list[dict[str, Any]]:
    """The query, or each row of a query matrix. Drawn with one length: that of a query is a matter of precision."""
    matrix = row["kind"] == "identity"
    queries = [np.array(one) for one in (row["query"] if matrix else [row["query"]])]
    made = []
    for at, query in enumerate(queries):
        if edge := seen.arrow(query):
            (left, low), (right, high) = edge
            name = f"q{at}" if matrix else "query"
            tip = f"{name} ({', '.join(f'{number:.4g}' for number in query)}), length {np.linalg.norm(query):.4g}"
            angle = math.degrees(math.atan2(right - left, high - low))
            made.append({"edge": edge, "x": right, "y": high, "angle": angle, "name": name, "tip": tip})
    return made


def _arrows(arrows: Sequence[dict[str, Any]], sheets: Sheets, x: Any, y: Any) -> list[alt.Chart]:
    if not arrows:
        return []
    rows = [{name: value for name, value in arrow.items() if name != "edge"} for arrow in arrows]
    heads = sheets.chart(rows).mark_point(shape="triangle", filled=True, size=110, color=QUERY, opacity=1)
    layers = [
        _lines([arrow["edge"] for arrow in arrows], sheets, x, y, QUERY, 2, [1, 0]),
        heads.encode(x=x, y=y, angle=alt.Angle("angle:Q", scale=None), description="tip:N"),
    ]
    for right in (True, False):  # a name stands on the side to which its arrow points
        own = [row for row in rows if (math.sin(math.radians(row["angle"])) >= 0) == right]
        if own and len(arrows) <= MOST_NAMES:
            names = sheets.chart(own).mark_text(
                aria=False,
                color=QUERY,
                fill=QUERY,
                align="left" if right else "right",
                dx=9 if right else -9,
                dy=-4,
                fontSize=11,
            )
            layers.append(names.encode(x=x, y=y, text="name:N"))
    return layers


def _heights(row: Row, layout: Layout, sheets: Sheets) -> Panel:
    """The keys seen so that the query points up: the height of a key is its score."""
    places = by_score(np.array(row["keys"]), np.array(row["query"]))
    low, high = places.min(axis=0), places.max(axis=0)
    room = np.maximum(0.14 * (high - low), [0.1, 0.1])
    x = alt.X("x:Q", scale=alt.Scale(domain=[low[0] - room[0], high[0] + room[0]], nice=False, zero=False), axis=None)
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[low[1] - room[1], high[1] + room[1]], nice=False, zero=False),
        axis=alt.Axis(title="score (the query points up)", tickCount=5),
    )
    alone = len(row["keys"][0]) != 3
    width = 150 if layout == "wide" and not alone else PLANE[layout]
    height = PLANE[layout] if layout == "wide" else 200
    return alt.layer(*_dots(row, places, sheets, x, y)).properties(width=width, height=height)


def _bars(row: Row, layout: Layout, sheets: Sheets, theirs: Sequence[float] | None) -> Panel:
    """The weights, with a mark where the target is, and a ring for another's answer."""
    rows = [
        {
            "key": f"key {at}",
            "weight": row["weights"][at],
            "target": row["target"][at],
            "wanted": row["target"][at] > 0,
            "label": figure(row["weights"][at]),
            "tip": f"key {at}: weight {figure(row['weights'][at])}, target {row['target'][at]:.4g}",
            **({} if theirs is None else {"theirs": theirs[at], "said": f"report: key {at} {theirs[at]:.4g}"}),
        }
        for at in _shown(row)
    ]
    if others := sorted(set(range(len(row["weights"]))) - set(_shown(row))):
        weight, target = (float(sum(row[field][at] for at in others)) for field in ("weights", "target"))
        said = f"{len(others)} others"
        tip = f"{said}: weight {figure(weight)} together, target {target:.4g}"
        rows.append({"key": said, "weight": weight, "target": target, "wanted": target > 0, "tip": tip})
        rows[-1]["label"] = figure(weight)
    data = sheets.chart(rows)
    y = alt.Y(
        "key:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelFontSize=12, labelPadding=6)
    )
    title = "weight (line: target" + (", ring: report)" if theirs else ")")
    axis = alt.Axis(title=title, values=[0, 0.5, 1], format="~r")
    x = alt.X("weight:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    colour = alt.Color("wanted:N", scale=alt.Scale(domain=[True, False], range=[WANTED, OTHER]), legend=None)
    layers = [
        data.mark_bar(height=11).encode(x=x, y=y, color=colour, description="tip:N"),
        data.mark_tick(aria=False, color=style.ZERO, thickness=2, size=19).encode(x=alt.X("target:Q", axis=axis), y=y),
    ]
    if theirs is not None:
        layers.append(
            data.mark_point(size=55, filled=False, stroke=QUERY, strokeWidth=2).encode(
                x=alt.X("theirs:Q", axis=axis), y=y, description="said:N"
            )
        )
    labels = data.mark_text(aria=False, align="left", dx=8, fontSize=11)
    layers.append(labels.encode(x=alt.value(BARS[layout]), y=y, text="label:N"))
    return alt.layer(*layers).properties(width=BARS[layout], height=alt.Step(26))


def _shown(row: Row) -> list[int]:
    """The keys with a bar of their own: all, or those that matter most."""
    count = len(row["weights"])
    if count <= MOST_BARS + 1:
        return list(range(count))
    by_weight = sorted(range(count), key=lambda at: (-row["target"][at], -row["weights"][at], at))
    return sorted(by_weight[:MOST_BARS])


def _matrix(row: Row, layout: Layout, sheets: Sheets) -> Panel:
    """All weights of a query matrix."""
    count = len(row["weights"])
    rows = [
        {
            "query": f"query {i}",
            "key": str(j),
            "weight": weight,
            "label": figure(weight) if weight >= 5e-5 else "0",
            "tip": f"query {i}, key {j}: weight {figure(weight)}",
        }
        for i, line in enumerate(row["weights"])
        for j, weight in enumerate(line)
    ]
    data = sheets.chart(rows)
    x = alt.X("key:N", sort=None, title="key", axis=alt.Axis(labelAngle=0, orient="top", ticks=False, domain=False))
    y = alt.Y("query:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    cells = data.mark_rect(color=WANTED, stroke=style.GRID).encode(
        x=x,
        y=y,
        opacity=alt.Opacity("weight:Q", scale=alt.Scale(domain=[0, 1], range=[0.03, 0.55]), legend=None),
        description="tip:N",
    )
    step = max(8, min(52, 300 // count))
    layers: list[alt.Chart] = [cells]
    if count <= 8:
        layers.append(data.mark_text(aria=False, fontSize=11).encode(x=x, y=y, text="label:N"))
    return alt.layer(*layers).properties(width=alt.Step(step), height=alt.Step(min(step, 40)))
