"""Charts of key-design solutions: keys, convex hull, query and attention weights. Built from `to_dict` rows only."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from headtohead.key_design.views.facts import (
    ResultDict,
    format_alt_text,
    format_heading,
    format_legend,
    format_outcome,
    format_weight,
)
from headtohead.key_design.views.geometry import KeyProjection, LineSegment, project_by_score, project_keys
from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout

PLANE_SIZE = {"wide": 300, "narrow": 280}
BARS_WIDTH = {"wide": 190, "narrow": 210}
MAX_BARS = 11
MAX_KEY_LABELS = 40
MAX_QUERY_LABELS = 8
LABEL_MERGE_DISTANCE = 0.06
"""keys closer than this fraction of the picture share a label"""
PanelChart = alt.LayerChart | alt.FacetChart
TARGET_COLOR, OTHER_COLOR, QUERY_COLOR = style.VARIANT_COLORS[0], style.BASELINE_COLOR, style.VARIANT_COLORS[5]


def build_chart(
    result: ResultDict, *, has_title: bool = True, published_weights: Sequence[float] | None = None
) -> Chart:
    """Return the chart of a solution, titled with question and outcome; also draw `published_weights`."""
    if result["kind"] == "tour":
        return _build_walkthrough_chart(result)
    name = "".join(letter if letter.isalnum() else "-" for letter in result["question"]).strip("-")

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        panels = _build_panels(result, layout, sheets, published_weights)
        return panels.properties(title=_build_title(result, layout)) if has_title else panels

    return Chart(name, format_heading(result), format_alt_text(result), build)


def _build_title(result: ResultDict, layout: Layout) -> alt.TitleParams:
    width = 104 if layout == "wide" else 52
    lines = [line for text in (result["reason"], format_legend(result)) for line in textwrap.wrap(text, width)]
    return alt.TitleParams(format_heading(result), subtitle=lines, subtitleFontSize=11, offset=14)


def _build_walkthrough_chart(walkthrough: ResultDict) -> Chart:
    """Return all steps, one below the other."""

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        steps = []
        for step in walkthrough["steps"]:
            published = step["published"] and step["published"]["weights"]
            panels = _build_panels(step["solution"], layout, sheets, published)
            solution = step["solution"]
            subtitle = f"{format_outcome(solution).capitalize()}; precision {format_weight(solution['precision'])}"
            if published:
                subtitle += f" (report: {format_weight(step['published']['precision'])})"
            steps.append(panels.properties(title=alt.TitleParams(step["question"], subtitle=subtitle, offset=10)))
        return alt.vconcat(*steps, spacing=44)

    alt_text = " ".join(f"{step['question']}: {format_alt_text(step['solution'])}" for step in walkthrough["steps"])
    return Chart("tour", "The questions of report C, part 1", alt_text, build)


def _build_panels(
    result: ResultDict, layout: Layout, sheets: ChartDatasets, published_weights: Sequence[float] | None = None
) -> alt.HConcatChart | alt.VConcatChart:
    keys = np.array(result["keys"])
    old = np.array([result["old"][result["at"]]]) if result["kind"] == "replacement" else None
    query = np.array(result["query"])
    projection = project_keys(keys, np.atleast_2d(query), old)
    panels: list[Any] = [] if projection is None else [_build_plane_panel(result, projection, layout, sheets)]
    if result["kind"] == "identity":
        panels.append(_build_matrix_panel(result, layout, sheets))
    else:
        if keys.shape[1] != 2 and query.any():
            panels.append(_build_score_panel(result, layout, sheets))
        panels.append(_build_weights_panel(result, layout, sheets, published_weights))
    return alt.hconcat(*panels, spacing=34) if layout == "wide" else alt.vconcat(*panels, spacing=34)


def _build_plane_panel(
    result: ResultDict, projection: KeyProjection, layout: Layout, sheets: ChartDatasets
) -> PanelChart:
    """Draw keys, hull and query direction in the plane."""
    is_flat = not projection.axis_segments
    x, y = (_build_axis(axis, projection.axis_limits[axis], "xy"[axis] if is_flat else None) for axis in (0, 1))
    layers = [_draw_segments(projection.hull_segments, sheets, x, y, style.BASELINE_COLOR, 1, [1, 0])]
    if projection.axis_segments:
        layers += _draw_axes(projection, sheets, x, y)
    if result["kind"] == "replacement":
        layers += _draw_original_key(result, projection, sheets, x, y)
    elif result["kind"] == "answer" and is_flat:
        layers += _draw_level_line(result, projection, sheets, x, y)
    layers += _draw_keys(result, projection.keys, sheets, x, y)
    layers += _draw_arrows(_compute_query_arrows(result, projection), sheets, x, y)
    size = PLANE_SIZE[layout]
    return alt.layer(*layers).properties(width=size, height=size)


def _build_axis(axis_index: int, limits: tuple[float, float], title: str | None) -> Any:
    make = alt.X if axis_index == 0 else alt.Y
    axis = None if title is None else alt.Axis(title=title, tickCount=5, grid=True)
    return make(f"{'xy'[axis_index]}:Q", scale=alt.Scale(domain=list(limits), nice=False, zero=False), axis=axis)


def _draw_segments(
    segments: Sequence[LineSegment], sheets: ChartDatasets, x: Any, y: Any, color: str, width: float, dash: list[int]
) -> alt.Chart:
    rows = [
        {"x": point[0], "y": point[1], "line": index, "end": end}
        for index, edge in enumerate(segments)
        for end, point in enumerate(edge)
    ]
    mark = sheets.chart(rows).mark_line(aria=False, color=color, strokeWidth=width, strokeDash=dash, opacity=0.7)
    chart: alt.Chart = mark.encode(x=x, y=y, detail="line:N", order="end:Q")
    return chart


def _draw_axes(projection: KeyProjection, sheets: ChartDatasets, x: Any, y: Any) -> list[alt.Chart]:
    ends = [
        {"x": x1 + 0.09 * (x1 - x0), "y": y1 + 0.09 * (y1 - y0), "name": name}
        for name, ((x0, y0), (x1, y1)) in projection.axis_segments
    ]
    return [
        _draw_segments([edge for _, edge in projection.axis_segments], sheets, x, y, style.MUTED_TEXT_COLOR, 1, [2, 3]),
        sheets.chart(ends)
        .mark_text(aria=False, color=style.MUTED_TEXT_COLOR, fill=style.MUTED_TEXT_COLOR, fontSize=11)
        .encode(x=x, y=y, text="name:N"),
    ]


def _draw_keys(result: ResultDict, points: Any, sheets: ChartDatasets, x: Any, y: Any) -> list[alt.Chart]:
    """Draw keys with an area that grows with weight; target keys are colored."""
    weights = _get_key_weights(result)
    rows = [
        {
            "x": float(point[0]),
            "y": float(point[1]),
            "key": str(index),
            "is_target": is_target,
            "size": 40 + 420 * weight,
            "tip": _format_tooltip(result, index, weight),
        }
        for index, (point, weight, is_target) in enumerate(zip(points, weights, _get_target_flags(result), strict=True))
    ]
    data = sheets.chart(rows)
    color = alt.Color(
        "is_target:N", scale=alt.Scale(domain=[True, False], range=[TARGET_COLOR, OTHER_COLOR]), legend=None
    )
    shape = alt.Shape("is_target:N", scale=alt.Scale(domain=[True, False], range=["circle", "square"]), legend=None)
    size = alt.Size("size:Q", scale=None, legend=None)
    dots = data.mark_point(filled=True, opacity=1).encode(
        x=x, y=y, color=color, shape=shape, size=size, description="tip:N"
    )
    if len(rows) > MAX_KEY_LABELS:
        return [dots]
    names = sheets.chart(_merge_key_labels(np.asarray(points)))
    labels = names.mark_text(aria=False, align="left", dx=13, dy=-9, fontSize=12, fontWeight=600)
    return [dots, labels.encode(x=x, y=y, text="name:N")]


def _merge_key_labels(points: Any) -> list[dict[str, Any]]:
    """Return labels; keys that overlap in the plane share one."""
    size = np.maximum(points.max(axis=0) - points.min(axis=0), 1e-300)
    groups: list[tuple[Any, list[int]]] = []
    for index, point in enumerate(points):
        group = next(
            (keys for first, keys in groups if np.abs((point - first) / size).max() < LABEL_MERGE_DISTANCE), None
        )
        if group is None:
            groups.append((point, [index]))
        else:
            group.append(index)
    return [{"x": float(index[0]), "y": float(index[1]), "name": ", ".join(map(str, keys))} for index, keys in groups]


def _format_tooltip(result: ResultDict, key_index: int, weight: float) -> str:
    place = ", ".join(f"{number:.4g}" for number in result["keys"][key_index])
    return f"key {key_index} ({place}): weight {format_weight(weight)}"


def _get_key_weights(result: ResultDict) -> list[float]:
    return (
        [row[index] for index, row in enumerate(result["weights"])]
        if result["kind"] == "identity"
        else result["weights"]
    )


def _get_target_flags(result: ResultDict) -> list[bool]:
    if result["kind"] == "identity":
        return [bool(row["exact"]) for row in result["rows"]]
    return [weight > 0 for weight in result["target"]]


def _draw_original_key(
    result: ResultDict, projection: KeyProjection, sheets: ChartDatasets, x: Any, y: Any
) -> list[alt.Chart]:
    """Draw the old position of a replaced key and the line to the new one."""
    point = np.array(result["old"][result["at"]]) @ projection.turn
    old = (float(point[0]), float(point[1]))
    new = (float(projection.keys[result["at"]][0]), float(projection.keys[result["at"]][1]))
    tip = f"the old key {result['at']}, moved by {result['moved']:.4g}"
    ring = sheets.chart([{"x": old[0], "y": old[1], "tip": tip}]).mark_point(
        filled=False, size=90, stroke=style.MUTED_TEXT_COLOR, strokeWidth=1.5
    )
    return [
        _draw_segments([(old, new)], sheets, x, y, style.MUTED_TEXT_COLOR, 1.5, [3, 3]),
        ring.encode(x=x, y=y, description="tip:N"),
    ]


def _draw_level_line(
    result: ResultDict, projection: KeyProjection, sheets: ChartDatasets, x: Any, y: Any
) -> list[alt.Chart]:
    """Draw the line of points whose score equals the highest key score."""
    query = np.array(result["query"])
    if not query.any():
        return []
    top = projection.keys[int(np.argmax(projection.keys @ query))]
    along = np.array([-query[1], query[0]]) / np.linalg.norm(query) * 4 * projection.reach
    ends = ((float(top[0] - along[0]), float(top[1] - along[1])), (float(top[0] + along[0]), float(top[1] + along[1])))
    lines = _draw_segments([ends], sheets, x, y, QUERY_COLOR, 1.2, [5, 4])
    return [lines.mark_line(aria=False, color=QUERY_COLOR, strokeWidth=1.2, strokeDash=[5, 4], opacity=0.7, clip=True)]


def _compute_query_arrows(result: ResultDict, projection: KeyProjection) -> list[dict[str, Any]]:
    """Return one arrow per query, all of one length: the norm only controls the precision."""
    is_matrix = result["kind"] == "identity"
    queries = [np.array(row) for row in (result["query"] if is_matrix else [result["query"]])]
    arrows = []
    for index, query in enumerate(queries):
        if edge := projection.compute_arrow(query):
            (left, low), (right, high) = edge
            name = f"q{index}" if is_matrix else "query"
            tip = f"{name} ({', '.join(f'{number:.4g}' for number in query)}), norm {np.linalg.norm(query):.4g}"
            angle = math.degrees(math.atan2(right - left, high - low))
            arrows.append({"edge": edge, "x": right, "y": high, "angle": angle, "name": name, "tip": tip})
    return arrows


def _draw_arrows(arrows: Sequence[dict[str, Any]], sheets: ChartDatasets, x: Any, y: Any) -> list[alt.Chart]:
    if not arrows:
        return []
    rows = [{name: value for name, value in arrow.items() if name != "edge"} for arrow in arrows]
    heads = sheets.chart(rows).mark_point(shape="triangle", filled=True, size=110, color=QUERY_COLOR, opacity=1)
    layers = [
        _draw_segments([arrow["edge"] for arrow in arrows], sheets, x, y, QUERY_COLOR, 2, [1, 0]),
        heads.encode(x=x, y=y, angle=alt.Angle("angle:Q", scale=None), description="tip:N"),
    ]
    for right in (True, False):  # labels go to the side the arrow points to
        side_rows = [row for row in rows if (math.sin(math.radians(row["angle"])) >= 0) == right]
        if side_rows and len(arrows) <= MAX_QUERY_LABELS:
            names = sheets.chart(side_rows).mark_text(
                aria=False,
                color=QUERY_COLOR,
                fill=QUERY_COLOR,
                align="left" if right else "right",
                dx=9 if right else -9,
                dy=-4,
                fontSize=11,
            )
            layers.append(names.encode(x=x, y=y, text="name:N"))
    return layers


def _build_score_panel(result: ResultDict, layout: Layout, sheets: ChartDatasets) -> PanelChart:
    """Draw the keys with the score as height."""
    points = project_by_score(np.array(result["keys"]), np.array(result["query"]))
    low, high = points.min(axis=0), points.max(axis=0)
    padding = np.maximum(0.14 * (high - low), [0.1, 0.1])
    x = alt.X(
        "x:Q", scale=alt.Scale(domain=[low[0] - padding[0], high[0] + padding[0]], nice=False, zero=False), axis=None
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[low[1] - padding[1], high[1] + padding[1]], nice=False, zero=False),
        axis=alt.Axis(title="score (the query points up)", tickCount=5),
    )
    is_only_panel = len(result["keys"][0]) != 3
    width = 150 if layout == "wide" and not is_only_panel else PLANE_SIZE[layout]
    height = PLANE_SIZE[layout] if layout == "wide" else 200
    return alt.layer(*_draw_keys(result, points, sheets, x, y)).properties(width=width, height=height)


def _build_weights_panel(
    result: ResultDict, layout: Layout, sheets: ChartDatasets, published_weights: Sequence[float] | None
) -> PanelChart:
    """Draw weights as bars, targets as ticks and published weights as rings."""
    rows = [
        {
            "key": f"key {index}",
            "weight": result["weights"][index],
            "target": result["target"][index],
            "is_target": result["target"][index] > 0,
            "label": format_weight(result["weights"][index]),
            "tip": _format_tooltip(result, index, result["weights"][index]) + f", target {result['target'][index]:.4g}",
            **(
                {}
                if published_weights is None
                else {
                    "published": published_weights[index],
                    "published_tip": f"report: key {index} {published_weights[index]:.4g}",
                }
            ),
        }
        for index in _choose_bar_indices(result)
    ]
    if others := sorted(set(range(len(result["weights"]))) - set(_choose_bar_indices(result))):
        weight, target = (float(sum(result[field][index] for index in others)) for field in ("weights", "target"))
        label = f"{len(others)} others"
        tip = f"{label}: total weight {format_weight(weight)}, target {target:.4g}"
        rows.append({"key": label, "weight": weight, "target": target, "is_target": target > 0, "tip": tip})
        rows[-1]["label"] = format_weight(weight)
    data = sheets.chart(rows)
    y = alt.Y(
        "key:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, labelFontSize=12, labelPadding=6)
    )
    title = "weight (line: target" + (", ring: report)" if published_weights else ")")
    axis = alt.Axis(title=title, values=[0, 0.5, 1], format="~r")
    x = alt.X("weight:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    color = alt.Color(
        "is_target:N", scale=alt.Scale(domain=[True, False], range=[TARGET_COLOR, OTHER_COLOR]), legend=None
    )
    layers = [
        data.mark_bar(height=11).encode(x=x, y=y, color=color, description="tip:N"),
        data.mark_tick(aria=False, color=style.ZERO_LINE_COLOR, thickness=2, size=19).encode(
            x=alt.X("target:Q", axis=axis), y=y
        ),
    ]
    if published_weights is not None:
        layers.append(
            data.mark_point(size=55, filled=False, stroke=QUERY_COLOR, strokeWidth=2).encode(
                x=alt.X("published:Q", axis=axis), y=y, description="published_tip:N"
            )
        )
    labels = data.mark_text(aria=False, align="left", dx=8, fontSize=11)
    layers.append(labels.encode(x=alt.value(BARS_WIDTH[layout]), y=y, text="label:N"))
    return alt.layer(*layers).properties(width=BARS_WIDTH[layout], height=alt.Step(26))


def _choose_bar_indices(result: ResultDict) -> list[int]:
    """Return the keys that get their own bar: all, or those with the largest weights."""
    count = len(result["weights"])
    if count <= MAX_BARS + 1:
        return list(range(count))
    by_weight = sorted(range(count), key=lambda index: (-result["target"][index], -result["weights"][index], index))
    return sorted(by_weight[:MAX_BARS])


def _build_matrix_panel(result: ResultDict, layout: Layout, sheets: ChartDatasets) -> PanelChart:
    """Draw all weights of a query matrix."""
    count = len(result["weights"])
    rows = [
        {
            "query": f"query {query_index}",
            "key": str(key_index),
            "weight": weight,
            "label": format_weight(weight) if weight >= 5e-5 else "0",
            "tip": f"query {query_index}, key {key_index}: weight {format_weight(weight)}",
        }
        for query_index, row in enumerate(result["weights"])
        for key_index, weight in enumerate(row)
    ]
    data = sheets.chart(rows)
    x = alt.X("key:N", sort=None, title="key", axis=alt.Axis(labelAngle=0, orient="top", ticks=False, domain=False))
    y = alt.Y("query:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    cells = data.mark_rect(color=TARGET_COLOR, stroke=style.GRID_COLOR).encode(
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
