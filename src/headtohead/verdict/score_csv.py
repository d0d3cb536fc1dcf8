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

from headtohead.errors import ScoresError, suggest
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import MetricName, get_metric
from headtohead.verdict.scores import Scores

METRIC_BY_SCORE_COLUMN: Mapping[str, MetricName | None] = {
    "score": None,
    "accuracy": "accuracy",
    "loss": "loss",
    "perplexity": "perplexity",
    "total": "perplexity",
}
DEFAULT_EQUIVALENCE_MARGINS: Mapping[str, float] = {"perplexity": 0.01, "accuracy": 0.01}
MAX_REPORTED_ERRORS = 20
MAX_SEED = 2**53


class ScoreTable(NamedTuple):
    """What a file of scores holds: the baseline's name, the scores of each variant, and the metric if it is plain."""

    baseline: str
    scores: Mapping[str, Scores]
    metric: MetricName | None


@dataclass(frozen=True)
class _ScoreRow:
    line: int
    variant: str
    seed: int
    example_id: str
    figure: float
    weight: float


@dataclass
class _ScoreFileParser:
    """Collects rows and everything that is wrong with them."""

    path: Path
    rows: list[_ScoreRow] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    invalid_row_keys: set[tuple[str, str, str]] = field(default_factory=set)

    def add_error(self, line_number: int, message: str) -> None:
        self.faults.append(f"line {line_number}: {message}")

    def raise_errors(self) -> None:
        if not self.faults:
            return
        count = len(self.faults)
        shown = self.faults[:MAX_REPORTED_ERRORS]
        if count > MAX_REPORTED_ERRORS:
            shown.append(f"and {count - MAX_REPORTED_ERRORS} more of this kind")
        head = f"{self.path}: {count} error{'s' if count != 1 else ''}"
        raise ScoresError("\n  ".join([head, *shown]))


def judge_csv(
    path: str | Path,
    *,
    baseline_name: str | None = None,
    metric: str | None = None,
    equivalence_margin: float | None = None,
    confidence: float = 0.95,
) -> list[Verdict]:
    """The verdicts on a file of scores; every variant against the baseline."""
    table = read_csv(path, metric=metric)
    if table.metric is None:
        raise ScoresError(
            f"{path}: what the score is cannot be seen from the file, nor whether higher or lower is better; "
            "say so with metric: perplexity, accuracy, loss (lower is better) or score (higher is better)"
        )
    equivalence_margin = (
        DEFAULT_EQUIVALENCE_MARGINS.get(table.metric) if equivalence_margin is None else equivalence_margin
    )
    if equivalence_margin is None:
        raise ScoresError(
            f"{path}: for the metric {table.metric}, say with matters below which size a difference is none"
        )
    name = table.baseline if baseline_name is None else baseline_name
    if name not in table.scores:
        near = suggest(name, table.scores)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ScoresError(f"{path}: no variant {name!r}; there are {', '.join(table.scores)}{hint}")
    others = {variant: scores for variant, scores in table.scores.items() if variant != name}
    if not others:
        raise ScoresError(f"{path}: only {name!r} is scored; a comparison takes two variants")
    return compare_scores(
        table.scores[name], others, metric=table.metric, equivalence_margin=equivalence_margin, confidence=confidence
    )


def read_csv(path: str | Path, *, metric: str | None = None) -> ScoreTable:
    """Read a file of scores. The baseline is the variant called "baseline", or the first one of the file.

    Every error of the file is reported at once, with its line. `metric` says what a column called `score` holds.
    """
    reader = _ScoreFileParser(Path(path))
    asked = None if metric is None else get_metric(metric).name
    lines = _read_lines(reader)
    columns = _parse_header(reader, lines)
    figure = _find_score_column(reader, columns, asked)
    reader.raise_errors()
    chosen = asked or METRIC_BY_SCORE_COLUMN[figure]
    for line, cells in lines[1:]:
        _parse_row(reader, line, cells, columns, figure)
    if not reader.rows and not reader.faults:
        reader.faults.append("there is no row of scores")
    if chosen is None and reader.rows and "example" in columns and {row.figure for row in reader.rows} <= {0.0, 1.0}:
        chosen = "accuracy"
    _check_score_range(reader, chosen, figure)
    _check_completeness(reader, has_seed_weights=figure == "total")
    reader.raise_errors()
    names = list(dict.fromkeys(row.variant for row in reader.rows))
    scores = {name: _build_scores([r for r in reader.rows if r.variant == name], chosen, figure) for name in names}
    return ScoreTable("baseline" if "baseline" in names else names[0], scores, chosen)


def _read_lines(parser: _ScoreFileParser) -> list[tuple[int, list[str]]]:
    try:
        if parser.path.exists() and not parser.path.is_file():
            raise ScoresError(f"{parser.path}: cannot be read as text: it is no plain file")
        text = parser.path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ScoresError(f"{parser.path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScoresError(f"{parser.path}: cannot be read as text: {error}") from error
    header = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    rows = csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    try:
        lines = [(rows.line_num, [cell.strip() for cell in cells]) for cells in rows if any(c.strip() for c in cells)]
    except csv.Error as error:
        raise ScoresError(f"{parser.path}: line {rows.line_num}: is not CSV: {error}") from None
    if not lines:
        raise ScoresError(f"{parser.path}: the file is empty; a first line names the columns variant, seed, score")
    return lines


def _parse_header(parser: _ScoreFileParser, lines: list[tuple[int, list[str]]]) -> dict[str, int]:
    line, header = lines[0]
    names = [cell.lower() for cell in header]
    for name in sorted({name for name in names if names.count(name) > 1}):
        parser.add_error(line, f"the column {name!r} is there twice")
    for name in ("variant", "seed"):
        if name not in names:
            parser.add_error(line, f"the column {name!r} is missing{_format_suggestion(name, names)}")
    return {name: index for index, name in enumerate(names)}


def _find_score_column(parser: _ScoreFileParser, columns: Mapping[str, int], metric: MetricName | None) -> str:
    present = [name for name in METRIC_BY_SCORE_COLUMN if name in columns]
    if not present:
        allowed = ", ".join(METRIC_BY_SCORE_COLUMN)
        parser.add_error(
            1, f"the column 'score' is missing{_format_suggestion('score', columns)} (allowed names: {allowed})"
        )
        return "score"
    if len(present) > 1:
        if metric in present:
            return str(metric)
        parser.add_error(1, f"more than one column of scores: {', '.join(present)}; keep one, or say which with metric")
    told = METRIC_BY_SCORE_COLUMN[present[0]]
    if metric is not None and told is not None and metric != told and (present[0], metric) != ("total", "loss"):
        parser.add_error(1, f"the column {present[0]!r} cannot be judged as {metric}")
    return present[0]


def _format_suggestion(name: str, candidates: Iterable[str]) -> str:
    near = suggest(name, candidates)
    return f"; is it {near!r}?" if near else ""


def _parse_row(
    parser: _ScoreFileParser, line_number: int, cells: list[str], columns: Mapping[str, int], score_column: str
) -> None:
    if len(cells) < len(columns):
        parser.add_error(line_number, f"{len(cells)} cells, but {len(columns)} columns")
        cut = {name: cells[index] for name, index in columns.items() if index < len(cells)}
        parser.invalid_row_keys.add((cut.get("variant", ""), cut.get("seed", ""), cut.get("example", "")))
        return
    before = len(parser.faults)
    cell = {name: cells[index] for name, index in columns.items()}
    if not cell["variant"]:
        parser.add_error(line_number, "the variant has no name")
    seed = _parse_finite_float(cell["seed"])
    if seed is None or seed != int(seed) or abs(seed) > MAX_SEED:
        parser.add_error(line_number, f"seed {cell['seed']!r} is not a whole number")
    value = _parse_finite_float(cell[score_column])
    if value is None:
        parser.add_error(line_number, f"{score_column} {cell[score_column]!r} is not a number")
    weight = _parse_finite_float(cell["weight"]) if "weight" in cell else 1.0
    if weight is None or weight <= 0:
        parser.add_error(line_number, f"weight {cell['weight']!r} is not a number above 0")
    if "example" in cell and not cell["example"]:
        parser.add_error(line_number, "the example has no name")
    if len(parser.faults) > before or seed is None or value is None or weight is None:
        parser.invalid_row_keys.add((cell["variant"], cell["seed"], cell.get("example", "")))
        return
    parser.rows.append(_ScoreRow(line_number, cell["variant"], int(seed), cell.get("example", ""), value, weight))


def _parse_finite_float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _check_score_range(parser: _ScoreFileParser, metric: MetricName | None, score_column: str) -> None:
    for row in parser.rows:
        if metric == "accuracy" and not 0 <= row.figure <= 1:
            parser.add_error(row.line, f"an accuracy of {row.figure:g} is outside 0 to 1; give shares, not per cent")
        if metric == "perplexity" and score_column != "total" and row.figure <= 0:
            parser.add_error(row.line, f"a perplexity of {row.figure:g} is not above 0")


def _check_completeness(parser: _ScoreFileParser, *, has_seed_weights: bool) -> None:
    """Every variant and seed must have each example once, and an example the same weight everywhere."""
    seen: dict[tuple[str, int, str], int] = {}
    weighed: dict[str, _ScoreRow] = {}
    for row in parser.rows:
        key = (row.variant, row.seed, row.example_id)
        of = f", example {row.example_id}" if row.example_id else ""
        if key in seen:
            parser.add_error(row.line, f"{row.variant}, seed {row.seed}{of} was given before, at line {seen[key]}")
        seen.setdefault(key, row.line)
        first = weighed.setdefault(row.example_id, row)
        if first.weight != row.weight and (row.example_id or has_seed_weights):
            parser.add_error(
                row.line,
                f"{'example ' if row.example_id else 'the row'}{row.example_id} weighs {row.weight:g}, "
                f"but {first.weight:g} at line {first.line}",
            )
    for variant, seed in dict.fromkeys((row.variant, row.seed) for row in parser.rows):
        missing = [
            example
            for example in weighed
            if (variant, seed, example) not in seen and (variant, str(seed), example) not in parser.invalid_row_keys
        ]
        if missing:
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            last = max(row.line for row in parser.rows if (row.variant, row.seed) == (variant, seed))
            parser.add_error(last, f"{variant}, seed {seed} ends here without {len(missing)} examples: {some}")


def _build_scores(rows: list[_ScoreRow], metric: MetricName | None, score_column: str) -> Scores:
    seeds = tuple(sorted({row.seed for row in rows}))
    examples = tuple(sorted({row.example_id for row in rows}))
    values = np.zeros((len(seeds), len(examples)))
    weights = np.ones(len(examples))
    seed_at = {seed: index for index, seed in enumerate(seeds)}
    example_at = {example: index for index, example in enumerate(examples)}
    for row in rows:
        # Without an example column the weight tells nothing: a seed's own score is a mean already.
        weight = row.weight if row.example_id or score_column == "total" else 1.0
        mean = math.log(row.figure) if metric == "perplexity" and score_column != "total" else row.figure
        values[seed_at[row.seed], example_at[row.example_id]] = mean if score_column == "total" else mean * weight
        weights[example_at[row.example_id]] = weight
    return Scores(seeds, values, weights, examples)
