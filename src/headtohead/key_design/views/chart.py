"""Charts of key-design solutions: keys, convex hull, query and attention weights. Built from `to_dict` rows only."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from headtohead.key_design.views.projection import (
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

PLANE_PANEL_SIDE = {"wide": 300, "narrow": 280}
"""width and height in pixels of the panel with the keys, by layout"""
WEIGHT_BARS_WIDTH = {"wide": 190, "narrow": 210}
"""width in pixels of the panel with the weights, by layout"""
MAX_BARS = 11
"""keys with their own bar; further keys share one"""
MAX_LABELED_KEYS = 40
"""with more keys, none is labeled"""
MAX_LABELED_QUERIES = 8
"""with more queries, none is labeled"""
LABEL_MERGE_DISTANCE = 0.06
"""keys closer than this fraction of the picture share a label"""
PanelChart = alt.LayerChart | alt.FacetChart
ChartRow = dict[str, Any]
TARGET_COLOR = style.VARIANT_COLORS[0]
"""keys with a positive target weight"""
OTHER_COLOR = style.BASELINE_COLOR
"""keys with target weight 0"""
QUERY_COLOR = style.VARIANT_COLORS[5]


def build_solution_chart(
    result: ResultDict, *, has_title: bool = True, published_weights: Sequence[float] | None = None
) -> Chart:
    """Return a solution's chart, titled with its question and outcome; also draw `published_weights`."""
    if result["kind"] == "tour":
        return _build_walkthrough_chart(result)
    chart_name = "".join(letter if letter.isalnum() else "-" for letter in result["question"]).strip("-")

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        panels = _build_panels(result, layout, datasets, published_weights)
        return panels.properties(title=_build_title(result, layout)) if has_title else panels

    return Chart(chart_name, format_heading(result), format_alt_text(result), build_altair_chart)


def _build_title(result: ResultDict, layout: Layout) -> alt.TitleParams:
    """Return a solution's question and outcome, with its explanation and legend as subtitle."""
    line_length = 104 if layout == "wide" else 52
    lines = [line for text in (result["reason"], format_legend(result)) for line in textwrap.wrap(text, line_length)]
    return alt.TitleParams(format_heading(result), subtitle=lines, subtitleFontSize=11, offset=14)


def _build_walkthrough_chart(walkthrough: ResultDict) -> Chart:
    """Return a chart of all steps, stacked vertically."""

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Stack the charts for all steps."""
        step_charts = []
        for step in walkthrough["steps"]:
            published = step["published"] and step["published"]["weights"]
            panels = _build_panels(step["solution"], layout, datasets, published)
            solution = step["solution"]
            subtitle = f"{format_outcome(solution).capitalize()}; precision {format_weight(solution['precision'])}"
            if published:
                subtitle += f" (report: {format_weight(step['published']['precision'])})"
            step_charts.append(panels.properties(title=alt.TitleParams(step["question"], subtitle=subtitle, offset=10)))
        return alt.vconcat(*step_charts, spacing=44)

    alt_text = " ".join(f"{step['question']}: {format_alt_text(step['solution'])}" for step in walkthrough["steps"])
    return Chart("tour", "Design questions of a course report", alt_text, build_altair_chart)


def _build_panels(
    result: ResultDict, layout: Layout, datasets: ChartDatasets, published_weights: Sequence[float] | None = None
) -> alt.HConcatChart | alt.VConcatChart:
    """Draw the keys in a plane, the scores, and the weights or the weight matrix, side by side or stacked."""
    keys = np.array(result["keys"])
    old_key = np.array([result["old"][result["at"]]]) if result["kind"] == "replacement" else None
    query = np.array(result["query"])
    projection = project_keys(keys, np.atleast_2d(query), old_key)
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
    """The coordinate system of a panel, in which keys and queries are drawn."""

    datasets: ChartDatasets
    x: alt.X
    y: alt.Y

    def draw_points(self, rows: list[ChartRow], mark: ChartRow, **encoding: Any) -> alt.Chart:
        """Return point marks with the tooltips of `rows`."""
        points = self.datasets.chart(rows).mark_point(**mark)
        chart: alt.Chart = points.encode(x=self.x, y=self.y, description="tip:N", **encoding)
        return chart

    def draw_labels(self, rows: list[ChartRow], **mark: Any) -> alt.Chart:
        """Return text marks with the names of `rows`."""
        labels = self.datasets.chart(rows).mark_text(aria=False, **mark)
        chart: alt.Chart = labels.encode(x=self.x, y=self.y, text="name:N")
        return chart

    def draw_segments(
        self, segments: Sequence[LineSegment], color: str, width: float, dash: Sequence[int] = (1, 0), **mark: Any
    ) -> alt.Chart:
        """Return line marks, one per segment."""
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
        layers += _draw_old_key(result, projection, plane)
    elif result["kind"] == "answer" and is_flat:
        layers += _draw_equal_score_line(result, projection, plane)
    layers += _draw_keys(result, projection.keys, plane)
    layers += _draw_query_arrows(_compute_query_arrows(result, projection), plane)
    return alt.layer(*layers).properties(width=PLANE_PANEL_SIDE[layout], height=PLANE_PANEL_SIDE[layout])


def _draw_axes(projection: KeyProjection, plane: _Plane) -> list[alt.Chart]:
    """Draw the projected coordinate axes and their names."""
    ends: list[ChartRow] = [
        {"x": x1 + 0.09 * (x1 - x0), "y": y1 + 0.09 * (y1 - y0), "name": name}
        for name, ((x0, y0), (x1, y1)) in projection.axis_segments
    ]
    color = style.MUTED_TEXT_COLOR
    return [
        plane.draw_segments([segment for _, segment in projection.axis_segments], color, 1, [2, 3]),
        plane.draw_labels(ends, color=color, fill=color, fontSize=11),
    ]


def _draw_keys(result: ResultDict, points: PlanePoints, plane: _Plane) -> list[alt.Chart]:
    """Return the marks of a panel's keys: their area grows with their weight, and target keys are colored."""
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
    key_marks = plane.draw_points(
        rows, {"filled": True, "opacity": 1}, color=_build_target_color(), shape=shape, size=size
    )
    if len(rows) > MAX_LABELED_KEYS:
        return [key_marks]
    label_style = {"align": "left", "dx": 13, "dy": -9, "fontSize": 12, "fontWeight": 600}
    return [key_marks, plane.draw_labels(_merge_key_labels(points), **label_style)]


def _build_target_color() -> alt.Color:
    """Return the color encoding that distinguishes target keys."""
    scale = alt.Scale(domain=[True, False], range=[TARGET_COLOR, OTHER_COLOR])
    return alt.Color("is_target:N", scale=scale, legend=None)


def _merge_key_labels(points: PlanePoints) -> list[ChartRow]:
    """Return the key labels; keys that overlap in the plane share one label."""
    extent = np.maximum(points.max(axis=0) - points.min(axis=0), 1e-300)
    labels: list[tuple[Any, list[int]]] = []
    for index, point in enumerate(points):
        for label_point, key_indices in labels:
            if np.abs((point - label_point) / extent).max() < LABEL_MERGE_DISTANCE:
                key_indices.append(index)
                break
        else:
            labels.append((point, [index]))
    return [
        {"x": float(point[0]), "y": float(point[1]), "name": ", ".join(map(str, key_indices))}
        for point, key_indices in labels
    ]


def _format_tooltip(result: ResultDict, key_index: int, weight: float) -> str:
    """Return a key's coordinates and weight."""
    coordinates = ", ".join(f"{number:.4g}" for number in result["keys"][key_index])
    return f"key {key_index} ({coordinates}): weight {format_weight(weight)}"


def _draw_old_key(result: ResultDict, projection: KeyProjection, plane: _Plane) -> list[alt.Chart]:
    """Return the marks of a replaced key: a ring at its old position and a line to the new one."""
    old_point = np.array(result["old"][result["at"]]) @ projection.matrix
    new_point = projection.keys[result["at"]]
    tip = f"the old key {result['at']}, moved by {result['moved']:.4g}"
    ring = {"filled": False, "size": 90, "stroke": style.MUTED_TEXT_COLOR, "strokeWidth": 1.5}
    return [
        plane.draw_segments([(to_pair(old_point), to_pair(new_point))], style.MUTED_TEXT_COLOR, 1.5, [3, 3]),
        plane.draw_points([{"x": float(old_point[0]), "y": float(old_point[1]), "tip": tip}], ring),
    ]


def _draw_equal_score_line(result: ResultDict, projection: KeyProjection, plane: _Plane) -> list[alt.Chart]:
    """Return the mark of the line of points whose score equals the highest key score."""
    query = np.array(result["query"])
    if not query.any():
        return []
    best_key = projection.keys[int(np.argmax(projection.keys @ query))]
    line_offset = np.array([-query[1], query[0]]) / np.linalg.norm(query) * 4 * projection.arrow_length
    return [
        plane.draw_segments(
            [(to_pair(best_key - line_offset), to_pair(best_key + line_offset))], QUERY_COLOR, 1.2, [5, 4], clip=True
        )
    ]


def _compute_query_arrows(result: ResultDict, projection: KeyProjection) -> list[ChartRow]:
    """Return one arrow per query, all of the same length: the norm only controls the precision."""
    is_matrix = result["kind"] == "identity"
    queries = [np.array(query) for query in (result["query"] if is_matrix else [result["query"]])]
    arrows = []
    for index, query in enumerate(queries):
        if segment := projection.compute_arrow(query):
            (start_x, start_y), (tip_x, tip_y) = segment
            name = f"q{index}" if is_matrix else "query"
            tip = f"{name} ({', '.join(f'{number:.4g}' for number in query)}), norm {np.linalg.norm(query):.4g}"
            angle = math.degrees(math.atan2(tip_x - start_x, tip_y - start_y))
            arrows.append({"segment": segment, "x": tip_x, "y": tip_y, "angle": angle, "name": name, "tip": tip})
    return arrows


def _draw_query_arrows(arrows: Sequence[ChartRow], plane: _Plane) -> list[alt.Chart]:
    """Return the marks of queries as arrows, with labels if there are only a few."""
    if not arrows:
        return []
    rows = [{name: value for name, value in arrow.items() if name != "segment"} for arrow in arrows]
    arrowhead_style = {"shape": "triangle", "filled": True, "size": 110, "color": QUERY_COLOR, "opacity": 1}
    layers = [
        plane.draw_segments([arrow["segment"] for arrow in arrows], QUERY_COLOR, 2),
        plane.draw_points(rows, arrowhead_style, angle=alt.Angle("angle:Q", scale=None)),
    ]
    label_style = {"color": QUERY_COLOR, "fill": QUERY_COLOR, "dy": -4, "fontSize": 11}
    for is_right, align, dx in ((True, "left", 9), (False, "right", -9)):  # on the side the arrow points to
        side_rows = [row for row in rows if (math.sin(math.radians(row["angle"])) >= 0) == is_right]
        if side_rows and len(arrows) <= MAX_LABELED_QUERIES:
            layers.append(plane.draw_labels(side_rows, align=align, dx=dx, **label_style))
    return layers


def _build_score_panel(result: ResultDict, layout: Layout, datasets: ChartDatasets) -> PanelChart:
    """Return the panel in which the height of a key is its score."""
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
    width = 150 if layout == "wide" and not is_only_panel else PLANE_PANEL_SIDE[layout]
    height = PLANE_PANEL_SIDE[layout] if layout == "wide" else 200
    return alt.layer(*_draw_keys(result, points, plane)).properties(width=width, height=height)


def _build_weights_panel(
    result: ResultDict, layout: Layout, datasets: ChartDatasets, published_weights: Sequence[float] | None
) -> PanelChart:
    """Return the panel with weights as bars, targets as ticks and published weights as rings."""
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
    layers.append(labels.encode(x=alt.value(WEIGHT_BARS_WIDTH[layout]), y=y, text="label:N"))
    return alt.layer(*layers).properties(width=WEIGHT_BARS_WIDTH[layout], height=alt.Step(26))


def _choose_bar_indices(result: ResultDict) -> list[int]:
    """Return the keys that get a bar in the weights chart: all, or those with the largest weights if too many."""
    num_keys = len(result["weights"])
    if num_keys <= MAX_BARS + 1:
        return list(range(num_keys))
    keys_by_weight = sorted(
        range(num_keys), key=lambda index: (-result["target"][index], -result["weights"][index], index)
    )
    return sorted(keys_by_weight[:MAX_BARS])


def _build_matrix_panel(result: ResultDict, layout: Layout, datasets: ChartDatasets) -> PanelChart:
    """Return the panel with the weight of every key for every query of a query matrix."""
    num_keys = len(result["weights"])
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
    cell_size = max(8, min(52, 300 // num_keys))
    layers: list[alt.Chart] = [cells]
    if num_keys <= 8:
        layers.append(data.mark_text(aria=False, fontSize=11).encode(x=x, y=y, text="label:N"))
    return alt.layer(*layers).properties(width=alt.Step(cell_size), height=alt.Step(min(cell_size, 40)))
