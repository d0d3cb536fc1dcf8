"""Report tables of distillation: scores of all systems, verdicts on all pairs, costs, claims and published figures.

Plain-text distillation, which has no summaries, gets one table with the teacher and its students.
"""

from __future__ import annotations

import math
from typing import Any

from headtohead.distillation.evaluation import MIN_RELEVANT_EFFECT
from headtohead.experiment.schemas import Findings, SummaryMeasure, SystemPairVerdict, TeacherFile
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.section import VerdictCard
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns

SYSTEM_TITLES = {
    "teacher": "teacher",
    "untrained": "student before training",
    "baseline": "student on people’s summaries",
}
ROUGE_TITLES = {"rouge-1": "R-1", "rouge-2": "R-2", "rouge-l": "R-L", "rouge-lsum": "R-Lsum"}
VERDICT_PHRASES = {
    "helped": "is ahead of",
    "hurt": "is behind",
    "no practical difference": "is as good as",
    "cannot tell": "against",
    "not comparable": "cannot be compared with",
    "quick look": "against",
}
ROUGE_DECIMALS = 4
ROUGE_CAPTION = (
    "ROUGE is from 0 to 1, higher is nearer to people’s summaries. In brackets the 95 % interval over documents, by "
    "bootstrap; ± is half the 95 % t interval over seeds, which the first two do not have."
)


def format_system_title(system: str) -> str:
    """Return the display name of a system."""
    return SYSTEM_TITLES.get(system, f"student, {system}")


def describe_evaluation_set(findings: Findings) -> str:
    """Describe the held-out documents and the smallest difference that counts."""
    if findings.summarization is None:
        return ""
    seeds = max((pair.seeds for pair in findings.summarization.pairs if pair.reference == "baseline"), default=0)
    sample_size = f"{findings.summarization.num_documents:,} held-out documents, {seeds} seeds"
    return f"ROUGE-1 of what each writes about {sample_size}. A difference within {MIN_RELEVANT_EFFECT}"


def build_headline_verdicts(findings: Findings) -> list[VerdictCard]:
    """Return the ROUGE-1 verdicts that answer the question of the experiment.

    These are each distilled student against the one trained on reference summaries, then each trained student against
    the teacher.
    """
    pairs = [pair for pair in _list_pairs(findings) if pair.metric == "rouge-1"]
    headline_pairs = [pair for pair in pairs if pair.reference == "baseline"]
    headline_pairs += [pair for pair in pairs if pair.reference == "teacher" and pair.system != "untrained"]
    return [
        VerdictCard(f"{pair.system} against {pair.reference}", pair.outcome, _format_verdict_sentence(pair))
        for pair in headline_pairs
    ]


def _list_pairs(findings: Findings) -> list[SystemPairVerdict]:
    """Return all pairwise verdicts, or an empty list without summaries."""
    return findings.summarization.pairs if findings.summarization else []


def _format_verdict_sentence(pair: SystemPairVerdict) -> str:
    """Return a verdict on ROUGE-1 as a sentence with effect, interval and sample size."""
    sentence = (
        f"{format_system_title(pair.system)} {VERDICT_PHRASES[pair.outcome]} {format_system_title(pair.reference)}"
    )
    sentence, sample_size = sentence[0].upper() + sentence[1:], f"{pair.seeds} seeds, {pair.examples:,} documents"
    sentence += ": cannot tell." if pair.outcome == "cannot tell" else ":"
    if not math.isfinite(pair.effect):
        return f"{sentence} There are {sample_size}."
    difference = f"ROUGE-1 {abs(pair.effect):.{ROUGE_DECIMALS}f} {'lower' if pair.effect < 0 else 'higher'}"
    interval = f"95{number_format.NO_BREAK_SPACE}% interval {_make_interval_cell(pair.interval).text}"
    return f"{sentence} {difference} ({interval}; {sample_size})."


def build_rouge_table(findings: Findings) -> Table:
    """Build the table of scores of all systems on the held-out documents."""
    summarization = findings.summarization
    columns = make_text_columns("who")
    columns += make_numeric_columns(ROUGE_TITLES, length="words", copied="copied pairs", cut="unfinished")
    rows = []
    for name, scores in (summarization.scores if summarization else {}).items():
        rouge_cells = [_make_score_cell(scores.rouge[key]) for key in ROUGE_TITLES]
        length_cell = Cell(f"{scores.length.value:.1f}", scores.length.value)
        fractions = map(_make_percentage_cell, (scores.copied.get("copied-2"), scores.unfinished))
        rows.append([_make_system_cell(name), *rouge_cells, length_cell, *fractions])
    caption = ""
    if summarization:
        caption = f"{ROUGE_CAPTION} {summarization.num_documents} documents; {summarization.signature}."
    return make_table("distilled", "Everybody on the same documents", caption, columns, rows)


def _make_system_cell(system: str) -> Cell:
    return Cell(format_system_title(system), system)


def _make_score_cell(measure: SummaryMeasure) -> Cell:
    """Format a score with its interval over documents and, if it has seeds, half its interval over seeds."""
    low, high = measure.over_documents
    seed_interval = measure.over_seeds
    spread = f" ± {(seed_interval[1] - seed_interval[0]) / 2:.3f}" if seed_interval else ""
    return Cell(f"{measure.value:.4f}{spread} [{low:.3f}, {high:.3f}]", measure.value)


def _make_percentage_cell(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{100 * value:.0f} %", value)


def build_cost_table(findings: Findings) -> Table:
    """Build the table of sizes, latency, training time and memory."""
    columns = make_text_columns("who") + make_numeric_columns(
        parameters="parameters",
        weights="weights in memory",
        seconds="seconds a summary",
        training="training",
        memory="memory for training",
    )
    rows = [
        [
            _make_system_cell(name),
            Cell(number_format.format_count(cost.parameters), cost.parameters),
            Cell(number_format.format_bytes(cost.weights_bytes), cost.weights_bytes),
            Cell(number_format.format_fixed(cost.seconds_per_summary, 2), cost.seconds_per_summary),
            Cell(number_format.format_seconds(cost.training_seconds), cost.training_seconds),
            Cell(number_format.format_bytes(cost.training_memory), cost.training_memory),
        ]
        for name, cost in (findings.summarization.costs if findings.summarization else {}).items()
    ]
    caption = "Seconds are measured on a few documents, one at a time with one thread. Students are of one size."
    return make_table("distilled_costs", "What each costs", caption, columns, rows)


def build_pairwise_verdict_table(findings: Findings) -> Table:
    """Build the table of verdicts: one row per pair and measure."""
    columns = make_text_columns("measure", "who", "against", "verdict") + make_numeric_columns(
        effect="difference", interval="95 % interval", bootstrap="over documents"
    )
    rows = [
        [
            Cell(ROUGE_TITLES[pair.metric], pair.metric),
            _make_system_cell(pair.system),
            _make_system_cell(pair.reference),
            pair.outcome,
            _make_effect_cell(pair.effect),
            _make_interval_cell(pair.interval),
            _make_interval_cell(pair.bootstrap.interval),
        ]
        for pair in _list_pairs(findings)
    ]
    caption = (
        "Helped: the first of the two has the higher score. The interval decides: over new documents and new seeds, "
        f"simultaneous for all pairs of a measure; a difference within {MIN_RELEVANT_EFFECT} does not matter. Beside it the paired "  # noqa: E501
        "bootstrap over documents alone, at 95 %."
    )
    return make_table("distilled_pairs", "Each pair with a verdict", caption, columns, rows)


def _make_effect_cell(effect: float | None) -> Cell:
    if effect is None or not math.isfinite(effect):
        return Cell("–")
    return Cell(number_format.format_signed_effect("loss", effect, ROUGE_DECIMALS), effect)


def _make_interval_cell(interval: tuple[float, float]) -> Cell:
    if not all(math.isfinite(end) for end in interval):
        return Cell("–", None)
    low, high = (number_format.format_signed_effect("loss", end, ROUGE_DECIMALS) for end in interval)
    return Cell(f"{low} to {high}", interval)


def build_published_scores_table(findings: Findings) -> Table:
    """Build the table of published scores beside ours."""
    summarization = findings.summarization
    columns = make_text_columns(source="report", who="who", measure="measure")
    columns += make_numeric_columns("published", "ours")
    rows = []
    for result in summarization.published if summarization else ():
        our_scores = summarization.scores.get(result.model) if summarization else None
        for measure, value in result.scores.items():
            values = value, our_scores.rouge[measure].value if our_scores else None
            cells = [Cell(number_format.format_fixed(score, ROUGE_DECIMALS), score) for score in values]
            rows.append([result.source, _make_system_cell(result.model), ROUGE_TITLES.get(measure, measure), *cells])
    caption = "Other models and other documents: the order can be compared, the figures cannot."
    return make_table("distilled_reported", "Published figures beside ours", caption, columns, rows)


def build_claims_table(findings: Findings) -> Table:
    """Build the table of published claims with our answers."""
    columns = make_text_columns(source="report", says="says that", answer="answer", outcome="verdict")
    columns += make_numeric_columns(effect="difference") + make_text_columns(why="note")
    rows = [
        [
            claim.source,
            claim.statement,
            claim.answer,
            claim.outcome or "–",
            _make_effect_cell(claim.effect),
            claim.explanation,
        ]
        for claim in (findings.summarization.claims if findings.summarization else ())
    ]
    return make_table("distilled_claims", "Claims, answered", "", columns, rows)


def build_teacher_table(findings: Findings) -> Table:
    """Build the table of a plain-text teacher and its students: size and held-out perplexity."""
    teacher = findings.teacher
    columns = make_text_columns("who") + make_numeric_columns("parameters", "perplexity")
    if not isinstance(teacher, TeacherFile):
        return make_table("teacher", "The teacher", "", columns, [])
    splits = findings.corpus.splits if findings.corpus else {}
    test_splits = [name for name, row in splits.items() if row.role == "test" and name in teacher.scores]
    scores = [teacher.scores[name] for name in test_splits]
    count = sum(row.count for row in scores)
    teacher_perplexity = math.exp(sum(row.loss * row.count for row in scores) / count) if scores else None
    perplexities = {
        name: average_over_seeds("perplexity", [score for _, score in seed_scores])
        for name, seed_scores in findings.primary_scores.items()
    }
    rows = [_make_teacher_row("teacher" if scores else teacher.name, None, teacher.parameters, teacher_perplexity)]
    student_parameters = next((row.parameters[0] for row in findings.pairing.values() if row.parameters), None)
    for name, perplexity in perplexities.items():
        title = "student alone" if name == "baseline" else f"student, {name}"
        rows.append(_make_teacher_row(title, name, student_parameters, perplexity))
    caption = "Perplexity on the held-out texts; of students the mean over seeds. The teacher has one seed."
    if "baseline" in perplexities and (teacher_perplexity or 0) > perplexities["baseline"]:
        caption += " It is behind the student that learned alone: there was little to learn from it."
    return make_table("teacher", "The teacher and its students", caption, columns, rows)


def _make_teacher_row(
    title: str, variant: str | None, parameters: float | None, perplexity: float | None
) -> list[Cell]:
    """Return name, size and perplexity of a teacher or student."""
    size = Cell(number_format.format_count(parameters), parameters)
    return [Cell(title, variant or title), size, Cell(number_format.format_fixed(perplexity, 1), perplexity)]


def list_sample_summaries(findings: Findings) -> list[dict[str, Any]]:
    """Return a few documents with the summaries of all systems, for the page and the terminal."""
    samples = []
    for example in findings.summarization.examples if findings.summarization else ():
        written = [
            {"who": format_system_title(name), "text": summary.text, "score": summary.rouge["rouge-1"]}
            for name, summary in example.summaries.items()
        ]
        samples.append({"document": example.document, "people": example.references, "written": written})
    return samples


def build_tables(findings: Findings) -> list[Table]:
    """Build all tables, in the order of the report."""
    return [
        build_rouge_table(findings),
        build_pairwise_verdict_table(findings),
        build_cost_table(findings),
        build_claims_table(findings),
        build_published_scores_table(findings),
        build_teacher_table(findings),
    ]
