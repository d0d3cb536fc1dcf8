"""The base class of all files in a run folder, and functions that read, validate and write them.

Run folders may have been written or edited by anyone. Each file is validated against its model when it is read, and an
invalid file is rejected with the location of its first error. Contradictions between files, which no single model can
detect, are translated by `translate_inconsistent_files_error`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from headtohead.errors import RunFolderError, truncate_text
from headtohead.json_files import read_json_object, read_jsonl, write_json
from headtohead.verdict.record import NullableFloat

SCHEMA_VERSION: Literal[2] = 2
RecordT = TypeVar("RecordT")
NonNegativeInt = Annotated[int, Field(ge=0)]
Number = int | float
Interval = Annotated[tuple[float, float], Field(strict=False)]
"""lower and upper bound"""
Pair = Annotated[tuple[Number, Number], Field(strict=False)]
"""the baseline's value and the variant's value"""
SeedScore = Annotated[tuple[int, NullableFloat], Field(strict=False)]
"""seed and score; null where the score is not finite"""
StepScore = Annotated[tuple[int, float | None], Field(strict=False)]
"""step and score; null where the score was not finite"""
MetricName = Literal["perplexity", "accuracy"]
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
"""exceptions raised when files that are valid one by one contradict each other"""
MAX_PATH_LENGTH = 200
SEED_FOLDER_PATTERN = re.compile(r"seed-(0|[1-9]\d{0,17})")


class Record(BaseModel):
    """A JSON object of a run folder: immutable, without type coercion; unknown keys are ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the record as plain JSON values."""
        return self.model_dump(mode="json")


class VersionedRecord(Record):
    """A file with a schema version."""

    schema_version: Literal[2] = SCHEMA_VERSION
    """version of the run folder format"""


@cache
def _get_type_adapter(schema: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", schema))


def read_record(path: Path, schema: type[RecordT]) -> RecordT:
    """Read a JSON file and validate it against a model."""
    return validate_record(read_json_object(path), schema, path)


def read_record_lines(path: Path, schema: type[RecordT]) -> list[RecordT]:
    """Read a JSONL file and validate every line against a model."""
    return validate_record(read_jsonl(path), list[schema], path)  # type: ignore[valid-type]


def validate_record(value: object, schema: type[RecordT], path: Path | str) -> RecordT:
    """Build the record of a schema from plain JSON values; raise RunFolderError if they do not match."""
    check_schema_version(value, path)
    try:
        return cast("RecordT", _get_type_adapter(cast("Hashable", schema)).validate_python(value))
    except ValidationError as error:
        raise RunFolderError(
            f"{path} is corrupted or not a run folder file: {_format_validation_error(error)}"
        ) from None


def check_schema_version(value: object, path: Path | str) -> None:
    """Raise RunFolderError for a file with the schema of another version of the package."""
    if not isinstance(value, dict):
        return
    if "schema_version" not in value and "schema" in value:
        raise RunFolderError(
            f"{path} was written by Head to Head 0.1 (schema {truncate_text(repr(value['schema']), 20)}), which this "
            f"version (schema {SCHEMA_VERSION}) cannot read; run the experiment again"
        )
    if (version := value.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema version {truncate_text(repr(version), 20)}, and this version of Head to Head reads "
            f"{SCHEMA_VERSION}; install the version that wrote it, or run the experiment again"
        )


def write_record(path: Path, record: Record, *, fsync: bool = False, with_checksum: bool = False) -> None:
    """Write a record as JSON, atomically; `with_checksum` adds a checksum of its content."""
    write_json(path, record.to_json(), fsync=fsync, with_checksum=with_checksum)


def _format_validation_error(error: ValidationError) -> str:
    """Return the location and message of the first violation of a file's schema, and the number of further ones."""
    first_error = error.errors(include_url=False)[0]
    message = first_error["msg"]
    location = ".".join(map(str, first_error["loc"])) or "the file"
    further_errors = f"; and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{truncate_text(location, 200)}: {message[:1].lower()}{truncate_text(message[1:], 200)}{further_errors}"


@contextmanager
def translate_inconsistent_files_error(folder: Path) -> Iterator[None]:
    """Raise RunFolderError if files of a run folder match their schemas, but contradict each other.

    Each file is valid according to its schema, so the contradiction shows only when results are computed from several.
    """
    try:
        yield
    except INCONSISTENT_DATA_ERRORS as error:
        raise RunFolderError(
            f"{folder}: its files contradict each other ({type(error).__name__}: {truncate_text(str(error), 200)}); "
            "`h2h verify` lists the files that were changed"
        ) from error


def is_safe_relative_path(name: str) -> bool:
    """Return whether a relative path cannot leave the folder it is resolved in."""
    path = PurePosixPath(name)
    is_plain = bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return is_plain and len(name) <= MAX_PATH_LENGTH
