"""The tables of the report, each made once from the findings; page, Markdown, CSV and LaTeX show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headtohead.attention_analysis.head_tables import build_heads_table, build_long_heads_table
from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell
from headtohead.replication.published import build_long_published_table, build_published_table
from headtohead.replication.tables import (
    build_attribution_table,
    build_axis_table,
    build_claims_table,
    build_context_cost_table,
    build_context_length_table,
    build_simple_baselines_table,
)
from headtohead.report.comparisons import build_comparison_table
from headtohead.search.tables import build_search_effects_table, build_search_points_table

COST_FORMATTERS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "parameters": ("parameters", number_format.format_count),
    "flops_per_token": ("FLOPs a token", number_format.format_si_number),
    "seconds_per_step": ("time a step", number_format.format_seconds),
    "seconds_per_epoch": ("time an epoch", number_format.format_seconds),
    "peak_memory": ("peak memory", number_format.format_bytes),
}
AUDIT_STATUS_LABELS = {True: "passed", False: "failed", None: "does not apply"}


def build_tables(findings: Findings, *, long_format: bool = False) -> list[Table]:
    """Those that have a row, in the report's order. A `long` one has a row for each figure, as programs like it."""
    makers: tuple[Callable[[Findings], Table], ...] = (
        build_verdicts_table,
        build_secondary_results_table,
        build_comparison_table,
        build_search_points_table,
        build_search_effects_table,
        build_claims_table,
        build_long_published_table if long_format else build_published_table,
        build_axis_table,
        build_context_length_table,
        build_context_cost_table,
        build_scores_by_seed_table,
        build_changed_settings_table,
        build_cost_table,
        build_pairing_table,
        build_audits_table,
        build_data_audits_table,
        build_failures_table,
        build_probe_sentences_table,
        build_long_heads_table if long_format else build_heads_table,
        build_corpus_table,
        build_attribution_table,
        build_simple_baselines_table,
        build_versions_table,
    )
    made = [make(findings) for make in makers]
    return [
        table
        for table in (*made, *distillation_tables.build_tables(findings), *build_confusion_tables(findings))
        if table.rows
    ]


def build_verdicts_table(findings: Findings) -> Table:
    metric = findings_view.get_metric(findings)
    columns = [
        Column("variant", "variant"),
        Column("verdict", "verdict"),
        Column("baseline", "baseline", True),
        Column("mean", "variant’s mean", True),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
        Column("interval_seeds", "on this test set", True),
        Column("seeds", "seeds", True),
        Column("examples", "examples", True),
        Column("noise", "larger noise"),
        Column("detectable", "could have seen", True),
        Column("to_settle", "to settle it"),
    ]
    caption = (
        f"Judged by {describe_primary_metric(findings)}. The 95 % interval, for all variants at once, decides: it is meant for new seeds "  # noqa: E501
        "and new text of this kind. “On this test set” counts the noise of seeds alone."
    )
    rows = [_make_verdict_row(row, metric) for row in findings_view.get_verdicts(findings)]
    return make_table("verdicts", "Verdicts", caption, columns, rows)


def _make_verdict_row(verdict: dict[str, Any], metric: str) -> list[Cell]:
    interval = verdict.get("interval")
    places = number_format.choose_decimals(metric, interval)
    size = verdict.get("detectable")
    seen = (
        number_format.MISSING_VALUE
        if not number_format.is_finite_number(size)
        else number_format.format_margin(metric, float(f"{size:.2g}"))
    )
    return [
        make_text_cell(verdict["variant"]),
        make_text_cell(verdict["word"]),
        Cell(number_format.format_score(metric, verdict.get("baseline_mean")), verdict.get("baseline_mean")),
        Cell(number_format.format_score(metric, verdict.get("mean")), verdict.get("mean")),
        Cell(number_format.format_effect(metric, verdict.get("effect"), places), verdict.get("effect")),
        Cell(number_format.format_effect_interval(metric, interval, places), interval),
        Cell(
            number_format.format_effect_interval(metric, verdict.get("interval_seeds"), places),
            verdict.get("interval_seeds"),
        ),
        Cell(number_format.format_count(verdict.get("seeds")), verdict.get("seeds")),
        Cell(number_format.format_count(verdict.get("examples")), verdict.get("examples")),
        Cell("–" if verdict.get("noise") in (None, "unknown") else str(verdict["noise"]), verdict.get("noise")),
        Cell(seen, size),
        Cell(_format_seeds_needed(verdict) or number_format.MISSING_VALUE, _format_seeds_needed(verdict)),
    ]


def _format_seeds_needed(verdict: dict[str, Any]) -> str:
    ways = [(verdict.get("more_seeds"), "seeds"), (verdict.get("more_examples"), "examples")]
    return " or ".join(f"{number:,} more {kind}" for number, kind in ways if number)


def describe_primary_metric(findings: Findings) -> str:
    """perplexity on test, unseen rows."""
    place = findings_view.describe_evaluation_set(findings)
    return findings_view.get_metric(findings) + (f" on {place}" if place else "")


def build_secondary_results_table(findings: Findings) -> Table:
    metric = findings_view.get_metric(findings)
    columns = [
        Column("text", "on"),
        Column("variant", "variant"),
        Column("baseline", "baseline", True),
        Column("mean", "variant’s mean", True),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
        Column("word", "by itself"),
    ]
    rows = []
    for name, found in (findings.get("others") or {}).items():
        for row in found:
            places = number_format.choose_decimals(metric, row.get("interval"))
            rows.append(
                [
                    make_text_cell(name),
                    make_text_cell(row["variant"]),
                    Cell(number_format.format_score(metric, row.get("baseline_mean")), row.get("baseline_mean")),
                    Cell(number_format.format_score(metric, row.get("mean")), row.get("mean")),
                    Cell(number_format.format_effect(metric, row.get("effect"), places), row.get("effect")),
                    Cell(
                        number_format.format_effect_interval(metric, row.get("interval"), places), row.get("interval")
                    ),
                    make_text_cell(row["word"]),
                ]
            )
    caption = "These rows inform; the verdict is taken only from what the experiment file names."
    return make_table("others", "The same on other texts and rows", caption, columns, rows)


def build_scores_by_seed_table(findings: Findings) -> Table:
    """Every seed's figure: what the means are means of."""
    metric = findings_view.get_metric(findings)
    found = findings.get("results") or {}
    seeds = sorted({int(seed) for by_split in found.values() for pairs in by_split.values() for seed, _ in pairs})
    columns = [Column("variant", "variant"), Column("split", "on"), Column("mean", "mean", True)]
    columns += [Column(f"seed {seed}", f"seed {seed}", True) for seed in seeds]
    unknown = findings_view.get_unknown_token_rates(findings)
    columns += [Column("unknown", "unknown words", True)] if unknown else []
    rows = []
    for split in findings_view.list_splits(findings, "results"):
        last = [Cell(number_format.format_percentage(unknown.get(split)), unknown.get(split))] if unknown else []
        for name in findings_view.list_variant_names(findings):
            by_seed = {int(seed): value for seed, value in found.get(name, {}).get(split, [])}
            known = [value for value in by_seed.values() if number_format.is_finite_number(value)]
            if known:
                mean = findings_view.average_over_seeds(metric, known)
                cells = [
                    Cell(number_format.format_score(metric, by_seed.get(seed)), by_seed.get(seed)) for seed in seeds
                ]
                rows.append(
                    [
                        make_text_cell(name),
                        make_text_cell(split),
                        Cell(number_format.format_score(metric, mean), mean),
                        *cells,
                        *last,
                    ]
                )
    return make_table("results", "Every seed’s figures", f"{metric.capitalize()} after training.", columns, rows)


def build_changed_settings_table(findings: Findings) -> Table:
    columns = [
        Column("variant", "variant"),
        Column("setting", "setting"),
        Column("baseline", "baseline"),
        Column("changed", "variant’s value"),
        Column("flag", "flag"),
    ]
    rows = []
    for name, pair in (findings.get("pairing") or {}).items():
        flag = "changes more than one setting" if pair.get("flag") else ""
        for setting, value in (pair.get("settings") or {}).items():
            before = number_format.format_setting(findings_view.get_baseline_setting(findings, setting))
            rows.append(
                [
                    make_text_cell(name),
                    make_text_cell(setting),
                    make_text_cell(before),
                    make_text_cell(number_format.format_setting(value)),
                    make_text_cell(flag),
                ]
            )
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return make_table("settings", "What was changed", "Everything else is the same.", columns, rows)


def build_cost_table(findings: Findings) -> Table:
    columns = [Column("variant", "variant")]
    known = [key for key in COST_FORMATTERS if any(key in pair for pair in (findings.get("pairing") or {}).values())]
    for name, (title, _) in ((key, COST_FORMATTERS[key]) for key in known):
        columns += [Column(name, title, True), Column(f"{name}_ratio", "ratio", True)]
    rows: list[list[Cell]] = []
    for name, pair in (findings.get("pairing") or {}).items():
        if not rows:
            rows.append(
                [
                    make_text_cell(findings_view.get_baseline_name(findings)),
                    *_make_cost_cells(pair, known, is_baseline=True),
                ]
            )
        rows.append([make_text_cell(name), *_make_cost_cells(pair, known, is_baseline=False)])
    caption = "Time and memory are medians over the runs, as measured where they ran; the ratio is to the baseline."
    return make_table("cost", "Cost", caption, columns, rows)


def _make_cost_cells(pair: dict[str, Any], cost_keys: Iterable[str], *, is_baseline: bool) -> list[Cell]:
    cells = []
    for key in cost_keys:
        say = COST_FORMATTERS[key][1]
        both = pair.get(key) or [None, None]
        shown = [both[0], both[0]] if is_baseline else both
        cells += [
            Cell(say(shown[1]), shown[1]),
            Cell("" if is_baseline else number_format.format_ratio(shown), number_format.compute_ratio(shown)),
        ]
    return cells


def build_pairing_table(findings: Findings) -> Table:
    columns = [
        Column("variant", "variant"),
        Column("shared", "shared tensors", True),
        Column("equal", "equal at step 0", True),
        Column("schedule", "same batches"),
        Column("meaning", "meaning"),
    ]
    rows = []
    for name, pair in (findings.get("pairing") or {}).items():
        shared, equal, same = pair.get("shared"), pair.get("equal"), pair.get("schedule")
        meaning = "paired: the two differ in what the variant changes and in nothing else"
        if not is_paired(pair):
            meaning = "not paired: more than the variant’s change tells the two apart"
        row = [Cell(number_format.format_count(shared), shared), Cell(number_format.format_count(equal), equal)]
        rows.append([make_text_cell(name), *row, Cell("yes" if same else "no", same), make_text_cell(meaning)])
    caption = "Initial weights that variant and baseline share, compared by hash, and the batches they were trained on."
    return make_table("pairing", "Proof of pairing", caption, columns, rows)


def is_paired(pair: dict[str, Any]) -> bool:
    """Every shared tensor was equal at step 0, and the batches were the same."""
    return pair.get("shared") is not None and pair.get("shared") == pair.get("equal") and bool(pair.get("schedule"))


AUDIT_COLUMNS = (
    Column("audit", "audit"),
    Column("result", "result"),
    Column("procedure", "procedure"),
    Column("observation", "observation"),
    Column("interpretation", "interpretation"),
)


def make_audit_rows(audits: Iterable[dict[str, Any]]) -> list[list[Cell]]:
    """Failed ones first, those that do not apply last."""
    order = {False: 0, True: 1, None: 2}
    made = []
    for one in sorted(audits, key=lambda one: (order[one["passed"]], not one.get("is_blocking", True))):
        state = get_audit_status(one)
        cells = [make_text_cell(one.get(key) or "") for key in ("procedure", "observation", "interpretation")]
        made.append([make_text_cell(one["name"]), Cell(state, one["passed"]), *cells])
    return made


def get_audit_status(audit: dict[str, Any]) -> str:
    """passed, failed, note (failed, but nothing that takes a verdict away), does not apply."""
    return (
        "note"
        if audit["passed"] is False and not audit.get("is_blocking", True)
        else AUDIT_STATUS_LABELS[audit["passed"]]
    )


def build_audits_table(findings: Findings) -> Table:
    rows = []
    for name, found in (findings.get("audits") or {}).items():
        rows += [[make_text_cell(name), *row] for row in make_audit_rows(found)]
    rows.sort(key=lambda row: row[2].text not in ("failed", "note"))
    columns = (Column("variant", "variant"), *AUDIT_COLUMNS)
    return make_table("audits", "Audits of the models", "Can these numbers be believed?", columns, rows)


def build_data_audits_table(findings: Findings) -> Table:
    rows = make_audit_rows(findings.get("data_audits") or [])
    return make_table("data_audits", "Audits of the data", "Leaks and doubtful rows.", AUDIT_COLUMNS, rows)


def build_failures_table(findings: Findings) -> Table:
    columns = [Column("variant", "variant"), Column("seed", "seed", True), Column("message", "what happened")]
    rows = [
        [make_text_cell(one["variant"]), make_text_cell(one["seed"]), make_text_cell(one["message"])]
        for one in findings.get("failures") or []
    ]
    return make_table("failures", "Trials without a result", "They are left out of every figure.", columns, rows)


def build_probe_sentences_table(findings: Findings) -> Table:
    found = findings.get("sentences") or {}
    texts = (findings_view.get_experiment(findings).get("probe") or {}).get("sentences") or {}
    columns = [
        Column("sentence", "sentence"),
        Column("text", "text"),
        Column("variant", "variant"),
        Column("figure", "perplexity, or class"),
    ]
    rows = []
    for sentence in dict.fromkeys(sentence for by_name in found.values() for sentence in by_name):
        named = [name for name in findings_view.list_variant_names(findings) if sentence in found.get(name, {})]
        for at, name in enumerate(named):
            text = texts.get(sentence, "")
            first = (
                [make_text_cell(sentence), make_text_cell(text)] if at == 0 else [Cell("", sentence), Cell("", text)]
            )
            rows.append([*first, make_text_cell(name), _make_probe_sentence_cell(found[name][sentence])])
    caption = "Tried on every model: the mean over seeds and their range, or the class and how sure the model is."
    return make_table("sentences", "Sentences", caption, columns, rows)


def _make_probe_sentence_cell(by_seed: dict[str, Any]) -> Cell:
    found = list(by_seed.values())
    if found and all(number_format.is_finite_number(one) for one in found):
        low, high = min(found), max(found)
        mean = findings_view.average_over_seeds("perplexity", found)
        spread = (
            f" ({number_format.format_perplexity(low)} to {number_format.format_perplexity(high)})"
            if len(found) > 1
            else ""
        )
        return Cell(number_format.format_perplexity(mean) + spread, mean)
    classes: dict[str, list[float]] = {}
    for name, sure in found:
        classes.setdefault(str(name), []).append(sure)
    said = [
        f"{name} ({len(sure)} of {len(found)} seeds, {number_format.format_percentage(sum(sure) / len(sure))} sure)"
        for name, sure in sorted(classes.items(), key=lambda item: -len(item[1]))
    ]
    return make_text_cell("; ".join(said) or number_format.MISSING_VALUE)


def build_confusion_tables(findings: Findings) -> list[Table]:
    """One for each variant: true classes down, guesses across."""
    made = []
    found = findings.get("confusion") or {}
    labels = [str(label) for label in found.get("labels") or []]
    for name, matrix in (found.get("matrices") or {}).items():
        columns = [Column("true", "true class"), *(Column(label, f"guessed {label}", True) for label in labels)]
        rows = []
        for label, counts in zip(labels, matrix, strict=True):
            total = sum(counts) or 1
            cells = [
                Cell(f"{number:,} ({number_format.format_percentage(number / total)})", number) for number in counts
            ]
            rows.append([make_text_cell(label), *cells])
        caption = (
            f"{name}: true class by guessed class on all held-out rows, summed over seeds; share of the true class."
        )
        made.append(make_table(f"confusion-{name}", "Confusion", caption, columns, rows))
    return made


def build_corpus_table(findings: Findings) -> Table:
    found = findings.get("corpus") or {}
    columns = [
        Column("split", "split"),
        Column("rows", "rows", True),
        Column("tokens", "tokens", True),
        Column("unknown", "unknown tokens", True),
    ]
    rows = []
    for split, one in (found.get("splits") or {}).items():
        figure = [Cell(number_format.format_count(one.get(key)), one.get(key)) for key in ("rows", "tokens")]
        rows.append(
            [
                make_text_cell(split),
                *figure,
                Cell(number_format.format_percentage(one.get("unknown")), one.get("unknown")),
            ]
        )
    caption = f"From: {str(found.get('origin') or 'not said').rstrip('.')}."
    return make_table("corpus", "The corpus", caption, columns, rows)


def build_versions_table(findings: Findings) -> Table:
    columns = [Column("what", "what"), Column("version", "version")]
    rows = [
        [make_text_cell(name), make_text_cell(version)] for name, version in (findings.get("versions") or {}).items()
    ]
    return make_table("versions", "Versions", "Of what the runs were made with.", columns, rows)
