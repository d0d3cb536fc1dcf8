"""Record the files that user code reads during a trial, and find those that contain text of held-out splits.

An audit hook of the interpreter reports every file that Python opens, under whatever name it was computed, also if the
code imports it, opens it with a function of this package, or passes it to SQLite or to another program. Files that
other native code opens, such as safetensors, are not reported; `find_data_files` finds them if the code names them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import source_from_cache
from pathlib import Path
from types import CodeType, FrameType

from headtohead.atomic_io import compute_sha256
from headtohead.audit.result import CheckResult
from headtohead.audit.user_code import LIBRARY_PREFIXES
from headtohead.data.splits import Corpus, select_evenly_spaced
from headtohead.errors import RunFolderError

OPENED_FILES_CHECK = "opened-files"
NO_FILE_OPENED = "reads no file"
PROGRAM_EVENTS = frozenset({"subprocess.Popen", "os.system"})
FILE_EVENTS = PROGRAM_EVENTS | {"open", "sqlite3.connect"}
"""events of the interpreter that name files that are opened"""
IGNORED_FOLDERS = ("/proc/", "/sys/", "/dev/", "/usr/bin/")
NUM_SAMPLED_ROWS = 20
MIN_SAMPLED_ROWS = 3
MIN_ROW_CHARACTERS = 20
MAX_CONTAINED_SHARE = 0.5
"""share of a split's sampled rows above which a file that contains them contains the split"""
MAX_READ_BYTES = 1 << 28
MAX_LISTED_FILES = 3


@dataclass
class _OpenedFilesRecorder:
    """The files that user code has opened in this process."""

    is_active: bool = False
    entry_code: CodeType | None = None
    """code of the function that started recording; its callers are not user code of the trial"""
    read_paths: set[str] = field(default_factory=set)
    written_paths: set[str] = field(default_factory=set)
    paths_read_on_import: dict[str, set[str]] = field(default_factory=dict)
    """paths read while a module was imported, which happens once per process, by the name of the module's file"""

    def record_event(self, event: str, event_arguments: tuple[object, ...]) -> None:
        """Record the files of an event if user code caused it. Called as an audit hook."""
        if not self.is_active or event not in FILE_EVENTS:
            return
        is_writing = event == "open" and _opens_for_writing(event_arguments)
        paths = set(_iter_file_arguments(event, event_arguments))
        if not paths:
            return
        if event == "subprocess.Popen" and _is_started_by_library(sys._getframe(1)):
            return  # such as the compiler that torch starts
        for code_file, function in self._iter_user_frames(sys._getframe(1)):
            if is_writing:
                self.written_paths |= paths
            elif function == "<module>":
                self.paths_read_on_import.setdefault(Path(code_file).name, set()).update(paths)
            else:
                self.read_paths |= paths

    def _iter_user_frames(self, frame: FrameType | None) -> Iterator[tuple[str, str]]:
        """Yield the file and function of each frame of user code that runs in the trial, innermost first."""
        while frame is not None and frame.f_code is not self.entry_code:
            code_file = frame.f_code.co_filename
            if not code_file.startswith(("<", *LIBRARY_PREFIXES)):
                yield code_file, frame.f_code.co_name
            frame = frame.f_back


_recorder = _OpenedFilesRecorder()
_is_hook_installed = False


def _is_started_by_library(frame: FrameType | None) -> bool:
    """Return whether a library such as torch, rather than user code, calls the module `subprocess` in this frame."""
    is_in_subprocess = False
    while frame is not None:
        code_file = frame.f_code.co_filename
        if is_in_subprocess and code_file != subprocess.__file__:
            return code_file.startswith(LIBRARY_PREFIXES)
        is_in_subprocess = code_file == subprocess.__file__
        frame = frame.f_back
    return False


def _opens_for_writing(event_arguments: tuple[object, ...]) -> bool:
    """Return whether the arguments of an "open" event (path, mode, flags) allow writing to the file."""
    mode, flags = event_arguments[1], event_arguments[2]
    if isinstance(mode, str):
        return bool({"w", "a", "x", "+"} & set(mode))
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _iter_file_arguments(event: str, event_arguments: tuple[object, ...]) -> Iterator[str]:
    """Yield the real paths of the files that an event names. A cached module counts as its source file."""
    candidates: list[object] = list(event_arguments[:1])
    if event == "subprocess.Popen":  # (executable, arguments, folder, environment)
        program_arguments = event_arguments[1]
        candidates = list(program_arguments) if isinstance(program_arguments, list | tuple) else [program_arguments]
    if event in PROGRAM_EVENTS:
        candidates = [word for argument in candidates for word in _split_words(argument)]
    for candidate in candidates:
        if not isinstance(candidate, str | bytes | os.PathLike) or "\0" in os.fsdecode(candidate):
            continue
        path = os.path.realpath(os.fsdecode(candidate))
        if path.endswith(".pyc"):
            try:
                path = source_from_cache(path)
            except ValueError:
                continue
        if not path.startswith((*LIBRARY_PREFIXES, *IGNORED_FOLDERS)) and (event == "open" or _is_file(path)):
            yield path


def _is_file(path: str) -> bool:
    """Return whether a path is a file; False for text that is too long for a path, such as code after `-c`."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def _split_words(argument: object) -> list[str]:
    """Return the words of a shell command or of one argument of a program."""
    if not isinstance(argument, str | bytes | os.PathLike):
        return []
    text = os.fsdecode(argument)
    try:
        return [text, *shlex.split(text)]
    except ValueError:
        return [text]


@contextmanager
def record_opened_files() -> Iterator[None]:
    """Record the files that user code opens while the context is active."""
    global _is_hook_installed
    if not _is_hook_installed:  # an audit hook cannot be removed
        sys.addaudithook(_recorder.record_event)
        _is_hook_installed = True
    was_active = _recorder.is_active  # a trial may train a teacher first
    if not was_active:
        _recorder.read_paths.clear()
        _recorder.written_paths.clear()
    _recorder.entry_code = sys._getframe(2).f_code  # the caller; frame 1 is that of contextlib
    _recorder.is_active = True
    try:
        yield
    finally:
        _recorder.is_active = was_active


def list_opened_files(code_files: Iterable[Path]) -> list[Path]:
    """Return the files that user code read in the latest context, and those that its modules read on import.

    Files that it also wrote, such as logs and caches, are not inputs.
    """
    paths = set(_recorder.read_paths)
    for code_file in code_files:
        paths |= _recorder.paths_read_on_import.get(code_file.name, set())
    return [Path(path) for path in sorted(paths - _recorder.written_paths)]


def list_written_files() -> list[str]:
    """Return the files that user code wrote in the latest context and did not remove."""
    return sorted(path for path in _recorder.written_paths if Path(path).is_file())


def compute_file_digests(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each regular file that user code has read, by path."""
    digests = {}
    for file in files:
        with suppress(RunFolderError):  # no regular file, or removed
            digests[str(file)] = compute_sha256(file)
    return digests


def check_opened_files(opened_files: Sequence[Path], code_files: Iterable[Path], corpus: Corpus) -> CheckResult:
    """Check that neither the files that user code opened nor the code itself contain rows of held-out splits."""
    sampled_rows = {
        split.name: list(_sample_rows(split.rows)) for split in corpus.splits.values() if split.role != "train"
    }
    all_files = dict.fromkeys([*opened_files, *code_files])
    leaks = {path: splits for path in all_files if (splits := _find_contained_splits(path, sampled_rows))}
    data_files = [path for path in opened_files if path.suffix != ".py"]
    listed = ", ".join(map(str, data_files[:MAX_LISTED_FILES]))
    more = f" and {len(data_files) - MAX_LISTED_FILES} more" if len(data_files) > MAX_LISTED_FILES else ""
    return CheckResult(
        OPENED_FILES_CHECK,
        not leaks,
        "Recorded the files that the code opened during the trial, and searched them for rows of the validation and "
        "test splits.",
        f"reads {listed}{more}" if data_files else NO_FILE_OPENED,
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
