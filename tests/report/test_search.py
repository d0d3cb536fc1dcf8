"""Charts, table and sentences about a search."""

import itertools
import math
from typing import Any

import pytest

from headtohead.presentation import chart as presentation_chart
from headtohead.report import page, sections
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_markdown_document
from headtohead.search import charts as search_charts
from headtohead.search import phrasing
from headtohead.search.terminal import print_search

from .make_findings import make_findings

HOSTILE = "</script><b>bold</b>&\"'"
LAYOUTS: tuple[presentation_chart.Layout, ...] = ("wide", "narrow")
RawFindings = dict[str, Any]


def cell(number: int, rate: float, kind: str, mean: float | None, status: str = "finished") -> dict[str, Any]:
    values = [] if mean is None else [[1000, mean], [1001, mean]][: 1 if status == "pruned" else 2]
    return {
        "point": number,
        "name": f"point-{number + 1:03d}",
        "settings": {"training.optimizer.lr": rate, "model.position": kind},
        "status": status,
        "scores": values,
        "mean": mean,
        "interval": [mean * 0.98, mean * 1.02] if mean is not None and status == "finished" else None,
        "message": "ran away" if status == "failed" else "",
    }


def build(metric: str = "accuracy", **luck: Any) -> RawFindings:
    scale = 1.0 if metric == "accuracy" else 100.0
    cells = [
        cell(0, 0.01, "alibi", 0.85 * scale),
        cell(1, 0.001, HOSTILE, 0.884 * scale),
        cell(2, 0.0001, "alibi", 0.30 * scale, "pruned"),
        cell(3, 1.0, "alibi", None, "failed"),
    ]
    effects = {
        "training.optimizer.lr": [
            {"value": "0.001", "points": 1, "mean": 0.88 * scale, "interval": [0.8 * scale, 0.9 * scale]},
            {"value": "0.01", "points": 2, "mean": 0.85 * scale, "interval": None},
        ]
    }
    result = {"search": 0.884, "fresh": 0.870, "baseline": 0.853, "lead": 0.031, "kept": 0.017, "bias": 0.014}
    return {
        "schema_version": 2,
        "metric": metric,
        "search": {
            "method": "grid",
            "space": {"training.optimizer.lr": [1.0, 0.01, 0.001, 0.0001], "model.position": ["alibi", HOSTILE]},
            "seeds": 2,
            "budget": None,
            "prune": {"risk": 0.05, "min_seeds": 1},
            "grid_size": 8,
            "trials": 5,
            "winner": 1,
            "points": cells,
            "effects": effects,
            "history": [
                {"trials": 2, "point": 0, "mean": 0.85 * scale, "best": 0.85 * scale},
                {"trials": 4, "point": 1, "mean": 0.884 * scale, "best": 0.884 * scale},
                {"trials": 5, "point": 2, "mean": 0.30 * scale, "best": 0.884 * scale},
            ],
            "selection_bias": {**result, "interval": [-0.002, 0.03], "seeds": [2, 5], **luck},
        },
    }


def describe_bias(raw: RawFindings) -> str:
    search = make_findings(raw).search
    assert search is not None
    assert search.selection_bias is not None
    return phrasing.describe_selection_bias(raw["metric"], search.selection_bias)


def test_luck_is_reported_as_sentences():
    attempts, won, lucky = phrasing.describe_search(make_findings(build()))
    assert attempts == (
        "Grid search tried 4 points (of 8 in the grid) with up to 2 seeds each, 5 trials in total; 1 pruned, 1 failed."
    )
    assert won.startswith("The winner is point-002: lr 0.001, position")
    assert "Of the lead of 3.1\u00a0points, 1.4 were selection bias (95\u00a0% interval −0.2 to 3.0)." in lucky
    assert "88.4\u00a0%" in lucky and "87.0\u00a0%" in lucky and "with 5 seeds that the search did not use" in lucky
    assert "there is no selection bias" in describe_bias(build(bias=-0.004))
    assert "did not lead even in the search" in describe_bias(build(lead=-0.01))
    assert "below" in describe_bias(build("perplexity"))
    assert "Of the lead of 3.1\u00a0points, 1.4 were selection bias." in describe_bias(build(interval=None))


def test_names_are_as_short_as_they_can_be_told_apart():
    names = phrasing.shorten_setting_names(["training.optimizer.lr", "training.schedule.lr", "model.width"])
    assert list(names.values()) == ["optimizer.lr", "schedule.lr", "width"]


@pytest.mark.parametrize("metric", ["perplexity", "accuracy"])
def test_every_picture_in_every_layout_is_sound(metric):
    result = search_charts.build_search_charts(make_findings(build(metric)))
    assert [chart.name for chart in result] == ["search-history", "search-effects", "search-parallel"]
    for chart, layout in itertools.product(result, LAYOUTS):
        if layout == "wide" or chart.panels is None:
            chart.build(layout, presentation_chart.ChartDatasets()).to_dict(validate=True)
    assert "<b>" not in result[2].to_svg()
    names = [chart.name for chart in sections.build_charts(make_findings({**build(metric), "verdicts": []}))]
    assert names == ["search-history", "search-effects", "search-parallel"]


def test_marks_are_where_their_figures_are():
    findings = build()
    history, effects, parallel = (
        chart.to_vega_lite()["datasets"] for chart in search_charts.build_search_charts(make_findings(findings))
    )
    rows = next(rows for rows in history.values() if "trials" in rows[0])
    assert [(row["trials"], row["position"], row["best"]) for row in rows[:2]] == [(2, 0.85, 0.85), (4, 0.884, 0.884)]
    assert [row["outcome"] for row in rows] == ["all seeds", "winner", "pruned"]
    (only,) = effects.values()
    assert [(row["value"], row["mean"]) for row in only] == [("0.001", 0.88), ("0.01", 0.85)]
    points = [row for rows in parallel.values() for row in rows if "point" in row]
    at = {(row["point"], row["axis"]): row["position"] for row in points}
    assert at["point-004", "lr"] > at["point-001", "lr"] > at["point-002", "lr"] > at["point-003", "lr"]
    assert ("point-004", "accuracy") not in at, "a cell that failed reached nothing"
    assert at["point-002", "accuracy"] > at["point-001", "accuracy"], "better is above, whatever the metric"
    worse = search_charts.build_search_charts(make_findings(build("perplexity")))[2].to_vega_lite()["datasets"]
    reached = {
        row["point"]: row["position"]
        for rows in worse.values()
        for row in rows
        if row.get("axis") == "perplexity" and "point" in row
    }
    assert reached["point-002"] < reached["point-001"]


def test_a_cell_far_behind_is_drawn_at_the_edge():
    findings = build("perplexity")
    findings["search"]["selection_bias"] = None
    findings["search"]["points"][2]["mean"] = findings["search"]["history"][2]["mean"] = 1e6
    _, high = search_charts.compute_score_axis_limits(make_findings(findings))
    assert high < 1000
    rows = search_charts.build_search_charts(make_findings(findings))[0].to_vega_lite()["datasets"]
    last = next(rows for rows in rows.values() if rows and "trials" in rows[0])[-1]
    assert last["position"] == high and "outside the axis limits" in last["tip"]


def test_the_table_ranks_the_cells_and_says_how_they_ended():
    result = {table.name: table for table in sections.build_tables(make_findings(build()))}
    ends = [(row[0].text, row[-1].text) for row in result["search"].rows]
    assert ends == [
        ("point-002", "winner"),
        ("point-001", "all seeds"),
        ("point-003", "pruned"),
        ("point-004", "failed: ran away"),
    ]
    assert len(result["search_effects"].rows) == 2
    assert all(
        not table.name.startswith("search") for table in sections.build_tables(make_findings({"metric": "accuracy"}))
    )


def test_page_and_markdown_show_the_search(raw_findings_without_curves):
    findings = {**raw_findings_without_curves({"v": 0.05}, metric="accuracy"), "search": build()["search"]}
    html = page.render_page(make_findings(findings))
    assert 'id="search"' in html and "1.4 were selection bias" in html
    assert HOSTILE not in html.partition('id="findings"')[0]
    assert html.count("<svg") >= 6
    text = render_markdown_document(ReportContext(make_findings(findings)))
    assert "1.4 were selection bias" in text and "## Search" in text
    assert 'id="search"' not in page.render_page(make_findings(raw_findings_without_curves({"v": 0.05})))


def test_the_terminal_shows_the_best_cells_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    findings = build()
    for number in range(4, 20):
        findings["search"]["points"].append(cell(number, 0.01, "alibi", 0.5 + number / 100))
    print_search(make_findings(findings))
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    assert "point-002" in output and "winner" in output
    assert "10 more rows in the report" in " ".join(output.split())
    assert "1.4 were selection bias" in " ".join(output.split())
    print_search(make_findings({"metric": "accuracy"}))
    assert capsys.readouterr().out == ""


def test_figures_stay_finite():
    low, high = search_charts.compute_score_axis_limits(make_findings(build()))
    assert math.isfinite(low) and low < high
