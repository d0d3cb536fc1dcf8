"""Every exception of the package, in one place.

    HeadToHeadError                what a user can be told in plain words; the command line ends with 1
      RequestError                 the request was wrong, nothing was started; the command line ends with 2
        SpecError                  an experiment file or --set: all errors of it at once
        PartError                  a part that does not exist, is taken, or breaks its contract
        CorpusError                data that cannot be read as asked
        ScoresError                scores that cannot be judged
        ModelError                 a model folder, module or input that cannot be used
        StrategyError              a way of decoding that does not exist, or with impossible options
        RunFolderError             a run folder that belongs to something else, or is damaged
        DeviceError                a device that is not there
        MissingExtraError          an optional package that is not installed
      TrialError                   a trial that could not go on
        DivergedError              loss is not a number, or ran away
        DiskFullError              no room to write a run
        PeerLostError              of several processes that train together, others are gone

Messages are short inside; the context (file, line, place) is added once, at the border.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice


class HeadToHeadError(Exception):
    """The root: its text is meant for the person at the keyboard, so it has an end and can be shown."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(truncate_text(message, MAX_MESSAGE_CHARS))


class RequestError(HeadToHeadError):
    """The request was wrong; nothing was started."""

    exit_code = 2


@dataclass(frozen=True)
class ValidationIssue:
    """One thing that is wrong in a file: where, what was given, what is allowed, the nearest match."""

    place: str
    message: str
    allowed: tuple[str, ...] = ()
    suggestion: str | None = None

    def __str__(self) -> str:
        lines = [f"{truncate_text(self.place, 200)}: {truncate_text(self.message)}"]
        if self.suggestion:
            lines.append(f"    did you mean {self.suggestion!r}?")
        if self.allowed:
            lines.append(f"    allowed: {truncate_text(', '.join(self.allowed), MAX_ALLOWED_CHARS)}")
        return "\n".join(lines)


class ConfigError(RequestError):
    """An experiment file (or --set) with at least one fault; carries all of them."""

    def __init__(self, source: str, issues: Iterable[ValidationIssue]) -> None:
        self.source = source
        self.faults = tuple(issues)
        count = len(self.faults)
        head = f"{source}: {count} error{'s' if count != 1 else ''}"
        lines = ["  " + str(f).replace("\n", "\n  ") for f in self.faults[:MAX_SHOWN_ISSUES]]
        lines += [f"  and {count - MAX_SHOWN_ISSUES} more"] if count > MAX_SHOWN_ISSUES else []
        super().__init__("\n".join([head, *lines]))


class PartError(RequestError):
    """A part that does not exist, whose name is taken, or that breaks its contract."""


class DataError(RequestError):
    """Data that cannot be read as asked."""


class ScoresError(RequestError):
    """Scores that cannot be judged."""


class ModelError(RequestError):
    """A model folder, a module or an input that cannot be used."""


class StrategyError(RequestError):
    """A way of decoding that does not exist, or that was given options which cannot be."""


class RunFolderError(RequestError):
    """A run folder that belongs to another experiment, or that is damaged."""


class DeviceError(RequestError):
    """A device that was asked for and is not there."""


class MissingExtraError(RequestError):
    """An optional package that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: pip install 'headtohead[{extra}]'")


class TrialError(HeadToHeadError):
    """A trial that could not go on; the others are not affected."""


class DivergedError(TrialError):
    """The loss is not a number or ran away: the trial ends with a plain statement and what to try."""


class DiskFullError(TrialError):
    """No room is left to write a run; what was written before is whole. Asking for more than there is room for is a
    request that cannot be met."""

    exit_code = 2


class PeerLostError(TrialError):
    """Of several processes that train one model together, others are gone; what was saved is whole."""


MAX_WORD_CHARS, MAX_CANDIDATES = 60, 1000
"""no name that somebody meant is longer, and no list of them: to compare long ones takes very long"""
MAX_TEXT_CHARS, MAX_ALLOWED_CHARS, MAX_MESSAGE_CHARS = 800, 1000, 20_000
MAX_SHOWN_ISSUES = 30
"""of one file that are shown"""


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The known word that `word` was most likely meant to be, if any is near."""
    if len(word) > MAX_WORD_CHARS:
        return None
    words = [one for one in islice(candidates, MAX_CANDIDATES) if len(one) <= MAX_WORD_CHARS]
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.6)), None)


def truncate_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Words for a person, however long what they quote is: beginning and end of it, and nothing that a terminal could
    not show."""
    if len(text) > max_chars:
        text = f"{text[: max_chars - 100]} ... {text[-60:]}"
    return text.encode("utf-8", "backslashreplace").decode()
