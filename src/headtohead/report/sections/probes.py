"""Sections on examples: generated samples and probe sentences."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.renderers.html import CLOSING_PUNCTUATION
from headtohead.presentation.section import HtmlBlock, Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_samples_section(context: ReportContext) -> Section | None:
    """Return the section on the samples for probe prompts: for each prompt, those of every variant side by side."""
    samples = context.findings.samples
    prompts = dict.fromkeys(sample.prompt for variant_samples in samples.values() for sample in variant_samples)
    groups = []
    for prompt in prompts:
        columns = []
        for name in context.variant_names:
            continuations = [
                {
                    "text": sample.text,
                    "seed": sample.seed,
                    "separator": "" if sample.text.startswith((*CLOSING_PUNCTUATION, " ")) else " ",
                }
                for sample in samples.get(name, [])
                if sample.prompt == prompt
            ]
            if continuations:
                columns.append({"variant": name, "first": continuations[0], "others": continuations[1:]})
        groups.append({"prompt": prompt, "columns": columns})
    block = HtmlBlock("samples", {"groups": groups}, [build_samples_table(context.findings)])
    return Section("samples", "Samples", [block], "Samples") if groups else None


def build_samples_table(findings: Findings) -> Table:
    """Return the samples for probe prompts, one per row, so that variants with the same prompt, seed and number of the
    sample are adjacent.
    """
    prompts = list(dict.fromkeys(sample.prompt for samples in findings.samples.values() for sample in samples))
    sorted_rows: list[tuple[tuple[int, int, int], tuple[str, ...]]] = []
    for name in findings_view.list_variant_names(findings):
        counts: Counter[tuple[int, int]] = Counter()
        for sample in findings.samples.get(name, []):
            group = (sample.seed, prompts.index(sample.prompt))
            sorted_rows.append(((*group, counts[group]), (sample.prompt, name, str(sample.seed), sample.text)))
            counts[group] += 1
    sorted_rows.sort(key=lambda keyed_row: keyed_row[0])
    rows = [row for _, row in sorted_rows]
    columns = make_text_columns("prompt", "variant", "seed", "continuation")
    return make_table("samples", "Samples", "", columns, rows)


def build_probe_sentences_section(context: ReportContext) -> Section | None:
    """Return the section on the probe sentences of the experiment file."""
    blocks = make_table_blocks(build_probe_sentences_table(context.findings))
    return Section("sentences", "Probe sentences", blocks, "Probe sentences") if blocks else None


def build_probe_sentences_table(findings: Findings) -> Table:
    """Return every probe sentence's perplexity or predicted class, by variant."""
    scores = findings.sentences
    texts = findings.experiment.probe.sentences if findings.experiment else {}
    columns = make_text_columns("sentence", "text", "variant", figure="perplexity or class")
    rows = []
    for sentence in dict.fromkeys(sentence for variant_scores in scores.values() for sentence in variant_scores):
        names = [name for name in findings_view.list_variant_names(findings) if sentence in scores.get(name, {})]
        for index, name in enumerate(names):
            text = texts.get(sentence, "")
            # Repeated cells are displayed as blank, but keep their value for machine-readable formats.
            sentence_cells = [Cell("" if index else value, value) for value in (sentence, text)]
            rows.append([*sentence_cells, name, _make_probe_sentence_cell(list(scores[name][sentence].values()))])
    caption = "Perplexity: mean over seeds and range. Classification: predicted class, number of seeds and confidence."
    return make_table("sentences", "Probe sentences", caption, columns, rows)


def _make_probe_sentence_cell(scores: list[Any]) -> Cell:
    """Return a probe sentence's mean perplexity and its range, or its predicted classes with their confidence."""
    if scores and all(number_format.is_finite_number(score) for score in scores):
        mean = average_over_seeds("perplexity", scores)
        score_range = number_format.format_score_interval("perplexity", [min(scores), max(scores)])
        return Cell(number_format.format_perplexity(mean) + (f" ({score_range})" if len(scores) > 1 else ""), mean)
    confidences: dict[str, list[float]] = {}
    for label, confidence in scores:
        confidences.setdefault(str(label), []).append(confidence)
    descriptions = [
        f"{label} ({len(values)} of {len(scores)} seeds, confidence "
        f"{number_format.format_percentage(sum(values) / len(values))})"
        for label, values in sorted(confidences.items(), key=lambda item: -len(item[1]))
    ]
    text = "; ".join(descriptions) or number_format.MISSING_VALUE
    return Cell(text, text)
