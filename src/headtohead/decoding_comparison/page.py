"""The page of a decoding comparison: one HTML file that needs nothing else, in the looks of the other report.

It reads what `h2h decode` left in a folder, decoding.json and samples.jsonl, and needs no torch. The same tables and
charts are written as Markdown, CSV, SVG, PDF and PNG when they are asked for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.atomic_io import read_json, read_jsonl, write_text
from headtohead.decoding_comparison import phrasing as say
from headtohead.decoding_comparison.charts import build_charts
from headtohead.decoding_comparison.tables import build_tables
from headtohead.errors import RunFolderError
from headtohead.presentation import style
from headtohead.presentation.exports import escape_markdown, render_markdown_table
from headtohead.presentation.files import DOCUMENT_SUFFIXES, check_formats, write_charts, write_tables
from headtohead.presentation.html import (
    CLOSING_PUNCTUATION,
    default_to_none,
    encode_script_json,
    render_chart,
    render_document,
)

DecodingResults = dict[str, Any]
SCHEMA_VERSION = 1
RESULTS_FILE, SAMPLES_FILE, REPORT_NAME = "decoding.json", "samples.jsonl", "report"
LINE_BREAK_PATTERN = re.compile(r"\s*\n\s*")
NUM_EXPANDED_PROMPTS = 1
"""so many prompts are shown unfolded"""


def read_results(folder: Path) -> DecodingResults:
    """What a comparison found, with its samples."""
    found: DecodingResults = read_json(folder / RESULTS_FILE)
    if found.get("schema") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{folder / RESULTS_FILE}: written with schema {found.get('schema')}, this reads {SCHEMA_VERSION}"
        )
    return {**found, "samples": read_jsonl(folder / SAMPLES_FILE)}


def write_report(folder: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the report of a comparison's folder into it, and say which files were written."""
    check_formats(formats)
    found = read_results(folder)
    written: list[Path] = []
    for one in dict.fromkeys(formats):
        if one in DOCUMENT_SUFFIXES:
            path = folder / f"{REPORT_NAME}{DOCUMENT_SUFFIXES[one]}"
            write_text(path, render_html(found) if one == "html" else render_markdown(found))
            written.append(path)
            continue
        if one in ("csv", "latex"):
            written += write_tables(build_tables(found), one, folder / f"{REPORT_NAME}-tables")
        else:
            written += write_charts(build_charts(found), one, folder / f"{REPORT_NAME}-charts")
    return written


def render_markdown(results: DecodingResults) -> str:
    lines = [f"# {escape_markdown(build_title(results))}", "", escape_markdown(build_lead_paragraph(results)), ""]
    for card in build_strategy_cards(results):
        name = escape_markdown(card["strategy"])
        lines += [f"- **{name}, {line['outcome']}**: {escape_markdown(line['summary'])}" for line in card["lines"]]
    for one in build_tables(results):
        lines += ["", f"## {escape_markdown(one.title)}", "", render_markdown_table(one).rstrip()]
    return "\n".join(lines) + "\n"


def render_html(results: DecodingResults) -> str:
    """The page."""
    by_name = {table.name: table for table in build_tables(results)}
    drawn = {chart.name: render_chart(chart) for chart in build_charts(results)}
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
        tables=default_to_none(by_name),
        charts=default_to_none(drawn),
        sweep=results["sweep"],
        traces=[
            {
                **one,
                "chart": drawn[f"trace-{one['strategy']}"],
                "table": by_name.get(f"trace-{one['strategy']}"),
                "prompt": results["prompts"][one["prompt"]]["text"],
            }
            for one in results["traces"]
        ],
        broken=[one["law"] for one in results["laws"] if not one["passed"]],
        samples=_group_samples_by_prompt(results),
        open=NUM_EXPANDED_PROMPTS,
        reproduce=_build_reproduction_details(results),
    )


def build_title(results: DecodingResults) -> str:
    """Five ways to decode SmolLM2."""
    count = len(results["figures"])
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    number = words[count] if count < len(words) else str(count)
    return f"{number} way{'s' if count != 1 else ''} to decode {results['model']['name']}"


def build_lead_paragraph(results: DecodingResults) -> str:
    settings, prompts = results["settings"], len(results["prompts"])
    samples = settings["samples"]
    second = results["second"]
    return (
        f"{prompts:,} prompt{'s' if prompts != 1 else ''}, {samples} sample{'s' if samples != 1 else ''} each, up to "
        f"{settings['max_new_tokens']} new tokens, seed {settings['seed']}. "
        + (f"Second model: {second['name']}." if second else "No second model was given, so its column is left out.")
    )


def build_strategy_cards(results: DecodingResults) -> list[DecodingResults]:
    """What each strategy does beside the baseline: to how likely the text is, how varied, and how near to people's."""
    kinds = {one["name"]: one for one in results["measures"]}
    by_place = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in results["pairs"]}
    made = []
    for name in results["figures"]:
        lines = []
        for measure in ("perplexity", "second", "distinct-2", "repetition", "nearness"):
            pair = by_place.get((name, results["baseline"], measure))
            if pair is not None:
                sign = style.VERDICT_SYMBOLS[pair["outcome"]]
                said = say.describe_pair(pair, kinds[measure])
                lines.append({"outcome": pair["outcome"], "sign": sign, "summary": said})
        if lines:
            made.append({"strategy": name, "lines": lines})
    return made


def _group_samples_by_prompt(results: DecodingResults) -> list[DecodingResults]:
    """By prompt: what people wrote, and what each strategy wrote; samples that are the same are shown once."""
    by_place: dict[tuple[str, str], list[DecodingResults]] = {}
    for one in results["samples"]:
        if _has_same_settings(one, results):
            by_place.setdefault((one["strategy"], one["prompt"]), []).append(one)
    made = []
    for prompt in results["prompts"]:
        columns = []
        for name in results["figures"]:
            own = sorted(by_place.get((name, prompt["text"]), []), key=lambda one: int(one["sample"]))
            counts = Counter(LINE_BREAK_PATTERN.sub(" ↵ ", one["text"].strip()) for one in own)
            columns.append({"strategy": name, "texts": [{"text": text, "of": of} for text, of in counts.items()]})
        people = prompt["continuation"]
        made.append(
            {**prompt, "columns": columns, "people": people and {"text": people, "joint": _get_separator(people)}}
        )
    return made


def _has_same_settings(sample: DecodingResults, results: DecodingResults) -> bool:
    """A folder may hold samples of other settings as well: none is thrown away."""
    settings = results["settings"]
    return bool(
        sample["model"] == results["model"]["digest"]
        and all(sample[name] == settings[name] for name in ("seed", "max_new_tokens"))
        and sample["sample"] < settings["samples"]
    )


def _get_separator(text: str) -> str:
    return "" if text.startswith((*CLOSING_PUNCTUATION, " ", "\n")) else " "


def _build_reproduction_details(results: DecodingResults) -> DecodingResults:
    command = [str(word) for word in results.get("command") or []]
    if command:
        command[0] = Path(command[0]).name
    facts = {
        "Model": results["model"]["name"],
        "Digest of its weights": results["model"]["digest"],
        "Second model": results["second"]["name"] if results["second"] else None,
        "Digest of the second’s": results["second"]["digest"] if results["second"] else None,
        "Digest of the prompts": results["settings"]["digest"],
        **{f"{name} as sacrebleu counted it": how for name, how in results["signatures"].items()},
        **results["versions"],
    }
    return {
        "command": shlex.join(command),
        "facts": {name: str(fact) for name, fact in facts.items() if fact},
        "settings": json.dumps(results["settings"], indent=2, ensure_ascii=False),
    }
