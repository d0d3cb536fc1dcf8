import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from headtohead.errors import RequestError
from headtohead.presentation import chart as presentation_chart
from headtohead.presentation import chart_renderer, style
from headtohead.report.charts.forest_plot import build_forest_plot
from headtohead.report.charts.learning_curves import CurvePoint, build_step_axis, drop_steep_start
from headtohead.report.export import export_forest_plot
from headtohead.report.sections import build_charts

from .make_findings import make_findings, make_verdicts

RawFindings = dict[str, Any]
SVG = "{http://www.w3.org/2000/svg}"
LAYOUTS: tuple[presentation_chart.Layout, ...] = ("wide", "narrow")
HOSTILE = "</script><b>bold</b>&\"'"


@pytest.mark.parametrize("metric", ["perplexity", "accuracy"])
def test_every_chart_in_every_layout_is_valid_vega_lite(raw_findings: Callable[..., RawFindings], metric: str) -> None:
    charts = build_charts(make_findings(raw_findings({"v": 0.05}, metric=metric)))
    assert [chart.name for chart in charts] == ["forest", "curves", "differences", "pairs"]
    for chart, layout in itertools.product(charts, LAYOUTS):
        if layout == "wide" or chart.panels is None:
            chart.build(layout, presentation_chart.ChartDatasets()).to_dict(validate=True)
        alt.Config.from_dict(chart.to_vega_lite(layout)["config"], validate=True)


def test_forest_plot_marks_have_the_numbers_of_the_verdicts(raw_findings: Callable[..., RawFindings]) -> None:
    rows = raw_findings({"v": -0.08, "w": 0.05})["verdicts"]
    spec = build_forest_plot(make_verdicts(rows), "perplexity", 0.01).to_vega_lite()
    (marks, *_) = spec["datasets"].values()
    for row, mark in zip(rows, marks, strict=True):
        assert [mark["low"], mark["effect"], mark["high"]] == [*row["interval"][:1], row["effect"], row["interval"][1]]
        assert (mark["from"], mark["to"], mark["zero"]) == (-0.01, 0.01, 0)
    assert [mark["outcome"] for mark in marks] == ["helped", "hurt"]
    encoded = set(re.findall(r'"field": "(\w+)"', json.dumps(spec)))
    columns = {key for dataset in spec["datasets"].values() for row in dataset for key in row}
    assert encoded and encoded <= columns, "every encoded field is a column of the data"


def test_the_text_alternative_of_the_forest_plot_states_its_verdicts(raw_findings: Callable[..., RawFindings]) -> None:
    rows = raw_findings({"v": -0.08, "leaking": -0.3}, withheld_reasons={"leaking": ["reads the future"]})["verdicts"]
    words = build_forest_plot(make_verdicts(rows), "perplexity", 0.01).alt_text
    assert "lower is better" in words
    assert "v: helped, −7." in words
    assert "leaking: not comparable: reads the future" in words
    assert "±1" in words


@pytest.mark.parametrize(
    ("metric", "left", "right"), [("perplexity", "better", "worse"), ("accuracy", "worse", "better")]
)
def test_the_forest_plot_marks_the_better_direction(
    raw_findings: Callable[..., RawFindings], metric: str, left: str, right: str
) -> None:
    spec = build_forest_plot(
        make_verdicts(raw_findings({"v": 0.01}, metric=metric)["verdicts"]), metric, 0.01
    ).to_vega_lite()
    directions = [row["direction"] for rows in spec["datasets"].values() for row in rows if "direction" in row]
    assert directions == [f"← {left}", f"{right} →"]


def test_an_outlier_does_not_flatten_the_other_intervals(raw_findings: Callable[..., RawFindings]) -> None:
    rows = raw_findings({"a": -0.02, "b": 0.01, "c": 0.015, "far": 3.0})["verdicts"]
    spec = build_forest_plot(make_verdicts(rows), "perplexity", 0.01).to_vega_lite()
    (marks, *_) = spec["datasets"].values()
    assert max(mark["high"] for mark in marks) < 0.2
    assert [mark["variant"] for mark in marks if mark["arrow_shape"]] == ["far"]
    assert "more than +1,000" in marks[3]["label"], "the words still give the true figure"


def test_a_variant_that_is_not_comparable_has_a_row_without_marks(raw_findings: Callable[..., RawFindings]) -> None:
    rows = raw_findings({"leaking": -0.3}, withheld_reasons={"leaking": ["reads the future"]})["verdicts"]
    (mark, *_) = next(
        iter(build_forest_plot(make_verdicts(rows), "perplexity", 0.01).to_vega_lite()["datasets"].values())
    )
    assert (mark["low"], mark["effect"], mark["high"]) == (None, None, None)
    assert mark["label"] == "not comparable: reads the future"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_that_look_like_markup_are_text_in_the_chart(
    raw_findings: Callable[..., RawFindings], layout: presentation_chart.Layout
) -> None:
    for chart in build_charts(make_findings(raw_findings({HOSTILE: 0.05}))):
        if layout == "narrow" and chart.panels is not None:
            continue  # small multiples have the same description in both layouts
        svg = ET.fromstring(chart.to_svg(layout))
        tags = {element.tag.removeprefix(SVG) for element in svg.iter()}
        assert not tags & {"script", "b"}
        assert HOSTILE in " ".join(svg.itertext()) or chart.name == "differences"


def test_fifty_variants_have_distinct_styles() -> None:
    hues, shapes, _ = style.assign_variant_styles([f"v{i}" for i in range(51)])
    assert len(set(zip(hues, shapes, strict=True))) == 51
    few = style.assign_variant_styles(["baseline", "a", "b", "c"])
    assert all(len({str(item) for item in kind}) == 4 for kind in few), "color, shape and dash each tell four apart"


def test_every_chart_color_is_light_enough_in_dark_mode() -> None:
    def compute_luminance(color: str) -> float:
        red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    mark_colors = {
        *style.VARIANT_COLORS,
        style.BASELINE_COLOR,
        *style.VERDICT_COLORS.values(),
        style.TEXT_COLOR,
        style.MUTED_TEXT_COLOR,
        style.ZERO_LINE_COLOR,
    }
    for color in mark_colors:
        assert compute_luminance(style.DARK_MODE_COLORS.get(color, color)) > 0.5, color


def test_only_a_steep_start_is_dropped() -> None:
    def curve(*values: float) -> list[CurvePoint]:
        return [CurvePoint("v", at, value, value, value, 3) for at, value in enumerate(values)]

    assert [p.step for p in drop_steep_start(curve(6000, 700, 500, 400), "perplexity")] == [1, 2, 3]
    assert len(drop_steep_start(curve(800, 700, 500, 400), "perplexity")) == 4
    assert len(drop_steep_start(curve(6000, 700, 500), "perplexity")) == 3
    assert len(drop_steep_start(curve(0.9, 0.1, 0.2, 0.3), "accuracy")) == 4


def test_findings_without_curves_have_no_curve_charts(raw_findings: Callable[..., RawFindings]) -> None:
    result = raw_findings({"v": 0.1})
    assert [chart.name for chart in build_charts(make_findings({"verdicts": result["verdicts"]}))] == ["forest"]
    assert build_charts(make_findings({})) == []


def test_a_chart_is_rendered_as_pdf_and_png(raw_findings: Callable[..., RawFindings]) -> None:
    chart = build_charts(make_findings({"verdicts": raw_findings({"v": 0.1})["verdicts"]}))[0]
    assert chart.render("pdf").startswith(b"%PDF")
    assert chart.render("png").startswith(b"\x89PNG")


def test_a_forest_plot_is_exported_by_file_extension(raw_findings: Callable[..., RawFindings], tmp_path: Path) -> None:
    rows = raw_findings({"v": 0.1}, metric="accuracy")["verdicts"]
    for suffix, start in ((".svg", b"<svg"), (".pdf", b"%PDF"), (".png", b"\x89PNG"), (".html", b"<!doctype html>")):
        export_forest_plot(make_verdicts(rows), tmp_path / f"verdicts{suffix}")
        assert (tmp_path / f"verdicts{suffix}").read_bytes().startswith(start)
    with pytest.raises(
        RequestError, match=r"unsupported file extension '\.gif'.*; allowed: \.html, \.svg, \.pdf, \.png"
    ):
        export_forest_plot(make_verdicts(rows), tmp_path / "verdicts.gif")


def test_the_ticks_of_a_step_axis_are_the_evaluations() -> None:
    steps = (0, 217, 434, 651)
    axis = build_step_axis(steps)
    chart = alt.Chart(alt.Data(values=[{"at": at} for at in steps])).mark_point().encode(x=alt.X("at:Q", axis=axis))
    text = chart_renderer.render("vegalite_to_svg", chart.to_dict()).decode()
    assert [at for at in steps if f">{at}<" in text] == list(steps)
