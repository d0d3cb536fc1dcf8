"""What a door is, and how one knocks."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headtohead.errors import HeadToHeadError
from headtohead.presentation import chart_renderer

from .sandbox import watched

LONGEST_MESSAGE = 20_000
"""characters that a message may have, however large the input"""


@dataclass(frozen=True)
class FuzzTarget:
    """One kind of input."""

    name: str
    open: Callable[[bytes, Path], object]
    seeds: Callable[[Path], Sequence[bytes]]
    """sound inputs, made in a scratch folder"""


FUZZ_TARGETS: dict[str, FuzzTarget] = {}


def fuzz_target(name: str, seeds: Callable[[Path], Sequence[bytes]]) -> Callable[[Any], Any]:
    def enter(open_: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], object]:
        FUZZ_TARGETS[name] = FuzzTarget(name, open_, seeds)
        return open_

    return enter


@lru_cache(maxsize=1)
def _start_chart_renderer() -> None:
    """Start the child process that renders charts, so that the sandbox sees no process being started."""
    chart_renderer.render("vegalite_to_svg", {"mark": "point", "data": {"values": []}})


def run_target(name: str, data: bytes, scratch: Path) -> HeadToHeadError | None:
    """Open `data` with a target; return the error that rejected it. Any other exception is a fault of the package."""
    _start_chart_renderer()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), watched(scratch):
        warnings.simplefilter("ignore")  # numbers that overflow are the input's own
        try:
            FUZZ_TARGETS[name].open(data, scratch)
        except HeadToHeadError as error:
            message = str(error)
            assert message.strip(), "an error without a word"
            assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]}"
            message.encode()  # a terminal must be able to show it
            return error
    return None
