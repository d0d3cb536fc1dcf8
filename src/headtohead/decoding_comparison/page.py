"""Render a decoding comparison as a self-contained HTML page, and export its tables and charts.

Reads the decoding.json and samples.jsonl that `h2h decode` writes, and does not import torch. Tables and charts can
also be exported as Markdown, CSV, LaTeX, SVG, PDF and PNG.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.atomic_io import read_json, read_jsonl
from headtohead.decoding_comparison import phrasing
from headtohead.decoding_comparison.charts import build_charts
from headtohead.decoding_comparison.tables import build_tables
from headtohead.errors import RunFolderError
from headtohead.presentation import files, style, typst
from headtohead.presentation.exports import escape_markdown, render_markdown_sections
from headtohead.presentation.html import (
    CLOSING_PUNCTUATION,
    default_to_none,
    encode_script_json,
    render_chart,
    render_document,
)
from headtohead.presentation.section import Block, Figure, Section, TableBlock, VerdictCard, VerdictList

DecodingResults = dict[str, Any]
SCHEMA_VERSION = 1
RESULTS_FILE, SAMPLES_FILE = "decoding.json", "samples.jsonl"
LINE_BREAK_PATTERN = re.compile(r"\s*\n\s*")
NUM_EXPANDED_PROMPTS = 1
"""prompts whose samples are initially expanded"""


def read_results(folder: Path) -> DecodingResults:
    """Return the results of a comparison with its samples. Raise `RunFolderError` for another schema version."""
    results: DecodingResults = read_json(folder / RESULTS_FILE)
    if results.get("schema") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{folder / RESULTS_FILE}: written with schema {results.get('schema')}, this reads {SCHEMA_VERSION}"
        )
    return {**results, "samples": read_jsonl(folder / SAMPLES_FILE)}


def write_report(folder: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of a comparison into its folder in each format; return the paths written."""
    files.check_formats(formats)
    results = read_results(folder)
    renderers: dict[str, Callable[[DecodingResults], str | bytes]] = {
        "html": render_html,
        "md": render_markdown,
        "pdf": render_pdf,
    }
    return files.write_formats(
        formats,
        folder,
        lambda name: renderers[name](results),
        lambda: build_tables(results),
        lambda: build_charts(results),
    )


def render_markdown(results: DecodingResults) -> str:
    """Render the report as Markdown."""
    introduction = f"# {escape_markdown(build_title(results))}\n\n{escape_markdown(build_lead_paragraph(results))}\n\n"
    return introduction + render_markdown_sections(_build_document_sections(results))


def render_pdf(results: DecodingResults) -> bytes:
    """Render the report as a PDF document."""
    return typst.render_pdf(build_title(results), [build_lead_paragraph(results)], _build_document_sections(results))


def _build_document_sections(results: DecodingResults) -> list[Section]:
    """Return the verdicts, the charts and the tables as sections of a Markdown or PDF document."""
    verdicts = [
        VerdictCard(card["strategy"], f"{card['strategy']}, {line['outcome']}", line["summary"], "")
        for card in build_strategy_cards(results)
        for line in card["lines"]
    ]
    charts: list[Block] = [Figure(chart, chart.title) for chart in build_charts(results)]
    tables = [Section(table.name, table.title, [TableBlock(table)]) for table in build_tables(results)]
    return [Section("verdicts", "Verdicts", [VerdictList(verdicts)]), Section("charts", "Charts", charts), *tables]


def render_html(results: DecodingResults) -> str:
    """Render the report as one HTML document."""
    tables_by_name = {table.name: table for table in build_tables(results)}
    charts_by_name = {chart.name: render_chart(chart) for chart in build_charts(results)}
    return render_document(
        "decoding-page.html",
        extra_styles=["decoding.css"],
        data=Markup(encode_script_json({name: value for name, value in results.items() if name != "samples"})),
        title=build_title(results),
        lead=build_lead_paragraph(results),
        notes=results["notes"],
        baseline=results["baseline"],
        cards=build_strategy_cards(results),
        measures=results["measures"],
        has_people=bool(results["people"]),
        tables=default_to_none(tables_by_name),
        charts=default_to_none(charts_by_name),
        sweep=results["sweep"],
        traces=[
            {
                **item,
                "chart": charts_by_name[f"trace-{item['strategy']}"],
                "table": tables_by_name.get(f"trace-{item['strategy']}"),
                "prompt": results["prompts"][item["prompt"]]["text"],
            }
            for item in results["traces"]
        ],
        broken=[item["law"] for item in results["laws"] if not item["passed"]],
        samples=_group_samples_by_prompt(results),
        open=NUM_EXPANDED_PROMPTS,
        reproduce=_build_reproduction_details(results),
    )


def build_title(results: DecodingResults) -> str:
    """Return the title of the report, such as "Five ways to decode SmolLM2"."""
    count = len(results["figures"])
    number_words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    number = number_words[count] if count < len(number_words) else str(count)
    return f"{number} way{'s' if count != 1 else ''} to decode {results['model']['name']}"


def build_lead_paragraph(results: DecodingResults) -> str:
    """Return the first paragraph: prompts, samples, length, seed and second model."""
    settings, num_prompts = results["settings"], len(results["prompts"])
    num_samples = settings["samples"]
    scoring_model = results["second"]
    return (
        f"{num_prompts:,} prompt{'s' if num_prompts != 1 else ''}, "
        f"{num_samples} sample{'s' if num_samples != 1 else ''} each, "
        f"up to {settings['max_new_tokens']} new tokens, seed {settings['seed']}. "
        + (
            f"Second model: {scoring_model['name']}."
            if scoring_model
            else "No second model was given, so its column is left out."
        )
    )


def build_strategy_cards(results: DecodingResults) -> list[DecodingResults]:
    """Return the cards of the decoding page: one per strategy, with its verdicts against the baseline strategy.

    A card has one line per metric of likelihood, diversity and similarity to human text.
    """
    metrics = {metric["name"]: metric for metric in results["measures"]}
    pairs_by_key = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in results["pairs"]}
    cards = []
    for strategy in results["figures"]:
        lines = []
        for metric_name in ("perplexity", "second", "distinct-2", "repetition", "nearness"):
            pair = pairs_by_key.get((strategy, results["baseline"], metric_name))
            if pair is not None:
                symbol = style.VERDICT_SYMBOLS[pair["outcome"]]
                summary = phrasing.describe_pair(pair, metrics[metric_name])
                lines.append({"outcome": pair["outcome"], "sign": symbol, "summary": summary})
        if lines:
            cards.append({"strategy": strategy, "lines": lines})
    return cards


def _group_samples_by_prompt(results: DecodingResults) -> list[DecodingResults]:
    """Return, for each prompt, the human continuation and the distinct texts of each strategy with their counts."""
    samples_by_key: dict[tuple[str, str], list[DecodingResults]] = {}
    for sample in results["samples"]:
        if _has_same_settings(sample, results):
            samples_by_key.setdefault((sample["strategy"], sample["prompt"]), []).append(sample)
    groups = []
    for prompt in results["prompts"]:
        columns = []
        for strategy in results["figures"]:
            samples = sorted(
                samples_by_key.get((strategy, prompt["text"]), []), key=lambda sample: int(sample["sample"])
            )
            counts = Counter(LINE_BREAK_PATTERN.sub(" ↵ ", sample["text"].strip()) for sample in samples)
            columns.append(
                {"strategy": strategy, "texts": [{"text": text, "of": count} for text, count in counts.items()]}
            )
        human_text = prompt["continuation"]
        groups.append(
            {
                **prompt,
                "columns": columns,
                "people": human_text and {"text": human_text, "joint": _get_separator(human_text)},
            }
        )
    return groups


def _has_same_settings(sample: DecodingResults, results: DecodingResults) -> bool:
    """Return whether a sample belongs to these results. A resumed folder may also hold samples of other settings."""
    settings = results["settings"]
    return bool(
        sample["model"] == results["model"]["digest"]
        and all(sample[name] == settings[name] for name in ("seed", "max_new_tokens"))
        and sample["sample"] < settings["samples"]
    )


def _get_separator(text: str) -> str:
    """Return the separator between a prompt and this continuation."""
    return "" if text.startswith((*CLOSING_PUNCTUATION, " ", "\n")) else " "


def _build_reproduction_details(results: DecodingResults) -> DecodingResults:
    """Return the command, the digests and versions, and the settings of the comparison."""
    command = [str(word) for word in results.get("command") or []]
    if command:
        command[0] = Path(command[0]).name
    facts = {
        "Model": results["model"]["name"],
        "Digest of its weights": results["model"]["digest"],
        "Second model": results["second"]["name"] if results["second"] else None,
        "Digest of the second’s": results["second"]["digest"] if results["second"] else None,
        "Digest of the prompts": results["settings"]["digest"],
        **{f"{name} as sacrebleu counted it": signature for name, signature in results["signatures"].items()},
        **results["versions"],
    }
    return {
        "command": shlex.join(command),
        "facts": {name: str(fact) for name, fact in facts.items() if fact},
        "settings": json.dumps(results["settings"], indent=2, ensure_ascii=False),
    }
