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

from headtohead.atomic_io import read_json, read_lines
from headtohead.errors import RunFolderError, short

Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
Metric = Literal["perplexity", "accuracy"]
M = TypeVar("M", bound=BaseModel)
ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError, MemoryError)
"""what becomes of figures that do not agree with each other"""


class About(TypedDict):
    """experiment.json"""

    schema: int
    identity: str
    experiment: dict[str, Any]
    versions: NotRequired[dict[str, str]]
    command: NotRequired[list[str]]


class OfTrial(TypedDict):
    """trial.json"""

    identity: str
    trial: dict[str, Any]


class Start(TypedDict):
    """start.json"""

    tensors: NotRequired[dict[str, str]]
    schedule: NotRequired[str]
    steps: NotRequired[Whole]
    steps_per_epoch: NotRequired[Whole]
    parameters: NotRequired[Whole]
    flops_per_token: NotRequired[Whole]
    weights_bytes: NotRequired[Whole]
    device: NotRequired[str]


class Trained(TypedDict):
    """How a training went."""

    seconds: Number
    seconds_per_step: Number
    peak_memory: Whole
    last_loss: Number | None
    chosen_step: Whole


class Result(TypedDict):
    """result.json"""

    metric: NotRequired[Metric]
    scores: NotRequired[dict[str, dict[str, Number]]]
    trained: NotRequired[Trained]
    sha256: NotRequired[dict[str, str]]


class Line(TypedDict):
    """A line of metrics.jsonl; a loss may have run away."""

    step: Whole
    split: str
    loss: float


class Failure(TypedDict):
    """failure.json"""

    message: str
    kind: NotRequired[str]


class Sample(TypedDict):
    """A prompt and how it was continued."""

    prompt: str
    text: str


class Probes(TypedDict):
    """probes.json"""

    samples: NotRequired[list[Sample]]
    sentences: NotRequired[dict[str, dict[str, Any]]]


class OtherLength(TypedDict):
    """How a model does on inputs of another length."""

    context: Whole
    split: NotRequired[str]
    error: NotRequired[str]
    loss: NotRequired[Number]
    accuracy: NotRequired[Number]
    count: NotRequired[Number]
    seconds_per_1000_tokens: NotRequired[Number]


class Lengths(TypedDict):
    """lengths.json"""

    contexts: NotRequired[list[OtherLength]]
    costs: NotRequired[list[dict[str, Any]]]


class Audit(TypedDict):
    """What one audit found."""

    name: str
    passed: bool | None
    tried: str
    found: str
    meaning: str
    serious: bool
    reason: str


class Audits(TypedDict):
    """audits.json"""

    audits: list[Audit]


class SplitAbout(TypedDict):
    """One text of the corpus."""

    role: str
    rows: Whole
    tokens: Whole
    bytes: Whole
    unknown: Number


class CorpusAbout(TypedDict):
    """corpus.json"""

    origin: str
    digest: str
    labels: list[str]
    splits: dict[str, SplitAbout]
    audits: list[Audit]
    unseen: dict[str, list[Whole]]


class HeadAbout(TypedDict):
    """What one head does."""

    layer: Annotated[int, Field(ge=1)]
    head: Annotated[int, Field(ge=1)]


class AttentionAbout(TypedDict):
    """attention.json"""

    split: str
    rows: Whole
    heads: list[HeadAbout]


class MapsAbout(TypedDict):
    """maps.json"""

    text: str
    tokens: list[str]


class Saved(TypedDict):
    """config.json of a model of ours"""

    trial: dict[str, Any]
    id2label: dict[str, str]
    vocab_size: Annotated[int, Field(ge=1, le=2**31)]


class Searched(TypedDict):
    """The first line of a search's journal."""

    identity: str


class Chosen(TypedDict):
    """A cell with its settings."""

    cell: Whole
    settings: dict[str, Any]


class Why(TypedDict):
    """Why a cell was given up, and nothing else."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    behind: Number
    bound: Number
    seeds: Whole


class GivenUp(TypedDict):
    """A cell that gets no more seeds."""

    cell: Whole
    why: Why


class Tried(TypedDict):
    """A trial that is over."""

    seconds: Number


class Won(TypedDict):
    """The winner."""

    cell: Whole
    budget: dict[str, Any] | None


EVENTS: dict[str, Any] = {"search": Searched, "cell": Chosen, "pruned": GivenUp, "trial": Tried, "winner": Won}
"""what a line of a journal must hold, by its event"""


class Teacher(TypedDict):
    """teacher.json of a cache"""

    name: str
    digest: str
    settings: dict[str, Any]


class Text(TypedDict):
    """A line of texts.jsonl"""

    key: str


class Block(TypedDict):
    """A line of logits.jsonl: where a block begins, in bytes, and how many positions it has."""

    key: str
    at: Whole
    positions: Whole


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def read(path: Path, shape: Any) -> Any:
    """A JSON file of this shape, as plain data."""
    return checked(read_json(path), shape, path)


def lines(path: Path, shape: Any) -> list[dict[str, Any]]:
    """A JSONL file of which every line has this shape."""
    return [checked(line, shape, path) for line in read_lines(path)]


def checked(value: Any, shape: Any, path: Path) -> Any:
    """The same data, if it has this shape."""
    try:
        _adapter(shape).validate_python(value, strict=True)
    except ValidationError as error:
        raise RunFolderError(f"{path}: is damaged, or not one of ours ({_said(error)})") from None
    return value


def made(model: type[M], value: Any, path: Path) -> M:
    """Settings out of a run folder."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RunFolderError(f"{path}: holds settings that this version does not read ({_said(error)})") from None


def _said(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the file"
    more = f"; and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{short(place, 200)}: {first['msg'][:1].lower()}{short(first['msg'][1:], 200)}{more}"


@contextmanager
def agreeing(place: Path) -> Iterator[None]:
    """Inside, files of a run folder are reckoned with, each of which is sound by itself."""
    try:
        yield
    except ODD as error:
        raise RunFolderError(
            f"{place}: what is in it does not agree with itself ({type(error).__name__}: {short(str(error), 200)}); "
            "`h2h verify` names the files that were changed"
        ) from error


def is_inside(name: str) -> bool:
    """A name that cannot lead out of the folder that it is looked for in."""
    path = PurePosixPath(name)
    plain = bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return plain and len(name) <= LONGEST_NAME


LONGEST_NAME = 200
SEED = re.compile(r"seed-(0|[1-9]\d{0,17})")
