"""The tables of the report, each made once from the findings; page, Markdown, CSV and LaTeX show the same ones.

A cell has the words that people read, and the plain value that a CSV file is to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import figures, reading
from .reading import Findings

COSTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "parameters": ("parameters", figures.count),
    "flops_per_token": ("FLOPs a token", figures.flops),
    "seconds_per_step": ("time a step", figures.seconds),
    "peak_memory": ("peak memory", figures.size),
}
STATES = {True: "passed", False: "failed", None: "does not apply"}


@dataclass(frozen=True)
class Cell:
    """What is read, and what is meant."""

    text: str
    value: Any = None


@dataclass(frozen=True)
class Column:
    """A heading; figures stand to the right, words to the left."""

    name: str
    title: str
    is_figure: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its caption."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def tables(findings: Findings) -> list[Table]:
    """Those that have a row, in the report's order."""
    makers: tuple[Callable[[Findings], Table], ...] = (
        verdicts,
        others,
        published,
        results,
        settings,
        cost,
        pairing,
        audits,
        data_audits,
        failures,
        sentences,
        corpus,
        versions,
    )
    made = [make(findings) for make in makers]
    return [table for table in (*made, *confusions(findings)) if table.rows]


def words(text: Any) -> Cell:
    return Cell(str(text), text)


def _table(name: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> Table:
    return Table(name, caption, tuple(columns), tuple(tuple(row) for row in rows))


def verdicts(findings: Findings) -> Table:
    metric = reading.metric(findings)
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
        f"Verdicts on {where(findings)}. The 95 % interval, for all variants at once, decides: it is meant for new seeds "
        "and new text of this kind. “On this test set” counts the noise of seeds alone."
    )
    rows = [_verdict_row(row, metric) for row in reading.verdicts(findings)]
    return _table("verdicts", caption, columns, rows)


def _verdict_row(row: dict[str, Any], metric: str) -> list[Cell]:
    interval = row.get("interval")
    places = figures.decimals(metric, interval)
    size = row.get("detectable")
    seen = figures.UNKNOWN if not figures.is_number(size) else figures.band(metric, float(f"{size:.2g}"))
    return [
        words(row["variant"]),
        words(row["word"]),
        Cell(figures.value(metric, row.get("baseline_mean")), row.get("baseline_mean")),
        Cell(figures.value(metric, row.get("mean")), row.get("mean")),
        Cell(figures.change(metric, row.get("effect"), places), row.get("effect")),
        Cell(figures.interval(metric, interval, places), interval),
        Cell(figures.interval(metric, row.get("interval_seeds"), places), row.get("interval_seeds")),
        Cell(figures.count(row.get("seeds")), row.get("seeds")),
        Cell(figures.count(row.get("examples")), row.get("examples")),
        Cell("–" if row.get("noise") in (None, "unknown") else str(row["noise"]), row.get("noise")),
        Cell(seen, size),
        Cell(_to_settle(row)),
    ]


def _to_settle(row: dict[str, Any]) -> str:
    ways = [(row.get("more_seeds"), "seeds"), (row.get("more_examples"), "examples")]
    return " or ".join(f"{number:,} more {kind}" for number, kind in ways if number) or figures.UNKNOWN


def where(findings: Findings) -> str:
    """perplexity on test, unseen rows."""
    split, rows = findings.get("split"), findings.get("rows")
    said = reading.metric(findings) + (f" on {split}" if split else "")
    return said + (f", {rows} rows" if rows and rows != "all" else "")


def others(findings: Findings) -> Table:
    metric = reading.metric(findings)
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
            places = figures.decimals(metric, row.get("interval"))
            rows.append(
                [
                    words(name),
                    words(row["variant"]),
                    Cell(figures.value(metric, row.get("baseline_mean")), row.get("baseline_mean")),
                    Cell(figures.value(metric, row.get("mean")), row.get("mean")),
                    Cell(figures.change(metric, row.get("effect"), places), row.get("effect")),
                    Cell(figures.interval(metric, row.get("interval"), places), row.get("interval")),
                    words(row["word"]),
                ]
            )
    caption = "The same comparison elsewhere. These rows inform; the verdict is taken from the split in the file alone."
    return _table("others", caption, columns, rows)


def published(findings: Findings) -> Table:
    columns = [
        Column("source", "source"),
        Column("variant", "variant"),
        Column("split", "on"),
        Column("theirs", "published", True),
        Column("ours", "ours", True),
        Column("interval", "our interval", True),
        Column("difference", "theirs against ours", True),
        Column("note", "note"),
    ]
    rows = [_published_row(row) for row in findings.get("published") or []]
    return _table("published", "Published figures beside ours, our mean over seeds.", columns, rows)


def _published_row(row: dict[str, Any]) -> list[Cell]:
    metric, theirs, ours = row["metric"], row["value"], row.get("ours")
    notes = [f"at step {row['step']:,}"] if row.get("step") else []
    notes += [row["note"]] if row.get("note") else []
    if row.get("other_data"):
        notes.insert(0, "other data: not compared")
    comparable = figures.is_number(ours) and not row.get("other_data")
    gap = reading.difference(metric, ours, theirs) if comparable else None
    return [
        words(row["source"]),
        words(row["variant"]),
        words(row["split"]),
        Cell(figures.value(metric, theirs), theirs),
        Cell(figures.value(metric, ours), ours),
        Cell(figures.span(metric, row.get("interval")), row.get("interval")),
        Cell(figures.change(metric, gap), gap),
        words("; ".join(notes)),
    ]


def results(findings: Findings) -> Table:
    """Every seed's figure: what the means are means of."""
    metric = reading.metric(findings)
    found = findings.get("results") or {}
    seeds = sorted({int(seed) for by_split in found.values() for pairs in by_split.values() for seed, _ in pairs})
    columns = [Column("variant", "variant"), Column("split", "on"), Column("mean", "mean", True)]
    columns += [Column(f"seed {seed}", f"seed {seed}", True) for seed in seeds]
    rows = []
    for split in reading.splits_of(findings, "results"):
        for name in reading.names(findings):
            by_seed = {int(seed): value for seed, value in found.get(name, {}).get(split, [])}
            known = [value for value in by_seed.values() if figures.is_number(value)]
            if known:
                mean = reading.mean(metric, known)
                cells = [Cell(figures.value(metric, by_seed.get(seed)), by_seed.get(seed)) for seed in seeds]
                rows.append([words(name), words(split), Cell(figures.value(metric, mean), mean), *cells])
    return _table("results", f"{metric.capitalize()} after training, seed by seed.", columns, rows)


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
        for setting, (before, after) in changes(pair.get("settings")):
            rows.append([words(name), words(setting), Cell(before, before), Cell(after, after), words(flag)])
    return _table("settings", "What each variant changes. Everything else is the same.", columns, rows)


def changes(given: Any) -> list[tuple[str, tuple[str, str]]]:
    """Setting, value of the baseline, value of the variant."""
    found = []
    for name, pair in (given or {}).items():
        before, after = pair
        found.append((str(name), (figures.plain(before), figures.plain(after))))
    return found


def cost(findings: Findings) -> Table:
    columns = [Column("variant", "variant")]
    for name, (title, _) in COSTS.items():
        columns += [Column(name, title, True), Column(f"{name}_ratio", "to baseline", True)]
    rows: list[list[Cell]] = []
    for name, pair in (findings.get("pairing") or {}).items():
        if not rows:
            rows.append([words(reading.baseline(findings)), *_cost_cells(pair, first=True)])
        rows.append([words(name), *_cost_cells(pair, first=False)])
    caption = "Cost. Times are measured on this machine, and two trainings side by side take turns: read them roughly."
    return _table("cost", caption, columns, rows)


def _cost_cells(pair: dict[str, Any], *, first: bool) -> list[Cell]:
    cells = []
    for key, (_, say) in COSTS.items():
        both = pair.get(key) or [None, None]
        shown = [both[0], both[0]] if first else both
        cells += [Cell(say(shown[1]), shown[1]), Cell(figures.ratio(shown), figures.ratio_of(shown))]
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
        fair = shared == equal and bool(same)
        meaning = "paired: the two differ in what the variant changes" if fair else "NOT paired: read with care"
        row = [Cell(figures.count(shared), shared), Cell(figures.count(equal), equal)]
        rows.append([words(name), *row, Cell("yes" if same else "no", same), words(meaning)])
    caption = "Proof of pairing: initial weights that variant and baseline share, by hash, and their batches."
    return _table("pairing", caption, columns, rows)


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
        state = STATES[one["passed"]]
        if one["passed"] is False and not one.get("serious", True):
            state = "note"
        cells = [words(one.get(key) or "") for key in ("tried", "found", "meaning")]
        made.append([words(one["name"]), Cell(state, one["passed"]), *cells])
    return made


def audits(findings: Findings) -> Table:
    rows = []
    for name, found in (findings.get("audits") or {}).items():
        rows += [[words(name), *row] for row in audit_rows(found)]
    rows.sort(key=lambda row: row[2].text not in ("failed", "note"))
    columns = (Column("variant", "variant"), *AUDIT_COLUMNS)
    return _table("audits", "Audits of the models: can these numbers be believed?", columns, rows)


def data_audits(findings: Findings) -> Table:
    rows = audit_rows(findings.get("data_audits") or [])
    return _table("data_audits", "Audits of the data: leaks and doubtful rows.", AUDIT_COLUMNS, rows)


def failures(findings: Findings) -> Table:
    columns = [Column("variant", "variant"), Column("seed", "seed", True), Column("message", "what happened")]
    rows = [
        [words(one["variant"]), words(one["seed"]), words(one["message"])] for one in findings.get("failures") or []
    ]
    return _table("failures", "Trials without a result.", columns, rows)


def sentences(findings: Findings) -> Table:
    found = findings.get("sentences") or {}
    texts = (reading.experiment(findings).get("probe") or {}).get("sentences") or {}
    names = [name for name in reading.names(findings) if name in found]
    columns = [Column("name", "sentence"), Column("text", "text"), *(Column(name, name, True) for name in names)]
    rows = []
    for sentence in dict.fromkeys(sentence for by_name in found.values() for sentence in by_name):
        cells = [_sentence_cell(found[name].get(sentence) or {}) for name in names]
        rows.append([words(sentence), words(texts.get(sentence, "")), *cells])
    caption = "Sentences tried on every model: perplexity, or the class and how sure the model is. Range over seeds."
    return _table("sentences", caption, columns, rows)


def _sentence_cell(by_seed: dict[str, Any]) -> Cell:
    found = list(by_seed.values())
    if found and all(figures.is_number(one) for one in found):
        low, high = min(found), max(found)
        mean = reading.mean("perplexity", found)
        spread = f" ({figures.perplexity(low)} to {figures.perplexity(high)})" if len(found) > 1 else ""
        return Cell(figures.perplexity(mean) + spread, mean)
    classes: dict[str, list[float]] = {}
    for one in found:
        classes.setdefault(str(one["class"]), []).append(one["confidence"])
    said = [
        f"{name}, {len(sure)} of {len(found)} seeds, {figures.share(sum(sure) / len(sure))} sure"
        for name, sure in sorted(classes.items(), key=lambda item: -len(item[1]))
    ]
    return words("; ".join(said) or figures.UNKNOWN)


def confusions(findings: Findings) -> list[Table]:
    """One for each variant: true classes down, guesses across."""
    made = []
    for name, matrix in (findings.get("confusion") or {}).items():
        labels = [str(one) for one in findings.get("labels") or range(len(matrix))]
        columns = [Column("true", "true class"), *(Column(label, f"guessed {label}", True) for label in labels)]
        rows = []
        for label, counts in zip(labels, matrix, strict=True):
            total = sum(counts) or 1
            cells = [Cell(f"{number:,} ({figures.share(number / total)})", number) for number in counts]
            rows.append([words(label), *cells])
        caption = f"{name}: true class by guessed class, summed over seeds, and the share of the true class."
        made.append(_table(f"confusion-{name}", caption, columns, rows))
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
        figure = [Cell(figures.count(one.get(key)), one.get(key)) for key in ("rows", "tokens")]
        rows.append([words(split), *figure, Cell(figures.share(one.get("unknown")), one.get("unknown"))])
    return _table("corpus", f"The corpus: {found.get('origin') or 'not said'}.", columns, rows)


def versions(findings: Findings) -> Table:
    columns = [Column("what", "what"), Column("version", "version")]
    rows = [[words(name), words(version)] for name, version in (findings.get("versions") or {}).items()]
    return _table("versions", "Versions.", columns, rows)
