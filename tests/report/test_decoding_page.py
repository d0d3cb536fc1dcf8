"""The page of a decoding comparison, made from real comparisons of small made-up texts."""

import csv
import io
import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from headtohead.atomic_io import write_json
from headtohead.decoding_comparison import charts, tables, terminal
from headtohead.decoding_comparison import page as decoding_comparison_page
from headtohead.decoding_comparison import phrasing as say
from headtohead.decoding_comparison.compare import (
    ScoredContinuation,
    compare_strategies,
    compute_prompt_ratios,
    describe_metrics,
    estimate_metric,
)
from headtohead.errors import RunFolderError
from headtohead.generation.likelihood import Likelihood
from headtohead.presentation import chart as presentation_chart

Found = dict[str, Any]
HOSTILE = "</script><b>bold</b>&\"'"
PEOPLE = "They saw a bird."
TEXTS = {
    "greedy": ["He went to the park."] * 3,
    "sample": ["She saw a red bird.", f"Two {HOSTILE} dogs.", "No birds were in there."],
    "top-k=3": ["He saw a bird there.", "He saw two birds.", "He went to the park."],
}
LOSSES = {"greedy": 0.5, "sample": 3.0, "top-k=3": 1.5}
PROMPTS = 5


def samples(name: str, *, second: bool) -> list[ScoredContinuation]:
    made = []
    for prompt in range(PROMPTS):
        for number, text in enumerate(TEXTS[name]):
            loss = 8 * (LOSSES[name] + 0.1 * math.sin(prompt + number))
            judged = Likelihood(loss + 5, 6, len(text)) if second else None
            made.append(
                ScoredContinuation(prompt, number, tuple(range(8)), f" {text}", Likelihood(loss, 8, len(text)), judged)
            )
    return made


def step(at: int, token: str, *, kept: int | None = 2) -> Found:
    shares = (0.5, 0.3, 0.15)
    top = [
        {
            "token": text,
            "count": 1,
            "probability": share,
            "drawn": i == 0,
            "kept": kept is None or i < kept,
            "after": None,
        }
        for i, (text, share) in enumerate(zip((token, " a", "\x03"), shares, strict=True))
    ]
    top.append({"token": None, "count": 97, "probability": 0.05, "drawn": False, "kept": False, "after": 0.0})
    mass = None if kept is None else sum(shares[:kept])
    after = None if mass is None else 0.5 / mass
    said = {"token": token, "rank": 1, "probability": 0.5, "kept": kept, "mass": mass, "after": after}
    return {"step": at, "id": 7, **said, "top": top}


def build(*, second: bool = True, people: bool = True, prompts: int = PROMPTS) -> Found:
    by_strategy = {
        name: compute_prompt_ratios(
            [one for one in samples(name, second=second) if one.prompt < prompts], prompts, [PEOPLE] * prompts
        )
        for name in TEXTS
    }
    point = {
        name: found.to_dict()
        for name, column in by_strategy["sample"].items()
        if (found := estimate_metric(name, column))
    }
    own = Likelihood(20.0, 8, 16)
    of_people = compute_prompt_ratios(
        [ScoredContinuation(i, 0, (1, 2), PEOPLE, own) for i in range(prompts)], prompts, [None] * prompts
    )
    families = (("temperature", "0.5"), ("top-k", "3"), ("top-p", "0.9"))
    row = {"strategy": "x", "figures": point}
    return {
        "schema": 1,
        "model": {"name": "tiny", "digest": "abc"},
        "second": {"name": "stories", "digest": "def"} if second else None,
        "settings": {"samples": 3, "max_new_tokens": 8, "seed": 0, "digest": "ff", "strategies": {}},
        "command": ["/somewhere/bin/h2h", "decode", "tiny", "a file"],
        "versions": {"headtohead": "0.1.0"},
        "signatures": {"chrF": "nc:6"},
        "prompts": [
            {"text": f"Ryan {i} {HOSTILE}", "continuation": PEOPLE if people else None} for i in range(prompts)
        ],
        "baseline": "sample",
        "measures": describe_metrics(by_strategy),
        **compare_strategies(by_strategy, "sample"),
        "people": {"perplexity": estimate_metric("perplexity", of_people["perplexity"]).to_dict()} if people else {},
        "sweep": {
            "samples": 3,
            "points": [
                *({**row, "family": name, "label": "greedy", "endpoint": "greedy", "order": 0} for name, _ in families),
                *({**row, "family": name, "label": label, "endpoint": "", "order": 1} for name, label in families),
                *({**row, "family": name, "label": "all", "endpoint": "sample", "order": 2} for name, _ in families),
            ],
        },
        "traces": [
            {
                "strategy": "top-k=3",
                "prompt": 0,
                "text": " He",
                "note": "",
                "steps": [step(1, " He"), step(2, HOSTILE)],
            },
            {"strategy": "beam=2", "prompt": 0, "text": "x", "note": "Beams.", "steps": [step(1, "\n", kept=None)]},
        ],
        "laws": [
            {"law": "k = 1 is greedy", "tried": "8 continuations", "found": "8 of 8 the same", "passed": True},
            {"law": "one beam is greedy", "tried": "8 continuations", "found": "7 of 8 the same", "passed": False},
        ],
        "notes": [],
    }


def line(name: str, one: ScoredContinuation, **changes: Any) -> Found:
    said = {"model": "abc", "seed": 0, "max_new_tokens": 8, "strategy": name, "sample": one.sample, "text": one.text}
    return {**said, "prompt": f"Ryan {one.prompt} {HOSTILE}", **changes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("decoding")
    write_json(made / "decoding.json", build())
    lines = [line(name, one) for name in TEXTS for one in samples(name, second=False)]
    stale = [line("sample", samples("sample", second=False)[0], text=" OF ANOTHER SEED", seed=1)]
    (made / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*lines, *stale]))
    decoding_comparison_page.write_report(made)
    return made


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


# ---- the page


def test_the_page_needs_nothing_else_and_text_stays_text(page: str) -> None:
    assert "<b>bold</b>" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert page.count("<script") == page.count("</script>") == 2
    found = json.loads(re.search(r'id="decoding">(.*?)</script>', page, re.DOTALL)[1])
    assert found["figures"] == build()["figures"]


def test_every_section_is_there(page: str) -> None:
    for name in ("verdicts", "figures", "pairs", "sweep", "tokens", "laws", "samples", "reproduce"):
        assert f'<section id="{name}">' in page
    assert "Three ways to decode tiny" in page
    assert "Second model: stories." in page
    assert "A law does not hold here: one beam is greedy." in page
    assert "h2h decode tiny &#39;a file&#39;" in page


def test_samples_are_shown_once_each_and_none_of_other_settings(page: str) -> None:
    assert page.count("He went to the park.</") + page.count("He went to the park. <small>3 times") >= PROMPTS
    assert page.count("<small>3 times</small>") == PROMPTS
    assert "OF ANOTHER SEED" not in page
    assert page.count("<h4>people</h4>") == PROMPTS


def test_without_second_model_people_sweep_or_pairs_the_page_is_whole() -> None:
    found = {**build(second=False, people=False, prompts=1), "samples": [], "traces": [], "laws": []}
    found["sweep"] = {"samples": 3, "points": []}
    page = decoding_comparison_page.render_html(found)
    assert "No second model was given, so its column is left out." in page
    assert "bits per byte, second model" not in page
    assert "an interval needs more prompts" in page
    assert "one prompt: no interval" in page
    for name in ("sweep", "tokens", "laws"):
        assert f'<section id="{name}">' not in page


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"decoding\.json: no such file"):
        decoding_comparison_page.read_results(tmp_path)
    write_json(tmp_path / "decoding.json", {"schema": 99})
    with pytest.raises(RunFolderError, match="written with schema 99, this reads 1"):
        decoding_comparison_page.read_results(tmp_path)


def test_cards_hold_the_others_against_the_baseline() -> None:
    cards = decoding_comparison_page.build_strategy_cards(build())
    assert [card["strategy"] for card in cards] == ["greedy", "top-k=3"]
    first = cards[0]["lines"][0]
    assert first["outcome"] == "helped"
    assert first["summary"].startswith("perplexity 9")
    assert "lower (95\u00a0% interval" in first["summary"]
    by_measure = {line["summary"].split()[0]: line["outcome"] for line in cards[0]["lines"]}
    assert by_measure["distinct-2"] == "hurt"


# ---- tables and other formats


def test_the_tables_say_what_the_figures_are() -> None:
    found = build()
    (measured, matrix, tests, *_) = tables.build_tables(found)
    assert [column.title for column in measured.columns] == ["measure", "greedy", "sample", "top-k=3", "people"]
    row = next(row for row in measured.rows if row[0].text == "perplexity")
    assert row[1].value[0] == found["figures"]["greedy"]["perplexity"]["value"]
    assert row[-1].text.startswith("12.18")  # exp(20 / 8)
    assert len(matrix.rows) == 3
    assert len(tests.rows) == len(found["pairs"])
    greedy = next(row for row in matrix.rows if row[0].text == "greedy / sample")
    assert greedy[1].text.startswith("▲\u00a0−")


def test_other_formats_hold_the_same(folder: Path) -> None:
    written = {
        path.name: path for path in decoding_comparison_page.write_report(folder, ["md", "pdf", "csv", "chart-svg"])
    }
    assert "| perplexity |" in written["report.md"].read_text()
    assert written["report.pdf"].read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader(io.StringIO(written["tests.csv"].read_text())))
    assert {row["verdict"] for row in rows} <= {"helped", "hurt", "no practical difference", "cannot tell"}
    assert {"interval_low", "interval_high"} <= set(rows[0])
    assert ET.parse(written["tradeoff.svg"]).getroot().tag.endswith("svg")


# ---- charts


def test_every_chart_is_sound_vega_lite() -> None:
    made = charts.build_charts(build())
    assert [chart.name for chart in made] == ["measures", "tradeoff", "trace-top-k=3", "trace-beam=2"]
    for chart in made:
        for layout in ("wide", "narrow"):
            chart.build(layout, presentation_chart.ChartDatasets()).to_dict(validate=True)


def test_a_trace_is_drawn_to_scale_with_what_became_of_each_token() -> None:
    chart = charts.build_trace_chart(build()["traces"][0])
    rows = chart.to_vega_lite()["datasets"]["dataset-0"]
    first = [row for row in rows if row["step"].startswith("1 ")]
    assert [row["from"] for row in first] == pytest.approx([0, 0.5, 0.8, 0.95])
    assert [row["to"] for row in first] == pytest.approx([0.5, 0.8, 0.95, 1])
    assert [row["fate"] for row in first] == ["drawn", "kept", "dropped", "dropped"]
    assert "97 others" in first[-1]["tip"]
    assert "kept 2 tokens with 80.0\u00a0%" in chart.alt_text


def test_marks_stand_where_their_figures_are() -> None:
    found = build()
    drawn = charts.build_interval_chart(found).to_vega_lite()
    rows = [
        row for sheet in drawn["datasets"].values() for row in sheet if row.get("tip", "").startswith("greedy: perp")
    ]
    wanted = found["figures"]["greedy"]["perplexity"]
    assert [rows[0]["low"], rows[0]["value"], rows[0]["high"]] == [
        wanted["interval"][0],
        wanted["value"],
        wanted["interval"][1],
    ]


@pytest.mark.parametrize(
    ("token", "shown"), [(" the", "␣the"), ("\n\n", "↵↵"), ("\x03", "␃"), ("\ufffe", "U+FFFE"), ("", "∅"), ("é", "é")]
)
def test_what_has_no_look_is_made_visible(token: str, shown: str) -> None:
    assert say.format_token(token) == shown


@pytest.mark.parametrize(
    ("kind", "interval", "words"),
    [
        ("perplexity", [-0.66, -0.55], "55.0 to 66.0\u00a0% lower"),
        ("share", [0.1, 0.2], "10.0 to 20.0\u00a0points higher"),
        ("bits", [-0.2, 0.1], "0.20 lower to 0.10 higher"),
        ("points", [None, None], "no interval"),
        ("points", [0.0, 0.0], "no width"),
    ],
)
def test_intervals_in_words(kind: str, interval: list[Any], words: str) -> None:
    assert say.describe_change_interval(kind, interval) == words


def test_the_terminal_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal.print_comparison({**build(), "notes": ["A note."]}, "here", "here/report.html")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "perplexity" in shown and "self-BLEU" in shown
    assert "limits as laws: 1 of 2 hold" in shown
    assert "A note." in shown


@pytest.mark.browser
def test_the_page_stands_on_its_own_in_a_browser(folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    address = (folder / "report.html").as_uri()
    asked: list[str] = []
    complaints: list[str] = []
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=flags)
        for width, scheme in ((360, "dark"), (1280, "light")):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: complaints.append(message.text))
            page.goto(address)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            layout = "narrow" if width == 360 else "wide"
            page.locator(f".chart .{layout} path[aria-roledescription='point']").first.hover(force=True)
            assert "greedy: perplexity" in page.locator(".tip").inner_text()
            page.close()
        browser.close()
    assert set(asked) == {address}
    assert complaints == []
