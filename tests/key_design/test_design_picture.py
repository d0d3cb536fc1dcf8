"""Pictures of design by hand: the marks are where the numbers are, in every format, and the page stands on its own."""

import re
import shutil
import xml.etree.ElementTree as ET

import altair as alt
import numpy as np
import pytest

from headtohead import key_design
from headtohead.errors import RequestError
from headtohead.key_design import solve
from headtohead.key_design.guided_tour import build_walkthrough
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.views.geometry import find_hull_edges, project_by_score, project_keys
from headtohead.key_design.views.page import save_result
from headtohead.key_design.views.picture import build_chart
from headtohead.presentation import chart as presentation_chart

FLAT = [[0, 0], [2, 0], [1, 2.2], [1, 0.7]]
CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def answers():
    rng = np.random.default_rng(0)
    return {
        "corner": solve.find_selecting_query(FLAT, 2),
        "inside": solve.find_selecting_query(FLAT, 3),
        "average": solve.find_averaging_query(CUBE, [0, 1, 2, 3]),
        "query 0": solve.find_averaging_query(CUBE),
        "matrix": solve.find_identity_queries(FLAT),
        "replaced": replace_key(CUBE, [1, 1, 1], 0, select=True, required_norm=1),
        "flat replaced": replace_key(FLAT, [0, 1], 3, average=[0, 1, 3]),
        "five dimensions": solve.find_selecting_query(rng.normal(size=(9, 5)), 1),
        "one dimension": solve.find_selecting_query([[1], [2], [3]], 0),
        "many keys": solve.find_selecting_query(rng.normal(size=(60, 3)), int(rng.integers(60))),
        "many queries": solve.find_identity_queries(rng.normal(size=(12, 3))),
        "one key": solve.find_selecting_query([[1, 2]], 0),
        "equal keys": solve.find_averaging_query([[1, 2]] * 3, [0, 1]),
        "on a line": solve.find_selecting_query([[0, 0, 0], [1, 1, 1], [2, 2, 2]], 1),
        "far away": solve.find_selecting_query(np.array(FLAT) + 1e4, 2),
        "long query": solve.find_selecting_query([[0, 0], [1, 0], [0.5, 1e-6]], 2),
    }


@pytest.fixture(scope="module")
def found():
    return answers()


@pytest.fixture(scope="module")
def page_of_the_tour(tmp_path_factory):
    path = tmp_path_factory.mktemp("tour") / "tour.html"
    save_result(build_walkthrough().to_dict(), path)
    return path


@pytest.mark.parametrize("name", ["corner", "average", "matrix", "replaced"])
def test_every_kind_of_picture_is_sound_vega_lite(found, name):
    chart = build_chart(found[name].to_dict())
    chart.build("wide", presentation_chart.ChartDatasets()).to_dict(validate=True)
    alt.Config.from_dict(chart.to_vega_lite()["config"], validate=True)


@pytest.mark.parametrize("name", answers())
def test_every_answer_can_be_drawn(found, name):
    row = found[name].to_dict()
    drawn = build_chart(row).to_svg()
    assert float(ET.fromstring(drawn).get("width")) < 900
    assert "NaN" not in drawn
    assert row["question"][1:] in drawn


@pytest.mark.parametrize("name", ["corner", "average", "matrix"])
def test_on_a_phone_the_panels_stand_below_one_another(found, name):
    drawn = ET.fromstring(build_chart(found[name].to_dict(), has_title=False).to_svg("narrow"))
    assert float(drawn.get("width")) < 400
    assert float(drawn.get("height")) > 400


def test_the_marks_are_where_the_numbers_are():
    found = solve.find_selecting_query(FLAT, 2)
    sheets = build_chart(found.to_dict()).to_vega_lite()["datasets"].values()
    dots = next(rows for rows in sheets if rows and "size" in rows[0])
    assert [[dot["x"], dot["y"]] for dot in dots] == FLAT
    assert [dot["is_target"] for dot in dots] == [False, False, True, False]
    assert np.argmax([dot["size"] for dot in dots]) == 2
    bars = next(rows for rows in sheets if rows and "target" in rows[0])
    assert [bar["weight"] for bar in bars] == found.weights.tolist()
    assert [bar["target"] for bar in bars] == [0, 0, 1, 0]


def test_the_arrow_points_along_the_query_and_the_height_is_the_score():
    found = solve.find_selecting_query(FLAT, 2)
    (start, end) = project_keys(found.keys, found.query[None]).compute_arrow(found.query)
    drawn = np.subtract(end, start)
    assert np.allclose(drawn / np.linalg.norm(drawn), found.query / found.norm)
    solid = solve.find_selecting_query(CUBE, 5)
    assert np.allclose(project_by_score(solid.keys, solid.query)[:, 1], solid.keys @ solid.query)
    assert project_keys(CUBE, np.zeros((1, 3))).compute_arrow(np.zeros(3)) is None


def test_three_dimensions_are_flattened_without_stretching():
    seen = project_keys(CUBE, np.zeros((1, 3)))
    assert np.allclose(seen.turn.T @ seen.turn, np.eye(2))
    apart = np.linalg.norm(seen.keys[:, None] - seen.keys[None], axis=-1) + np.eye(8)
    assert apart.min() > 0.1, "no corner hides another"


def test_the_hull_has_its_edges_and_no_others():
    assert len(find_hull_edges(CUBE)) == 12
    assert all(np.abs(CUBE[a] - CUBE[b]).sum() == 1 for a, b in find_hull_edges(CUBE))
    assert {frozenset(edge) for edge in find_hull_edges(np.array(FLAT))} == {
        frozenset(p) for p in ((0, 1), (1, 2), (0, 2))
    }
    assert find_hull_edges(np.array([[0.0, 0], [1, 1], [2, 2]])) == [], "a line has no inside"


def test_many_keys_share_a_last_bar_and_nothing_is_lost():
    found = solve.find_selecting_query(np.random.default_rng(2).normal(size=(60, 3)), 3, precision=0.9)
    bars = next(
        rows
        for rows in build_chart(found.to_dict()).to_vega_lite()["datasets"].values()
        if rows and "target" in rows[0]
    )
    assert len(bars) == 12
    assert bars[-1]["key"] == "49 others"
    assert sum(bar["weight"] for bar in bars) == pytest.approx(1)


@pytest.mark.parametrize(
    ("ending", "opening"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG"), ("html", b"<!")]
)
def test_every_format_is_written(tmp_path, ending, opening):
    path = tmp_path / f"picture.{ending}"
    shown = key_design.draw_result(solve.find_selecting_query(FLAT, 2), path)
    assert path.read_bytes().lstrip().startswith(opening)
    assert "image/svg+xml" in shown._repr_mimebundle_()
    assert repr(shown).startswith("Select key 2: exact in the limit.")


def test_a_wrong_ending_or_folder_is_said(tmp_path):
    row = solve.find_selecting_query(FLAT, 2).to_dict()
    with pytest.raises(RequestError, match=r"unsupported file extension '.gif'.*; allowed: .html, .svg, .pdf, .png"):
        save_result(row, tmp_path / "picture.gif")
    assert list(tmp_path.iterdir()) == []
    save_result(row, tmp_path / "new" / "picture.svg")
    assert (tmp_path / "new" / "picture.svg").is_file(), "a missing folder is created"


def test_the_page_of_the_tour_says_everything(page_of_the_tour):
    tour, page = build_walkthrough(), page_of_the_tour.read_text()
    for step in tour.steps:
        assert step.question in page
        for line in step.limits:
            assert line.replace("'", "&#39;") in page
    assert page.count("<figure>") == 6
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


@pytest.mark.browser
def test_the_page_stands_on_its_own_in_a_browser(page_of_the_tour):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = page_of_the_tour
    asked, complaints = [], []
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        for width in (360, 1280):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: complaints.append(message.text))
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
            layout = "narrow" if width == 360 else "wide"
            page.locator(f".chart .{layout} path[aria-roledescription='bar']").first.hover(force=True)
            assert page.locator(".tip").inner_text() == "key 0 (0.47, 0.65, 0.6): weight 0.999, target 1"
            page.close()
        browser.close()
    assert set(asked) == {path.as_uri()}
    assert complaints == []
