"""What distillation was worth, as tables: everybody on the same documents, each pair with a verdict, and who they are.

Without summaries (a decoder of ours teaches another one) there is one table: the teacher beside its students.
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
    return SYSTEM_TITLES.get(system, f"student, {system}")


def describe_evaluation_set(findings: Findings) -> str:
    """What the contest is judged by, and what is too small to count."""
    if findings.summarization is None:
        return ""
    seeds = max((row.seeds for row in findings.summarization.pairs if row.against == "baseline"), default=0)
    about = f"{findings.summarization.num_documents:,} held-out documents, {seeds} seeds"
    return f"ROUGE-1 of what each writes about {about}. A difference within {MIN_RELEVANT_EFFECT}"


def build_headline_verdicts(findings: Findings) -> list[VerdictCard]:
    """What the question is about, in words, by ROUGE-1: each taught student beside the one on people’s summaries, then
    every trained student beside the teacher."""
    pairs = [row for row in _list_pairs(findings) if row.measure == "rouge-1"]
    chosen = [row for row in pairs if row.against == "baseline"]
    chosen += [row for row in pairs if row.against == "teacher" and row.system != "before"]
    return [
        VerdictCard(
            f"{row.system} against {row.against}",
            row.outcome,
            _format_verdict_sentence(row),
            style.VERDICT_SYMBOLS[row.outcome],
        )
        for row in chosen
    ]


def _list_pairs(findings: Findings) -> list[SystemPairVerdict]:
    return findings.summarization.pairs if findings.summarization else []


def _format_verdict_sentence(pair: SystemPairVerdict) -> str:
    both = f"{format_system_title(pair.system)} {VERDICT_PHRASES[pair.outcome]} {format_system_title(pair.against)}"
    both, rests = both[0].upper() + both[1:], f"{pair.seeds} seeds, {pair.examples:,} documents"
    both += ": cannot tell." if pair.outcome == "cannot tell" else ":"
    if not math.isfinite(pair.effect):
        return f"{both} There are {rests}."
    size = f"ROUGE-1 {abs(pair.effect):.{ROUGE_DECIMALS}f} {'lower' if pair.effect < 0 else 'higher'}"
    interval = f"95{number_format.NO_BREAK_SPACE}% interval {_make_interval_cell(pair.interval).text}"
    return f"{both} {size} ({interval}; {rests})."


def build_rouge_table(findings: Findings) -> Table:
    """Everybody’s figures on the same held-out documents."""
    summarization = findings.summarization
    columns = [Column("who", "who"), *(Column(key, name, True) for key, name in ROUGE_TITLES.items())]
    columns += [
        Column("length", "words", True),
        Column("copied", "copied pairs", True),
        Column("cut", "unfinished", True),
    ]
    rows = []
    for name, row in (summarization.scores if summarization else {}).items():
        cells = [Cell(format_system_title(name), name), *(_make_score_cell(row.rouge[key]) for key in ROUGE_TITLES)]
        shares = [row.copied.get("copied-2"), row.unfinished]
        length = row.length.value
        rows.append([*cells, Cell(f"{length:.1f}", length), *(_make_percentage_cell(one) for one in shares)])
    said = ""
    if summarization:
        said = f"{ROUGE_CAPTION} {summarization.num_documents} documents; {summarization.signature}."
    return make_table("distilled", "Everybody on the same documents", said, columns, rows)


def _make_score_cell(row: SummaryMeasure) -> Cell:
    low, high = row.over_documents
    seeds = row.over_seeds
    spread = f" ± {(seeds[1] - seeds[0]) / 2:.3f}" if seeds else ""
    return Cell(f"{row.value:.4f}{spread} [{low:.3f}, {high:.3f}]", row.value)


def _make_percentage_cell(value: float | None) -> Cell:
    return Cell("–" if value is None else f"{100 * value:.0f} %", value)


def build_cost_table(findings: Findings) -> Table:
    """What each costs: to keep, to use, to train."""
    columns = [
        Column("who", "who"),
        Column("parameters", "parameters", True),
        Column("weights", "weights in memory", True),
        Column("seconds", "seconds a summary", True),
        Column("training", "training", True),
        Column("memory", "memory for training", True),
    ]
    rows = []
    for name, row in (findings.summarization.costs if findings.summarization else {}).items():
        seconds, training, memory = row.seconds_per_summary, row.training_seconds, row.training_memory
        rows.append(
            [
                Cell(format_system_title(name), name),
                Cell(number_format.format_count(row.parameters), row.parameters),
                Cell(number_format.format_bytes(row.weights_bytes), row.weights_bytes),
                Cell("–" if seconds is None else f"{seconds:.2f}", seconds),
                Cell("–" if training is None else number_format.format_seconds(training), training),
                Cell("–" if memory is None else number_format.format_bytes(memory), memory),
            ]
        )
    said = "Seconds are measured on a few documents, one at a time with one thread. Students are of one size."
    return make_table("distilled_costs", "What each costs", said, columns, rows)


def build_pairwise_verdict_table(findings: Findings) -> Table:
    """Each pair on each measure."""
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
            Cell(ROUGE_TITLES[row.measure], row.measure),
            Cell(format_system_title(row.system), row.system),
            Cell(format_system_title(row.against), row.against),
            make_text_cell(row.outcome),
            _make_effect_cell(row.effect),
            _make_interval_cell(row.interval),
            _make_interval_cell(row.bootstrap.interval),
        ]
        for row in _list_pairs(findings)
    ]
    said = (
        "Helped: the first of the two has the higher score. The interval decides: over new documents and new seeds, "
        f"simultaneous for all pairs of a measure; a difference within {MIN_RELEVANT_EFFECT} does not matter. Beside it the paired "  # noqa: E501
        "bootstrap over documents alone, at 95 %."
    )
    return make_table("distilled_pairs", "Each pair with a verdict", said, columns, rows)


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
    """What a report published, beside ours."""
    summarization = findings.summarization
    columns = [
        Column("source", "report"),
        Column("who", "who"),
        Column("measure", "measure"),
        Column("published", "published", True),
        Column("ours", "ours", True),
    ]
    rows = []
    for row in summarization.published if summarization else ():
        ours = summarization.scores.get(row.who) if summarization else None
        for key, value in row.scores.items():
            our_value = ours.rouge[key].value if ours else None
            shown = Cell("–" if our_value is None else f"{our_value:.4f}", our_value)
            rows.append(
                [
                    make_text_cell(row.source),
                    Cell(format_system_title(row.who), row.who),
                    make_text_cell(ROUGE_TITLES.get(key, key)),
                    Cell(f"{value:.4f}", value),
                    shown,
                ]
            )
    said = "Other models and other documents: the order can be compared, the figures cannot."
    return make_table("distilled_reported", "Published figures beside ours", said, columns, rows)


def build_claims_table(findings: Findings) -> Table:
    """What a report concluded, answered."""
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
            make_text_cell(row.source),
            make_text_cell(row.says),
            make_text_cell(row.answer),
            make_text_cell(row.outcome or "–"),
            _make_effect_cell(row.effect),
            make_text_cell(row.why),
        ]
        for row in (findings.summarization.claims if findings.summarization else ())
    ]
    return make_table("distilled_claims", "Claims, answered", "", columns, rows)


def build_teacher_table(findings: Findings) -> Table:
    """A teacher of plain text beside its students: how far it is ahead, and how much larger it is."""
    teacher = findings.teacher
    columns = [Column("who", "who"), Column("parameters", "parameters", True), Column("perplexity", "perplexity", True)]
    if not isinstance(teacher, TeacherFile):
        return make_table("teacher", "The teacher", "", columns, [])
    pairing = findings.pairing
    size = next((row.parameters[0] for row in pairing.values() if row.parameters), None)
    by_seed = findings.primary_scores
    splits = findings.corpus.splits if findings.corpus else {}
    held_out = [name for name, row in splits.items() if row.role == "test" and name in teacher.scores]
    rows = []
    if held_out:
        scores = [teacher.scores[name] for name in held_out]
        loss = sum(row.loss * row.count for row in scores) / sum(row.count for row in scores)
        value = math.exp(loss)
        rows.append(
            [make_text_cell("teacher"), _make_parameter_count_cell(teacher.parameters), Cell(f"{value:,.1f}", value)]
        )
    else:
        rows.append(
            [
                make_text_cell(teacher.name),
                _make_parameter_count_cell(teacher.parameters),
                Cell("–", None),
            ]
        )
    for name, pairs in by_seed.items():
        value = average_over_seeds("perplexity", [score for _, score in pairs])
        shown = "student alone" if name == "baseline" else f"student, {name}"
        rows.append([Cell(shown, name), _make_parameter_count_cell(size), Cell(f"{value:,.1f}", value)])
    said = "Perplexity on the held-out texts; of students the mean over seeds. The teacher has one seed."
    values = {row[0].value: row[2].value for row in rows}
    if "baseline" in values and (values.get("teacher") or 0) > values["baseline"]:
        said += " It is behind the student that learned alone: there was little to learn from it."
    return make_table("teacher", "The teacher and its students", said, columns, rows)


def _make_parameter_count_cell(parameters: float | None) -> Cell:
    return Cell("–" if parameters is None else number_format.format_count(parameters), parameters)


def list_sample_summaries(findings: Findings) -> list[dict[str, Any]]:
    """A few documents with everybody’s summary, for the page and the terminal."""
    made = []
    for example in findings.summarization.examples if findings.summarization else ():
        written = [
            {"who": format_system_title(name), "text": row.text, "score": row.rouge["rouge-1"]}
            for name, row in example.summaries.items()
        ]
        made.append({"document": example.document, "people": example.references, "written": written})
    return made


def build_tables(findings: Findings) -> list[Table]:
    """All of them, in the report’s order."""
    makers = (
        build_rouge_table,
        build_pairwise_verdict_table,
        build_cost_table,
        build_claims_table,
        build_published_scores_table,
        build_teacher_table,
    )
    return [make(findings) for make in makers]
