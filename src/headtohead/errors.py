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

Messages are short inside; the context (file, line, place) is added once, at the border.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class HeadToHeadError(Exception):
    """The root: its text is meant for the person at the keyboard."""

    exit_code = 1


class RequestError(HeadToHeadError):
    """The request was wrong; nothing was started."""

    exit_code = 2


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a file: where, what was given, what is allowed, the nearest match."""

    place: str
    message: str
    allowed: tuple[str, ...] = ()
    nearest: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message}"]
        if self.nearest:
            lines.append(f"    did you mean {self.nearest!r}?")
        if self.allowed:
            lines.append(f"    allowed: {', '.join(self.allowed)}")
        return "\n".join(lines)


class SpecError(RequestError):
    """An experiment file (or --set) with at least one fault; carries all of them."""

    def __init__(self, source: str, faults: Iterable[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{source}: {count} error{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *("  " + str(f).replace("\n", "\n  ") for f in self.faults)]))


class PartError(RequestError):
    """A part that does not exist, whose name is taken, or that breaks its contract."""


class CorpusError(RequestError):
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


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was most likely meant to be, if any is near."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)
