"""Verdicts on the primary metric, with the forest plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format, style
from headtohead.presentation.section import Block, Figure, Paragraph, Section, TableBlock, VerdictCard, VerdictList
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext
from headtohead.report.forest import build_forest_plot
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import NO_PRACTICAL_DIFFERENCE

MAX_PROMINENT_VERDICTS = 4
"""number of verdicts above which the forest plot comes first"""
MAX_UNFOLDED_ROWS = 8
EFFECT_TITLES = {
    "baseline": "baseline",
    "variant_mean": "variant mean",
    "effect": "change",
    "interval": "interval",
}
"""columns of `make_effect_cells`"""


def build_verdicts_section(context: ReportContext) -> Section:
    """Return the verdict cards, the forest plot and the underlying numbers. This section is always present."""
    findings, metric = context.findings, context.metric
    rows = [prepare_verdict(row, metric) for row in findings.verdicts]
    is_secondary = bool(distillation_tables.build_headline_verdicts(findings))
    blocks: list[Block] = [VerdictList(rows)]
    if rows:
        margin = findings_view.get_equivalence_margin(findings)
        forest = Figure(
            build_forest_plot(findings.verdicts, metric, margin),
            f"Marks: change relative to the baseline. Thin lines: the interval"
            f"{'' if context.is_quick else ' that decides the verdict'}, for new seeds and new text of this kind. "
            "Thick lines: the interval over seeds alone, on this test set. "
            + (
                f"Shaded: within {context.margin}{'' if context.is_quick else ', no practical difference'}."
                if margin
                else ""
            ),
        )
        blocks.insert(0 if len(rows) > MAX_PROMINENT_VERDICTS else 1, forest)
    if is_secondary:
        introduction = (
            "Perplexity of the human-written summaries. Only the baseline was trained on them; the distilled students "
            "were not."
        )
        if not context.is_quick:
            introduction += f" Differences within {context.margin} count as no practical difference."
        blocks.insert(0, Paragraph(introduction))
    if rows:
        blocks.append(TableBlock(build_verdicts_table(context), summary="All numbers behind the verdicts"))
        blocks.append(TableBlock(build_precision_table(context), summary="Precision of the verdicts", is_detail=True))
    if (table := build_secondary_results_table(findings)).rows:
        blocks.append(TableBlock(table, summary=table.title, is_open=len(table.rows) <= MAX_UNFOLDED_ROWS))
    blocks += [
        Paragraph(text, "about")
        for text in split_paragraphs(context.experiment.description if context.experiment else "")
    ]
    title = "By perplexity" if is_secondary else "Verdict" if len(rows) == 1 else "Verdicts"
    if context.is_quick:
        title = "Differences in a quick look"
    count = summarize_verdicts(findings) if len(rows) > 1 else ""
    return Section("verdicts", title, blocks, count=count, is_headline=True)


def prepare_verdict(verdict: Verdict, metric: str) -> VerdictCard:
    """Return a verdict with its symbol and a note about noise and sensitivity."""
    notes = []
    if verdict.dominant_noise_source in ("seeds", "documents"):
        notes.append(f"dominant noise source: {verdict.dominant_noise_source}")
    if not math.isnan(verdict.min_detectable_effect):
        notes.append(f"minimum detectable effect: about {_format_detectable(verdict, metric).removeprefix('±')}")
    return VerdictCard(verdict.variant, verdict.outcome, verdict.summary, "; ".join(notes))


def _format_detectable(verdict: Verdict, metric: str) -> str:
    """Format the minimum detectable effect with two digits."""
    size = verdict.min_detectable_effect
    if metric in ("perplexity", "accuracy") and size >= 1:
        return "too few seeds"
    if not number_format.is_finite_number(size):
        return number_format.MISSING_VALUE
    return number_format.format_margin(metric, float(f"{size:.2g}"))


def summarize_verdicts(findings: Findings) -> str:
    """Return the number of verdicts per outcome, such as "1 helped, 2 hurt"."""
    counts: Counter[str] = Counter(verdict.outcome for verdict in findings.verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in style.VERDICT_SYMBOLS if counts[outcome])


def split_paragraphs(text: str) -> list[str]:
    """Split text into paragraphs at empty lines, and join the lines within each paragraph."""
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def build_verdicts_table(context: ReportContext) -> Table:
    """Return one row per verdict: its outcome, means, effect and interval."""
    verdicts = context.findings.verdicts
    caption = (
        f"Based on {context.describe_primary_metric()}. The interval decides; it is for new seeds and new text of this "
        "kind. All intervals, of all comparisons and analyses, hold jointly with 95 % confidence, for which each has "
        f"a confidence of {_format_confidences(verdicts)}."
    )
    if any(verdict.outcome == NO_PRACTICAL_DIFFERENCE for verdict in verdicts):
        caption += " The equivalence interval of the sentence above has twice the error rate and is narrower."
    columns = make_text_columns("variant", "verdict") + make_numeric_columns(EFFECT_TITLES)
    rows = [
        [verdict.variant, verdict.outcome, *make_effect_cells(verdict, context.metric)]
        for verdict in context.findings.verdicts
    ]
    return make_table("verdicts", "Verdicts", caption, columns, rows)


def _format_confidences(verdicts: Sequence[Verdict]) -> str:
    """Return the intervals' confidence level, as a range from lowest to highest if they differ."""
    levels = sorted({verdict.adjusted_confidence for verdict in verdicts})
    return " to ".join(dict.fromkeys(f"{100 * level:.4g} %" for level in (levels[0], levels[-1])))


def build_precision_table(context: ReportContext) -> Table:
    """Return one row per verdict: confidence level, amount of data, lost runs, noise, and what would settle it."""
    columns = [
        *make_text_columns("variant"),
        Column("confidence", "confidence", True),
        Column("seed_interval", "interval over seeds", True),
        *make_numeric_columns("seeds", "documents", format=number_format.format_count),
        Column("lost_runs", "lost runs", True),
        Column("max_failure_rate", "failures up to", True),
        Column("dominant_noise_source", "noise from"),
        Column("min_detectable_effect", "detectable effect", True),
        Column("to_settle", "to settle it"),
    ]
    caption = (
        "The interval over seeds covers this test set only. Lost runs diverged or learned nothing. Failures up to: "
        "95 % upper bound of the share of runs that fail. Noise from: its dominant source. Detectable effect: the "
        "smallest that would be detected with a probability of 80 %. To settle it: data that would decide an open "
        "comparison with a probability of 80 %."
    )
    rows = [_make_precision_row(verdict, context.metric) for verdict in context.findings.verdicts]
    return make_table("precision", "Precision of the verdicts", caption, columns, rows)


def _make_precision_row(verdict: Verdict, metric: str) -> list[Any]:
    """Return one verdict's cells in the precision table."""
    seed_interval = verdict.seed_interval
    decimals = number_format.choose_decimals(metric, verdict.interval)
    additional_data = [(verdict.additional_seeds, "seeds"), (verdict.additional_documents, "documents")]
    data_needed = " or ".join(f"{number:,} more {kind}" for number, kind in additional_data if number)
    noise = verdict.dominant_noise_source
    return [
        verdict.variant,
        Cell(f"{verdict.adjusted_confidence:.2%}", verdict.adjusted_confidence),
        Cell(number_format.format_effect_interval(metric, seed_interval, decimals), seed_interval),
        *(verdict.seeds, verdict.documents),
        Cell(f"{verdict.lost_runs} of {verdict.runs}", verdict.lost_runs),
        Cell(number_format.format_percentage(verdict.max_failure_rate), verdict.max_failure_rate),
        Cell(number_format.MISSING_VALUE if noise == "unknown" else noise, noise),
        Cell(_format_detectable(verdict, metric), verdict.min_detectable_effect),
        Cell(data_needed or number_format.MISSING_VALUE, data_needed),
    ]


def make_effect_cells(row: Verdict, metric: str, *, with_means: bool = True) -> list[Cell]:
    """Return a verdict's baseline mean, variant mean, change and interval."""
    interval = row.interval
    decimals = number_format.choose_decimals(metric, interval)
    means = [Cell(number_format.format_score(metric, mean), mean) for mean in (row.baseline_mean, row.variant_mean)]
    return [
        *(means if with_means else []),
        Cell(number_format.format_effect(metric, row.effect, decimals), row.effect),
        Cell(number_format.format_effect_interval(metric, interval, decimals), interval),
    ]


def build_secondary_results_table(findings: Findings) -> Table:
    """Return the effects on the secondary evaluation sets."""
    metric = findings_view.get_metric(findings)
    columns = make_text_columns(text="evaluation set", variant="variant")
    columns += make_numeric_columns(EFFECT_TITLES) + make_text_columns(outcome="result")
    rows = [
        [name, row.variant, *make_effect_cells(row, metric), row.outcome]
        for name, verdicts in findings.other_verdicts.items()
        for row in verdicts
    ]
    caption = f"Exploratory: the verdicts above use {findings_view.describe_evaluation_set(findings)} only."
    return make_table("others", "Other evaluation sets", caption, columns, rows)
