"""Exceptions raised by the package.

    HeadToHeadError                base class; exit code 1
      RequestError                 the request is invalid, nothing was started; exit code 2
        ConfigError                invalid experiment file or --set option; lists every issue
        PartError                  unknown part, duplicate name, or violated contract
        DataError                  data cannot be read with the given settings
        ScoresError                scores cannot be judged
        ModelError                 unusable model folder, module or input
        StrategyError              unknown decoding strategy or invalid options
        RunFolderError             run folder of another experiment, or corrupted
          FolderLockedError        another process is running the experiment
        DeviceError                device not available
        MissingExtraError          optional package not installed
      ChartError                   a chart cannot be rendered
      TrialError                   a trial cannot continue
        DivergedError              loss not finite, or training diverged
        DiskFullError              no disk space left to write a run; exit code 2
        PeerLostError              another process of distributed training has exited

Code that raises an error states only the problem; the caller that knows the file and line adds them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice


class HeadToHeadError(Exception):
    """Base class of all errors that are shown to the user.

    The message is truncated to `MAX_MESSAGE_CHARS`, and `exit_code` is the exit status of the command line.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(truncate_text(message, MAX_MESSAGE_CHARS))


class RequestError(HeadToHeadError):
    """Raised if a request is invalid. Nothing has been started."""

    exit_code = 2


@dataclass(frozen=True)
class ValidationIssue:
    """One error in an experiment file.

    `location` is the dotted key, `allowed` lists the accepted values, and `suggestion` is the closest of them.
    """

    location: str
    message: str
    allowed: tuple[str, ...] = ()
    suggestion: str | None = None

    def __str__(self) -> str:
        """Return the issue as one sentence of an error message: location, problem, allowed values, suggestion."""
        lines = [f"{truncate_text(self.location, 200)}: {truncate_text(self.message)}"]
        if self.suggestion:
            lines.append(f"    did you mean {self.suggestion!r}?")
        if self.allowed:
            lines.append(f"    allowed: {truncate_text(', '.join(self.allowed), MAX_ALLOWED_VALUES_CHARS)}")
        return "\n".join(lines)


class ConfigError(RequestError):
    """Raised if an experiment file or a `--set` option is invalid. `issues` contains all issues."""

    def __init__(self, source: str, issues: Iterable[ValidationIssue]) -> None:
        """Build the message of the error from all issues of a file."""
        self.source = source
        self.issues = tuple(issues)
        count = len(self.issues)
        header = f"{source}: {count} error{'s' if count != 1 else ''}"
        lines = ["  " + str(issue).replace("\n", "\n  ") for issue in self.issues[:MAX_SHOWN_ISSUES]]
        lines += [f"  and {count - MAX_SHOWN_ISSUES} more"] if count > MAX_SHOWN_ISSUES else []
        super().__init__("\n".join([header, *lines]))


class PartError(RequestError):
    """Raised if a part does not exist, its name is already registered, or it violates its contract."""


class DataError(RequestError):
    """Raised if data cannot be read with the given settings."""


class ScoresError(RequestError):
    """Raised if scores cannot be judged."""


class ModelError(RequestError):
    """Raised if a model folder, module or input cannot be used."""


class StrategyError(RequestError):
    """Raised if a decoding strategy does not exist or its options are invalid."""


class RunFolderError(RequestError):
    """Raised if a run folder belongs to a different experiment or is corrupted."""


class FolderLockedError(RunFolderError):
    """Raised if another process has locked a run folder."""


class DeviceError(RequestError):
    """Raised if a requested device is not available."""


class MissingExtraError(RequestError):
    """Raised if an optional package is not installed. The message contains the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: pip install 'headtohead[{extra}]'")


class ChartError(HeadToHeadError):
    """Raised if a chart cannot be rendered."""


class TrialError(HeadToHeadError):
    """Raised if a trial cannot continue. Other trials are not affected."""


class DivergedError(TrialError):
    """Raised if the loss is not finite or training diverged. The message suggests what to try."""


class DiskFullError(TrialError):
    """Raised if a run cannot be written because the disk is full. Files written before are intact.

    The exit code is 2, as for a request that cannot be fulfilled on this machine.
    """

    exit_code = 2


class PeerLostError(TrialError):
    """Raised in distributed training if another process of the group has exited. Saved checkpoints are intact."""


WINDOWS_MESSAGE = "Head to Head runs on Linux and macOS; on Windows, install and run it in WSL (wsl --install)."

MAX_SUGGESTION_CHARS = 60
"""length above which `suggest` ignores a word, because the cost of difflib grows quickly with the length"""
MAX_SUGGESTION_CANDIDATES = 1000
"""candidates that `suggest` compares, because the cost of difflib grows with their number"""
MAX_ISSUE_CHARS = 800
"""length to which the message of an issue is shortened"""
MAX_ALLOWED_VALUES_CHARS = 1000
"""length to which the list of allowed values of an issue is shortened"""
MAX_MESSAGE_CHARS = 20_000
"""length to which the message of an error is shortened"""
MAX_SHOWN_ISSUES = 30
"""issues listed in the message of a `ConfigError`"""


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate closest to `word`, for an error message to suggest, or None if none is similar enough."""
    if len(word) > MAX_SUGGESTION_CHARS:
        return None
    short_candidates = [
        candidate
        for candidate in islice(candidates, MAX_SUGGESTION_CANDIDATES)
        if len(candidate) <= MAX_SUGGESTION_CHARS
    ]
    return next(iter(difflib.get_close_matches(word, short_candidates, n=1, cutoff=0.6)), None)


def format_suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return the closest candidate as the end of a message, "; did you mean 'x'?", or "" if none is similar enough."""
    suggestion = suggest(word, candidates)
    return f"; did you mean {suggestion!r}?" if suggestion else ""


def truncate_text(text: str, max_chars: int = MAX_ISSUE_CHARS) -> str:
    """Shorten text that an error message quotes to about `max_chars` characters, keeping its beginning and end.

    Characters that cannot be encoded as UTF-8 are replaced by backslash escapes.
    """
    if len(text) > max_chars:
        text = f"{text[: max_chars - 100]} ... {text[-60:]}"
    return text.encode("utf-8", "backslashreplace").decode()
