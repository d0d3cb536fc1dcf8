"""Section on training: learning curves, differences from the baseline, classifier fit, and a table of all values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import TRAINING_LOSS_SPLIT
from headtohead.experiment.schemas import Curves, Findings
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.section import Block, Figure, Section, TableBlock
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_columns
from headtohead.report.charts.learning_curves import (
    build_classifier_fit_chart,
    build_difference_curves,
    build_learning_curves,
    describe_omitted_start,
)
from headtohead.report.context import ReportContext

BAND_NOTE = "Line: mean over seeds; band: lowest to highest seed"
MAX_UNFOLDED_ROWS = 24
"""tables with more rows are collapsed on the page"""
ScoresByStep = dict[int, dict[str, float]]
"""step: seed: score"""


def build_curves_section(context: ReportContext) -> Section | None:
    """Return the section with learning curves, their differences from the baseline, and a table of all their values."""
    findings = context.findings
    curves = build_learning_curves(findings)
    if curves is None:
        return None
    blocks: list[Block] = [Figure(curves, f"{curves.title}. {BAND_NOTE}. {describe_omitted_start(findings)}".strip())]
    if (differences := build_difference_curves(findings)) is not None:
        shaded = (
            f" Shaded: within {context.formatted_margin}." if findings_view.get_equivalence_margin(findings) else ""
        )
        blocks.append(Figure(differences, f"{differences.title}, paired by seed.{shaded}"))
    if (fit := build_classifier_fit_chart(findings)) is not None:
        note = "rule: the step whose weights were tested. Training scores are from an even sample of its rows."
        blocks.append(Figure(fit, f"{fit.title}. {BAND_NOTE}; {note}"))
    table = build_curves_table(findings)
    is_open = len(table.rows) <= MAX_UNFOLDED_ROWS
    blocks.append(TableBlock(table, summary=table.title, is_open=is_open, layout="grid"))
    return Section("curves", "Training", blocks, "Training")


def build_curves_table(findings: Findings) -> Table:
    """Return one row per variant and evaluation, averaged across seeds: losses, scores on every split, training time.

    The long form has one row per value and seed.
    """
    metric = findings_view.get_metric(findings)
    curve_splits = findings_view.list_curve_splits(findings)
    quantities = [("loss", TRAINING_LOSS_SPLIT, findings.loss_curves or findings.curves)]
    quantities += [("loss", split, findings.loss_curves) for split in curve_splits]
    quantities += [(metric, split, findings.curves) for split in curve_splits]
    columns = {
        (name, split, _name_score_column(findings, name, split)): curves
        for name, split, curves in quantities
        if any(variant_curves.get(split) for variant_curves in curves.values())
    }
    steps_per_epoch = findings.steps_per_epoch
    rows: list[list[Any]] = []
    long_rows: list[list[Any]] = []
    for variant in findings_view.list_variant_names(findings):
        scores = {key: _group_variant_scores_by_step(curves, variant, key[1]) for key, curves in columns.items()}
        seconds = _group_table_scores_by_step(findings.seconds_curves.get(variant, {}))
        for step in sorted({step for scores_by_step in scores.values() for step in scores_by_step}):
            progress = step / steps_per_epoch if steps_per_epoch else step
            cells: list[Any] = [variant, Cell(f"{round(progress, 2):,g}" if steps_per_epoch else f"{step:,}", progress)]
            for (name, split, _), scores_by_step in scores.items():
                score_by_seed = scores_by_step.get(step, {})
                mean = average_over_seeds(name, list(score_by_seed.values())) if score_by_seed else None
                cells.append(Cell(number_format.format_score(name, mean), mean))
                long_rows += [[variant, seed, step, split, name, score] for seed, score in score_by_seed.items()]
            if findings.seconds_curves:
                times = list(seconds.get(step, {}).values())
                mean_seconds = sum(times) / len(times) if times else None
                cells.append(Cell(number_format.format_fixed(mean_seconds, 1), mean_seconds))
            rows.append(cells)
    titles = [
        Column("variant", "variant"),
        Column(*(("epoch", "epoch") if steps_per_epoch else ("step", "step")), True),
        *(Column(title, title, True) for _, _, title in columns),
    ]
    caption = "Means over seeds."
    if findings.seconds_curves:
        titles.append(Column("seconds", "seconds", True, is_optional=True))
        caption += " Seconds: training time so far. Batch loss: mean over the steps since the last evaluation."
    table = make_table("curves", "Scores during training", caption, titles, rows)
    long_titles = make_text_columns("variant", "seed", "step", "split", "metric", "value")
    return replace(table, long_form=make_table("curves", table.title, "", long_titles, long_rows))


def _name_score_column(findings: Findings, metric: str, split: str) -> str:
    """Return the title of a column with scores. The metric of a training script has a name of its own."""
    if findings.versus is not None:
        return findings.versus.metric_name
    return "batch loss" if split == TRAINING_LOSS_SPLIT else f"{split} {metric}"


def _group_variant_scores_by_step(curves: Curves, variant: str, split: str) -> ScoresByStep:
    """Return the scores in a column of the table for one variant."""
    return _group_table_scores_by_step(curves.get(variant, {}).get(split, {}))


def _group_table_scores_by_step(curve_by_seed: Mapping[str, Iterable[tuple[int, float | None]]]) -> ScoresByStep:
    """Return the finite values of curves in the table of training as {step: {seed: value}}."""
    scores: ScoresByStep = {}
    for seed, curve in curve_by_seed.items():
        for step, score in curve:
            if score is not None:
                scores.setdefault(step, {})[seed] = score
    return scores
