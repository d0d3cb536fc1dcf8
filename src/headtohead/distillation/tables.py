"""Report tables of distillation: scores of all systems, verdicts on all pairs, costs, claims and published figures.

Plain-text distillation, which has no summaries, gets one table with the teacher and its students.
"""

from __future__ import annotations

import math
from typing import Any

from headtohead.distillation.evaluation import MIN_RELEVANT_EFFECT
from headtohead.experiment.schemas import Findings, SummaryMeasure, SystemPairVerdict, TeacherFile
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format, style
from headtohead.presentation.section import VerdictCard
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell

SYSTEM_TITLES = {"teacher": "teacher", "before": "student before training", "baseline": "student on people’s summaries"}
ROUGE_TITLES = {"rouge-1": "R-1", "rouge-2": "R-2", "rouge-l": "R-L", "rouge-lsum": "R-Lsum"}
VERDICT_PHRASES = {
    "helped": "is ahead of",
    "hurt": "is behind",
    "no practical difference": "is as good as",
    "cannot tell": "against",
    "not comparable": "cannot be compared with",
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
    seeds = max((pair.seeds for pair in findings.summarization.pairs if pair.against == "baseline"), default=0)
    sample_size = f"{findings.summarization.num_documents:,} held-out documents, {seeds} seeds"
    return f"ROUGE-1 of what each writes about {sample_size}. A difference within {MIN_RELEVANT_EFFECT}"


def build_headline_verdicts(findings: Findings) -> list[VerdictCard]:
    """Return the ROUGE-1 verdicts that answer the question of the experiment.

    These are each distilled student against the one trained on reference summaries, then each trained student against
    the teacher.
    """
    pairs = [pair for pair in _list_pairs(findings) if pair.measure == "rouge-1"]
    headline_pairs = [pair for pair in pairs if pair.against == "baseline"]
    headline_pairs += [pair for pair in pairs if pair.against == "teacher" and pair.system != "before"]
    return [
        VerdictCard(
            f"{pair.system} against {pair.against}",
            pair.outcome,
            _format_verdict_sentence(pair),
            style.VERDICT_SYMBOLS[pair.outcome],
        )
        for pair in headline_pairs
    ]


def _list_pairs(findings: Findings) -> list[SystemPairVerdict]:
    """Return all pairwise verdicts, or an empty list without summaries."""
    return findings.summarization.pairs if findings.summarization else []


def _format_verdict_sentence(pair: SystemPairVerdict) -> str:
    """Return a verdict on ROUGE-1 as a sentence with effect, interval and sample size."""
    sentence = f"{format_system_title(pair.system)} {VERDICT_PHRASES[pair.outcome]} {format_system_title(pair.against)}"
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
    columns = [Column("who", "who"), *(Column(key, name, True) for key, name in ROUGE_TITLES.items())]
    columns += [
        Column("length", "words", True),
        Column("copied", "copied pairs", True),
        Column("cut", "unfinished", True),
    ]
    rows = []
    for name, scores in (summarization.scores if summarization else {}).items():
        cells = [Cell(format_system_title(name), name), *(_make_score_cell(scores.rouge[key]) for key in ROUGE_TITLES)]
        fractions = [scores.copied.get("copied-2"), scores.unfinished]
        length = scores.length.value
        rows.append(
            [*cells, Cell(f"{length:.1f}", length), *(_make_percentage_cell(fraction) for fraction in fractions)]
        )
    caption = ""
    if summarization:
        caption = f"{ROUGE_CAPTION} {summarization.num_documents} documents; {summarization.signature}."
    return make_table("distilled", "Everybody on the same documents", caption, columns, rows)


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
    columns = [
        Column("who", "who"),
        Column("parameters", "parameters", True),
        Column("weights", "weights in memory", True),
        Column("seconds", "seconds a summary", True),
        Column("training", "training", True),
        Column("memory", "memory for training", True),
    ]
    rows = []
    for name, cost in (findings.summarization.costs if findings.summarization else {}).items():
        seconds, training, memory = cost.seconds_per_summary, cost.training_seconds, cost.training_memory
        rows.append(
            [
                Cell(format_system_title(name), name),
                Cell(number_format.format_count(cost.parameters), cost.parameters),
                Cell(number_format.format_bytes(cost.weights_bytes), cost.weights_bytes),
                Cell("–" if seconds is None else f"{seconds:.2f}", seconds),
                Cell("–" if training is None else number_format.format_seconds(training), training),
                Cell("–" if memory is None else number_format.format_bytes(memory), memory),
            ]
        )
    caption = "Seconds are measured on a few documents, one at a time with one thread. Students are of one size."
    return make_table("distilled_costs", "What each costs", caption, columns, rows)


def build_pairwise_verdict_table(findings: Findings) -> Table:
    """Build the table of verdicts: one row per pair and measure."""
    columns = [
        Column("measure", "measure"),
        Column("who", "who"),
        Column("against", "against"),
        Column("verdict", "verdict"),
        Column("effect", "difference", True),
        Column("interval", "95 % interval", True),
        Column("bootstrap", "over documents", True),
    ]
    rows = [
        [
            Cell(ROUGE_TITLES[pair.measure], pair.measure),
            Cell(format_system_title(pair.system), pair.system),
            Cell(format_system_title(pair.against), pair.against),
            make_text_cell(pair.outcome),
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
    columns = [
        Column("source", "report"),
        Column("who", "who"),
        Column("measure", "measure"),
        Column("published", "published", True),
        Column("ours", "ours", True),
    ]
    rows = []
    for result in summarization.published if summarization else ():
        our_scores = summarization.scores.get(result.who) if summarization else None
        for measure, value in result.scores.items():
            our_value = our_scores.rouge[measure].value if our_scores else None
            our_cell = Cell("–" if our_value is None else f"{our_value:.4f}", our_value)
            rows.append(
                [
                    make_text_cell(result.source),
                    Cell(format_system_title(result.who), result.who),
                    make_text_cell(ROUGE_TITLES.get(measure, measure)),
                    Cell(f"{value:.4f}", value),
                    our_cell,
                ]
            )
    caption = "Other models and other documents: the order can be compared, the figures cannot."
    return make_table("distilled_reported", "Published figures beside ours", caption, columns, rows)


def build_claims_table(findings: Findings) -> Table:
    """Build the table of published claims with our answers."""
    columns = [
        Column("source", "report"),
        Column("says", "says that"),
        Column("answer", "answer"),
        Column("outcome", "verdict"),
        Column("effect", "difference", True),
        Column("why", "note"),
    ]
    rows = [
        [
            make_text_cell(claim.source),
            make_text_cell(claim.says),
            make_text_cell(claim.answer),
            make_text_cell(claim.outcome or "–"),
            _make_effect_cell(claim.effect),
            make_text_cell(claim.why),
        ]
        for claim in (findings.summarization.claims if findings.summarization else ())
    ]
    return make_table("distilled_claims", "Claims, answered", "", columns, rows)


def build_teacher_table(findings: Findings) -> Table:
    """Build the table of a plain-text teacher and its students: size and held-out perplexity."""
    teacher = findings.teacher
    columns = [Column("who", "who"), Column("parameters", "parameters", True), Column("perplexity", "perplexity", True)]
    if not isinstance(teacher, TeacherFile):
        return make_table("teacher", "The teacher", "", columns, [])
    pairing = findings.pairing
    student_parameters = next((row.parameters[0] for row in pairing.values() if row.parameters), None)
    scores_by_variant = findings.primary_scores
    splits = findings.corpus.splits if findings.corpus else {}
    test_splits = [name for name, row in splits.items() if row.role == "test" and name in teacher.scores]
    rows = []
    if test_splits:
        scores = [teacher.scores[name] for name in test_splits]
        loss = sum(row.loss * row.count for row in scores) / sum(row.count for row in scores)
        perplexity = math.exp(loss)
        rows.append(
            [
                make_text_cell("teacher"),
                _make_parameter_count_cell(teacher.parameters),
                Cell(f"{perplexity:,.1f}", perplexity),
            ]
        )
    else:
        rows.append(
            [
                make_text_cell(teacher.name),
                _make_parameter_count_cell(teacher.parameters),
                Cell("–", None),
            ]
        )
    for name, seed_scores in scores_by_variant.items():
        perplexity = average_over_seeds("perplexity", [score for _, score in seed_scores])
        title = "student alone" if name == "baseline" else f"student, {name}"
        rows.append(
            [Cell(title, name), _make_parameter_count_cell(student_parameters), Cell(f"{perplexity:,.1f}", perplexity)]
        )
    caption = "Perplexity on the held-out texts; of students the mean over seeds. The teacher has one seed."
    perplexities = {row[0].value: row[2].value for row in rows}
    if "baseline" in perplexities and (perplexities.get("teacher") or 0) > perplexities["baseline"]:
        caption += " It is behind the student that learned alone: there was little to learn from it."
    return make_table("teacher", "The teacher and its students", caption, columns, rows)


def _make_parameter_count_cell(parameters: float | None) -> Cell:
    return Cell("–" if parameters is None else number_format.format_count(parameters), parameters)


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
    builders = (
        build_rouge_table,
        build_pairwise_verdict_table,
        build_cost_table,
        build_claims_table,
        build_published_scores_table,
        build_teacher_table,
    )
    return [build(findings) for build in builders]
