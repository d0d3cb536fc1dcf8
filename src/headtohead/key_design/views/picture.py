"""Charts of key-design solutions: keys, convex hull, query and attention weights. Built from `to_dict` rows only."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from headtohead.key_design.views.geometry import (
    KeyProjection,
    LineSegment,
    PlanePoints,
    project_by_score,
    project_keys,
    to_pair,
)
from headtohead.key_design.views.summary import (
    ResultDict,
    format_alt_text,
    format_heading,
    format_legend,
    format_outcome,
    format_weight,
)
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
ChartRow = dict[str, Any]
TARGET_COLOR, OTHER_COLOR, QUERY_COLOR = style.VARIANT_COLORS[0], style.BASELINE_COLOR, style.VARIANT_COLORS[5]


def build_chart(
    result: ResultDict, *, has_title: bool = True, published_weights: Sequence[float] | None = None
) -> Chart:
    """Return a solution's chart, titled with its question and outcome; also draw `published_weights`."""
    if result["kind"] == "tour":
        return _build_walkthrough_chart(result)
    name = "".join(letter if letter.isalnum() else "-" for letter in result["question"]).strip("-")

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        panels = _build_panels(result, layout, datasets, published_weights)
        return panels.properties(title=_build_title(result, layout)) if has_title else panels

    return Chart(name, format_heading(result), format_alt_text(result), build)


def _build_title(result: ResultDict, layout: Layout) -> alt.TitleParams:
    width = 104 if layout == "wide" else 52
    lines = [line for text in (result["reason"], format_legend(result)) for line in textwrap.wrap(text, width)]
    return alt.TitleParams(format_heading(result), subtitle=lines, subtitleFontSize=11, offset=14)


def _build_walkthrough_chart(walkthrough: ResultDict) -> Chart:
    """Return a chart of all steps, stacked vertically."""

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Stack the charts for all steps."""
        steps = []
        for step in walkthrough["steps"]:
            published = step["published"] and step["published"]["weights"]
            panels = _build_panels(step["solution"], layout, datasets, published)
            solution = step["solution"]
            subtitle = f"{format_outcome(solution).capitalize()}; precision {format_weight(solution['precision'])}"
            if published:
                subtitle += f" (report: {format_weight(step['published']['precision'])})"
            steps.append(panels.properties(title=alt.TitleParams(step["question"], subtitle=subtitle, offset=10)))
        return alt.vconcat(*steps, spacing=44)

    alt_text = " ".join(f"{step['question']}: {format_alt_text(step['solution'])}" for step in walkthrough["steps"])
    return Chart("tour", "Design questions of a course report", alt_text, build)


def _build_panels(
    result: ResultDict, layout: Layout, datasets: ChartDatasets, published_weights: Sequence[float] | None = None
) -> alt.HConcatChart | alt.VConcatChart:
    """Draw the keys in a plane, the scores, and the weights or the weight matrix, side by side or stacked."""
    keys = np.array(result["keys"])
    old = np.array([result["old"][result["at"]]]) if result["kind"] == "replacement" else None
    query = np.array(result["query"])
    projection = project_keys(keys, np.atleast_2d(query), old)
    panels: list[Any] = [] if projection is None else [_build_plane_panel(result, projection, layout, datasets)]
    if result["kind"] == "identity":
        panels.append(_build_matrix_panel(result, layout, datasets))
    else:
        if keys.shape[1] != 2 and query.any():
            panels.append(_build_score_panel(result, layout, datasets))
        panels.append(_build_weights_panel(result, layout, datasets, published_weights))
    return alt.hconcat(*panels, spacing=34) if layout == "wide" else alt.vconcat(*panels, spacing=34)


@dataclass(frozen=True)
class _Plane:
    """A coordinate system to draw in."""

    datasets: ChartDatasets
    x: alt.X
    y: alt.Y

    def draw_points(self, rows: list[ChartRow], mark: ChartRow, **encoding: Any) -> alt.Chart:
        """Return point marks with the tooltips of `rows`."""
        points = self.datasets.chart(rows).mark_point(**mark)
        chart: alt.Chart = points.encode(x=self.x, y=self.y, description="tip:N", **encoding)
        return chart

    def draw_names(self, rows: list[ChartRow], **mark: Any) -> alt.Chart:
        """Return the names of `rows` as labels."""
        labels = self.datasets.chart(rows).mark_text(aria=False, **mark)
        chart: alt.Chart = labels.encode(x=self.x, y=self.y, text="name:N")
        return chart

    def draw_segments(
        self, segments: Sequence[LineSegment], color: str, width: float, dash: Sequence[int] = (1, 0), **mark: Any
    ) -> alt.Chart:
        """Return line segments."""
        rows = [
            {"x": point[0], "y": point[1], "line": index, "end": end}
            for index, segment in enumerate(segments)
            for end, point in enumerate(segment)
        ]
        mark |= {"color": color, "strokeWidth": width, "strokeDash": list(dash), "opacity": 0.7}
        lines = self.datasets.chart(rows).mark_line(aria=False, **mark)
        chart: alt.Chart = lines.encode(x=self.x, y=self.y, detail="line:N", order="end:Q")
        return chart


def _build_plane_panel(
    result: ResultDict, projection: KeyProjection, layout: Layout, datasets: ChartDatasets
) -> PanelChart:
    """Draw keys, hull and query direction in the plane."""
    is_flat = not projection.axis_segments
    scales = [alt.Scale(domain=list(limits), nice=False, zero=False) for limits in projection.axis_limits]
    axes = [alt.Axis(title=name, tickCount=5, grid=True) if is_flat else None for name in "xy"]
    x, y = alt.X("x:Q", scale=scales[0], axis=axes[0]), alt.Y("y:Q", scale=scales[1], axis=axes[1])
    plane = _Plane(datasets, x, y)
    layers = [plane.draw_segments(projection.hull_segments, style.BASELINE_COLOR, 1)]
    if not is_flat:
        layers += _draw_axes(projection, plane)
    if result["kind"] == "replacement":
        layers += _draw_original_key(result, projection, plane)
    elif result["kind"] == "answer" and is_flat:
        layers += _draw_level_line(result, projection, plane)
    layers += _draw_keys(result, projection.keys, plane)
    layers += _draw_arrows(_compute_query_arrows(result, projection), plane)
    return alt.layer(*layers).properties(width=PLANE_SIZE[layout], height=PLANE_SIZE[layout])


def _draw_axes(projection: KeyProjection, plane: _Plane) -> list[alt.Chart]:
    """Draw the projected coordinate axes and their names."""
    ends: list[ChartRow] = [
        {"x": x1 + 0.09 * (x1 - x0), "y": y1 + 0.09 * (y1 - y0), "name": name}
        for name, ((x0, y0), (x1, y1)) in projection.axis_segments
    ]
    color = style.MUTED_TEXT_COLOR
    return [
        plane.draw_segments([segment for _, segment in projection.axis_segments], color, 1, [2, 3]),
        plane.draw_names(ends, color=color, fill=color, fontSize=11),
    ]


def _draw_keys(result: ResultDict, points: PlanePoints, plane: _Plane) -> list[alt.Chart]:
    """Draw keys as points whose area grows with their weight; target keys are colored."""
    if result["kind"] == "identity":
        weights = [row[index] for index, row in enumerate(result["weights"])]
        target_flags = [bool(row["exact"]) for row in result["rows"]]
    else:
        weights, target_flags = result["weights"], [weight > 0 for weight in result["target"]]
    rows: list[ChartRow] = [
        {
            "x": float(point[0]),
            "y": float(point[1]),
            "key": str(index),
            "is_target": is_target,
            "size": 40 + 420 * weight,
            "tip": _format_tooltip(result, index, weight),
        }
        for index, (point, weight, is_target) in enumerate(zip(points, weights, target_flags, strict=True))
    ]
    shape = alt.Shape("is_target:N", scale=alt.Scale(domain=[True, False], range=["circle", "square"]), legend=None)
    size = alt.Size("size:Q", scale=None, legend=None)
    dots = plane.draw_points(rows, {"filled": True, "opacity": 1}, color=_build_target_color(), shape=shape, size=size)
    if len(rows) > MAX_KEY_LABELS:
        return [dots]
    label_style = {"align": "left", "dx": 13, "dy": -9, "fontSize": 12, "fontWeight": 600}
    return [dots, plane.draw_names(_merge_key_labels(points), **label_style)]


def _build_target_color() -> alt.Color:
    scale = alt.Scale(domain=[True, False], range=[TARGET_COLOR, OTHER_COLOR])
    return alt.Color("is_target:N", scale=scale, legend=None)


def _merge_key_labels(points: PlanePoints) -> list[ChartRow]:
    """Return the key labels; keys that overlap in the plane share one label."""
    size = np.maximum(points.max(axis=0) - points.min(axis=0), 1e-300)
    groups: list[tuple[Any, list[int]]] = []
    for index, point in enumerate(points):
        for first, keys in groups:
            if np.abs((point - first) / size).max() < LABEL_MERGE_DISTANCE:
                keys.append(index)
                break
        else:
            groups.append((point, [index]))
    return [{"x": float(point[0]), "y": float(point[1]), "name": ", ".join(map(str, keys))} for point, keys in groups]


def _format_tooltip(result: ResultDict, key_index: int, weight: float) -> str:
    coordinates = ", ".join(f"{number:.4g}" for number in result["keys"][key_index])
    return f"key {key_index} ({coordinates}): weight {format_weight(weight)}"


def _draw_original_key(result: ResultDict, projection: KeyProjection, plane: _Plane) -> list[alt.Chart]:
    """Draw the old position of a replaced key and the line to the new one."""
    old, new = np.array(result["old"][result["at"]]) @ projection.turn, projection.keys[result["at"]]
    tip = f"the old key {result['at']}, moved by {result['moved']:.4g}"
    ring = {"filled": False, "size": 90, "stroke": style.MUTED_TEXT_COLOR, "strokeWidth": 1.5}
    return [
        plane.draw_segments([(to_pair(old), to_pair(new))], style.MUTED_TEXT_COLOR, 1.5, [3, 3]),
        plane.draw_points([{"x": float(old[0]), "y": float(old[1]), "tip": tip}], ring),
    ]


def _draw_level_line(result: ResultDict, projection: KeyProjection, plane: _Plane) -> list[alt.Chart]:
    """Draw the line of points whose score equals the highest key score."""
    query = np.array(result["query"])
    if not query.any():
        return []
    top = projection.keys[int(np.argmax(projection.keys @ query))]
    along = np.array([-query[1], query[0]]) / np.linalg.norm(query) * 4 * projection.reach
    return [plane.draw_segments([(to_pair(top - along), to_pair(top + along))], QUERY_COLOR, 1.2, [5, 4], clip=True)]


def _compute_query_arrows(result: ResultDict, projection: KeyProjection) -> list[ChartRow]:
    """Return one arrow per query, all of the same length: the norm only controls the precision."""
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


def _draw_arrows(arrows: Sequence[ChartRow], plane: _Plane) -> list[alt.Chart]:
    """Draw queries as arrows, with labels if there are only a few."""
    if not arrows:
        return []
    rows = [{name: value for name, value in arrow.items() if name != "edge"} for arrow in arrows]
    heads = {"shape": "triangle", "filled": True, "size": 110, "color": QUERY_COLOR, "opacity": 1}
    layers = [
        plane.draw_segments([arrow["edge"] for arrow in arrows], QUERY_COLOR, 2),
        plane.draw_points(rows, heads, angle=alt.Angle("angle:Q", scale=None)),
    ]
    label_style = {"color": QUERY_COLOR, "fill": QUERY_COLOR, "dy": -4, "fontSize": 11}
    for is_right, align, dx in ((True, "left", 9), (False, "right", -9)):  # on the side the arrow points to
        side_rows = [row for row in rows if (math.sin(math.radians(row["angle"])) >= 0) == is_right]
        if side_rows and len(arrows) <= MAX_QUERY_LABELS:
            layers.append(plane.draw_names(side_rows, align=align, dx=dx, **label_style))
    return layers


def _build_score_panel(result: ResultDict, layout: Layout, datasets: ChartDatasets) -> PanelChart:
    """Draw the keys with the score as height."""
    points = project_by_score(np.array(result["keys"]), np.array(result["query"]))
    low, high = points.min(axis=0), points.max(axis=0)
    padding = np.maximum(0.14 * (high - low), [0.1, 0.1])
    scales = [
        alt.Scale(domain=[low[axis] - padding[axis], high[axis] + padding[axis]], nice=False, zero=False)
        for axis in (0, 1)
    ]
    y_axis = alt.Axis(title="score (the query points up)", tickCount=5)
    plane = _Plane(datasets, alt.X("x:Q", scale=scales[0], axis=None), alt.Y("y:Q", scale=scales[1], axis=y_axis))
    is_only_panel = len(result["keys"][0]) != 3
    width = 150 if layout == "wide" and not is_only_panel else PLANE_SIZE[layout]
    height = PLANE_SIZE[layout] if layout == "wide" else 200
    return alt.layer(*_draw_keys(result, points, plane)).properties(width=width, height=height)


def _build_weights_panel(
    result: ResultDict, layout: Layout, datasets: ChartDatasets, published_weights: Sequence[float] | None
) -> PanelChart:
    """Draw weights as bars, targets as ticks and published weights as rings."""
    shown_keys = _choose_bar_indices(result)
    rows = [
        {
            "key": f"key {index}",
            "weight": result["weights"][index],
            "target": result["target"][index],
            "is_target": result["target"][index] > 0,
            "label": format_weight(result["weights"][index]),
            "tip": _format_tooltip(result, index, result["weights"][index]) + f", target {result['target'][index]:.4g}",
        }
        for index in shown_keys
    ]
    if published_weights is not None:
        for index, row in zip(shown_keys, rows, strict=True):
            weight = published_weights[index]
            row |= {"published": weight, "published_tip": f"report: key {index} {weight:.4g}"}
    if other_keys := sorted(set(range(len(result["weights"]))) - set(shown_keys)):
        weight, target = (float(sum(result[field][index] for index in other_keys)) for field in ("weights", "target"))
        label = f"{len(other_keys)} others"
        tip = f"{label}: total weight {format_weight(weight)}, target {target:.4g}"
        row = {"key": label, "weight": weight, "target": target, "is_target": target > 0, "tip": tip}
        rows.append(row | {"label": format_weight(weight)})
    data = datasets.chart(rows)
    key_axis = alt.Axis(ticks=False, domain=False, labelFontSize=12, labelPadding=6)
    y = alt.Y("key:N", sort=None, title=None, axis=key_axis)
    title = "weight (line: target" + (", ring: report)" if published_weights else ")")
    axis = alt.Axis(title=title, values=[0, 0.5, 1], format="~r")
    x = alt.X("weight:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    ticks = data.mark_tick(aria=False, color=style.ZERO_LINE_COLOR, thickness=2, size=19)
    layers = [
        data.mark_bar(height=11).encode(x=x, y=y, color=_build_target_color(), description="tip:N"),
        ticks.encode(x=alt.X("target:Q", axis=axis), y=y),
    ]
    if published_weights is not None:
        rings = data.mark_point(size=55, filled=False, stroke=QUERY_COLOR, strokeWidth=2)
        layers.append(rings.encode(x=alt.X("published:Q", axis=axis), y=y, description="published_tip:N"))
    labels = data.mark_text(aria=False, align="left", dx=8, fontSize=11)
    layers.append(labels.encode(x=alt.value(BARS_WIDTH[layout]), y=y, text="label:N"))
    return alt.layer(*layers).properties(width=BARS_WIDTH[layout], height=alt.Step(26))


def _choose_bar_indices(result: ResultDict) -> list[int]:
    """Return the keys that get their own bar: all keys, or those with the largest weights if there are too many."""
    count = len(result["weights"])
    if count <= MAX_BARS + 1:
        return list(range(count))
    by_weight = sorted(range(count), key=lambda index: (-result["target"][index], -result["weights"][index], index))
    return sorted(by_weight[:MAX_BARS])


def _build_matrix_panel(result: ResultDict, layout: Layout, datasets: ChartDatasets) -> PanelChart:
    """Draw all of a query matrix's weights."""
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
    data = datasets.chart(rows)
    x = alt.X("key:N", sort=None, title="key", axis=alt.Axis(labelAngle=0, orient="top", ticks=False, domain=False))
    y = alt.Y("query:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    opacity = alt.Opacity("weight:Q", scale=alt.Scale(domain=[0, 1], range=[0.03, 0.55]), legend=None)
    cells = data.mark_rect(color=TARGET_COLOR, stroke=style.GRID_COLOR)
    cells = cells.encode(x=x, y=y, opacity=opacity, description="tip:N")
    step = max(8, min(52, 300 // count))
    layers: list[alt.Chart] = [cells]
    if count <= 8:
        layers.append(data.mark_text(aria=False, fontSize=11).encode(x=x, y=y, text="label:N"))
    return alt.layer(*layers).properties(width=alt.Step(step), height=alt.Step(min(step, 40)))
