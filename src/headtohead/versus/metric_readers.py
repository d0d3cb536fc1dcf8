"""Read a metric from what a training script writes: its output, JSON, JSONL and CSV files, TensorBoard and W&B folders.

Every reader returns the metric's values in the order in which the script reported them, each with its step.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headtohead.errors import MissingExtraError, RequestError
from headtohead.verdict.scores import Scores
from headtohead.versus.config import MetricConfig, Reduction

NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
STEP = re.compile(r"\b(?:global[_ ]?step|step|iter(?:ation)?|epoch)\b\W{0,3}(\d+)", re.IGNORECASE)
STEP_KEYS = ("step", "global_step", "iteration", "iter", "epoch", "_step")
MAX_FILE_BYTES = 2**28


class MetricValue(NamedTuple):
    """One reported value. `step` is its position in the list if the script does not report a step."""

    step: int
    value: float


def build_output_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern that finds a metric in the output.

    It matches `name=1.23`, `name: 1.23`, `"name": 1.23`, `name 1.23` and tables. Underscores in the name also match
    spaces and hyphens, so `val_loss` matches "val loss 1.23".
    """
    spelled = r"[_ -]".join(re.escape(word) for word in re.split(r"[_ -]", name))
    return re.compile(rf"(?<![\w./-])[\"']?{spelled}[\"']?\s*(?:[=:|│┃]\s*|\s)[\"']?({NUMBER})(?![\w.])", re.IGNORECASE)


def read_output(text: str, name: str, pattern: str | None = None) -> list[MetricValue]:
    """Return the values in a command's output. The step is taken from the same line if that line states one."""
    compiled = re.compile(pattern) if pattern is not None else build_output_pattern(name)
    values: list[MetricValue] = []
    for line in text.splitlines():
        for match in compiled.finditer(line):
            step = STEP.search(line)
            number = parse_number(match.group(1))
            if number is not None:
                values.append(MetricValue(int(step.group(1)) if step else len(values), number))
    return values


def parse_number(value: object) -> float | None:
    """Return a metric's value as a number, or None if it is not numeric."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the leaves of a JSON value with dotted metric names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _read_rows(rows: Iterable[Mapping[str, object]], name: str) -> list[MetricValue]:
    """Return a metric's values from rows, such as the lines of a JSONL file."""
    values: list[MetricValue] = []
    for row in rows:
        number = parse_number(row.get(name))
        if number is None:
            continue
        steps = (parse_number(row.get(key)) for key in STEP_KEYS)
        step = next((step for step in steps if step is not None and math.isfinite(step)), len(values))
        values.append(MetricValue(int(step), number))
    return values


def _read_json_file(path: Path, name: str) -> list[MetricValue]:
    """Read a metric from a JSON file: a list of rows, or an object with a number or a list of numbers."""
    value = json.loads(path.read_text())
    if isinstance(value, list):
        return _read_rows((dict(flatten(row)) for row in value), name)
    leaves = dict(flatten(value))
    series = leaves.get(name)
    items = series if isinstance(series, list) else [series]
    numbers = [number for item in items if (number := parse_number(item)) is not None]
    return [MetricValue(index, number) for index, number in enumerate(numbers)]


def _read_jsonl_file(path: Path, name: str) -> list[MetricValue]:
    with path.open() as lines:
        return _read_rows((dict(flatten(json.loads(line))) for line in lines if line.strip()), name)


def _read_csv_file(path: Path, name: str) -> list[MetricValue]:
    with path.open(newline="") as lines:
        return _read_rows(csv.DictReader(lines), name)


def _read_tensorboard(folder: Path, name: str) -> list[MetricValue]:
    """Read a metric from TensorBoard event files."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise MissingExtraError("tensorboard", "tensorboard", "reading TensorBoard files") from None
    values: list[MetricValue] = []
    for parent in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(parent), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        if name in events.Tags()["scalars"]:
            values += [MetricValue(int(event.step), float(event.value)) for event in events.Scalars(name)]
        elif name in events.Tags()["tensors"]:  # Keras and TensorFlow 2 write scalars as tensors
            from tensorboard.util import tensor_util

            values += [
                MetricValue(int(event.step), float(tensor_util.make_ndarray(event.tensor_proto)))
                for event in events.Tensors(name)
            ]
    return sorted(values, key=lambda value: value.step)


def _read_wandb(folder: Path, name: str) -> list[MetricValue]:
    """Read a metric from W&B transaction logs."""
    try:
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore
    except ImportError:
        raise MissingExtraError("wandb", "wandb", "reading W&B folders") from None
    rows: list[dict[str, object]] = []
    for path in sorted(folder.rglob("run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        while (raw := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(raw)
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
        store.close()
    return _read_rows(rows, name)


def _read_trackio(folder: Path, name: str) -> list[MetricValue]:
    """Read a metric from Trackio databases."""
    import sqlite3

    rows: list[dict[str, object]] = []
    for path in sorted(folder.rglob("*.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            lines = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
        rows += [{"step": step, **json.loads(metrics)} for step, metrics in lines]
    return _read_rows(rows, name)


FILE_READERS: dict[str, Callable[[Path, str], list[MetricValue]]] = {
    ".json": _read_json_file,
    ".jsonl": _read_jsonl_file,
    ".csv": _read_csv_file,
}
FOLDER_READERS: dict[str, Callable[[Path, str], list[MetricValue]]] = {
    "events.out.tfevents.*": _read_tensorboard,
    "run-*.wandb": _read_wandb,
    "*.db": _read_trackio,
}


def read_source(path: Path, name: str) -> list[MetricValue]:
    """Return the values from a file or folder written by the script. Raise RequestError if it cannot be read."""
    if path.is_dir():
        for pattern, read_folder in FOLDER_READERS.items():
            if any(path.rglob(pattern)):
                return read_folder(path, name)
        raise RequestError(f"{path}: no TensorBoard, W&B or trackio files")
    if path.suffix not in FILE_READERS:
        raise RequestError(f"{path}: unsupported file extension {path.suffix!r}; allowed: {', '.join(FILE_READERS)}")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RequestError(f"{path}: more than {MAX_FILE_BYTES:,} bytes")
        return FILE_READERS[path.suffix](path, name)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from None


def read_values(config: MetricConfig, name: str, output: str, source: Path | None) -> list[MetricValue]:
    """Return a metric's values from the configured source or, if there is none, from the output."""
    if source is not None:
        return read_source(source, name)
    return read_output(output, name, config.pattern if name == config.name else None)


def reduce_values(values: list[MetricValue], config: MetricConfig, selection: list[MetricValue] | None = None) -> float:
    """Reduce a run's values to a single one. `selection` holds the values of `best_by`, matched by step."""
    if not values:
        raise ValueError("no values")
    return REDUCTIONS[config.reduction](values, config, selection)


def _take_last(values: list[MetricValue], config: MetricConfig, selection: list[MetricValue] | None) -> float:
    return values[-1].value


def _take_mean(values: list[MetricValue], config: MetricConfig, selection: list[MetricValue] | None) -> float:
    return float(np.mean([value.value for value in values[-config.window :]]))


def _take_best(values: list[MetricValue], config: MetricConfig, selection: list[MetricValue] | None) -> float:
    """Return the best value, or the value at the step where `best_by` is best."""
    if selection is None:
        return (min if config.is_lower_better else max)(value.value for value in values)
    by_step = {value.step: value.value for value in values}
    candidates = [value for value in selection if value.step in by_step and math.isfinite(value.value)]
    if not candidates:
        raise RequestError(f"no step has both {config.name!r} and {config.best_by!r}")
    is_lower_better = MetricConfig(name=config.best_by or config.name, goal=config.goal).is_lower_better
    best = (min if is_lower_better else max)(candidates, key=lambda value: value.value)
    return by_step[best.step]


REDUCTIONS: dict[Reduction, Callable[[list[MetricValue], MetricConfig, list[MetricValue] | None], float]] = {
    "last": _take_last,
    "best": _take_best,
    "mean": _take_mean,
}


class ExampleScores(NamedTuple):
    """Per-example scores of one run."""

    examples: tuple[str, ...]
    totals: tuple[float, ...]
    weights: tuple[float, ...]
    documents: tuple[str, ...]


def read_examples(path: Path) -> ExampleScores:
    """Read per-example scores from the columns example and score and, optionally, weight (default 1) and document.

    A score is a mean per unit of weight, such as the loss per token for an example with `weight` tokens.
    """
    try:
        with path.open(newline="") as lines:
            rows = (
                list(csv.DictReader(lines))
                if path.suffix == ".csv"
                else [json.loads(line) for line in lines if line.strip()]
            )
        names = tuple(str(row.get("example", index)) for index, row in enumerate(rows))
        weights = tuple(float(row.get("weight") or 1.0) for row in rows)
        totals = tuple(float(row["score"]) * weight for row, weight in zip(rows, weights, strict=True))
        has_documents = bool(rows) and all(row.get("document") not in (None, "") for row in rows)
        documents = tuple(str(row["document"]) for row in rows) if has_documents else ()
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{path}: not a table of example, score, weight and document: {error}") from None
    if not rows:
        raise RequestError(f"{path}: no examples")
    return ExampleScores(names, totals, weights, documents)


def join_examples(by_seed: Mapping[int, ExampleScores]) -> Scores:
    """Combine the per-example scores of a variant's runs, all of which must have the same examples."""
    first = next(iter(by_seed.values()))
    for seed, scores in by_seed.items():
        if scores._replace(totals=()) != first._replace(totals=()):
            raise RequestError(f"seed {seed} has other examples, weights or documents than seed {next(iter(by_seed))}")
    totals = np.array([scores.totals for scores in by_seed.values()])
    return Scores(tuple(by_seed), totals, np.array(first.weights), first.examples, first.documents)
