"""Section on the verdicts: cards, the forest plot, and the tables of the numbers behind them."""

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
from headtohead.report.charts.forest_plot import build_forest_plot
from headtohead.report.context import ReportContext
from headtohead.verdict.decision_rule import NO_PRACTICAL_DIFFERENCE, TOO_FEW_SEEDS
from headtohead.verdict.record import Verdict

MAX_PROMINENT_VERDICTS = 4
"""number of verdicts above which the forest plot comes first"""
MAX_UNFOLDED_ROWS = 8
"""tables with more rows are collapsed on the page"""
EFFECT_COLUMN_TITLES = {
    "baseline": "baseline",
    "variant_mean": "variant mean",
    "effect": "change",
    "interval": "interval",
}
"""titles of the columns that `make_effect_cells` fills"""
QUICK_EFFECT_COLUMN_TITLES = {name: title for name, title in EFFECT_COLUMN_TITLES.items() if name != "interval"}


def build_verdicts_section(context: ReportContext) -> Section | None:
    """Return the section on the verdicts; None for a sweep, whose cells have the verdicts."""
    findings, metric = context.findings, context.metric
    if findings.sweep is not None:
        return None
    cards = [build_verdict_card(verdict, metric) for verdict in findings.verdicts]
    is_secondary = bool(distillation_tables.build_rouge_verdict_cards(findings))
    blocks: list[Block] = [VerdictList(cards)]
    if cards:
        margin = findings_view.get_equivalence_margin(findings)
        forest = Figure(build_forest_plot(findings.verdicts, metric, margin), _caption_forest_plot(context, margin))
        blocks.insert(0 if len(cards) > MAX_PROMINENT_VERDICTS else 1, forest)
    if is_secondary:
        introduction = (
            "Perplexity of the human-written summaries. Only the baseline was trained on them; the distilled students "
            "were not."
        )
        if not context.is_quick:
            introduction += f" Differences within {context.formatted_margin} count as no practical difference."
        blocks.insert(0, Paragraph(introduction))
    if cards:
        summary = "All numbers" if context.is_quick else "All numbers behind the verdicts"
        blocks.append(TableBlock(build_verdicts_table(context), summary=summary))
    if cards and not context.is_quick:
        blocks.append(TableBlock(build_precision_table(context), summary="Precision of the verdicts", is_detail=True))
    if (table := build_secondary_results_table(context)).rows:
        blocks.append(TableBlock(table, summary=table.title, is_open=len(table.rows) <= MAX_UNFOLDED_ROWS))
    blocks += [
        Paragraph(text, "about")
        for text in split_description(context.experiment.description if context.experiment else "")
    ]
    title = "By perplexity" if is_secondary else "Verdict" if len(cards) == 1 else "Verdicts"
    if context.is_quick:
        title = "Differences in a quick look"
    count = format_outcome_counts(findings) if len(cards) > 1 else ""
    return Section("verdicts", title, blocks, count=count, is_headline=True)


def _caption_forest_plot(context: ReportContext, equivalence_margin: float) -> str:
    """Return the caption of the verdicts' forest plot, which has no intervals in a quick look."""
    band_note = interval_note = ""
    if not context.is_quick:
        band_note = ", no practical difference"
        interval_note = (
            " Thin lines: the interval that decides the verdict, for new seeds and new text of this kind. "
            "Thick lines: the interval over seeds alone, on this test set."
        )
    shading_note = f" Shaded: within {context.formatted_margin}{band_note}." if equivalence_margin else ""
    return f"Marks: change relative to the baseline.{interval_note}{shading_note}"


def build_verdict_card(verdict: Verdict, metric: str) -> VerdictCard:
    """Return the card that shows a verdict, with notes on its noise and its minimum detectable effect."""
    notes = []
    if verdict.dominant_noise_source in ("seeds", "documents"):
        notes.append(f"dominant noise source: {verdict.dominant_noise_source}")
    if not math.isnan(verdict.min_detectable_effect):
        detectable = _format_min_detectable_effect(verdict, metric).removeprefix("±")
        notes.append(
            f"minimum detectable effect: {detectable if detectable == TOO_FEW_SEEDS else f'about {detectable}'}"
        )
    return VerdictCard(verdict.variant, verdict.outcome, verdict.summary, "; ".join(notes))


def _format_min_detectable_effect(verdict: Verdict, metric: str) -> str:
    """Format the minimum detectable effect with two digits."""
    size = verdict.min_detectable_effect
    if metric in ("perplexity", "accuracy") and size >= 1:
        return TOO_FEW_SEEDS
    if not number_format.is_finite_number(size):
        return number_format.MISSING_VALUE
    return number_format.format_margin(metric, float(f"{size:.2g}"))


def format_outcome_counts(findings: Findings) -> str:
    """Return the number of verdicts per outcome, such as "1 helped, 2 hurt"."""
    counts: Counter[str] = Counter(verdict.outcome for verdict in findings.verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in style.VERDICT_SYMBOLS if counts[outcome])


def split_description(description: str) -> list[str]:
    """Split an experiment's description into paragraphs at empty lines, and join the lines within each paragraph."""
    return [" ".join(paragraph.split()) for paragraph in description.split("\n\n") if paragraph.strip()]


def build_verdicts_table(context: ReportContext) -> Table:
    """Return one row per verdict: its outcome, means, effect and interval; in a quick look, means and effect."""
    verdicts = context.findings.verdicts
    if context.is_quick:
        columns = make_text_columns("variant") + make_numeric_columns(QUICK_EFFECT_COLUMN_TITLES)
        rows = [[verdict.variant, *make_effect_cells(verdict, context.metric)[:-1]] for verdict in verdicts]
        caption = f"Based on {context.describe_primary_metric()}. Not judged."
        return make_table("verdicts", "Differences", caption, columns, rows)
    caption = (
        f"Based on {context.describe_primary_metric()}. The interval decides; it is for new seeds and new text of this "
        "kind. All intervals, of all comparisons and analyses, hold jointly with 95 % confidence, for which each has "
        f"a confidence of {_format_confidences(verdicts)}."
    )
    if any(verdict.outcome == NO_PRACTICAL_DIFFERENCE for verdict in verdicts):
        caption += " The equivalence interval of the sentence above has twice the error rate and is narrower."
    columns = make_text_columns("variant", "verdict") + make_numeric_columns(EFFECT_COLUMN_TITLES)
    rows = [
        [verdict.variant, verdict.outcome, *make_effect_cells(verdict, context.metric)]
        for verdict in context.findings.verdicts
    ]
    return make_table("verdicts", "Verdicts", caption, columns, rows)


def _format_confidences(verdicts: Sequence[Verdict]) -> str:
    """Return the confidence level of the verdicts' intervals, as a range from lowest to highest if they differ."""
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
        Cell(_format_min_detectable_effect(verdict, metric), verdict.min_detectable_effect),
        Cell(data_needed or number_format.MISSING_VALUE, data_needed),
    ]


def make_effect_cells(verdict: Verdict, metric: str, *, with_means: bool = True) -> list[Cell]:
    """Return the cells of a verdict that tables share: baseline mean, variant mean, change and interval."""
    interval = verdict.interval
    decimals = number_format.choose_decimals(metric, interval)
    means = [
        Cell(number_format.format_score(metric, mean), mean) for mean in (verdict.baseline_mean, verdict.variant_mean)
    ]
    return [
        *(means if with_means else []),
        Cell(number_format.format_effect(metric, verdict.effect, decimals), verdict.effect),
        Cell(number_format.format_effect_interval(metric, interval, decimals), interval),
    ]


def build_secondary_results_table(context: ReportContext) -> Table:
    """Return the verdicts' effects on the secondary evaluation sets, without intervals in a quick look."""
    findings, metric = context.findings, context.metric
    columns = make_text_columns(text="evaluation set", variant="variant")
    columns += make_numeric_columns(QUICK_EFFECT_COLUMN_TITLES if context.is_quick else EFFECT_COLUMN_TITLES)
    columns += [] if context.is_quick else make_text_columns(outcome="result")
    rows = [
        [evaluation_set, verdict.variant, *make_effect_cells(verdict, metric), verdict.outcome][: len(columns)]
        for evaluation_set, verdicts in findings.other_verdicts.items()
        for verdict in verdicts
    ]
    primary_set = findings_view.describe_evaluation_set(findings)
    caption = "Not judged." if context.is_quick else f"Exploratory: the verdicts above use {primary_set} only."
    return make_table("others", "Other evaluation sets", caption, columns, rows)
