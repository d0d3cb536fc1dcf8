"""The state of a metric file before a run, which shows whether the run overwrote the values of earlier runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from headtohead.errors import RequestError


class MetricFileState(NamedTuple):
    """A file or folder with the metric as it was before a run, which has to overwrite it."""

    modified_time_ns: int
    size_bytes: int
    digest: str

    @classmethod
    def read(cls, path: Path) -> MetricFileState | None:
        """Return the state of a metric file, or None if it does not exist."""
        if not path.exists():
            return None
        status = path.stat()
        return cls(status.st_mtime_ns, status.st_size, _hash_first_bytes(path, status.st_size))

    def check_overwritten(self, path: Path) -> None:
        """Raise RequestError if the run did not modify the metric file, or only appended values to it."""
        status = path.stat()
        is_appended = status.st_size > self.size_bytes and _hash_first_bytes(path, self.size_bytes) == self.digest
        if path.is_dir() or is_appended:
            problem = "still holds the values of earlier runs"
        elif status.st_mtime_ns == self.modified_time_ns:
            problem = "was not written by this run"
        else:
            return
        raise RequestError(f"{path} {problem}; write the metric to a file in {{out}}, or print it")


def _hash_first_bytes(path: Path, num_bytes: int) -> str:
    """Return the SHA-256 of the first bytes of a metric file, or an empty string for a folder."""
    if path.is_dir():
        return ""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(num_bytes)).hexdigest()
