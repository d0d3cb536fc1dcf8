"""What distillation was worth, as tables: everybody on the same documents, each pair with a verdict, and who they are.

Without summaries (a decoder of ours teaches another one) there is one table: the teacher beside its students.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from headtohead.distillation.evaluation import MIN_RELEVANT_EFFECT
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format, style
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


def get_summary_comparison(findings: Findings) -> dict[str, Any]:
    """The contest on summaries, if there was one."""
    found: dict[str, Any] = findings.get("distilled") or {}
    return found


def format_system_title(system: str) -> str:
    return SYSTEM_TITLES.get(system, f"student, {system}")


def describe_evaluation_set(findings: Findings) -> str:
    """What the contest is judged by, and what is too small to count."""
    found = get_summary_comparison(findings)
    seeds = max((row["seeds"] for row in found.get("pairs") or [] if row["against"] == "baseline"), default=0)
    about = f"{found.get('documents', 0):,} held-out documents, {seeds} seeds"
    return f"ROUGE-1 of what each writes about {about}. A difference within {MIN_RELEVANT_EFFECT}"


def build_headline_verdicts(findings: Findings) -> list[dict[str, Any]]:
    """What the question is about, in words, by ROUGE-1: each taught student beside the one on people’s summaries, then
    every trained student beside the teacher."""
    pairs = [row for row in get_summary_comparison(findings).get("pairs") or [] if row["measure"] == "rouge-1"]
    chosen = [row for row in pairs if row["against"] == "baseline"]
    chosen += [row for row in pairs if row["against"] == "teacher" and row["who"] != "before"]
    return [
        {
            "variant": f"{row['who']} against {row['against']}",
            "outcome": row["outcome"],
            "sign": style.VERDICT_SYMBOLS[row["outcome"]],
            "summary": _format_verdict_sentence(row),
            "notes": "",
        }
        for row in chosen
    ]


def _format_verdict_sentence(pair: Mapping[str, Any]) -> str:
    both = (
        f"{format_system_title(pair['who'])} {VERDICT_PHRASES[pair['outcome']]} {format_system_title(pair['against'])}"
    )
    both, rests = both[0].upper() + both[1:], f"{pair['seeds']} seeds, {pair['examples']:,} documents"
    both += ": cannot tell." if pair["outcome"] == "cannot tell" else ":"
    if pair["effect"] is None:
        return f"{both} There are {rests}."
    size = f"ROUGE-1 {abs(pair['effect']):.{ROUGE_DECIMALS}f} {'lower' if pair['effect'] < 0 else 'higher'}"
    return f"{both} {size} (95{number_format.NO_BREAK_SPACE}% interval {_make_interval_cell(pair['interval']).text}; {rests})."  # noqa: E501


def build_rouge_table(findings: Findings) -> Table:
    """Everybody’s figures on the same held-out documents."""
    found = get_summary_comparison(findings)
    columns = [Column("who", "who"), *(Column(key, name, True) for key, name in ROUGE_TITLES.items())]
    columns += [
        Column("length", "words", True),
        Column("copied", "copied pairs", True),
        Column("cut", "unfinished", True),
    ]
    rows = []
    for name, row in (found.get("figures") or {}).items():
        cells = [Cell(format_system_title(name), name), *(_make_score_cell(row[key]) for key in ROUGE_TITLES)]
        shares = [row[key]["value"] for key in ("copied-2", "unfinished")]
        length = row["length"]["value"]
        rows.append([*cells, Cell(f"{length:.1f}", length), *(_make_percentage_cell(one) for one in shares)])
    said = f"{ROUGE_CAPTION} {found.get('documents', 0)} documents; {found.get('signature', '')}." if found else ""
    return make_table("distilled", "Everybody on the same documents", said, columns, rows)


def _make_score_cell(row: Mapping[str, Any]) -> Cell:
    low, high = row["over_documents"]
    seeds = row.get("over_seeds")
    spread = f" ± {(seeds[1] - seeds[0]) / 2:.3f}" if seeds else ""
    return Cell(f"{row['value']:.4f}{spread} [{low:.3f}, {high:.3f}]", row["value"])


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
    for name, row in (get_summary_comparison(findings).get("costs") or {}).items():
        seconds, training, memory = (row.get(k) for k in ("seconds_per_summary", "training_seconds", "training_memory"))
        rows.append(
            [
                Cell(format_system_title(name), name),
                Cell(number_format.format_count(row["parameters"]), row["parameters"]),
                Cell(number_format.format_bytes(row["weights_bytes"]), row["weights_bytes"]),
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
            Cell(ROUGE_TITLES[row["measure"]], row["measure"]),
            Cell(format_system_title(row["who"]), row["who"]),
            Cell(format_system_title(row["against"]), row["against"]),
            make_text_cell(row["outcome"]),
            _make_effect_cell(row["effect"]),
            _make_interval_cell(row["interval"]),
            _make_interval_cell(row["bootstrap"]["interval"]),
        ]
        for row in get_summary_comparison(findings).get("pairs") or []
    ]
    said = (
        "Helped: the first of the two has the higher score. The interval decides: over new documents and new seeds, "
        f"simultaneous for all pairs of a measure; a difference within {MIN_RELEVANT_EFFECT} does not matter. Beside it the paired "  # noqa: E501
        "bootstrap over documents alone, at 95 %."
    )
    return make_table("distilled_pairs", "Each pair with a verdict", said, columns, rows)


def _make_effect_cell(effect: float | None) -> Cell:
    return Cell("–" if effect is None else number_format.format_signed_effect("loss", effect, ROUGE_DECIMALS), effect)


def _make_interval_cell(interval: Any) -> Cell:
    if not interval or any(end is None for end in interval):
        return Cell("–", None)
    low, high = (number_format.format_signed_effect("loss", end, ROUGE_DECIMALS) for end in interval)
    return Cell(f"{low} to {high}", interval)


def build_published_scores_table(findings: Findings) -> Table:
    """What a report published, beside ours."""
    found = get_summary_comparison(findings)
    columns = [
        Column("source", "report"),
        Column("who", "who"),
        Column("measure", "measure"),
        Column("published", "published", True),
        Column("ours", "ours", True),
    ]
    rows = []
    for row in found.get("reported") or []:
        ours = (found.get("figures") or {}).get(row["who"])
        for key, value in row["scores"].items():
            mine = None if ours is None else ours[key]["value"]
            shown = Cell("–" if mine is None else f"{mine:.4f}", mine)
            rows.append(
                [
                    make_text_cell(row["source"]),
                    Cell(format_system_title(row["who"]), row["who"]),
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
            make_text_cell(row["source"]),
            make_text_cell(row["says"]),
            make_text_cell(row["answer"]),
            make_text_cell(row["outcome"] or "–"),
            _make_effect_cell(row.get("effect")),
            make_text_cell(row["why"]),
        ]
        for row in get_summary_comparison(findings).get("claims") or []
    ]
    return make_table("distilled_claims", "Claims, answered", "", columns, rows)


def build_teacher_table(findings: Findings) -> Table:
    """A teacher of plain text beside its students: how far it is ahead, and how much larger it is."""
    about = findings.get("teacher") or {}
    columns = [Column("who", "who"), Column("parameters", "parameters", True), Column("perplexity", "perplexity", True)]
    if get_summary_comparison(findings) or not about:
        return make_table("teacher", "The teacher", "", columns, [])
    pairing = findings.get("pairing") or {}
    size = next((row["parameters"][0] for row in pairing.values() if row.get("parameters")), None)
    by_seed = findings.get("by_seed") or {}
    held = [name for name, row in (findings.get("corpus") or {}).get("splits", {}).items() if row["role"] == "test"]
    there = [about["scores"][name] for name in held if name in about.get("scores", {})]
    rows = []
    if there:
        loss = sum(row["loss"] * row["count"] for row in there) / sum(row["count"] for row in there)
        value = math.exp(loss)
        rows.append(
            [make_text_cell("teacher"), _make_parameter_count_cell(about["parameters"]), Cell(f"{value:,.1f}", value)]
        )
    else:
        rows.append(
            [
                make_text_cell(about.get("name", "teacher")),
                _make_parameter_count_cell(about["parameters"]),
                Cell("–", None),
            ]
        )
    for name, pairs in by_seed.items():
        value = statistics.fmean(pair[1] for pair in pairs)
        shown = "student alone" if name == "baseline" else f"student, {name}"
        rows.append([Cell(shown, name), _make_parameter_count_cell(size), Cell(f"{value:,.1f}", value)])
    said = "Perplexity on the held-out texts; of students the mean over seeds. The teacher has one seed."
    values = {row[0].value: row[2].value for row in rows}
    if "baseline" in values and (values.get("teacher") or 0) > values["baseline"]:
        said += " It is behind the student that learned alone: there was little to learn from it."
    return make_table("teacher", "The teacher and its students", said, columns, rows)


def _make_parameter_count_cell(parameters: int | None) -> Cell:
    return Cell("–" if parameters is None else number_format.format_count(parameters), parameters)


def list_sample_summaries(findings: Findings) -> list[dict[str, Any]]:
    """A few documents with everybody’s summary, for the page and the terminal."""
    made = []
    for one in get_summary_comparison(findings).get("side_by_side") or []:
        written = [
            {"who": format_system_title(name), "text": row["text"], "score": row["rouge-1"]}
            for name, row in one["written"].items()
        ]
        made.append({"document": one["document"], "people": one["people"], "written": written})
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
