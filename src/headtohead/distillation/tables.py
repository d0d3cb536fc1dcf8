"""Report tables for distillation: all systems' scores, pairwise verdicts, costs, claims and published scores.

Plain-text distillation, which has no summaries, gets one table with the teacher and its students.
"""

from __future__ import annotations

import math
from typing import Any

from headtohead.distillation.system_comparison import MIN_RELEVANT_EFFECT
from headtohead.experiment.schemas import (
    Findings,
    SummarizationFindings,
    SummaryMeasure,
    SystemPairVerdict,
    TeacherFile,
)
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.section import VerdictCard
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.verdict.phrasing import format_confidence

SYSTEM_TITLES = {
    "teacher": "teacher",
    "untrained": "student before training",
    "baseline": "student trained on human summaries",
}
ROUGE_TITLES = {"rouge-1": "R-1", "rouge-2": "R-2", "rouge-l": "R-L", "rouge-lsum": "R-Lsum"}
VERDICT_PHRASES = {
    "helped": "scores higher than",
    "hurt": "scores lower than",
    "no practical difference": "is as good as",
    "cannot tell": "compared with",
    "too few seeds": "compared with",
    "not comparable": "cannot be compared with",
    "quick look": "compared with",
}
ROUGE_DECIMALS = 4
ROUGE_CAPTION = (
    "ROUGE is between 0 and 1; higher means closer to the human summaries. In brackets: the 95 % bootstrap interval "
    "over documents. ±: half the 95 % t interval over seeds, for trained students."
)


def format_system_title(system: str) -> str:
    """Return a system's display name."""
    return SYSTEM_TITLES.get(system, f"student, {system}")


def format_rouge_difference(effect: float | None) -> str:
    """Format a ROUGE difference with its sign."""
    is_missing = effect is None or not math.isfinite(effect)
    return number_format.MISSING_VALUE if is_missing else number_format.format_effect("loss", effect, ROUGE_DECIMALS)


def format_rouge_interval(interval: tuple[float, float]) -> str:
    """Format an interval for a ROUGE difference."""
    return number_format.format_effect_interval("loss", interval, ROUGE_DECIMALS)


def _make_system_column(name: str, title: str) -> Column:
    """Return a table column that shows the display names of systems."""
    return Column(name, title, format=format_system_title)


def describe_rouge_evaluation(findings: Findings) -> str:
    """Describe above the tables on which documents and seeds systems were compared by ROUGE, and the margin."""
    if findings.summarization is None:
        return ""
    num_seeds = max((pair.seeds for pair in findings.summarization.pairs if pair.reference == "baseline"), default=0)
    sample_size = f"{findings.summarization.num_documents:,} held-out documents, {num_seeds} seeds"
    return f"ROUGE-1 of the summaries of {sample_size}. A difference within {MIN_RELEVANT_EFFECT}"


def build_rouge_verdict_cards(findings: Findings) -> list[VerdictCard]:
    """Return cards with the ROUGE-1 verdicts that answer a distillation experiment's question.

    These are each distilled student against the one trained on reference summaries, then each trained student against
    the teacher.
    """
    pairs = findings.summarization.pairs if findings.summarization else []
    rouge_1_pairs = [pair for pair in pairs if pair.metric == "rouge-1"]
    headline_pairs = [pair for pair in rouge_1_pairs if pair.reference == "baseline"]
    headline_pairs += [pair for pair in rouge_1_pairs if pair.reference == "teacher" and pair.system != "untrained"]
    return [
        VerdictCard(f"{pair.system} against {pair.reference}", pair.outcome, _format_rouge_verdict(pair))
        for pair in headline_pairs
    ]


def _format_rouge_verdict(pair: SystemPairVerdict) -> str:
    """Return a ROUGE-1 verdict as a sentence with its effect, interval and sample size."""
    system, reference = format_system_title(pair.system), format_system_title(pair.reference)
    sentence = f"{system[0].upper()}{system[1:]} {VERDICT_PHRASES[pair.outcome]} {reference}:"
    sentence += " cannot tell." if pair.outcome == "cannot tell" else ""
    sample_size = f"{pair.seeds} seeds, {pair.examples:,} documents"
    if not math.isfinite(pair.effect):
        return f"{sentence} There are {sample_size}."
    difference = f"ROUGE-1 {abs(pair.effect):.{ROUGE_DECIMALS}f} {'lower' if pair.effect < 0 else 'higher'}"
    level = format_confidence(pair.adjusted_confidence).replace(" ", number_format.NO_BREAK_SPACE)
    interval = f"{level} confidence interval {format_rouge_interval(pair.interval)}"
    return f"{sentence} {difference} ({interval}; {sample_size})."


def build_distillation_tables(findings: Findings) -> list[Table]:
    """Return the tables on the teacher and its students that have rows, in report order."""
    tables = [build_teacher_table(findings)] if isinstance(findings.teacher, TeacherFile) else []
    if findings.summarization is not None:
        builders = (
            build_rouge_table,
            build_pairwise_verdict_table,
            build_cost_table,
            build_claims_table,
            build_published_scores_table,
        )
        tables += [build(findings.summarization) for build in builders]
    return [table for table in tables if table.rows]


def build_rouge_table(summarization: SummarizationFindings) -> Table:
    """Return the table with every system's scores on the held-out documents."""
    columns = [
        _make_system_column("system", "system"),
        *make_numeric_columns(ROUGE_TITLES),
        *make_numeric_columns(length="words", format=lambda length: f"{length:.1f}"),
        *make_numeric_columns(copied="copied pairs", cut="unfinished", format=_format_percentage),
    ]
    rows = [
        [
            name,
            *(_make_score_cell(scores.rouge[metric]) for metric in ROUGE_TITLES),
            *(scores.length.value, scores.copied.get("copied-2"), scores.unfinished),
        ]
        for name, scores in summarization.scores.items()
    ]
    caption = f"{ROUGE_CAPTION} {summarization.num_documents} documents; {summarization.signature}."
    return make_table("distilled", "Scores on the same documents", caption, columns, rows)


def _make_score_cell(score: SummaryMeasure) -> Cell:
    """Return the table cell of a system's ROUGE score, with its interval over documents.

    If the system has seeds, the cell also states half its interval over seeds.
    """
    low, high = score.over_documents
    seed_interval = score.over_seeds
    spread = f" ± {(seed_interval[1] - seed_interval[0]) / 2:.3f}" if seed_interval else ""
    return Cell(f"{score.value:.4f}{spread} [{low:.3f}, {high:.3f}]", score.value)


def _format_percentage(fraction: float | None) -> str:
    return number_format.MISSING_VALUE if fraction is None else f"{100 * fraction:.0f} %"


def build_cost_table(summarization: SummarizationFindings) -> Table:
    """Return the table of distillation costs: every system's size, latency, training time and training memory."""
    columns = [
        _make_system_column("system", "system"),
        *make_numeric_columns("parameters", format=number_format.format_count),
        *make_numeric_columns(weights="weights", format=number_format.format_bytes),
        *make_numeric_columns(
            seconds="seconds per summary", format=lambda seconds: number_format.format_fixed(seconds, 2)
        ),
        *make_numeric_columns(training="training time", format=number_format.format_seconds),
        *make_numeric_columns(memory="training memory", format=number_format.format_bytes),
    ]
    rows = [[name, *dict(cost).values()] for name, cost in summarization.costs.items()]
    caption = "Seconds per summary: a few documents, one at a time on one thread. All students have the same size."
    return make_table("distilled_costs", "Cost", caption, columns, rows)


def build_pairwise_verdict_table(summarization: SummarizationFindings) -> Table:
    """Return the table with one verdict per pair of systems and ROUGE metric."""
    columns = [
        Column("measure", "metric", format=ROUGE_TITLES.__getitem__),
        *(_make_system_column("system", "system"), _make_system_column("reference", "compared with")),
        *make_text_columns("verdict"),
        *make_numeric_columns(effect="difference", format=format_rouge_difference),
        *make_numeric_columns(interval="interval", bootstrap="over documents", format=format_rouge_interval),
    ]
    rows = [
        [
            *(pair.metric, pair.system, pair.reference, pair.outcome),
            *(pair.effect, pair.interval, pair.bootstrap.interval),
        ]
        for pair in summarization.pairs
    ]
    caption = (
        "Helped: the system scores higher than the one it is compared with. The interval decides: it generalizes to "
        "new documents and seeds and holds jointly with 95 % for all pairs of a metric. A difference within "
        f"{MIN_RELEVANT_EFFECT} counts as no practical difference. Last column: 95 % paired bootstrap over documents."
    )
    return make_table("distilled_pairs", "Verdicts on all pairs", caption, columns, rows)


def build_published_scores_table(summarization: SummarizationFindings) -> Table:
    """Return the table of published scores next to ours."""
    columns = [
        *make_text_columns("source"),
        _make_system_column("system", "system"),
        Column("measure", "metric", format=lambda metric: ROUGE_TITLES.get(metric, metric)),
        *make_numeric_columns(
            "published", "ours", format=lambda score: number_format.format_fixed(score, ROUGE_DECIMALS)
        ),
    ]
    rows = []
    for publication in summarization.published:
        our_scores = summarization.scores.get(publication.model)
        for metric, published_score in publication.scores.items():
            our_score = our_scores.rouge[metric].value if our_scores else None
            rows.append([publication.source, publication.model, metric, published_score, our_score])
    caption = "Measured with other models on other documents: compare the order of the systems, not the scores."
    return make_table("distilled_reported", "Published scores beside ours", caption, columns, rows)


def build_claims_table(summarization: SummarizationFindings) -> Table:
    """Return the table of published claims with the verdict that answers each."""
    columns = make_text_columns("source", "claim", "answer", outcome="verdict")
    columns += make_numeric_columns(effect="difference", format=format_rouge_difference) + make_text_columns("note")
    rows = [
        [*(claim.source, claim.statement, claim.answer, claim.outcome), claim.effect, claim.explanation]
        for claim in summarization.claims
    ]
    return make_table("distilled_claims", "Published claims", "", columns, rows)


def build_teacher_table(findings: Findings) -> Table:
    """Return the table with the size and held-out perplexity of a plain-text teacher and its students."""
    teacher = findings.teacher
    assert isinstance(teacher, TeacherFile)
    columns = [
        *make_text_columns("model"),
        *make_numeric_columns("parameters", format=number_format.format_count),
        *make_numeric_columns("perplexity", format=lambda value: number_format.format_fixed(value, 1)),
    ]
    splits = findings.corpus.splits if findings.corpus else {}
    teacher_scores = [
        teacher.scores[name] for name, split in splits.items() if split.role == "test" and name in teacher.scores
    ]
    num_tokens = sum(score.count for score in teacher_scores)
    teacher_perplexity = (
        math.exp(sum(score.loss * score.count for score in teacher_scores) / num_tokens) if teacher_scores else None
    )
    perplexities = {
        name: average_over_seeds("perplexity", [score for _, score in seed_scores])
        for name, seed_scores in findings.primary_scores.items()
    }
    student_parameters = next(
        (pairing.parameters[0] for pairing in findings.pairing.values() if pairing.parameters), None
    )
    rows: list[list[Any]] = [["teacher" if teacher_scores else teacher.name, teacher.parameters, teacher_perplexity]]
    for name, perplexity in perplexities.items():
        title = "student without a teacher" if name == "baseline" else f"student, {name}"
        rows.append([Cell(title, name), student_parameters, perplexity])
    caption = "Perplexity on the held-out texts; for students the mean over seeds. The teacher has one seed."
    if "baseline" in perplexities and (teacher_perplexity or 0) > perplexities["baseline"]:
        caption += " It is worse than the student without a teacher, so there was little to learn from it."
    return make_table("teacher", "Teacher and students", caption, columns, rows)


def list_example_summaries(findings: Findings) -> list[dict[str, Any]]:
    """Return what is shown below the tables: a few documents with the summaries of all systems."""
    return [
        {
            "document": example.document,
            "human": example.references,
            "generated": [
                {"system": format_system_title(name), "text": summary.text, "score": summary.rouge["rouge-1"]}
                for name, summary in example.summaries.items()
            ],
        }
        for example in (findings.summarization.examples if findings.summarization else ())
    ]
