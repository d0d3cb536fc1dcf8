"""Sections on scores: means by variant and evaluation set, every seed's score, and confusion matrices."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.section import Block, Figure, HtmlBlock, Section, TableBlock
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.charts.paired_scores import build_paired_score_chart, pair_scores_by_seed
from headtohead.report.context import ReportContext


def build_scores_section(context: ReportContext) -> Section | None:
    """Return the section with the mean scores of every variant."""
    table = build_scores_table(context.findings)
    return Section("pairs", "Scores", [TableBlock(table)], "Scores") if table.rows else None


def build_seeds_section(context: ReportContext) -> Section | None:
    """Return the section with every seed's scores, and the chart that pairs them with the baseline's."""
    pairs = pair_scores_by_seed(context.findings)
    blocks: list[Block] = []
    if (chart := build_paired_score_chart(pairs, context.metric)) is not None:
        evaluation_sets = ", ".join(dict.fromkeys(pair.evaluation_set for pair in pairs))
        note = "Each line compares two runs with the same seed."
        if context.findings.versus is None:
            note = "A seed fixes initial weights and batches, so each line compares two otherwise equal runs."
        blocks.append(Figure(chart, f"{chart.title}, on {evaluation_sets}. {note}"))
    if (table := build_scores_by_seed_table(context.findings)).rows:
        blocks.append(TableBlock(table, summary=table.title, layout="grid"))
    return Section("seeds", "Seed by seed", blocks, "Seed by seed") if blocks else None


def _get_finite_scores(findings: Findings, variant: str, split: str) -> dict[int, float]:
    """Return a variant's finite scores on a split, by seed."""
    pairs = findings.scores.get(variant, {}).get(split, [])
    return {seed: score for seed, score in pairs if number_format.is_finite_number(score)}


def build_scores_table(findings: Findings) -> Table:
    """Return the mean and standard deviation per variant and evaluation set, transposed if that needs fewer columns."""
    metric = findings_view.get_metric(findings)
    splits = findings_view.list_score_splits(findings)
    variants = [name for name in findings_view.list_variant_names(findings) if name in findings.scores]
    cells = {
        (variant, split): _make_mean_score_cell(list(_get_finite_scores(findings, variant, split).values()), metric)
        for variant in variants
        for split in splits
    }
    if unknown_rates := findings_view.get_unknown_token_rates(findings):
        variants.append("unknown words")
        for split in splits:
            rate = unknown_rates.get(split)
            cells["unknown words", split] = Cell(number_format.format_percentage(rate), rate)
    if len(splits) <= len(variants):
        columns = make_text_columns("variant") + make_numeric_columns(*splits)
        rows = [[name, *(cells[name, split] for split in splits)] for name in variants]
    else:
        columns = make_text_columns(split="evaluation set") + make_numeric_columns(*variants)
        rows = [[split, *(cells[name, split] for name in variants)] for split in splits]
    name = (
        findings.versus.metric_name
        if findings.versus
        else f"{metric.capitalize()} with the {_describe_scored_weights(findings)}"
    )
    caption = f"{name}: mean over seeds ± standard deviation of one seed."
    return make_table("scores", "", caption, columns, rows if splits else [])


def _describe_scored_weights(findings: Findings) -> str:
    """Return "selected weights" if a variant keeps its best checkpoint, and "final weights" otherwise."""
    experiment = findings.experiment
    if experiment is None:
        return "final weights"
    changes = (settings.get("training", {}) for settings in experiment.variants.values())
    is_selected = experiment.training.load_best_model_at_end or any(
        change.get("load_best_model_at_end") for change in changes
    )
    return "selected weights" if is_selected else "final weights"


def _make_mean_score_cell(scores: list[float], metric: str) -> Cell:
    """Return a cell with the mean across seeds and its standard deviation."""
    if not scores:
        return Cell(number_format.MISSING_VALUE)
    mean = average_over_seeds(metric, scores)
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return Cell(number_format.format_score_with_deviation(metric, mean, deviation), mean)


def build_scores_by_seed_table(findings: Findings) -> Table:
    """Return one row per variant and evaluation set, with one column per seed."""
    metric = findings_view.get_metric(findings)
    unknown_rates = findings_view.get_unknown_token_rates(findings)
    seeds = sorted(
        {seed for variant_scores in findings.scores.values() for pairs in variant_scores.values() for seed, _ in pairs}
    )
    columns = make_text_columns(variant="variant", split="evaluation set")
    columns += make_numeric_columns(
        "mean", *(f"seed {seed}" for seed in seeds), format=partial(number_format.format_score, metric)
    )
    if unknown_rates:
        columns += make_numeric_columns(unknown="unknown words", format=number_format.format_percentage)
    rows = []
    for split in findings_view.list_score_splits(findings):
        rates = [unknown_rates.get(split)] if unknown_rates else []
        for name in findings_view.list_variant_names(findings):
            if score_by_seed := _get_finite_scores(findings, name, split):
                mean = average_over_seeds(metric, list(score_by_seed.values()))
                rows.append([name, split, mean, *map(score_by_seed.get, seeds), *rates])
    return make_table("results", "Scores of every seed", f"{metric.capitalize()} after training.", columns, rows)


def build_confusion_section(context: ReportContext) -> Section | None:
    """Return the section with the confusion matrix of each variant."""
    tables = build_confusion_tables(context.findings)
    block = HtmlBlock("confusion", {"matrices": [_add_confusion_shares(table) for table in tables]}, tables)
    return Section("confusion", "Confusion matrices", [block], "Confusion") if tables else None


def _add_confusion_shares(table: Table) -> dict[str, Any]:
    """Return a confusion matrix for the section, with each count as a fraction of its true class, for shading."""
    shares = []
    for row in table.rows:
        counts = [cell.value for cell in row[1:]]
        shares.append([None, *(count / (sum(counts) or 1) for count in counts)])
    return {"table": table, "shares": shares}


def build_confusion_tables(findings: Findings) -> list[Table]:
    """Return each variant's scores by class as a confusion matrix: a row per true class, a column per predicted one."""
    confusion = findings.confusion
    labels = confusion.labels if confusion else []
    columns = make_text_columns(true="true class")
    columns += make_numeric_columns({label: f"predicted {label}" for label in labels})
    tables = []
    for name, matrix in (confusion.matrices if confusion else {}).items():
        rows = []
        for label, counts in zip(labels, matrix, strict=True):
            total = sum(counts) or 1
            cells = [Cell(f"{count:,} ({number_format.format_percentage(count / total)})", count) for count in counts]
            rows.append([label, *cells])
        caption = f"{name}: all held-out rows, summed over seeds, with the share of the true class."
        tables.append(make_table(f"confusion-{name}", "Confusion matrix", caption, columns, rows))
    return tables
