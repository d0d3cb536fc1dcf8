"""The page of a decoding comparison, built from real comparisons of small synthetic texts."""

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

from headtohead.decoding_comparison import charts, tables, terminal
from headtohead.decoding_comparison import page as decoding_comparison_page
from headtohead.decoding_comparison import phrasing as say
from headtohead.decoding_comparison.results import DecodingResults, read_results
from headtohead.decoding_comparison.strategy_statistics import (
    ScoredContinuation,
    compare_strategies,
    compute_prompt_ratios,
    estimate_metric,
    estimate_metrics,
    list_metrics,
)
from headtohead.errors import RunFolderError
from headtohead.generation.likelihood import Likelihood
from headtohead.json_files import write_json
from headtohead.presentation import chart as presentation_chart

JsonDict = dict[str, Any]
HOSTILE = "</script><b>bold</b>&\"'"
HUMAN_TEXT = "They saw a bird."
TEXTS = {
    "greedy": ["He went to the park."] * 3,
    "sample": ["She saw a red bird.", f"Two {HOSTILE} dogs.", "No birds were in there."],
    "top-k=3": ["He saw a bird there.", "He saw two birds.", "He went to the park."],
}
LOSSES = {"greedy": 0.5, "sample": 3.0, "top-k=3": 1.5}
PROMPTS = 5


def make_samples(strategy: str, *, scored: bool) -> list[ScoredContinuation]:
    continuations = []
    for prompt in range(PROMPTS):
        for number, text in enumerate(TEXTS[strategy]):
            loss = 8 * (LOSSES[strategy] + 0.1 * math.sin(prompt + number))
            likelihood, score = Likelihood(loss, 8, len(text)), Likelihood(loss + 5, 6, len(text)) if scored else None
            ids = tuple(range(8))
            continuations.append(ScoredContinuation(prompt, number, ids, f" {text}", likelihood, score))
    return continuations


def make_step(number: int, token: str, *, kept: int | None = 2) -> JsonDict:
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
    numbers = {"rank": 1, "probability": 0.5, "kept": kept, "mass": mass, "after": after}
    return {"step": number, "id": 7, "token": token, **numbers, "top": top}


def build_results(
    *, scoring_model: bool = True, human: bool = True, prompts: int = PROMPTS, **changes: Any
) -> DecodingResults:
    ratios_by_strategy = {}
    for name in TEXTS:
        continuations = [item for item in make_samples(name, scored=scoring_model) if item.prompt_index < prompts]
        ratios_by_strategy[name] = compute_prompt_ratios(continuations, prompts, [HUMAN_TEXT] * prompts)
    human_likelihood = Likelihood(20.0, 8, 16)
    human_ratios = compute_prompt_ratios(
        [ScoredContinuation(i, 0, (1, 2), HUMAN_TEXT, human_likelihood) for i in range(prompts)],
        prompts,
        [None] * prompts,
    )
    families = (("temperature", "0.5"), ("top-k", "3"), ("top-p", "0.9"))
    point = {"strategy": "x", "estimates": estimate_metrics(ratios_by_strategy["sample"])}
    settings = {"samples": 3, "max_new_tokens": 8, "seed": 0, "digest": "ff", "strategies": {}, "sweep": True}
    limit_check = {"procedure": "8 continuations", "observation": "8 of 8 the same", "passed": True}
    results = {
        "model": {"name": "tiny", "digest": "abc"},
        "scoring_model": {"name": "stories", "digest": "def"} if scoring_model else None,
        "settings": {**settings, "prompts": prompts},
        "command": ["/somewhere/bin/h2h", "decode", "tiny", "a file"],
        "versions": {"headtohead": "0.1.0"},
        "signatures": {"chrF": "nc:6"},
        "prompts": [
            {"text": f"Ryan {i} {HOSTILE}", "continuation": HUMAN_TEXT if human else None} for i in range(prompts)
        ],
        "baseline": "sample",
        "metrics": list_metrics(ratios_by_strategy),
        "estimates": {name: estimate_metrics(ratios) for name, ratios in ratios_by_strategy.items()},
        "pairs": compare_strategies(ratios_by_strategy, "sample"),
        "human": {"perplexity": estimate_metric("perplexity", human_ratios["perplexity"])} if human else {},
        "sweep": {
            "samples": 3,
            "points": [
                {**point, "family": name, "label": label, "endpoint": endpoint, "order": order}
                for name, middle in families
                for order, (label, endpoint) in enumerate((("greedy", "greedy"), (middle, ""), ("all", "sample")))
            ],
        },
        "traces": [
            {
                "strategy": "top-k=3",
                "prompt": 0,
                "text": " He",
                "note": "",
                "steps": [make_step(1, " He"), make_step(2, HOSTILE)],
            },
            {
                "strategy": "beam=2",
                "prompt": 0,
                "text": "x",
                "note": "Beams.",
                "steps": [make_step(1, "\n", kept=None)],
            },
        ],
        "limit_checks": [
            {**limit_check, "invariant": "k = 1 is greedy"},
            {**limit_check, "invariant": "one beam is greedy", "passed": False},
        ],
        "notes": [],
    }
    return DecodingResults.model_validate({**results, **changes})


def make_sample_record(strategy: str, continuation: ScoredContinuation, **changes: Any) -> JsonDict:
    settings = {"model": "abc", "seed": 0, "max_new_tokens": 8, "strategy": strategy}
    sample = {"prompt": f"Ryan {continuation.prompt_index} {HOSTILE}", "sample": continuation.sample_index}
    return {**settings, **sample, "text": continuation.text, **changes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoding")
    write_json(path / "decoding.json", build_results().to_json())
    lines = [make_sample_record(name, sample) for name in TEXTS for sample in make_samples(name, scored=False)]
    stale = make_sample_record("sample", make_samples("sample", scored=False)[0], text=" OF ANOTHER SEED", seed=1)
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, stale]))
    decoding_comparison_page.write_decoding_report(path)
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


# ---- the page


def test_the_page_needs_nothing_else_and_text_stays_text(page: str) -> None:
    assert "<b>bold</b>" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert page.count("<script") == page.count("</script>") == 2
    data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    assert DecodingResults.model_validate(data) == build_results()


def test_every_section_is_there(page: str) -> None:
    for name in ("verdicts", "metrics", "pairs", "sweep", "trace-top-k=3", "limits", "samples", "reproduce"):
        assert f'<section id="{name}">' in page
    assert "Three ways to decode tiny" in page
    assert "Scoring model: stories." in page
    assert "A limit check failed: one beam is greedy." in page
    assert "h2h decode tiny &#39;a file&#39;" in page


def test_samples_are_shown_once_each_and_none_of_other_settings(page: str) -> None:
    assert page.count("He went to the park.</") + page.count("He went to the park. <small>3 times") >= PROMPTS
    assert page.count("<small>3 times</small>") == PROMPTS
    assert "OF ANOTHER SEED" not in page
    assert page.count("<h4>human</h4>") == PROMPTS


def test_without_scoring_model_human_text_or_sweep_the_page_is_complete() -> None:
    sweep: JsonDict = {"samples": 3, "points": []}
    empty: JsonDict = {"traces": [], "limit_checks": [], "sweep": sweep}
    results = build_results(scoring_model=False, human=False, prompts=1, **empty)
    page = decoding_comparison_page.render_decoding_report(results, [], "html")
    assert "No scoring model was given." in page
    assert "bits per byte, scoring model" not in page
    assert "an interval needs more prompts" in page
    assert "one prompt: no interval" in page
    for name in ("sweep", "trace-top-k=3", "limits"):
        assert f'<section id="{name}">' not in page


def test_a_folder_of_another_kind_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"decoding\.json: no such file"):
        read_results(tmp_path)
    write_json(tmp_path / "decoding.json", {"schema_version": 99})
    with pytest.raises(RunFolderError, match="has schema version 99, and this version of Head to Head reads 2"):
        read_results(tmp_path)


def test_verdicts_compare_the_other_strategies_with_the_baseline() -> None:
    verdicts = say.build_verdict_cards(build_results())
    assert list(verdicts) == ["greedy", "top-k=3"]
    first = verdicts["greedy"][0]
    assert first.outcome == "helped"
    assert first.summary.startswith("perplexity 9")
    assert "lower (98.3\u00a0% confidence interval" in first.summary
    outcomes = {card.summary.split()[0]: card.outcome for card in verdicts["greedy"]}
    assert outcomes["distinct-2"] == "hurt"


# ---- tables and other formats


def test_the_tables_say_what_the_figures_are() -> None:
    results = build_results()
    (metrics, matrix, tests, *_) = tables.build_tables(results)
    assert [column.title for column in metrics.columns] == ["metric", "greedy", "sample", "top-k=3", "human"]
    row = next(row for row in metrics.rows if row[0].text == "perplexity")
    assert row[1].value[0] == results.estimates["greedy"]["perplexity"].value
    assert row[-1].text.startswith("12.18")  # exp(20 / 8)
    assert len(matrix.rows) == 3
    assert len(tests.rows) == len(results.pairs)
    greedy = next(row for row in matrix.rows if row[0].text == "greedy / sample")
    assert greedy[1].text.startswith("▲\u00a0−")


def test_other_formats_hold_the_same(folder: Path) -> None:
    text = {
        path.name: path
        for path in decoding_comparison_page.write_decoding_report(folder, ["md", "pdf", "csv", "chart-svg"])
    }
    assert "| perplexity |" in text["report.md"].read_text()
    assert text["report.pdf"].read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader(io.StringIO(text["tests.csv"].read_text())))
    assert {row["verdict"] for row in rows} <= {"helped", "hurt", "no practical difference", "cannot tell"}
    assert {"interval_low", "interval_high"} <= set(rows[0])
    assert ET.parse(text["tradeoff.svg"]).getroot().tag.endswith("svg")


# ---- charts


def test_every_chart_is_sound_vega_lite() -> None:
    result = charts.build_charts(build_results())
    assert [chart.name for chart in result] == ["metrics", "tradeoff", "trace-top-k=3", "trace-beam=2"]
    for chart in result:
        for layout in ("wide", "narrow"):
            chart.build(layout, presentation_chart.ChartDatasets()).to_dict(validate=True)


def test_a_trace_is_drawn_to_scale_with_what_became_of_each_token() -> None:
    chart = charts.build_trace_chart(build_results().traces[0])
    rows = chart.to_vega_lite()["datasets"]["dataset-0"]
    first = [row for row in rows if row["step"].startswith("1 ")]
    assert [row["from"] for row in first] == pytest.approx([0, 0.5, 0.8, 0.95])
    assert [row["to"] for row in first] == pytest.approx([0.5, 0.8, 0.95, 1])
    assert [row["status"] for row in first] == ["sampled", "kept", "dropped", "dropped"]
    assert "97 others" in first[-1]["tip"]
    assert "kept 2 tokens with 80.0\u00a0%" in chart.alt_text


def test_marks_stand_where_their_figures_are() -> None:
    results = build_results()
    samples = charts.build_interval_chart(results).to_vega_lite()
    rows = [
        row for sheet in samples["datasets"].values() for row in sheet if row.get("tip", "").startswith("greedy: perp")
    ]
    estimate = results.estimates["greedy"]["perplexity"]
    low, high = estimate.interval or (None, None)
    assert [rows[0]["low"], rows[0]["value"], rows[0]["high"]] == [low, estimate.value, high]


@pytest.mark.parametrize(
    ("token", "shown"), [(" the", "␣the"), ("\n\n", "↵↵"), ("\x03", "␃"), ("\ufffe", "U+FFFE"), ("", "∅"), ("é", "é")]
)
def test_what_has_no_look_is_made_visible(token: str, shown: str) -> None:
    assert say.format_trace_token(token) == shown


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
def test_intervals_as_sentences(kind: str, interval: list[Any], words: str) -> None:
    assert say.describe_metric_change_interval(kind, interval) == words


def test_the_terminal_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal.print_decoding_comparison(build_results(notes=["A note."]), "here", "here/report.html")
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    assert "perplexity" in output and "self-BLEU" in output
    assert "limit checks: 1 of 2 passed" in output
    assert "A note." in output


@pytest.mark.browser
def test_the_page_stands_on_its_own_in_a_browser(folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    address = (folder / "report.html").as_uri()
    requests: list[str] = []
    complaints: list[str] = []
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=flags)
        for width, scheme in ((360, "dark"), (1280, "light")):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page.on("request", lambda request: requests.append(request.url))
            page.on("console", lambda message: complaints.append(message.text))
            page.goto(address)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            layout = "narrow" if width == 360 else "wide"
            page.locator(f".chart .{layout} path[aria-roledescription='point']").first.hover(force=True)
            assert "greedy: perplexity" in page.locator(".tip").inner_text()
            page.close()
        browser.close()
    assert set(requests) == {address}
    assert complaints == []
