"""Verdicts on scores from a CSV file with the columns variant, seed, score; optionally example, document and weight.

The score column is named `score`, or after its content: `accuracy`, `loss`, `perplexity`, or `total` for an example's
summed negative log-likelihood, in which case the weight is its number of tokens (or bytes). All columns except `total`
hold means per unit of weight. A run with a score of nan or inf counts as lost.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headtohead.errors import ScoresError, suggest
from headtohead.verdict.compare import ErrorBudget, compare_scores
from headtohead.verdict.interim import Analysis
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import MetricName, get_metric
from headtohead.verdict.scores import Scores, find_resolution

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
    """The content of a score file; `metric` is None if it cannot be inferred."""

    baseline: str
    scores: Mapping[str, Scores]
    metric: MetricName | None


@dataclass(frozen=True)
class _ScoreRow:
    line_number: int
    variant: str
    seed: int
    example_id: str
    document: str
    score: float
    weight: float


@dataclass
class _ScoreFileParser:
    """The rows of a score file, and all errors found in it."""

    path: Path
    rows: list[_ScoreRow] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    invalid_row_keys: set[tuple[str, str, str]] = field(default_factory=set)
    lost_runs: dict[str, set[int]] = field(default_factory=dict)
    """seeds by variant of runs with a score that is not finite"""

    def add_error(self, line_number: int, message: str) -> None:
        self.errors.append(f"line {line_number}: {message}")

    def remove_lost_runs(self) -> None:
        """Remove the remaining rows of runs that have a non-finite score."""
        self.rows = [row for row in self.rows if row.seed not in self.lost_runs.get(row.variant, ())]

    def raise_errors(self) -> None:
        """Raise ScoresError with the first errors; do nothing if there are none."""
        if not self.errors:
            return
        count = len(self.errors)
        reported = self.errors[:MAX_REPORTED_ERRORS]
        if count > MAX_REPORTED_ERRORS:
            reported.append(f"and {count - MAX_REPORTED_ERRORS} more")
        heading = f"{self.path}: {count} error{'s' if count != 1 else ''}"
        raise ScoresError("\n  ".join([heading, *reported]))


def judge_csv(
    path: str | Path,
    *,
    baseline_name: str | None = None,
    metric: str | None = None,
    equivalence_margin: float | None = None,
    confidence: float = 0.95,
    earlier_analyses: Sequence[int] = (),
) -> list[Verdict]:
    """Return the verdict on each variant in a score file.

    Args:
        path: CSV file with the columns variant, seed, score and, optionally, example, document and weight.
        baseline_name: Name of the baseline in the file; defaults to "baseline", or else the first variant in the file.
        metric: Metric of a column named `score`.
        equivalence_margin: Largest difference without practical relevance; defaults to the metric's own margin.
        confidence: Joint confidence level of all intervals.
        earlier_analyses: Seed counts at which these variants were judged before.
    """
    table = read_csv(path, metric=metric)
    if table.metric is None:
        raise ScoresError(
            f"{path}: the file does not say what the score is; set metric to perplexity, accuracy, loss (lower is "
            "better) or score (higher is better)"
        )
    if equivalence_margin is None:
        equivalence_margin = DEFAULT_EQUIVALENCE_MARGINS.get(table.metric)
    if equivalence_margin is None:
        raise ScoresError(
            f"{path}: metric {table.metric} has no default equivalence margin; set the difference below which two "
            "variants count as equivalent"
        )
    name = table.baseline if baseline_name is None else baseline_name
    if name not in table.scores:
        near = suggest(name, table.scores)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ScoresError(f"{path}: no variant {name!r}; variants: {', '.join(table.scores)}{hint}")
    variants = {variant: scores for variant, scores in table.scores.items() if variant != name}
    if not variants:
        raise ScoresError(f"{path}: only {name!r} has scores; a comparison needs two variants")
    analyses = tuple(Analysis(seeds) for seeds in sorted(set(earlier_analyses)))
    return compare_scores(
        table.scores[name],
        variants,
        metric=table.metric,
        equivalence_margin=equivalence_margin,
        confidence=confidence,
        budget=ErrorBudget(dict.fromkeys(variants, analyses)),
    )


def read_csv(path: str | Path, *, metric: str | None = None) -> ScoreTable:
    """Read a score file. The baseline is the variant named "baseline", or else the first one in the file.

    All errors in the file are reported at once, with their line numbers. `metric` applies to a column named `score`.
    """
    parser = _ScoreFileParser(Path(path))
    requested = None if metric is None else get_metric(metric).name
    lines = _read_lines(parser)
    columns = _parse_header(parser, lines)
    column = _find_score_column(parser, columns, requested)
    parser.raise_errors()
    inferred = requested or METRIC_BY_SCORE_COLUMN[column]
    for line_number, cells in lines[1:]:
        _parse_row(parser, line_number, cells, columns, column)
    parser.remove_lost_runs()
    if not parser.rows and not parser.errors:
        parser.errors.append("the file has no scores")
    if (
        inferred is None
        and parser.rows
        and parser.rows[0].example_id
        and {row.score for row in parser.rows} <= {0.0, 1.0}
    ):
        inferred = "accuracy"
    _check_score_range(parser, inferred, column)
    _check_completeness(parser, has_seed_weights=column == "total")
    parser.raise_errors()
    names = list(dict.fromkeys([*(row.variant for row in parser.rows), *parser.lost_runs]))
    scores = {name: _build_scores(parser, name, inferred, column) for name in names}
    return ScoreTable("baseline" if "baseline" in names else names[0], scores, inferred)


def _read_lines(parser: _ScoreFileParser) -> list[tuple[int, list[str]]]:
    """Return the line number and the cells of every non-empty line."""
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
    """Return the index of each column; report duplicate and missing columns."""
    line_number, header = lines[0]
    names = [cell.lower() for cell in header]
    for name in sorted({name for name in names if names.count(name) > 1}):
        parser.add_error(line_number, f"duplicate column {name!r}")
    for name in ("variant", "seed"):
        if name not in names:
            parser.add_error(line_number, f"missing column {name!r}{_format_suggestion(name, names)}")
    return {name: index for index, name in enumerate(names)}


def _find_score_column(parser: _ScoreFileParser, columns: Mapping[str, int], metric: MetricName | None) -> str:
    """Return the name of the score column; report missing, ambiguous and mismatched columns."""
    present = [name for name in METRIC_BY_SCORE_COLUMN if name in columns]
    if not present:
        allowed = ", ".join(METRIC_BY_SCORE_COLUMN)
        parser.add_error(1, f"missing column 'score'{_format_suggestion('score', columns)} (allowed names: {allowed})")
        return "score"
    if len(present) > 1:
        if metric in present:
            return str(metric)
        parser.add_error(1, f"several score columns: {', '.join(present)}; keep one, or set metric")
    column_metric = METRIC_BY_SCORE_COLUMN[present[0]]
    is_mismatch = metric is not None and column_metric is not None and metric != column_metric
    if is_mismatch and (present[0], metric) != ("total", "loss"):
        parser.add_error(1, f"column {present[0]!r} does not hold the metric {metric}")
    return present[0]


def _format_suggestion(name: str, candidates: Iterable[str]) -> str:
    near = suggest(name, candidates)
    return f"; did you mean {near!r}?" if near else ""


def _parse_row(
    parser: _ScoreFileParser, line_number: int, cells: list[str], columns: Mapping[str, int], score_column: str
) -> None:
    """Parse one row and append it to the parser's rows; report every invalid cell.

    A non-finite score marks the run as lost.
    """
    if len(cells) < len(columns):
        parser.add_error(line_number, f"{len(cells)} cells, but {len(columns)} columns")
        partial = {name: cells[index] for name, index in columns.items() if index < len(cells)}
        example = partial.get("example", partial.get("document", ""))
        parser.invalid_row_keys.add((partial.get("variant", ""), partial.get("seed", ""), example))
        return
    num_errors = len(parser.errors)
    cell = {name: cells[index] for name, index in columns.items()}
    document = cell.get("document", "")
    example = cell.get("example", document)
    if not cell["variant"]:
        parser.add_error(line_number, "the variant is empty")
    seed = _parse_finite_float(cell["seed"])
    if seed is None or seed != int(seed) or abs(seed) > MAX_SEED:
        parser.add_error(line_number, f"seed {cell['seed']!r} is not an integer")
    value = _parse_float(cell[score_column])
    if value is None:
        parser.add_error(line_number, f"{score_column} {cell[score_column]!r} is not a number")
    weight = _parse_finite_float(cell["weight"]) if "weight" in cell else 1.0
    if weight is None or weight <= 0:
        parser.add_error(line_number, f"weight {cell['weight']!r} is not a positive number")
    for name in ("example", "document"):
        if name in cell and not cell[name]:
            parser.add_error(line_number, f"the {name} is empty")
    if len(parser.errors) > num_errors or seed is None or value is None or weight is None:
        parser.invalid_row_keys.add((cell["variant"], cell["seed"], example))
        return
    if not math.isfinite(value):
        parser.lost_runs.setdefault(cell["variant"], set()).add(int(seed))
        return
    parser.rows.append(_ScoreRow(line_number, cell["variant"], int(seed), example, document, value, weight))


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_finite_float(text: str) -> float | None:
    number = _parse_float(text)
    return number if number is not None and math.isfinite(number) else None


def _check_score_range(parser: _ScoreFileParser, metric: MetricName | None, score_column: str) -> None:
    """Report accuracies outside [0, 1] and non-positive perplexities."""
    for row in parser.rows:
        if metric == "accuracy" and not 0 <= row.score <= 1:
            parser.add_error(
                row.line_number, f"accuracy must be between 0 and 1, got {row.score:g}; divide percentages by 100"
            )
        if metric == "perplexity" and score_column != "total" and row.score <= 0:
            parser.add_error(row.line_number, f"perplexity must be positive, got {row.score:g}")


def _check_completeness(parser: _ScoreFileParser, *, has_seed_weights: bool) -> None:
    """Report an error unless every variant and seed has each example once, with the same document and weight."""
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
    """Return the scores of one variant."""
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
        mean = math.log(row.score) if is_logarithm else row.score
        values[seeds.index(row.seed), column] = mean if score_column == "total" else mean * weights[column]
    document_by_example = {row.example_id: row.document for row in parser.rows if row.document}
    documents = tuple(document_by_example[example] for example in examples) if document_by_example else ()
    lost = tuple(sorted(parser.lost_runs.get(variant, ())))
    resolution = None
    if is_logarithm and rows and len(examples) == 1:
        raw_scores = [row.score for row in rows]
        resolution = find_resolution(raw_scores) / min(raw_scores)
    return Scores(seeds, values, weights, examples, documents, lost, resolution)
