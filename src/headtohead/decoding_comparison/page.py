"""Render a decoding comparison's report from decoding.json and samples.jsonl, without torch.

The HTML page, Markdown and PDF show the same sections. Tables and charts can also be exported individually.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.atomic_io import read_jsonl
from headtohead.decoding_comparison import phrasing, tables
from headtohead.decoding_comparison.charts import build_charts
from headtohead.decoding_comparison.results import DecodingResults, read_results
from headtohead.decoding_comparison.sample_store import SAMPLES_FILE
from headtohead.presentation import files
from headtohead.presentation.command_line import format_command
from headtohead.presentation.files import CHARTS_FOLDER
from headtohead.presentation.renderers import latex, typst
from headtohead.presentation.renderers.html import CLOSING_PUNCTUATION, encode_script_json, render_document
from headtohead.presentation.renderers.markdown import escape_markdown, render_markdown_sections
from headtohead.presentation.section import (
    Block,
    Code,
    Figure,
    HtmlBlock,
    KeyValueList,
    Paragraph,
    Section,
    Subheading,
    TableBlock,
    VerdictCard,
    VerdictList,
)

SampleRecords = list[dict[str, Any]]
LINE_BREAK_PATTERN = re.compile(r"\s*\n\s*")
HEADLINE_METRICS = ("perplexity", "scoring-bits", "distinct-2", "repetition", "chrf")
"""likelihood, diversity and human-similarity metrics for the verdicts at the top"""
VERDICT_NOTE = (
    "Each verdict concerns one metric, and the intervals hold for all pairs of strategies simultaneously. Likelier "
    "text is not better text: compare the likelihood of human text, and read likelihood and diversity together."
)
TRACE_INTRODUCTION = (
    "A bar shows the distribution of the model at one step, most likely tokens first. Its label is the sampled token. "
    "␣ is a space, ↵ a line break."
)
TRADEOFF_CAPTION = (
    "Each mark is one setting, on the same prompts with {} samples each. All three lines begin at greedy decoding; k "
    "and p end at plain sampling, and temperature passes through it at 1. A lower line is likelier at equal diversity."
)


def write_report(folder: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write a comparison's report into its folder in each format; return the paths written."""
    files.check_formats(formats)
    results, samples = read_results(folder), read_jsonl(folder / SAMPLES_FILE)
    return files.write_formats(
        formats,
        folder,
        lambda name: render_report(results, samples, name),
        lambda: tables.build_tables(results),
        lambda: build_charts(results),
    )


def render_report(results: DecodingResults, samples: SampleRecords, document_format: str) -> str | bytes:
    """Render the report as "html", "md", "tex" or "pdf"."""
    title, lead = build_title(results), build_lead_paragraph(results)
    sections = build_sections(results, samples)
    if document_format == "md":
        text = render_markdown_sections(sections, CHARTS_FOLDER)
        return f"# {escape_markdown(title)}\n\n{escape_markdown(lead)}\n\n{text}"
    if document_format == "tex":
        return latex.render_document(title, [lead, *results.notes], sections, CHARTS_FOLDER)
    if document_format == "pdf":
        return typst.render_pdf(title, [lead, *results.notes], sections)
    warnings = [{"lead": note, "text": ""} for note in results.notes]
    if failed := [check.invariant for check in results.limit_checks if not check.passed]:
        warnings.insert(0, {"lead": f"A limit check failed: {'; '.join(failed)}.", "text": "", "link": "limits"})
    data = Markup(encode_script_json(results.to_json()))
    page: dict[str, Any] = {"data": data, "title": title, "lead": lead, "warnings": warnings, "sections": sections}
    return render_document("page.html", extra_styles=["decoding.css"], **page)


def build_sections(results: DecodingResults, samples: SampleRecords) -> list[Section]:
    """Return the sections that have content, in reading order."""
    charts = {chart.name: chart for chart in build_charts(results)}
    tables_by_name = {table.name: table for table in tables.build_tables(results)}

    def collapse(table_name: str, summary: str) -> list[Block]:
        return [TableBlock(tables_by_name[table_name], summary)] if table_name in tables_by_name else []

    human_note = " Dashed: human continuations, truncated to the same number of tokens." if results.human else ""
    caption = f"Marks: estimates over all prompts. Lines: 95 % intervals over prompts.{human_note}"
    definitions = {
        metric.title: f"{metric.description}; {metric.better} is better" if metric.better else metric.description
        for metric in results.metrics
    }
    blocks: list[Block] = [
        Figure(charts["metrics"], caption),
        TableBlock(tables_by_name["metrics"], layout="stack broken"),
    ]
    sections = [
        Section("verdicts", f"Compared with {results.baseline}", _build_verdict_blocks(results), is_headline=True),
        Section("metrics", "Metrics", [*blocks, KeyValueList(definitions)], "Metrics"),
    ]
    if "pairs" in tables_by_name:
        blocks = [TableBlock(tables_by_name["pairs"]), *collapse("tests", "All tests with their intervals")]
        sections.append(Section("pairs", "Pairs of strategies", blocks, "Pairs"))
    if "tradeoff" in charts:
        figure = Figure(charts["tradeoff"], TRADEOFF_CAPTION.format(results.sweep.samples))
        blocks = [figure, *collapse("sweep", "All estimates of the sweep")]
        sections.append(Section("sweep", charts["tradeoff"].title, blocks, "Likelihood and diversity"))
    for index, trace in enumerate(results.traces):
        chart = charts[f"trace-{trace.strategy}"]
        prompt = Paragraph(f"Prompt: “{results.prompts[trace.prompt].text}” {TRACE_INTRODUCTION}")
        note = [Paragraph(trace.note, "notes")] if trace.note else []
        blocks = [prompt, *note, Figure(chart, chart.title), *collapse(chart.name, "All steps")]
        short_title = "" if index else "Token by token"
        sections.append(Section(chart.name, chart.title, blocks, short_title, summary=trace.text.strip() or "no text"))
    if "limits" in tables_by_name:
        sections.append(Section("limits", "Limit checks", [TableBlock(tables_by_name["limits"])], "Limit checks"))
    prompts = {"prompts": _group_samples_by_prompt(results, samples)}
    sections.append(Section("samples", "Samples", [HtmlBlock("decoding_samples", prompts)], "Samples"))
    sections.append(Section("reproduce", "How to reproduce", _build_reproduction_blocks(results), "How to reproduce"))
    return [section for section in sections if section.blocks]


def build_title(results: DecodingResults) -> str:
    """Return the report's title, such as "Five ways to decode SmolLM2"."""
    count = len(results.estimates)
    number_words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    number = number_words[count] if count < len(number_words) else str(count)
    return f"{number} way{'s' if count != 1 else ''} to decode {results.model.name}"


def build_lead_paragraph(results: DecodingResults) -> str:
    """Return the first paragraph: prompts, samples, length, seed and scoring model."""
    settings, num_prompts = results.settings, len(results.prompts)
    scoring = f"Scoring model: {results.scoring_model.name}" if results.scoring_model else "No scoring model was given"
    return (
        f"{num_prompts:,} prompt{'s' if num_prompts != 1 else ''}, "
        f"{settings.samples} sample{'s' if settings.samples != 1 else ''} each, "
        f"up to {settings.max_new_tokens} new tokens, seed {settings.seed}. {scoring}."
    )


def build_verdicts(results: DecodingResults) -> dict[str, list[VerdictCard]]:
    """Return the verdicts on each strategy against the baseline strategy, one per headline metric."""
    verdicts: dict[str, list[VerdictCard]] = {}
    for strategy in results.estimates:
        for name in HEADLINE_METRICS:
            if pair := results.find_pair(strategy, results.baseline, name):
                summary = phrasing.describe_pair(pair, results.metrics_by_name[name])
                card = VerdictCard(strategy, pair.outcome, summary)
                verdicts.setdefault(strategy, []).append(card)
    return verdicts


def _build_verdict_blocks(results: DecodingResults) -> list[Block]:
    verdicts = build_verdicts(results).items()
    blocks = [block for strategy, cards in verdicts for block in (Subheading(strategy), VerdictList(cards))]
    return [*blocks, Paragraph(VERDICT_NOTE, "notes")] if blocks else []


def _group_samples_by_prompt(results: DecodingResults, samples: SampleRecords) -> list[dict[str, Any]]:
    """Return, for each prompt, the human continuation and each strategy's distinct texts with their counts."""
    settings = results.settings
    groups = []
    for prompt in results.prompts:
        columns: dict[str, list[tuple[str, int]]] = {}
        for strategy in results.estimates:
            # A resumed folder may also hold samples from different settings.
            expected = (strategy, prompt.text, results.model.digest, settings.seed, settings.max_new_tokens)
            texts = {
                sample["sample"]: LINE_BREAK_PATTERN.sub(" ↵ ", sample["text"].strip())
                for sample in samples
                if tuple(sample[key] for key in ("strategy", "prompt", "model", "seed", "max_new_tokens")) == expected
                and sample["sample"] < settings.samples
            }
            columns[strategy] = list(Counter(texts[index] for index in sorted(texts)).items())
        human = prompt.continuation
        separator = "" if human and human.startswith((*CLOSING_PUNCTUATION, " ", "\n")) else " "
        groups.append({"text": prompt.text, "columns": columns, "human": human and separator + human})
    return groups


def _build_reproduction_blocks(results: DecodingResults) -> list[Block]:
    """Return the command, the digests and versions, and the settings of the comparison."""
    scoring_model = results.scoring_model
    settings = {
        "Model": results.model.name,
        "Weights digest": results.model.digest,
        "Scoring model": scoring_model and scoring_model.name,
        "Weights digest of the scoring model": scoring_model and scoring_model.digest,
        "Digest of the prompts": results.settings.digest,
        **{f"sacrebleu signature of {name}": signature for name, signature in results.signatures.items()},
        **results.versions,
    }
    note = "decoding.json beside this page holds every number, samples.jsonl every sample."
    return [
        Code(format_command(results.command) if results.command else ""),
        KeyValueList({name: fact for name, fact in settings.items() if fact}),
        Code(json.dumps(results.settings.to_json(), indent=2, ensure_ascii=False), "All settings"),
        Paragraph(note, "notes"),
    ]
