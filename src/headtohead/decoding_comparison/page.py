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

from headtohead.decoding_comparison import phrasing, tables
from headtohead.decoding_comparison.charts import build_charts
from headtohead.decoding_comparison.results import DecodingResults, read_results
from headtohead.decoding_comparison.sample_store import SAMPLES_FILE
from headtohead.json_files import read_jsonl
from headtohead.presentation import output_files
from headtohead.presentation.command_line import format_command
from headtohead.presentation.output_files import CHARTS_FOLDER
from headtohead.presentation.renderers import latex, typst
from headtohead.presentation.renderers.html import CLOSING_PUNCTUATION, encode_script_json, render_html_template
from headtohead.presentation.renderers.markdown import escape_markdown, render_markdown_sections
from headtohead.presentation.section import (
    Block,
    CodeBlock,
    Figure,
    HtmlBlock,
    KeyValueList,
    Paragraph,
    Section,
    Subheading,
    TableBlock,
    VerdictList,
)

SampleRecords = list[dict[str, Any]]
LINE_BREAK_PATTERN = re.compile(r"\s*\n\s*")
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


def write_decoding_report(folder: Path, formats: Sequence[str] = ("html",)) -> list[Path]:
    """Write the page of a decoding comparison, or its report in other formats, into its folder; return the paths."""
    output_files.check_output_formats(formats)
    results, samples = read_results(folder), read_jsonl(folder / SAMPLES_FILE)
    return output_files.write_output_files(
        formats,
        folder,
        lambda name: render_decoding_report(results, samples, name),
        lambda: tables.build_tables(results),
        lambda: build_charts(results),
    )


def render_decoding_report(results: DecodingResults, samples: SampleRecords, document_format: str) -> str | bytes:
    """Render the report of a decoding comparison as "html", "md", "tex" or "pdf"."""
    title, lead = phrasing.build_report_title(results), phrasing.build_report_lead(results)
    sections = build_report_sections(results, samples)
    if document_format == "md":
        text = render_markdown_sections(sections, CHARTS_FOLDER)
        return f"# {escape_markdown(title)}\n\n{escape_markdown(lead)}\n\n{text}"
    if document_format == "tex":
        return latex.render_latex_sections(title, [lead, *results.notes], sections, CHARTS_FOLDER)
    if document_format == "pdf":
        return typst.render_pdf(title, [lead, *results.notes], sections)
    warnings = [{"lead": note, "text": ""} for note in results.notes]
    if failed_invariants := [check.invariant for check in results.limit_checks if not check.passed]:
        warnings.insert(
            0, {"lead": f"A limit check failed: {'; '.join(failed_invariants)}.", "text": "", "link": "limits"}
        )
    data = Markup(encode_script_json(results.to_json()))
    page: dict[str, Any] = {"data": data, "title": title, "lead": lead, "warnings": warnings, "sections": sections}
    return render_html_template("page.html", extra_styles=["decoding.css"], **page)


def build_report_sections(results: DecodingResults, samples: SampleRecords) -> list[Section]:
    """Return the sections of a decoding report that have content, in reading order."""
    charts = {chart.name: chart for chart in build_charts(results)}
    tables_by_name = {table.name: table for table in tables.build_tables(results)}

    def build_collapsed_table(table_name: str, summary: str) -> list[Block]:
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
        blocks = [
            TableBlock(tables_by_name["pairs"]),
            *build_collapsed_table("tests", "All tests with their intervals"),
        ]
        sections.append(Section("pairs", "Pairs of strategies", blocks, "Pairs"))
    if "tradeoff" in charts:
        figure = Figure(charts["tradeoff"], TRADEOFF_CAPTION.format(results.sweep.samples))
        blocks = [figure, *build_collapsed_table("sweep", "All estimates of the sweep")]
        sections.append(Section("sweep", charts["tradeoff"].title, blocks, "Likelihood and diversity"))
    for index, trace in enumerate(results.traces):
        chart = charts[f"trace-{trace.strategy}"]
        prompt = Paragraph(f"Prompt: “{results.prompts[trace.prompt].text}” {TRACE_INTRODUCTION}")
        note = [Paragraph(trace.note, "notes")] if trace.note else []
        blocks = [prompt, *note, Figure(chart, chart.title), *build_collapsed_table(chart.name, "All steps")]
        short_title = "" if index else "Token by token"
        sections.append(Section(chart.name, chart.title, blocks, short_title, summary=trace.text.strip() or "no text"))
    if "limits" in tables_by_name:
        sections.append(Section("limits", "Limit checks", [TableBlock(tables_by_name["limits"])], "Limit checks"))
    prompts = {"prompts": _group_samples_by_prompt(results, samples)}
    sections.append(Section("samples", "Samples", [HtmlBlock("decoding_samples", prompts)], "Samples"))
    sections.append(Section("reproduce", "How to reproduce", _build_reproduction_blocks(results), "How to reproduce"))
    return [section for section in sections if section.blocks]


def _build_verdict_blocks(results: DecodingResults) -> list[Block]:
    """Return the verdicts on each strategy, with a note on how to read them."""
    cards_by_strategy = phrasing.build_verdict_cards(results).items()
    blocks = [block for strategy, cards in cards_by_strategy for block in (Subheading(strategy), VerdictList(cards))]
    return [*blocks, Paragraph(VERDICT_NOTE, "notes")] if blocks else []


def _group_samples_by_prompt(results: DecodingResults, samples: SampleRecords) -> list[dict[str, Any]]:
    """Return what the page shows of each prompt: the human continuation and each strategy's texts with their counts."""
    settings = results.settings
    samples_by_prompt = []
    for prompt in results.prompts:
        columns: dict[str, list[tuple[str, int]]] = {}
        for strategy in results.estimates:
            # A resumed folder may also contain samples from different settings.
            expected_settings = (strategy, prompt.text, results.model.digest, settings.seed, settings.max_new_tokens)
            texts = {
                sample["sample"]: LINE_BREAK_PATTERN.sub(" ↵ ", sample["text"].strip())
                for sample in samples
                if tuple(sample[key] for key in ("strategy", "prompt", "model", "seed", "max_new_tokens"))
                == expected_settings
                and sample["sample"] < settings.samples
            }
            columns[strategy] = list(Counter(texts[index] for index in sorted(texts)).items())
        human = prompt.continuation
        separator = "" if human and human.startswith((*CLOSING_PUNCTUATION, " ", "\n")) else " "
        samples_by_prompt.append({"text": prompt.text, "columns": columns, "human": human and separator + human})
    return samples_by_prompt


def _build_reproduction_blocks(results: DecodingResults) -> list[Block]:
    """Return the section of a decoding report on its command, digests, versions and settings."""
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
    files_note = "decoding.json in the same folder holds every number, and samples.jsonl every sample."
    return [
        CodeBlock(format_command(results.command) if results.command else ""),
        KeyValueList({name: value for name, value in settings.items() if value}),
        CodeBlock(json.dumps(results.settings.to_json(), indent=2, ensure_ascii=False), "All settings"),
        Paragraph(files_note, "notes"),
    ]
