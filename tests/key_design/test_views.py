"""Charts and pages of solutions: marks match the numbers in every format, and the page is self-contained."""

import re
import shutil
import xml.etree.ElementTree as ET

import altair as alt
import numpy as np
import pytest

from headtohead import key_design
from headtohead.errors import RequestError
from headtohead.key_design import query_design
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.views.chart import build_solution_chart
from headtohead.key_design.views.page import save_result
from headtohead.key_design.views.projection import find_hull_edges, project_by_score, project_keys
from headtohead.key_design.walkthrough import build_walkthrough
from headtohead.presentation import chart as presentation_chart

TRIANGLE_WITH_INSIDE_KEY = [[0, 0], [2, 0], [1, 2.2], [1, 0.7]]
CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def build_solutions():
    rng = np.random.default_rng(0)
    return {
        "corner": query_design.find_selecting_query(TRIANGLE_WITH_INSIDE_KEY, 2),
        "inside": query_design.find_selecting_query(TRIANGLE_WITH_INSIDE_KEY, 3),
        "average": query_design.find_averaging_query(CUBE, [0, 1, 2, 3]),
        "query 0": query_design.find_averaging_query(CUBE),
        "matrix": query_design.find_identity_queries(TRIANGLE_WITH_INSIDE_KEY),
        "replaced": replace_key(CUBE, [1, 1, 1], 0, select=True, required_norm=1),
        "flat replaced": replace_key(TRIANGLE_WITH_INSIDE_KEY, [0, 1], 3, average=[0, 1, 3]),
        "five dimensions": query_design.find_selecting_query(rng.normal(size=(9, 5)), 1),
        "one dimension": query_design.find_selecting_query([[1], [2], [3]], 0),
        "many keys": query_design.find_selecting_query(rng.normal(size=(60, 3)), int(rng.integers(60))),
        "many queries": query_design.find_identity_queries(rng.normal(size=(12, 3))),
        "one key": query_design.find_selecting_query([[1, 2]], 0),
        "equal keys": query_design.find_averaging_query([[1, 2]] * 3, [0, 1]),
        "on a line": query_design.find_selecting_query([[0, 0, 0], [1, 1, 1], [2, 2, 2]], 1),
        "far away": query_design.find_selecting_query(np.array(TRIANGLE_WITH_INSIDE_KEY) + 1e4, 2),
        "long query": query_design.find_selecting_query([[0, 0], [1, 0], [0.5, 1e-6]], 2),
    }


@pytest.fixture(scope="module")
def solutions():
    return build_solutions()


@pytest.fixture(scope="module")
def walkthrough_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("tour") / "tour.html"
    save_result(build_walkthrough().to_dict(), path)
    return path


@pytest.mark.parametrize("name", ["corner", "average", "matrix", "replaced"])
def test_charts_are_valid_vega_lite(solutions, name):
    chart = build_solution_chart(solutions[name].to_dict())
    chart.build("wide", presentation_chart.ChartDatasets()).to_dict(validate=True)
    alt.Config.from_dict(chart.to_vega_lite()["config"], validate=True)


@pytest.mark.parametrize("name", build_solutions())
def test_every_solution_can_be_drawn(solutions, name):
    solution_dict = solutions[name].to_dict()
    svg = build_solution_chart(solution_dict).to_svg()
    assert float(ET.fromstring(svg).get("width")) < 900
    assert "NaN" not in svg
    assert solution_dict["question"][1:] in svg


@pytest.mark.parametrize("name", ["corner", "average", "matrix"])
def test_narrow_layout_stacks_the_panels(solutions, name):
    svg = ET.fromstring(build_solution_chart(solutions[name].to_dict(), has_title=False).to_svg("narrow"))
    assert float(svg.get("width")) < 400
    assert float(svg.get("height")) > 400


def test_marks_have_the_values_of_the_solution():
    design = query_design.find_selecting_query(TRIANGLE_WITH_INSIDE_KEY, 2)
    datasets = build_solution_chart(design.to_dict()).to_vega_lite()["datasets"].values()
    key_marks = next(rows for rows in datasets if rows and "size" in rows[0])
    assert [[mark["x"], mark["y"]] for mark in key_marks] == TRIANGLE_WITH_INSIDE_KEY
    assert [mark["is_target"] for mark in key_marks] == [False, False, True, False]
    assert np.argmax([mark["size"] for mark in key_marks]) == 2
    bars = next(rows for rows in datasets if rows and "target" in rows[0])
    assert [bar["weight"] for bar in bars] == design.weights.tolist()
    assert [bar["target"] for bar in bars] == [0, 0, 1, 0]


def test_arrows_point_along_the_query_and_height_is_the_score():
    design = query_design.find_selecting_query(TRIANGLE_WITH_INSIDE_KEY, 2)
    (start, end) = project_keys(design.keys, design.query[None]).compute_arrow(design.query)
    arrow = np.subtract(end, start)
    assert np.allclose(arrow / np.linalg.norm(arrow), design.query / design.norm)
    cube_design = query_design.find_selecting_query(CUBE, 5)
    heights = project_by_score(cube_design.keys, cube_design.query)[:, 1]
    assert np.allclose(heights, cube_design.keys @ cube_design.query)
    assert project_keys(CUBE, np.zeros((1, 3))).compute_arrow(np.zeros(3)) is None


def test_three_dimensions_are_projected_orthogonally():
    projection = project_keys(CUBE, np.zeros((1, 3)))
    assert np.allclose(projection.matrix.T @ projection.matrix, np.eye(2))
    distances = np.linalg.norm(projection.keys[:, None] - projection.keys[None], axis=-1) + np.eye(8)
    assert distances.min() > 0.1, "no key hides another"


def test_hull_edges_of_a_cube_a_triangle_and_a_line():
    assert len(find_hull_edges(CUBE)) == 12
    assert all(np.abs(CUBE[a] - CUBE[b]).sum() == 1 for a, b in find_hull_edges(CUBE))
    assert {frozenset(edge) for edge in find_hull_edges(np.array(TRIANGLE_WITH_INSIDE_KEY))} == {
        frozenset(p) for p in ((0, 1), (1, 2), (0, 2))
    }
    assert find_hull_edges(np.array([[0.0, 0], [1, 1], [2, 2]])) == [], "collinear keys have no hull"


def test_keys_with_small_weights_share_the_last_bar():
    design = query_design.find_selecting_query(np.random.default_rng(2).normal(size=(60, 3)), 3, precision=0.9)
    bars = next(
        rows
        for rows in build_solution_chart(design.to_dict()).to_vega_lite()["datasets"].values()
        if rows and "target" in rows[0]
    )
    assert len(bars) == 12
    assert bars[-1]["key"] == "49 others"
    assert sum(bar["weight"] for bar in bars) == pytest.approx(1)


@pytest.mark.parametrize(
    ("extension", "opening"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG"), ("html", b"<!")]
)
def test_every_file_format_is_written(tmp_path, extension, opening):
    path = tmp_path / f"picture.{extension}"
    result = key_design.draw_result(query_design.find_selecting_query(TRIANGLE_WITH_INSIDE_KEY, 2), path)
    assert path.read_bytes().lstrip().startswith(opening)
    assert "image/svg+xml" in result._repr_mimebundle_()
    assert repr(result).startswith("Select key 2: exact in the limit.")


def test_unsupported_extensions_are_rejected_and_folders_are_created(tmp_path):
    solution_dict = query_design.find_selecting_query(TRIANGLE_WITH_INSIDE_KEY, 2).to_dict()
    with pytest.raises(RequestError, match=r"unsupported file extension '.gif'.*; allowed: .html, .svg, .pdf, .png"):
        save_result(solution_dict, tmp_path / "picture.gif")
    assert list(tmp_path.iterdir()) == []
    save_result(solution_dict, tmp_path / "new" / "picture.svg")
    assert (tmp_path / "new" / "picture.svg").is_file(), "a missing folder is created"


def test_walkthrough_page_has_every_step_and_limit(walkthrough_page):
    page = walkthrough_page.read_text()
    for step in build_walkthrough().steps:
        assert step.question in page
        for limit in step.limits:
            assert limit.replace("'", "&#39;") in page
    assert page.count("<figure>") == 6
    element_ids = re.findall(r' id="([^"]+)"', page)
    assert len(element_ids) == len(set(element_ids))
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


@pytest.mark.browser
def test_walkthrough_page_is_self_contained_in_a_browser(walkthrough_page):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = walkthrough_page
    requests, console_messages = [], []
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        for width in (360, 1280):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.on("request", lambda request: requests.append(request.url))
            page.on("console", lambda message: console_messages.append(message.text))
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == width
            layout = "narrow" if width == 360 else "wide"
            page.locator(f".chart .{layout} path[aria-roledescription='bar']").first.hover(force=True)
            assert page.locator(".tip").inner_text() == "key 0 (0.47, 0.65, 0.6): weight 0.999, target 1"
            page.close()
        browser.close()
    assert set(requests) == {path.as_uri()}
    assert console_messages == []
