"""Read scores from a CSV file with the columns variant, seed, score; optionally example, document and weight.

The score column is named `score`, or after its content: `accuracy`, `loss`, `perplexity`, or `total` for an example's
summed negative log-likelihood, in which case the weight is its number of tokens (or bytes). All columns except `total`
hold means per unit of weight. A run with a score of nan or inf counts as lost.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headtohead.errors import ScoresError, suggest
from headtohead.verdict.metric import MetricName, get_metric
from headtohead.verdict.scores import Scores, infer_resolution

METRIC_BY_SCORE_COLUMN: Mapping[str, MetricName | None] = {
    "score": None,
    "accuracy": "accuracy",
    "loss": "loss",
    "perplexity": "perplexity",
    "total": "perplexity",
}
MAX_REPORTED_ERRORS = 20
MAX_SEED = 2**53


class ScoreTable(NamedTuple):
    """The content of a score file; `metric` is None if it cannot be inferred."""

    baseline: str
    scores: Mapping[str, Scores]
    metric: MetricName | None


@dataclass(frozen=True)
class _ScoreRow:
    """The parsed cells of one line: the score of one run, or of one run on one example."""

    line_number: int
    variant: str
    seed: int
    example_id: str
    document: str
    score: float
    weight: float


@dataclass
class _ScoreFileParser:
    """The rows of a score file parsed so far, and all errors found in it."""

    path: Path
    rows: list[_ScoreRow] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    invalid_row_keys: set[tuple[str, str, str]] = field(default_factory=set)
    """(variant, seed, example) of rows with errors, which are not reported as missing as well"""
    lost_runs: dict[str, set[int]] = field(default_factory=dict)
    """seeds by variant of runs with a score that is not finite"""

    def add_error(self, line_number: int, message: str) -> None:
        """Record an error in the file, to be raised together with all others."""
        self.errors.append(f"line {line_number}: {message}")

    def remove_lost_runs(self) -> None:
        """Remove the remaining rows of runs that have a non-finite score."""
        self.rows = [row for row in self.rows if row.seed not in self.lost_runs.get(row.variant, ())]

    def raise_errors(self) -> None:
        """Raise ScoresError with the first errors in the CSV file; do nothing if there are none."""
        if not self.errors:
            return
        count = len(self.errors)
        reported_errors = self.errors[:MAX_REPORTED_ERRORS]
        if count > MAX_REPORTED_ERRORS:
            reported_errors.append(f"and {count - MAX_REPORTED_ERRORS} more")
        heading = f"{self.path}: {count} error{'s' if count != 1 else ''}"
        raise ScoresError("\n  ".join([heading, *reported_errors]))


def read_csv(path: str | Path, *, metric: str | None = None) -> ScoreTable:
    """Read a score file. The baseline is the variant named "baseline", or else the first one in the file.

    All errors in the file are reported at once, with their line numbers. `metric` applies to a column named `score`.
    """
    parser = _ScoreFileParser(Path(path))
    requested_metric = None if metric is None else get_metric(metric).name
    lines = _read_csv_lines(parser)
    column_indices = _parse_header(parser, lines)
    score_column = _find_score_column(parser, column_indices, requested_metric)
    parser.raise_errors()
    inferred_metric = requested_metric or METRIC_BY_SCORE_COLUMN[score_column]
    for line_number, cells in lines[1:]:
        _parse_row(parser, line_number, cells, column_indices, score_column)
    parser.remove_lost_runs()
    if not parser.rows and not parser.errors:
        parser.errors.append("the file has no scores")
    if (
        inferred_metric is None
        and parser.rows
        and parser.rows[0].example_id
        and {row.score for row in parser.rows} <= {0.0, 1.0}
    ):
        inferred_metric = "accuracy"
    _check_score_range(parser, inferred_metric, score_column)
    _check_completeness(parser, has_seed_weights=score_column == "total")
    parser.raise_errors()
    variant_names = list(dict.fromkeys([*(row.variant for row in parser.rows), *parser.lost_runs]))
    scores = {name: _build_scores(parser, name, inferred_metric, score_column) for name in variant_names}
    baseline_name = "baseline" if "baseline" in variant_names else variant_names[0]
    return ScoreTable(baseline_name, scores, inferred_metric)


def _read_csv_lines(parser: _ScoreFileParser) -> list[tuple[int, list[str]]]:
    """Return the line number and the cells of every non-empty line of the CSV file."""
    try:
        if parser.path.exists() and not parser.path.is_file():
            raise ScoresError(f"{parser.path}: not a regular file")
        text = parser.path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ScoresError(f"{parser.path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScoresError(f"{parser.path}: cannot be read as text: {error}") from error
    header = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    try:
        lines = [
            (reader.line_num, [cell.strip() for cell in cells])
            for cells in reader
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise ScoresError(f"{parser.path}: line {reader.line_num}: not valid CSV: {error}") from None
    if not lines:
        raise ScoresError(
            f"{parser.path}: the file is empty; the first line must name the columns variant, seed, score"
        )
    return lines


def _parse_header(parser: _ScoreFileParser, lines: list[tuple[int, list[str]]]) -> dict[str, int]:
    """Return the index of each column of the CSV file; report duplicate and missing columns."""
    line_number, header = lines[0]
    column_names = [cell.lower() for cell in header]
    for name in sorted({name for name in column_names if column_names.count(name) > 1}):
        parser.add_error(line_number, f"duplicate column {name!r}")
    for name in ("variant", "seed"):
        if name not in column_names:
            parser.add_error(line_number, f"missing column {name!r}{_format_suggestion(name, column_names)}")
    return {name: index for index, name in enumerate(column_names)}


def _find_score_column(parser: _ScoreFileParser, column_names: Collection[str], metric: MetricName | None) -> str:
    """Return the name of the score column of the CSV file; report missing, ambiguous and mismatched columns."""
    score_columns = [name for name in METRIC_BY_SCORE_COLUMN if name in column_names]
    if not score_columns:
        allowed_columns = ", ".join(METRIC_BY_SCORE_COLUMN)
        parser.add_error(
            1, f"missing column 'score'{_format_suggestion('score', column_names)} (allowed names: {allowed_columns})"
        )
        return "score"
    if len(score_columns) > 1:
        if metric in score_columns:
            return str(metric)
        parser.add_error(1, f"several score columns: {', '.join(score_columns)}; keep one, or set metric")
    score_column = score_columns[0]
    column_metric = METRIC_BY_SCORE_COLUMN[score_column]
    is_mismatch = metric is not None and column_metric is not None and metric != column_metric
    if is_mismatch and (score_column, metric) != ("total", "loss"):
        parser.add_error(1, f"column {score_column!r} does not hold the metric {metric}")
    return score_column


def _format_suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return the hint that names the column in the file that is most like a missing one, or an empty string."""
    suggestion = suggest(name, candidates)
    return f"; did you mean {suggestion!r}?" if suggestion else ""


def _parse_row(
    parser: _ScoreFileParser, line_number: int, cells: list[str], column_indices: Mapping[str, int], score_column: str
) -> None:
    """Parse one row of the CSV file and append it to the parser's rows; report every invalid cell.

    A non-finite score marks the run as lost.
    """
    cell = {name: cells[index] for name, index in column_indices.items() if index < len(cells)}
    if len(cells) < len(column_indices):
        parser.add_error(line_number, f"{len(cells)} cells, but {len(column_indices)} columns")
        example = cell.get("example", cell.get("document", ""))
        parser.invalid_row_keys.add((cell.get("variant", ""), cell.get("seed", ""), example))
        return
    num_errors = len(parser.errors)
    document = cell.get("document", "")
    example = cell.get("example", document)
    if not cell["variant"]:
        parser.add_error(line_number, "the variant is empty")
    seed = _parse_finite_float(cell["seed"])
    if seed is None or seed != int(seed) or abs(seed) > MAX_SEED:
        parser.add_error(line_number, f"seed {cell['seed']!r} is not an integer")
    score = _parse_float(cell[score_column])
    if score is None:
        parser.add_error(line_number, f"{score_column} {cell[score_column]!r} is not a number")
    weight = _parse_finite_float(cell["weight"]) if "weight" in cell else 1.0
    if weight is None or weight <= 0:
        parser.add_error(line_number, f"weight {cell['weight']!r} is not a positive number")
    for name in ("example", "document"):
        if name in cell and not cell[name]:
            parser.add_error(line_number, f"the {name} is empty")
    if len(parser.errors) > num_errors or seed is None or score is None or weight is None:
        parser.invalid_row_keys.add((cell["variant"], cell["seed"], example))
        return
    if not math.isfinite(score):
        parser.lost_runs.setdefault(cell["variant"], set()).add(int(seed))
        return
    parser.rows.append(_ScoreRow(line_number, cell["variant"], int(seed), example, document, score, weight))


def _parse_float(text: str) -> float | None:
    """Return the number in a cell of the CSV file, which may be nan or inf, or None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def _parse_finite_float(text: str) -> float | None:
    """Return the number in a cell, or None if it is not a finite number."""
    number = _parse_float(text)
    return number if number is not None and math.isfinite(number) else None


def _check_score_range(parser: _ScoreFileParser, metric: MetricName | None, score_column: str) -> None:
    """Report accuracies outside [0, 1] and perplexities below 1 in the CSV file."""
    for row in parser.rows:
        if metric == "accuracy" and not 0 <= row.score <= 1:
            parser.add_error(
                row.line_number, f"accuracy must be between 0 and 1, got {row.score:g}; divide percentages by 100"
            )
        if metric == "perplexity" and score_column != "total" and row.score < 1:
            parser.add_error(row.line_number, f"perplexity must be at least 1, got {row.score:g}")


def _check_completeness(parser: _ScoreFileParser, *, has_seed_weights: bool) -> None:
    """Report an error unless the CSV file has each example once per variant and seed, with the same weight."""
    line_numbers: dict[tuple[str, int, str], int] = {}
    first_rows: dict[str, _ScoreRow] = {}
    for row in parser.rows:
        key = (row.variant, row.seed, row.example_id)
        example = f", example {row.example_id}" if row.example_id else ""
        if key in line_numbers:
            parser.add_error(
                row.line_number, f"duplicate of line {line_numbers[key]}: {row.variant}, seed {row.seed}{example}"
            )
        line_numbers.setdefault(key, row.line_number)
        first_row = first_rows.setdefault(row.example_id, row)
        if first_row.document != row.document:
            parser.add_error(
                row.line_number,
                f"example {row.example_id} is from document {row.document}, but {first_row.document} at line "
                f"{first_row.line_number}",
            )
        if first_row.weight != row.weight and (row.example_id or has_seed_weights):
            parser.add_error(
                row.line_number,
                f"{'example ' if row.example_id else 'the row'}{row.example_id} has weight {row.weight:g}, "
                f"but {first_row.weight:g} at line {first_row.line_number}",
            )
    for variant, seed in dict.fromkeys((row.variant, row.seed) for row in parser.rows):
        missing = [
            example
            for example in first_rows
            if (variant, seed, example) not in line_numbers
            and (variant, str(seed), example) not in parser.invalid_row_keys
        ]
        if missing:
            listed_examples = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            last_line = max(row.line_number for row in parser.rows if (row.variant, row.seed) == (variant, seed))
            parser.add_error(last_line, f"{variant}, seed {seed} lacks {len(missing)} examples: {listed_examples}")


def _build_scores(parser: _ScoreFileParser, variant: str, metric: MetricName | None, score_column: str) -> Scores:
    """Return the scores of one variant from the rows of the CSV file."""
    rows = [row for row in parser.rows if row.variant == variant]
    seeds = tuple(sorted({row.seed for row in rows}))
    # Without an example column, the score of a seed is already a mean and needs no weight.
    weight_by_example = {
        row.example_id: row.weight if row.example_id or score_column == "total" else 1.0 for row in parser.rows
    }
    examples = tuple(sorted(weight_by_example))
    weights = np.array([weight_by_example[example] for example in examples])
    values = np.zeros((len(seeds), len(examples)))
    is_logarithm = metric == "perplexity" and score_column != "total"
    for row in rows:
        column = bisect_left(examples, row.example_id)
        score = math.log(row.score) if is_logarithm else row.score
        values[seeds.index(row.seed), column] = score if score_column == "total" else score * weights[column]
    document_by_example = {row.example_id: row.document for row in parser.rows if row.document}
    documents = tuple(document_by_example[example] for example in examples) if document_by_example else ()
    lost = tuple(sorted(parser.lost_runs.get(variant, ())))
    resolution = None
    if is_logarithm and rows and len(examples) == 1:
        raw_scores = [row.score for row in rows]
        resolution = infer_resolution(raw_scores) / min(raw_scores)
    return Scores(seeds, values, weights, examples, documents, lost, resolution)
