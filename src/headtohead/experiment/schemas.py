"""What files of a run folder must hold for those who read them. A folder may have been made, or edited, by anybody.

Only what is read is named here; more may stand beside it. A file of another shape is refused with the place in it. What
a single file cannot show, figures that are missing or do not agree with each other, is caught by `agreeing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from headtohead.atomic_io import read_json, read_jsonl
from headtohead.errors import RunFolderError, truncate_text

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
NonNegativeInt = Annotated[int, Field(ge=0)]
MetricName = Literal["perplexity", "accuracy"]
ModelT = TypeVar("ModelT", bound=BaseModel)
INCONSISTENT_DATA_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
)
"""what becomes of figures that do not agree with each other"""


class ExperimentFile(TypedDict):
    """experiment.json"""

    schema: int
    identity: str
    experiment: dict[str, Any]
    versions: NotRequired[dict[str, str]]
    command: NotRequired[list[str]]


class TrialFile(TypedDict):
    """trial.json"""

    identity: str
    trial: dict[str, Any]


class StartFile(TypedDict):
    """start.json"""

    tensors: NotRequired[dict[str, str]]
    schedule: NotRequired[str]
    steps: NotRequired[NonNegativeInt]
    steps_per_epoch: NotRequired[NonNegativeInt]
    parameters: NotRequired[NonNegativeInt]
    flops_per_token: NotRequired[NonNegativeInt]
    weights_bytes: NotRequired[NonNegativeInt]
    device: NotRequired[str]


class TrainingSummary(TypedDict):
    """How a training went."""

    seconds: FiniteFloat
    seconds_per_step: FiniteFloat
    peak_memory: NonNegativeInt
    last_loss: FiniteFloat | None
    chosen_step: NonNegativeInt


class ResultFile(TypedDict):
    """result.json"""

    metric: NotRequired[MetricName]
    scores: NotRequired[dict[str, dict[str, FiniteFloat]]]
    trained: NotRequired[TrainingSummary]
    sha256: NotRequired[dict[str, str]]


class MetricsLine(TypedDict):
    """A line of metrics.jsonl; a loss may have run away."""

    step: NonNegativeInt
    split: str
    loss: float


class FailureFile(TypedDict):
    """failure.json"""

    message: str
    kind: NotRequired[str]


class SampleRecord(TypedDict):
    """A prompt and how it was continued."""

    prompt: str
    text: str


class ProbesFile(TypedDict):
    """probes.json"""

    samples: NotRequired[list[SampleRecord]]
    sentences: NotRequired[dict[str, dict[str, Any]]]


class LengthResult(TypedDict):
    """How a model does on inputs of another length."""

    context: NonNegativeInt
    split: NotRequired[str]
    error: NotRequired[str]
    loss: NotRequired[FiniteFloat]
    accuracy: NotRequired[FiniteFloat]
    count: NotRequired[FiniteFloat]
    seconds_per_1000_tokens: NotRequired[FiniteFloat]


class LengthGeneralizationFile(TypedDict):
    """lengths.json"""

    contexts: NotRequired[list[LengthResult]]
    costs: NotRequired[list[dict[str, Any]]]


class AuditRecord(TypedDict):
    """What one audit found."""

    name: str
    passed: bool | None
    procedure: str
    observation: str
    interpretation: str
    is_blocking: bool
    failure_reason: str


class AuditsFile(TypedDict):
    """audits.json"""

    audits: list[AuditRecord]


class SplitRecord(TypedDict):
    """One text of the corpus."""

    role: str
    rows: NonNegativeInt
    tokens: NonNegativeInt
    bytes: NonNegativeInt
    unknown: FiniteFloat


class CorpusFile(TypedDict):
    """corpus.json"""

    origin: str
    digest: str
    labels: list[str]
    splits: dict[str, SplitRecord]
    audits: list[AuditRecord]
    unseen: dict[str, list[NonNegativeInt]]


class HeadEntry(TypedDict):
    """What one head does."""

    layer: Annotated[int, Field(ge=1)]
    head: Annotated[int, Field(ge=1)]


class AttentionFile(TypedDict):
    """attention.json"""

    split: str
    rows: NonNegativeInt
    heads: list[HeadEntry]


class AttentionMapsFile(TypedDict):
    """maps.json"""

    text: str
    tokens: list[str]


class ModelConfigFile(TypedDict):
    """config.json of a model of ours"""

    trial: dict[str, Any]
    id2label: dict[str, str]
    vocab_size: Annotated[int, Field(ge=1, le=2**31)]


class SearchStartEvent(TypedDict):
    """The first line of a search's journal."""

    identity: str


class PointEvent(TypedDict):
    """A cell with its settings."""

    cell: NonNegativeInt
    settings: dict[str, Any]


class PruningRecord(TypedDict):
    """Why a cell was given up, and nothing else."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    behind: FiniteFloat
    bound: FiniteFloat
    seeds: NonNegativeInt


class PrunedEvent(TypedDict):
    """A cell that gets no more seeds."""

    cell: NonNegativeInt
    why: PruningRecord


class TrialEvent(TypedDict):
    """A trial that is over."""

    seconds: FiniteFloat


class WinnerEvent(TypedDict):
    """The winner."""

    cell: NonNegativeInt
    budget: dict[str, Any] | None


EVENT_SCHEMAS: dict[str, Any] = {
    "search": SearchStartEvent,
    "cell": PointEvent,
    "pruned": PrunedEvent,
    "trial": TrialEvent,
    "winner": WinnerEvent,
}
"""what a line of a journal must hold, by its event"""


class TeacherCacheFile(TypedDict):
    """teacher.json of a cache"""

    name: str
    digest: str
    settings: dict[str, Any]


class TeacherTextLine(TypedDict):
    """A line of texts.jsonl"""

    key: str


class LogitsBlockLine(TypedDict):
    """A line of logits.jsonl: where a block begins, in bytes, and how many positions it has."""

    key: str
    at: NonNegativeInt
    positions: NonNegativeInt


@cache
def _get_type_adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def read_validated(path: Path, schema: Any) -> Any:
    """A JSON file of this shape, as plain data."""
    return validate(read_json(path), schema, path)


def read_validated_lines(path: Path, schema: Any) -> list[dict[str, Any]]:
    """A JSONL file of which every line has this shape."""
    return [validate(line, schema, path) for line in read_jsonl(path)]


def validate(value: Any, schema: Any, path: Path) -> Any:
    """The same data, if it has this shape."""
    try:
        _get_type_adapter(schema).validate_python(value, strict=True)
    except ValidationError as error:
        raise RunFolderError(f"{path}: is damaged, or not one of ours ({_format_validation_error(error)})") from None
    return value


def parse_settings(model: type[ModelT], value: Any, path: Path) -> ModelT:
    """Settings out of a run folder."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RunFolderError(
            f"{path}: holds settings that this version does not read ({_format_validation_error(error)})"
        ) from None


def _format_validation_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the file"
    more = f"; and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{truncate_text(place, 200)}: {first['msg'][:1].lower()}{truncate_text(first['msg'][1:], 200)}{more}"


@contextmanager
def report_inconsistent_data(path: Path) -> Iterator[None]:
    """Inside, files of a run folder are reckoned with, each of which is sound by itself."""
    try:
        yield
    except INCONSISTENT_DATA_ERRORS as error:
        raise RunFolderError(
            f"{path}: what is in it does not agree with itself ({type(error).__name__}: {truncate_text(str(error), 200)}); "  # noqa: E501
            "`h2h verify` names the files that were changed"
        ) from error


def is_safe_relative_path(name: str) -> bool:
    """A name that cannot lead out of the folder that it is looked for in."""
    path = PurePosixPath(name)
    plain = bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return plain and len(name) <= MAX_PATH_LENGTH


MAX_PATH_LENGTH = 200
SEED_FOLDER_PATTERN = re.compile(r"seed-(0|[1-9]\d{0,17})")
