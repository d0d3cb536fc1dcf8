"""Scores that people bring from elsewhere: a CSV file with the columns variant, seed, score, and optionally example
and weight. The same verdicts and words as for an experiment of our own.

The score column may be called `score`, or by what it holds: `accuracy`, `loss`, `perplexity`, or `total` for the summed
negative log-likelihood of an example, whose weight is its tokens (or bytes). All but `total` are means over the
weight, so that a file without weights reads as it looks.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headtohead.errors import ScoresError, nearest
from headtohead.verdict.compare import compare
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import MetricName, metric_named
from headtohead.verdict.scores import Scores

MEANS: Mapping[str, MetricName | None] = {
    "score": None,
    "accuracy": "accuracy",
    "loss": "loss",
    "perplexity": "perplexity",
    "total": "perplexity",
}
USUAL_MATTERS: Mapping[str, float] = {"perplexity": 0.01, "accuracy": 0.01}
SHOWN_FAULTS = 20
LARGEST_SEED = 2**53


class Table(NamedTuple):
    """What a file of scores holds: the baseline's name, the scores of each variant, and the metric if it is plain."""

    baseline: str
    scores: Mapping[str, Scores]
    metric: MetricName | None


@dataclass(frozen=True)
class _Row:
    line: int
    variant: str
    seed: int
    example: str
    figure: float
    weight: float


@dataclass
class _Reader:
    """Collects rows and everything that is wrong with them."""

    path: Path
    rows: list[_Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    blamed: set[tuple[str, str, str]] = field(default_factory=set)

    def blame(self, line: int, message: str) -> None:
        self.faults.append(f"line {line}: {message}")

    def stop_at_faults(self) -> None:
        if not self.faults:
            return
        count = len(self.faults)
        shown = self.faults[:SHOWN_FAULTS]
        if count > SHOWN_FAULTS:
            shown.append(f"and {count - SHOWN_FAULTS} more of this kind")
        head = f"{self.path}: {count} error{'s' if count != 1 else ''}"
        raise ScoresError("\n  ".join([head, *shown]))


def judge(
    path: str | Path,
    *,
    baseline: str | None = None,
    metric: str | None = None,
    matters: float | None = None,
    confidence: float = 0.95,
) -> list[Verdict]:
    """The verdicts on a file of scores; every variant against the baseline."""
    table = read_csv(path, metric=metric)
    if table.metric is None:
        raise ScoresError(
            f"{path}: what the score is cannot be seen from the file, nor whether higher or lower is better; "
            "say so with metric: perplexity, accuracy, loss (lower is better) or score (higher is better)"
        )
    matters = USUAL_MATTERS.get(table.metric) if matters is None else matters
    if matters is None:
        raise ScoresError(
            f"{path}: for the metric {table.metric}, say with matters below which size a difference is none"
        )
    name = table.baseline if baseline is None else baseline
    if name not in table.scores:
        near = nearest(name, table.scores)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ScoresError(f"{path}: no variant {name!r}; there are {', '.join(table.scores)}{hint}")
    others = {variant: scores for variant, scores in table.scores.items() if variant != name}
    if not others:
        raise ScoresError(f"{path}: only {name!r} is scored; a comparison takes two variants")
    return compare(table.scores[name], others, metric=table.metric, matters=matters, confidence=confidence)


def read_csv(path: str | Path, *, metric: str | None = None) -> Table:
    """Read a file of scores. The baseline is the variant called "baseline", or the first one of the file.

    Every error of the file is reported at once, with its line. `metric` says what a column called `score` holds.
    """
    reader = _Reader(Path(path))
    asked = None if metric is None else metric_named(metric).name
    lines = _lines(reader)
    columns = _columns(reader, lines)
    figure = _figure_column(reader, columns, asked)
    reader.stop_at_faults()
    chosen = asked or MEANS[figure]
    for line, cells in lines[1:]:
        _read_row(reader, line, cells, columns, figure)
    if not reader.rows and not reader.faults:
        reader.faults.append("there is no row of scores")
    if chosen is None and reader.rows and "example" in columns and {row.figure for row in reader.rows} <= {0.0, 1.0}:
        chosen = "accuracy"
    _check_scale(reader, chosen, figure)
    _check_cells(reader, weighed_seeds=figure == "total")
    reader.stop_at_faults()
    names = list(dict.fromkeys(row.variant for row in reader.rows))
    scores = {name: _scores([r for r in reader.rows if r.variant == name], chosen, figure) for name in names}
    return Table("baseline" if "baseline" in names else names[0], scores, chosen)


def _lines(reader: _Reader) -> list[tuple[int, list[str]]]:
    try:
        if reader.path.exists() and not reader.path.is_file():
            raise ScoresError(f"{reader.path}: cannot be read as text: it is no plain file")
        text = reader.path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ScoresError(f"{reader.path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScoresError(f"{reader.path}: cannot be read as text: {error}") from error
    header = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    rows = csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    try:
        lines = [(rows.line_num, [cell.strip() for cell in cells]) for cells in rows if any(c.strip() for c in cells)]
    except csv.Error as error:
        raise ScoresError(f"{reader.path}: line {rows.line_num}: is not CSV: {error}") from None
    if not lines:
        raise ScoresError(f"{reader.path}: the file is empty; a first line names the columns variant, seed, score")
    return lines


def _columns(reader: _Reader, lines: list[tuple[int, list[str]]]) -> dict[str, int]:
    line, header = lines[0]
    names = [cell.lower() for cell in header]
    for name in sorted({name for name in names if names.count(name) > 1}):
        reader.blame(line, f"the column {name!r} is there twice")
    for name in ("variant", "seed"):
        if name not in names:
            reader.blame(line, f"the column {name!r} is missing{_near(name, names)}")
    return {name: index for index, name in enumerate(names)}


def _figure_column(reader: _Reader, columns: Mapping[str, int], metric: MetricName | None) -> str:
    present = [name for name in MEANS if name in columns]
    if not present:
        allowed = ", ".join(MEANS)
        reader.blame(1, f"the column 'score' is missing{_near('score', columns)} (allowed names: {allowed})")
        return "score"
    if len(present) > 1:
        if metric in present:
            return str(metric)
        reader.blame(1, f"more than one column of scores: {', '.join(present)}; keep one, or say which with metric")
    told = MEANS[present[0]]
    if metric is not None and told is not None and metric != told and (present[0], metric) != ("total", "loss"):
        reader.blame(1, f"the column {present[0]!r} cannot be judged as {metric}")
    return present[0]


def _near(wanted: str, given: Iterable[str]) -> str:
    near = nearest(wanted, given)
    return f"; is it {near!r}?" if near else ""


def _read_row(reader: _Reader, line: int, cells: list[str], columns: Mapping[str, int], figure: str) -> None:
    if len(cells) < len(columns):
        reader.blame(line, f"{len(cells)} cells, but {len(columns)} columns")
        cut = {name: cells[index] for name, index in columns.items() if index < len(cells)}
        reader.blamed.add((cut.get("variant", ""), cut.get("seed", ""), cut.get("example", "")))
        return
    before = len(reader.faults)
    cell = {name: cells[index] for name, index in columns.items()}
    if not cell["variant"]:
        reader.blame(line, "the variant has no name")
    seed = _number(cell["seed"])
    if seed is None or seed != int(seed) or abs(seed) > LARGEST_SEED:
        reader.blame(line, f"seed {cell['seed']!r} is not a whole number")
    value = _number(cell[figure])
    if value is None:
        reader.blame(line, f"{figure} {cell[figure]!r} is not a number")
    weight = _number(cell["weight"]) if "weight" in cell else 1.0
    if weight is None or weight <= 0:
        reader.blame(line, f"weight {cell['weight']!r} is not a number above 0")
    if "example" in cell and not cell["example"]:
        reader.blame(line, "the example has no name")
    if len(reader.faults) > before or seed is None or value is None or weight is None:
        reader.blamed.add((cell["variant"], cell["seed"], cell.get("example", "")))
        return
    reader.rows.append(_Row(line, cell["variant"], int(seed), cell.get("example", ""), value, weight))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _check_scale(reader: _Reader, metric: MetricName | None, figure: str) -> None:
    for row in reader.rows:
        if metric == "accuracy" and not 0 <= row.figure <= 1:
            reader.blame(row.line, f"an accuracy of {row.figure:g} is outside 0 to 1; give shares, not per cent")
        if metric == "perplexity" and figure != "total" and row.figure <= 0:
            reader.blame(row.line, f"a perplexity of {row.figure:g} is not above 0")


def _check_cells(reader: _Reader, *, weighed_seeds: bool) -> None:
    """Every variant and seed must have each example once, and an example the same weight everywhere."""
    seen: dict[tuple[str, int, str], int] = {}
    weighed: dict[str, _Row] = {}
    for row in reader.rows:
        key = (row.variant, row.seed, row.example)
        of = f", example {row.example}" if row.example else ""
        if key in seen:
            reader.blame(row.line, f"{row.variant}, seed {row.seed}{of} was given before, at line {seen[key]}")
        seen.setdefault(key, row.line)
        first = weighed.setdefault(row.example, row)
        if first.weight != row.weight and (row.example or weighed_seeds):
            reader.blame(
                row.line,
                f"{'example ' if row.example else 'the row'}{row.example} weighs {row.weight:g}, "
                f"but {first.weight:g} at line {first.line}",
            )
    for variant, seed in dict.fromkeys((row.variant, row.seed) for row in reader.rows):
        missing = [
            example
            for example in weighed
            if (variant, seed, example) not in seen and (variant, str(seed), example) not in reader.blamed
        ]
        if missing:
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            last = max(row.line for row in reader.rows if (row.variant, row.seed) == (variant, seed))
            reader.blame(last, f"{variant}, seed {seed} ends here without {len(missing)} examples: {some}")


def _scores(rows: list[_Row], metric: MetricName | None, figure: str) -> Scores:
    seeds = tuple(sorted({row.seed for row in rows}))
    examples = tuple(sorted({row.example for row in rows}))
    values = np.zeros((len(seeds), len(examples)))
    weights = np.ones(len(examples))
    seed_at = {seed: index for index, seed in enumerate(seeds)}
    example_at = {example: index for index, example in enumerate(examples)}
    for row in rows:
        # Without an example column the weight tells nothing: a seed's own score is a mean already.
        weight = row.weight if row.example or figure == "total" else 1.0
        mean = math.log(row.figure) if metric == "perplexity" and figure != "total" else row.figure
        values[seed_at[row.seed], example_at[row.example]] = mean if figure == "total" else mean * weight
        weights[example_at[row.example]] = weight
    return Scores(seeds, values, weights, examples)
