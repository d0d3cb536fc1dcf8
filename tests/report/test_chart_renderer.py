"""Charts are rendered in a child process; if it dies, only one chart is lost."""

import os
import signal

import pytest

from headtohead.errors import ChartError
from headtohead.presentation import chart_renderer
from headtohead.presentation.chart import Chart, ChartWarning
from headtohead.presentation.chart_renderer import ChartRenderer
from headtohead.presentation.renderers.html import render_chart

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"></svg>'


@pytest.fixture
def renderer():
    renderer = ChartRenderer()
    yield renderer
    renderer.close()


def test_one_child_renders_all_charts(renderer):
    assert renderer.render("svg_to_png", SVG).startswith(b"\x89PNG")
    child = renderer._child
    assert renderer.render("svg_to_pdf", SVG).startswith(b"%PDF")
    assert renderer._child is child


def test_an_invalid_chart_is_reported_and_the_child_lives_on(renderer):
    with pytest.raises(ChartError, match="unknown token at 1:1"):
        renderer.render("svg_to_png", "no svg")
    assert renderer.render("svg_to_png", SVG).startswith(b"\x89PNG")


def test_a_child_that_dies_costs_one_chart(renderer):
    renderer.render("svg_to_png", SVG)
    os.kill(renderer._child.process.pid, signal.SIGSTOP)  # alive, so that the request reaches a child that then dies
    os.kill(renderer._child.process.pid, signal.SIGKILL)
    with pytest.raises(ChartError, match="the chart renderer was killed by signal 9"):
        renderer.render("svg_to_png", SVG)
    assert renderer.render("svg_to_png", SVG).startswith(b"\x89PNG")


def test_a_child_that_never_rendered_is_not_started_again(renderer, monkeypatch):
    monkeypatch.setattr(chart_renderer, "RENDER_TIMEOUT_SECONDS", 0.0)
    with pytest.raises(ChartError, match="took longer than 0 s"):
        renderer.render("svg_to_png", SVG)
    monkeypatch.undo()
    with pytest.raises(ChartError, match="took longer than 0 s"):
        renderer.render("svg_to_png", SVG)
    assert renderer._child is None


def test_a_page_shows_the_text_of_a_chart_that_cannot_be_rendered():
    import altair as alt

    chart = Chart("<b>", "Title", "Alternative", lambda layout, datasets: alt.Chart(mark="no such mark"))
    with pytest.warns(ChartWarning, match=r"chart '<b>' could not be rendered"):
        rendered = render_chart(chart)
    assert rendered["wide"].startswith("<p>This chart &#39;&lt;b&gt;&#39; could not be rendered")
    assert "Title: Alternative" in rendered["narrow"]
