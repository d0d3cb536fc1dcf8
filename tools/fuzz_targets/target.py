"""The registry of fuzz targets, and the function that runs one on an input."""

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

from .sandbox import run_in_sandbox

MAX_MESSAGE_LENGTH = 20_000
"""largest number of characters of an error message, for inputs of any size"""


@dataclass(frozen=True)
class FuzzTarget:
    """One kind of input from untrusted sources."""

    name: str
    process_input: Callable[[bytes, Path], object]
    """opens the bytes of an input as the package would, in a scratch folder"""
    build_seeds: Callable[[Path], Sequence[bytes]]
    """builds valid inputs in a scratch folder"""


FUZZ_TARGETS: dict[str, FuzzTarget] = {}


def register_fuzz_target(name: str, build_seeds: Callable[[Path], Sequence[bytes]]) -> Callable[[Any], Any]:
    """Register the decorated function as the fuzz target of a kind of input."""

    def register(process_input: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], object]:
        FUZZ_TARGETS[name] = FuzzTarget(name, process_input, build_seeds)
        return process_input

    return register


@lru_cache(maxsize=1)
def _start_chart_renderer() -> None:
    """Start the child process that renders charts, so that the sandbox sees no process being started."""
    chart_renderer.render("vegalite_to_svg", {"mark": "point", "data": {"values": []}})


def run_target(name: str, data: bytes, scratch: Path) -> HeadToHeadError | None:
    """Process an input and return the error that rejected it, if any. Any other exception is a bug in the package."""
    _start_chart_renderer()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), run_in_sandbox(scratch):
        warnings.simplefilter("ignore")  # inputs may contain numbers that overflow
        try:
            FUZZ_TARGETS[name].process_input(data, scratch)
        except HeadToHeadError as error:
            message = str(error)
            assert message.strip(), "the error has no message"
            assert len(message) <= MAX_MESSAGE_LENGTH, f"a message of {len(message)} characters: {message[:200]}"
            message.encode()  # a terminal must be able to show it
            return error
    return None
