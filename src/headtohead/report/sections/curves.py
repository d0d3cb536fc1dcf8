"""Sections on learning curves, differences to the baseline during training, and the fit of classifiers."""

from __future__ import annotations

from headtohead.presentation.section import Block, Figure, Section
from headtohead.report.context import ReportContext
from headtohead.report.curve_charts import build_difference_curves, build_learning_curves, describe_omitted_start
from headtohead.report.fit_chart import build_fit_chart

BAND = "Line: mean over seeds; band: lowest to highest seed"


def build_curves_section(context: ReportContext) -> Section | None:
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
    return Section("curves", "Training", blocks, "Training")
