"""Parse a metric from what a training script writes: printed text, JSON, JSONL and CSV files, TensorBoard and W&B logs.

Every reader returns the metric's values in the order in which the script reported them, each with its step.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headtohead.errors import MissingExtraError, RequestError
from headtohead.versus.config import MetricConfig

NUMBER_PATTERN = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
    r"(?!\w|\.\w|,\d)"
)
"""a number that is not part of a word, a version or a list; groups of thousands may be separated by commas"""
THOUSANDS_PATTERN = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
STEP_PATTERNS = tuple(
    re.compile(rf"(?<![\w/]){name}s?\b\W{{0,3}}(\d[\d,_]*)", re.IGNORECASE)
    for name in ("global[_ ]?step", "step", "iter(?:ation)?", "epoch")
)
"""the step that a line states, the most precise first"""
SPLIT_PATTERN = re.compile(
    r"(?<![a-z])(?:(train(?:ing)?)|(val|valid|validation|eval|evaluation|dev)|(test(?:ing)?))(?![a-z])", re.IGNORECASE
)
SPLIT_NAMES = ("train", "validation", "test")
"""what the groups of SPLIT_PATTERN stand for"""
STEP_KEYS = ("step", "global_step", "iteration", "iter", "epoch", "_step")
MAX_FILE_BYTES = 2**28
MAX_LINE_CHARACTERS = 120


class MetricValue(NamedTuple):
    """One reported value.

    `step` is its position in the list if the script does not report a step. `split` is one of SPLIT_NAMES if the
    metric's name does not tell: "val loss 1.23" is the metric `loss` on the validation split, "loss 1.23" on train.
    """

    step: int
    value: float
    split: str = ""


def build_output_pattern(name: str) -> re.Pattern[str]:
    """Return a regular expression that finds a metric in a command's output.

    It matches `name=1.23`, `name: 1.23`, `"name": 1.23`, `name 1.23` and tables. Underscores in the name also match
    spaces and hyphens, so `val_loss` matches "val loss 1.23".
    """
    name_pattern = r"[_ -]".join(re.escape(word) for word in re.split(r"[_ -]", name))
    return re.compile(
        rf"(?<![\w./-])[\"']?{name_pattern}[\"']?\s*(?:[=:|│┃]\s*|\s)[\"']?({NUMBER_PATTERN})", re.IGNORECASE
    )


def read_metric_from_output(output: str, name: str, pattern: str | None = None) -> list[MetricValue]:
    """Return the values of a metric in a command's output. The step is that of the same line, if the line states one.

    Raise RequestError if the lines name different splits and the metric's name does not tell which of them is meant.
    """
    value_pattern = re.compile(pattern) if pattern is not None else build_output_pattern(name)
    is_split_known = pattern is not None or SPLIT_PATTERN.search(name) is not None
    values: list[MetricValue] = []
    first_line_by_split: dict[str, str] = {}
    for line in output.splitlines():
        for match in value_pattern.finditer(line):
            number = parse_number(match.group(1))
            if number is None:
                continue
            split = "" if is_split_known else find_split_in_text(line[: match.start()])
            values.append(MetricValue(find_step_in_line(line, default=len(values)), number, split))
            first_line_by_split.setdefault(split, line.strip())
    if len(first_line_by_split) > 1:
        listed = "".join(f"\n  {split}: {line[:MAX_LINE_CHARACTERS]}" for split, line in first_line_by_split.items())
        raise RequestError(
            f"{name!r} is ambiguous, because the output reports it for several splits:{listed}\n"
            "Name the metric as the output writes it, such as 'val loss', or match it with --metric-pattern"
        )
    return values


def find_split_in_text(text: str) -> str:
    """Return the last split that a text names, or train if it names none."""
    *_, index = [1, *(match.lastindex or 1 for match in SPLIT_PATTERN.finditer(text))]
    return SPLIT_NAMES[index - 1]


def find_step_in_line(line: str, default: int) -> int:
    """Return the step that a line states, or the default."""
    match = next((match for pattern in STEP_PATTERNS if (match := pattern.search(line))), None)
    return int(re.sub(r"\D", "", match.group(1))) if match else default


def list_metric_names_in_output(output: str) -> list[str]:
    """Return the names that precede a number in a command's output, most frequent first, to suggest one of them."""
    names = re.findall(
        rf"([A-Za-z][\w./@-]*(?: [A-Za-z][\w./@-]*)?)[\"']?(?:\s*[=:|]\s*|\s+)[\"']?{NUMBER_PATTERN}",
        output,
        re.IGNORECASE,
    )
    return [name for name, _ in Counter(names).most_common()]


def parse_number(value: object) -> float | None:
    """Return the metric value that a script wrote as a number, or None if it is not numeric."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and THOUSANDS_PATTERN.fullmatch(value):
        value = value.replace(",", "")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def flatten_json(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted metric name, leaf) for each leaf of a JSON value that a script wrote."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten_json(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _read_metric_from_rows(rows: Iterable[Mapping[str, object]], name: str) -> list[MetricValue]:
    """Return a metric's values from the rows of a table, such as the lines of a JSONL file."""
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
    content = json.loads(path.read_text())
    if isinstance(content, list):
        return _read_metric_from_rows((dict(flatten_json(row)) for row in content), name)
    metric = dict(flatten_json(content)).get(name)
    reported_values = metric if isinstance(metric, list) else [metric]
    numbers = [number for value in reported_values if (number := parse_number(value)) is not None]
    return [MetricValue(index, number) for index, number in enumerate(numbers)]


def _read_jsonl_file(path: Path, name: str) -> list[MetricValue]:
    with path.open() as lines:
        return _read_metric_from_rows((dict(flatten_json(json.loads(line))) for line in lines if line.strip()), name)


def _read_csv_file(path: Path, name: str) -> list[MetricValue]:
    with path.open(newline="") as lines:
        return _read_metric_from_rows(csv.DictReader(lines), name)


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
    return _read_metric_from_rows(rows, name)


def _read_trackio(folder: Path, name: str) -> list[MetricValue]:
    """Read a metric from Trackio databases."""
    import sqlite3

    rows: list[dict[str, object]] = []
    for path in sorted(folder.rglob("*.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            lines = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
        rows += [{"step": step, **json.loads(metrics)} for step, metrics in lines]
    return _read_metric_from_rows(rows, name)


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


def read_metric_from_file(path: Path, name: str) -> list[MetricValue]:
    """Return a metric's values from a file or folder that the script wrote. Raise RequestError if it cannot be read."""
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


def read_metric_values(config: MetricConfig, name: str, output: str, metric_file: Path | None) -> list[MetricValue]:
    """Return a metric's values from the configured file or, if there is none, from the command's output."""
    if metric_file is not None:
        return read_metric_from_file(metric_file, name)
    return read_metric_from_output(output, name, config.pattern if name == config.name else None)
