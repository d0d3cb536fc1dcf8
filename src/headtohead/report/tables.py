"""The tables of the report, each made once from the findings; page, Markdown, CSV and LaTeX show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headtohead.attention_analysis.head_tables import heads, heads_long
from headtohead.distillation import tables as distillation_tables
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, table, words
from headtohead.replication.published import published, published_long
from headtohead.replication.tables import axis, claims, contexts, costs, simple, whose
from headtohead.report import findings_view
from headtohead.report.comparisons import comparison_table
from headtohead.report.findings_view import Findings
from headtohead.search.tables import search_cells, search_effects

COSTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "parameters": ("parameters", number_format.count),
    "flops_per_token": ("FLOPs a token", number_format.flops),
    "seconds_per_step": ("time a step", number_format.seconds),
    "seconds_per_epoch": ("time an epoch", number_format.seconds),
    "peak_memory": ("peak memory", number_format.size),
}
STATES = {True: "passed", False: "failed", None: "does not apply"}


def tables(findings: Findings, *, long: bool = False) -> list[Table]:
    """Those that have a row, in the report's order. A `long` one has a row for each figure, as programs like it."""
    makers: tuple[Callable[[Findings], Table], ...] = (
        verdicts,
        others,
        comparison_table,
        search_cells,
        search_effects,
        claims,
        published_long if long else published,
        axis,
        contexts,
        costs,
        results,
        settings,
        cost,
        pairing,
        audits,
        data_audits,
        failures,
        sentences,
        heads_long if long else heads,
        corpus,
        whose,
        simple,
        versions,
    )
    made = [make(findings) for make in makers]
    return [table for table in (*made, *distillation_tables.tables(findings), *confusions(findings)) if table.rows]


def verdicts(findings: Findings) -> Table:
    metric = findings_view.metric(findings)
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
        f"Judged by {where(findings)}. The 95 % interval, for all variants at once, decides: it is meant for new seeds "
        "and new text of this kind. “On this test set” counts the noise of seeds alone."
    )
    rows = [_verdict_row(row, metric) for row in findings_view.verdicts(findings)]
    return table("verdicts", "Verdicts", caption, columns, rows)


def _verdict_row(row: dict[str, Any], metric: str) -> list[Cell]:
    interval = row.get("interval")
    places = number_format.decimals(metric, interval)
    size = row.get("detectable")
    seen = (
        number_format.UNKNOWN if not number_format.is_number(size) else number_format.band(metric, float(f"{size:.2g}"))
    )
    return [
        words(row["variant"]),
        words(row["word"]),
        Cell(number_format.value(metric, row.get("baseline_mean")), row.get("baseline_mean")),
        Cell(number_format.value(metric, row.get("mean")), row.get("mean")),
        Cell(number_format.change(metric, row.get("effect"), places), row.get("effect")),
        Cell(number_format.interval(metric, interval, places), interval),
        Cell(number_format.interval(metric, row.get("interval_seeds"), places), row.get("interval_seeds")),
        Cell(number_format.count(row.get("seeds")), row.get("seeds")),
        Cell(number_format.count(row.get("examples")), row.get("examples")),
        Cell("–" if row.get("noise") in (None, "unknown") else str(row["noise"]), row.get("noise")),
        Cell(seen, size),
        Cell(_to_settle(row) or number_format.UNKNOWN, _to_settle(row)),
    ]


def _to_settle(row: dict[str, Any]) -> str:
    ways = [(row.get("more_seeds"), "seeds"), (row.get("more_examples"), "examples")]
    return " or ".join(f"{number:,} more {kind}" for number, kind in ways if number)


def where(findings: Findings) -> str:
    """perplexity on test, unseen rows."""
    place = findings_view.where(findings)
    return findings_view.metric(findings) + (f" on {place}" if place else "")


def others(findings: Findings) -> Table:
    metric = findings_view.metric(findings)
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
            places = number_format.decimals(metric, row.get("interval"))
            rows.append(
                [
                    words(name),
                    words(row["variant"]),
                    Cell(number_format.value(metric, row.get("baseline_mean")), row.get("baseline_mean")),
                    Cell(number_format.value(metric, row.get("mean")), row.get("mean")),
                    Cell(number_format.change(metric, row.get("effect"), places), row.get("effect")),
                    Cell(number_format.interval(metric, row.get("interval"), places), row.get("interval")),
                    words(row["word"]),
                ]
            )
    caption = "These rows inform; the verdict is taken only from what the experiment file names."
    return table("others", "The same on other texts and rows", caption, columns, rows)


def results(findings: Findings) -> Table:
    """Every seed's figure: what the means are means of."""
    metric = findings_view.metric(findings)
    found = findings.get("results") or {}
    seeds = sorted({int(seed) for by_split in found.values() for pairs in by_split.values() for seed, _ in pairs})
    columns = [Column("variant", "variant"), Column("split", "on"), Column("mean", "mean", True)]
    columns += [Column(f"seed {seed}", f"seed {seed}", True) for seed in seeds]
    unknown = findings_view.unknown_words(findings)
    columns += [Column("unknown", "unknown words", True)] if unknown else []
    rows = []
    for split in findings_view.splits_of(findings, "results"):
        last = [Cell(number_format.share(unknown.get(split)), unknown.get(split))] if unknown else []
        for name in findings_view.names(findings):
            by_seed = {int(seed): value for seed, value in found.get(name, {}).get(split, [])}
            known = [value for value in by_seed.values() if number_format.is_number(value)]
            if known:
                mean = findings_view.mean(metric, known)
                cells = [Cell(number_format.value(metric, by_seed.get(seed)), by_seed.get(seed)) for seed in seeds]
                rows.append([words(name), words(split), Cell(number_format.value(metric, mean), mean), *cells, *last])
    return table("results", "Every seed’s figures", f"{metric.capitalize()} after training.", columns, rows)


def settings(findings: Findings) -> Table:
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
            before = number_format.plain(findings_view.setting(findings, setting))
            rows.append([words(name), words(setting), words(before), words(number_format.plain(value)), words(flag)])
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table("settings", "What was changed", "Everything else is the same.", columns, rows)


def cost(findings: Findings) -> Table:
    columns = [Column("variant", "variant")]
    known = [key for key in COSTS if any(key in pair for pair in (findings.get("pairing") or {}).values())]
    for name, (title, _) in ((key, COSTS[key]) for key in known):
        columns += [Column(name, title, True), Column(f"{name}_ratio", "ratio", True)]
    rows: list[list[Cell]] = []
    for name, pair in (findings.get("pairing") or {}).items():
        if not rows:
            rows.append([words(findings_view.baseline(findings)), *_cost_cells(pair, known, first=True)])
        rows.append([words(name), *_cost_cells(pair, known, first=False)])
    caption = "Time and memory are medians over the runs, as measured where they ran; the ratio is to the baseline."
    return table("cost", "Cost", caption, columns, rows)


def _cost_cells(pair: dict[str, Any], known: Iterable[str], *, first: bool) -> list[Cell]:
    cells = []
    for key in known:
        say = COSTS[key][1]
        both = pair.get(key) or [None, None]
        shown = [both[0], both[0]] if first else both
        cells += [
            Cell(say(shown[1]), shown[1]),
            Cell("" if first else number_format.ratio(shown), number_format.ratio_of(shown)),
        ]
    return cells


def pairing(findings: Findings) -> Table:
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
        row = [Cell(number_format.count(shared), shared), Cell(number_format.count(equal), equal)]
        rows.append([words(name), *row, Cell("yes" if same else "no", same), words(meaning)])
    caption = "Initial weights that variant and baseline share, compared by hash, and the batches they were trained on."
    return table("pairing", "Proof of pairing", caption, columns, rows)


def is_paired(pair: dict[str, Any]) -> bool:
    """Every shared tensor was equal at step 0, and the batches were the same."""
    return pair.get("shared") is not None and pair.get("shared") == pair.get("equal") and bool(pair.get("schedule"))


AUDIT_COLUMNS = (
    Column("audit", "audit"),
    Column("result", "result"),
    Column("tried", "what was tried"),
    Column("found", "what was found"),
    Column("meaning", "what it means"),
)


def audit_rows(found: Iterable[dict[str, Any]]) -> list[list[Cell]]:
    """Failed ones first, those that do not apply last."""
    order = {False: 0, True: 1, None: 2}
    made = []
    for one in sorted(found, key=lambda one: (order[one["passed"]], not one.get("serious", True))):
        state = state_of(one)
        cells = [words(one.get(key) or "") for key in ("tried", "found", "meaning")]
        made.append([words(one["name"]), Cell(state, one["passed"]), *cells])
    return made


def state_of(one: dict[str, Any]) -> str:
    """passed, failed, note (failed, but nothing that takes a verdict away), does not apply."""
    return "note" if one["passed"] is False and not one.get("serious", True) else STATES[one["passed"]]


def audits(findings: Findings) -> Table:
    rows = []
    for name, found in (findings.get("audits") or {}).items():
        rows += [[words(name), *row] for row in audit_rows(found)]
    rows.sort(key=lambda row: row[2].text not in ("failed", "note"))
    columns = (Column("variant", "variant"), *AUDIT_COLUMNS)
    return table("audits", "Audits of the models", "Can these numbers be believed?", columns, rows)


def data_audits(findings: Findings) -> Table:
    rows = audit_rows(findings.get("data_audits") or [])
    return table("data_audits", "Audits of the data", "Leaks and doubtful rows.", AUDIT_COLUMNS, rows)


def failures(findings: Findings) -> Table:
    columns = [Column("variant", "variant"), Column("seed", "seed", True), Column("message", "what happened")]
    rows = [
        [words(one["variant"]), words(one["seed"]), words(one["message"])] for one in findings.get("failures") or []
    ]
    return table("failures", "Trials without a result", "They are left out of every figure.", columns, rows)


def sentences(findings: Findings) -> Table:
    found = findings.get("sentences") or {}
    texts = (findings_view.experiment(findings).get("probe") or {}).get("sentences") or {}
    columns = [
        Column("sentence", "sentence"),
        Column("text", "text"),
        Column("variant", "variant"),
        Column("figure", "perplexity, or class"),
    ]
    rows = []
    for sentence in dict.fromkeys(sentence for by_name in found.values() for sentence in by_name):
        named = [name for name in findings_view.names(findings) if sentence in found.get(name, {})]
        for at, name in enumerate(named):
            text = texts.get(sentence, "")
            first = [words(sentence), words(text)] if at == 0 else [Cell("", sentence), Cell("", text)]
            rows.append([*first, words(name), _sentence_cell(found[name][sentence])])
    caption = "Tried on every model: the mean over seeds and their range, or the class and how sure the model is."
    return table("sentences", "Sentences", caption, columns, rows)


def _sentence_cell(by_seed: dict[str, Any]) -> Cell:
    found = list(by_seed.values())
    if found and all(number_format.is_number(one) for one in found):
        low, high = min(found), max(found)
        mean = findings_view.mean("perplexity", found)
        spread = f" ({number_format.perplexity(low)} to {number_format.perplexity(high)})" if len(found) > 1 else ""
        return Cell(number_format.perplexity(mean) + spread, mean)
    classes: dict[str, list[float]] = {}
    for name, sure in found:
        classes.setdefault(str(name), []).append(sure)
    said = [
        f"{name} ({len(sure)} of {len(found)} seeds, {number_format.share(sum(sure) / len(sure))} sure)"
        for name, sure in sorted(classes.items(), key=lambda item: -len(item[1]))
    ]
    return words("; ".join(said) or number_format.UNKNOWN)


def confusions(findings: Findings) -> list[Table]:
    """One for each variant: true classes down, guesses across."""
    made = []
    found = findings.get("confusion") or {}
    labels = [str(label) for label in found.get("labels") or []]
    for name, matrix in (found.get("matrices") or {}).items():
        columns = [Column("true", "true class"), *(Column(label, f"guessed {label}", True) for label in labels)]
        rows = []
        for label, counts in zip(labels, matrix, strict=True):
            total = sum(counts) or 1
            cells = [Cell(f"{number:,} ({number_format.share(number / total)})", number) for number in counts]
            rows.append([words(label), *cells])
        caption = (
            f"{name}: true class by guessed class on all held-out rows, summed over seeds; share of the true class."
        )
        made.append(table(f"confusion-{name}", "Confusion", caption, columns, rows))
    return made


def corpus(findings: Findings) -> Table:
    found = findings.get("corpus") or {}
    columns = [
        Column("split", "split"),
        Column("rows", "rows", True),
        Column("tokens", "tokens", True),
        Column("unknown", "unknown tokens", True),
    ]
    rows = []
    for split, one in (found.get("splits") or {}).items():
        figure = [Cell(number_format.count(one.get(key)), one.get(key)) for key in ("rows", "tokens")]
        rows.append([words(split), *figure, Cell(number_format.share(one.get("unknown")), one.get("unknown"))])
    caption = f"From: {str(found.get('origin') or 'not said').rstrip('.')}."
    return table("corpus", "The corpus", caption, columns, rows)


def versions(findings: Findings) -> Table:
    columns = [Column("what", "what"), Column("version", "version")]
    rows = [[words(name), words(version)] for name, version in (findings.get("versions") or {}).items()]
    return table("versions", "Versions", "Of what the runs were made with.", columns, rows)
