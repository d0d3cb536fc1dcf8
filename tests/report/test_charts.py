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
from headtohead.experiment.findings_view import CurvePoint
from headtohead.presentation import chart as presentation_chart
from headtohead.presentation import chart_renderer, style
from headtohead.presentation.chart import build_step_axis
from headtohead.report.curve_charts import drop_steep_start
from headtohead.report.export import save_forest_plot
from headtohead.report.forest import build_forest_plot
from headtohead.report.sections import build_charts

from .typed import typed, typed_verdicts

Findings = dict[str, Any]
SVG = "{http://www.w3.org/2000/svg}"
LAYOUTS: tuple[presentation_chart.Layout, ...] = ("wide", "narrow")
HOSTILE = "</script><b>bold</b>&\"'"


@pytest.mark.parametrize("metric", ["perplexity", "accuracy"])
def test_every_chart_in_every_layout_is_sound_vega_lite(findings: Callable[..., Findings], metric: str) -> None:
    made = build_charts(typed(findings({"v": 0.05}, metric=metric)))
    assert [chart.name for chart in made] == ["forest", "pairs", "curves", "differences"]
    for chart, layout in itertools.product(made, LAYOUTS):
        if layout == "wide" or chart.panels is None:
            chart.build(layout, presentation_chart.ChartDatasets()).to_dict(validate=True)
        alt.Config.from_dict(chart.to_vega_lite(layout)["config"], validate=True)


def test_every_mark_of_the_forest_plot_is_where_its_number_is(findings: Callable[..., Findings]) -> None:
    rows = findings({"v": -0.08, "w": 0.05})["verdicts"]
    drawn = build_forest_plot(typed_verdicts(rows), "perplexity", 0.01).to_vega_lite()
    (shown, *_) = drawn["datasets"].values()
    for row, mark in zip(rows, shown, strict=True):
        assert [mark["low"], mark["effect"], mark["high"]] == [*row["interval"][:1], row["effect"], row["interval"][1]]
        assert (mark["from"], mark["to"], mark["zero"]) == (-0.01, 0.01, 0)
    assert [mark["outcome"] for mark in shown] == ["helped", "hurt"]
    encoded = set(re.findall(r'"field": "(\w+)"', json.dumps(drawn)))
    columns = {key for dataset in drawn["datasets"].values() for row in dataset for key in row}
    assert encoded and encoded <= columns, "every encoded field is a column of the data"


def test_the_forest_plot_says_in_words_what_it_shows(findings: Callable[..., Findings]) -> None:
    rows = findings({"v": -0.08, "spoilt": -0.3}, failed={"spoilt": ["reads the future"]})["verdicts"]
    words = build_forest_plot(typed_verdicts(rows), "perplexity", 0.01).alt_text
    assert "lower is better" in words
    assert "v: helped, −7." in words
    assert "spoilt: not comparable: reads the future" in words
    assert "±1" in words


@pytest.mark.parametrize(
    ("metric", "left", "right"), [("perplexity", "better", "worse"), ("accuracy", "worse", "better")]
)
def test_the_forest_plot_names_the_good_side(
    findings: Callable[..., Findings], metric: str, left: str, right: str
) -> None:
    drawn = build_forest_plot(
        typed_verdicts(findings({"v": 0.01}, metric=metric)["verdicts"]), metric, 0.01
    ).to_vega_lite()
    said = [row["direction"] for rows in drawn["datasets"].values() for row in rows if "direction" in row]
    assert said == [f"← {left}", f"{right} →"]


def test_one_variant_far_away_does_not_press_the_others_flat(findings: Callable[..., Findings]) -> None:
    rows = findings({"a": -0.02, "b": 0.01, "c": 0.015, "far": 3.0})["verdicts"]
    drawn = build_forest_plot(typed_verdicts(rows), "perplexity", 0.01).to_vega_lite()
    (shown, *_) = drawn["datasets"].values()
    assert max(mark["high"] for mark in shown) < 0.2
    assert [mark["variant"] for mark in shown if mark["arrow_shape"]] == ["far"]
    assert "more than +1,000" in shown[3]["label"], "the words still give the true figure"


def test_a_variant_that_is_not_comparable_has_no_mark_but_a_row(findings: Callable[..., Findings]) -> None:
    rows = findings({"spoilt": -0.3}, failed={"spoilt": ["reads the future"]})["verdicts"]
    (mark, *_) = next(
        iter(build_forest_plot(typed_verdicts(rows), "perplexity", 0.01).to_vega_lite()["datasets"].values())
    )
    assert (mark["low"], mark["effect"], mark["high"]) == (None, None, None)
    assert mark["label"] == "not comparable: reads the future"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_that_look_like_markup_are_text_in_the_drawing(
    findings: Callable[..., Findings], layout: presentation_chart.Layout
) -> None:
    for chart in build_charts(typed(findings({HOSTILE: 0.05}))):
        if layout == "narrow" and chart.panels is not None:
            continue  # small multiples have the same description in both layouts
        drawn = ET.fromstring(chart.to_svg(layout))
        tags = {element.tag.removeprefix(SVG) for element in drawn.iter()}
        assert not tags & {"script", "b"}
        assert HOSTILE in " ".join(drawn.itertext()) or chart.name == "differences"


def test_no_two_of_fifty_variants_look_alike() -> None:
    hues, shapes, _ = style.assign_variant_styles([f"v{i}" for i in range(51)])
    assert len(set(zip(hues, shapes, strict=True))) == 51
    few = style.assign_variant_styles(["baseline", "a", "b", "c"])
    assert all(len({str(one) for one in kind}) == 4 for kind in few), "colour, shape and dash each tell four apart"


def test_every_colour_of_a_chart_has_one_for_the_dark_or_is_light_enough() -> None:
    def light(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    marks = {
        *style.VARIANT_COLORS,
        style.BASELINE_COLOR,
        *style.VERDICT_COLORS.values(),
        style.TEXT_COLOR,
        style.MUTED_TEXT_COLOR,
        style.ZERO_LINE_COLOR,
    }
    for colour in marks:
        assert light(style.DARK_MODE_COLORS.get(colour, colour)) > 0.5, colour


def test_a_steep_start_is_left_out_of_the_picture_and_only_that() -> None:
    def curve(*values: float) -> list[CurvePoint]:
        return [CurvePoint("v", at, value, value, value, 3) for at, value in enumerate(values)]

    assert [p.step for p in drop_steep_start(curve(6000, 700, 500, 400), "perplexity")] == [1, 2, 3]
    assert len(drop_steep_start(curve(800, 700, 500, 400), "perplexity")) == 4
    assert len(drop_steep_start(curve(6000, 700, 500), "perplexity")) == 3
    assert len(drop_steep_start(curve(0.9, 0.1, 0.2, 0.3), "accuracy")) == 4


def test_findings_without_curves_have_no_curves_drawn(findings: Callable[..., Findings]) -> None:
    found = findings({"v": 0.1})
    assert [chart.name for chart in build_charts(typed({"verdicts": found["verdicts"]}))] == ["forest"]
    assert build_charts(typed({})) == []


def test_a_chart_becomes_pdf_and_png(findings: Callable[..., Findings]) -> None:
    chart = build_charts(typed({"verdicts": findings({"v": 0.1})["verdicts"]}))[0]
    assert chart.render("pdf").startswith(b"%PDF")
    assert chart.render("png").startswith(b"\x89PNG")


def test_verdicts_from_elsewhere_are_drawn_into_the_file_that_was_asked_for(
    findings: Callable[..., Findings], tmp_path: Path
) -> None:
    rows = findings({"v": 0.1}, metric="accuracy")["verdicts"]
    for suffix, start in ((".svg", b"<svg"), (".pdf", b"%PDF"), (".png", b"\x89PNG"), (".html", b"<!doctype html>")):
        save_forest_plot(typed_verdicts(rows), tmp_path / f"verdicts{suffix}")
        assert (tmp_path / f"verdicts{suffix}").read_bytes().startswith(start)
    with pytest.raises(
        RequestError, match=r"unsupported file extension '\.gif'.*; allowed: \.html, \.svg, \.pdf, \.png"
    ):
        save_forest_plot(typed_verdicts(rows), tmp_path / "verdicts.gif")


def test_the_steps_of_an_axis_are_written_as_they_are() -> None:
    steps = (0, 217, 434, 651)
    axis = build_step_axis(steps)
    chart = alt.Chart(alt.Data(values=[{"at": at} for at in steps])).mark_point().encode(x=alt.X("at:Q", axis=axis))
    drawn = chart_renderer.render("vegalite_to_svg", chart.to_dict()).decode()
    assert [at for at in steps if f">{at}<" in drawn] == list(steps)
