"""The journal of an experiment: settings, runs, analyses and search decisions, in the order in which they happened.

The file is append-only. Each line's checksum also covers the checksum of the previous line, so an edited, inserted
or removed line is detected. An incomplete last line, left by a killed process, is ignored and removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headtohead.atomic_io import compute_sha256
from headtohead.errors import RunFolderError
from headtohead.experiment.schemas import JournalEvent, Record, RunEvent, validate_record
from headtohead.json_files import CHECKSUM_KEY, append_jsonl, compute_json_checksum, read_jsonl, repair_jsonl

JOURNAL_FILE = "journal.jsonl"
RESULT_KEYS = ("experiment", "corpus_digests", "dependencies")
"""keys of experiment.json that results depend on"""


def compute_settings_digest(experiment_json: dict[str, Any]) -> str:
    """Return the SHA-256 of what results depend on in the content of experiment.json, for the journal."""
    return compute_json_checksum({key: experiment_json.get(key) for key in RESULT_KEYS})


@dataclass
class Journal:
    """The journal.jsonl in an experiment's folder. Only the process that has locked the folder appends to it."""

    folder: Path
    _file_size: int | None = field(default=None, init=False)
    """size after the last append of this process, in bytes"""
    _last_checksum: str = field(default="", init=False)

    @property
    def path(self) -> Path:
        return self.folder / JOURNAL_FILE

    def read(self) -> list[JournalEvent]:
        """Return all events, or an empty list without a file. Raise RunFolderError at the first modified line."""
        return [event for event, _ in self._read_lines()]

    def append(self, event: Record) -> None:
        """Append an event and wait until it has reached the disk."""
        if not self.path.is_file() or self.path.stat().st_size != self._file_size:
            self.folder.mkdir(parents=True, exist_ok=True)
            repair_jsonl(self.path)
            lines = self._read_lines()
            self._last_checksum = lines[-1][1] if lines else ""
        line = event.to_json()
        self._last_checksum = compute_json_checksum(line, self._last_checksum)
        append_jsonl(self.path, {**line, CHECKSUM_KEY: self._last_checksum}, fsync=True)
        self._file_size = self.path.stat().st_size

    def append_new(self, event: Record) -> None:
        """Append an event, unless it equals the last event of the same type."""
        if [earlier for earlier in self.read() if type(earlier) is type(event)][-1:] != [event]:
            self.append(event)

    def record_finished(self, variant: str, seed: int, run_folder: Path) -> None:
        """Record that a run has finished, together with a digest of its result."""
        digest = compute_sha256(run_folder / "result.json")
        self.append(RunEvent(status="finished", variant=variant, seed=seed, digest=digest))

    def _read_lines(self) -> list[tuple[JournalEvent, str]]:
        """Return the events, each with the checksum of its line."""
        lines: list[tuple[JournalEvent, str]] = []
        checksum = ""
        for line_number, line in enumerate(read_jsonl(self.path), start=1):
            location = f"{self.path}, line {line_number}"
            event: JournalEvent = validate_record(line, JournalEvent, location)  # type: ignore[arg-type]
            checksum = compute_json_checksum(line, checksum)
            if line.get(CHECKSUM_KEY) != checksum:
                raise RunFolderError(
                    f"{location} is corrupted: checksum mismatch; the line was edited, or lines before it were added, "
                    "removed or reordered"
                )
            lines.append((event, checksum))
        return lines
