"""Record the files that user code opens during a trial, and find those that contain text of held-out splits.

An audit hook of the interpreter reports every file that Python opens, under whatever name it was computed. Files that
native code opens, such as safetensors, are not reported; `find_data_files` finds them if the code names them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from headtohead.audit.result import CheckResult
from headtohead.audit.user_code import LIBRARY_PREFIXES, PACKAGE_FOLDER
from headtohead.data.splits import Corpus, select_evenly_spaced

OPENED_FILES_CHECK = "opened-files"
NO_FILE_OPENED = "reads no file"
IGNORED_SUFFIXES = (".py", ".pyc", ".so")
IGNORED_FOLDERS = ("/proc/", "/sys/", "/dev/")
NUM_SAMPLED_ROWS = 20
MIN_SAMPLED_ROWS = 3
MIN_ROW_CHARACTERS = 20
MAX_CONTAINED_SHARE = 0.5
"""share of a split's sampled rows above which a file that contains them contains the split"""
MAX_READ_BYTES = 1 << 28
MAX_LISTED_FILES = 3


@dataclass
class _OpenedFilesRecorder:
    """The files that user code has opened for reading in this process."""

    is_active: bool = False
    opened_paths: set[str] = field(default_factory=set)
    paths_opened_on_import: dict[str, set[str]] = field(default_factory=dict)
    """paths opened while a module was imported, which happens once per process, by the name of the module's file"""

    def record_opened_file(self, event: str, event_arguments: tuple[object, ...]) -> None:
        """Record the file of an "open" event if user code opened it for reading. Called as an audit hook."""
        if event != "open" or not self.is_active:
            return
        file_name, mode = event_arguments[0], event_arguments[1]
        if not isinstance(file_name, (str, bytes)) or (isinstance(mode, str) and not {"r", "+"} & set(mode)):
            return
        path = os.path.realpath(os.fsdecode(file_name))
        if path.endswith(IGNORED_SUFFIXES) or path.startswith((*LIBRARY_PREFIXES, *IGNORED_FOLDERS)):
            return
        for code_file, function in _iter_user_frames(sys._getframe(1)):
            if function == "<module>":
                self.paths_opened_on_import.setdefault(Path(code_file).name, set()).add(path)
            else:
                self.opened_paths.add(path)


_recorder = _OpenedFilesRecorder()
_is_hook_installed = False


def _iter_user_frames(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """Yield the file and function of each frame of user code that may have opened a file, innermost first."""
    while frame is not None:
        code_file = frame.f_code.co_filename
        if code_file.startswith(str(PACKAGE_FOLDER)) and code_file != __file__:
            return
        if not code_file.startswith(("<", *LIBRARY_PREFIXES)):
            yield code_file, frame.f_code.co_name
        frame = frame.f_back


@contextmanager
def record_opened_files() -> Iterator[None]:
    """Record the files that user code opens while the context is active."""
    global _is_hook_installed
    if not _is_hook_installed:  # an audit hook cannot be removed
        sys.addaudithook(_recorder.record_opened_file)
        _is_hook_installed = True
    _recorder.opened_paths.clear()
    _recorder.is_active = True
    try:
        yield
    finally:
        _recorder.is_active = False


def list_opened_files(code_files: Iterable[Path]) -> list[Path]:
    """Return the files that user code opened in the latest context, and those that its modules opened on import."""
    paths = set(_recorder.opened_paths)
    for code_file in code_files:
        paths |= _recorder.paths_opened_on_import.get(code_file.name, set())
    return [Path(path) for path in sorted(paths)]


def check_opened_files(opened_files: Sequence[Path], corpus: Corpus) -> CheckResult:
    """Check that no file that user code opened contains rows of the validation and test splits."""
    sampled_rows = {
        split.name: list(_sample_rows(split.rows)) for split in corpus.splits.values() if split.role != "train"
    }
    leaks = {path: splits for path in opened_files if (splits := _find_contained_splits(path, sampled_rows))}
    listed = ", ".join(map(str, opened_files[:MAX_LISTED_FILES]))
    more = f" and {len(opened_files) - MAX_LISTED_FILES} more" if len(opened_files) > MAX_LISTED_FILES else ""
    return CheckResult(
        OPENED_FILES_CHECK,
        not leaks,
        "Recorded the files that the code opened during the trial, and searched them for rows of the validation and "
        "test splits.",
        f"reads {listed}{more}" if opened_files else NO_FILE_OPENED,
        "Scores of text that the code has read are not scores of new text." if leaks else "",
        is_blocking=True,
        failure_reason="; ".join(
            f"reads {path}, which contains text of {', '.join(splits)}" for path, splits in leaks.items()
        ),
    )


def _sample_rows(rows: Sequence[str]) -> Iterator[bytes]:
    """Yield evenly spaced rows of a split, encoded as in a file, to look for them in the opened files."""
    for index in select_evenly_spaced(len(rows), 4 * NUM_SAMPLED_ROWS):
        row = rows[index].strip()
        if len(row) >= MIN_ROW_CHARACTERS:
            yield row.encode()


def _find_contained_splits(path: Path, sampled_rows: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Return the names of the splits of which most sampled rows occur in an opened file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_READ_BYTES)
    except OSError:
        return []
    return [
        split_name
        for split_name, rows in sampled_rows.items()
        if len(rows) >= MIN_SAMPLED_ROWS and sum(row in content for row in rows) > MAX_CONTAINED_SHARE * len(rows)
    ]
