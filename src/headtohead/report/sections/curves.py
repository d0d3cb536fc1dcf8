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
from headtohead.report.context import ReportContext
from headtohead.report.curve_charts import build_difference_curves, build_learning_curves, describe_omitted_start
from headtohead.report.fit_chart import build_fit_chart

BAND = "Line: mean over seeds; band: lowest to highest seed"
ScoresByStep = dict[int, dict[str, float]]
"""step: seed: score"""


def build_curves_section(context: ReportContext) -> Section | None:
    """Return the learning curves, their differences from the baseline, and the fit on train and validation data."""
    findings = context.findings
    curves = build_learning_curves(findings)
    if curves is None:
        return None
    blocks: list[Block] = [Figure(curves, f"{curves.title}. {BAND}. {describe_omitted_start(findings)}".strip())]
    if (differences := build_difference_curves(findings)) is not None:
        blocks.append(Figure(differences, f"{differences.title}, paired by seed. Shaded: within {context.margin}."))
    if (fit := build_fit_chart(findings)) is not None:
        note = "rule: the step whose weights were tested. Training scores are from an even sample of its rows."
        blocks.append(Figure(fit, f"{fit.title}. {BAND}; {note}"))
    table = build_curves_table(findings)
    blocks.append(TableBlock(table, summary=table.title, layout="grid"))
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
        (name, split, "training loss" if split == TRAINING_LOSS_SPLIT else f"{split} {name}"): curves
        for name, split, curves in quantities
        if any(by_split.get(split) for by_split in curves.values())
    }
    steps_per_epoch = findings.steps_per_epoch
    rows: list[list[Any]] = []
    long_rows: list[list[Any]] = []
    for variant in findings_view.list_variant_names(findings):
        scores = {key: _group_by_step(curves, variant, key[1]) for key, curves in columns.items()}
        seconds = _group_pairs_by_step(findings.seconds_curves.get(variant, {}))
        for step in sorted({step for by_step in scores.values() for step in by_step}):
            progress = step / steps_per_epoch if steps_per_epoch else step
            cells: list[Any] = [variant, Cell(f"{progress:,.4g}" if steps_per_epoch else f"{step:,}", progress)]
            for (name, split, _), by_step in scores.items():
                by_seed = by_step.get(step, {})
                mean = average_over_seeds(name, list(by_seed.values())) if by_seed else None
                cells.append(Cell(number_format.format_score(name, mean), mean))
                long_rows += [[variant, seed, step, split, name, score] for seed, score in by_seed.items()]
            times = list(seconds.get(step, {}).values())
            mean_seconds = sum(times) / len(times) if times else None
            cells.append(Cell(number_format.format_fixed(mean_seconds, 1), mean_seconds))
            rows.append(cells)
    titles = [
        Column("variant", "variant"),
        Column(*(("epoch", "epoch") if steps_per_epoch else ("step", "step")), True),
        *(Column(title, title, True) for _, _, title in columns),
        Column("seconds", "seconds", True, is_optional=True),
    ]
    caption = "Means over seeds. Seconds: training time so far. Training loss: mean since the last evaluation."
    table = make_table("curves", "Scores during training", caption, titles, rows)
    long_titles = make_text_columns("variant", "seed", "step", "split", "metric", "value")
    return replace(table, long_form=make_table("curves", table.title, "", long_titles, long_rows))


def _group_by_step(curves: Curves, variant: str, split: str) -> ScoresByStep:
    return _group_pairs_by_step(curves.get(variant, {}).get(split, {}))


def _group_pairs_by_step(pairs_by_seed: Mapping[str, Iterable[tuple[int, float | None]]]) -> ScoresByStep:
    """Return a learning curve's finite values as {step: {seed: value}}."""
    values: ScoresByStep = {}
    for seed, pairs in pairs_by_seed.items():
        for step, value in pairs:
            if value is not None:
                values.setdefault(step, {})[seed] = value
    return values
