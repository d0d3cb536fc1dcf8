"""Continuations in the terminal, as they are made: one after the other, though they are written side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from headtohead.presentation.terminal import get_stderr_console, get_stdout_console


def print_stream(chunks: Iterable[Any], prompts: Sequence[str], num_samples: int, *, with_prompt: bool = True) -> None:
    """Print pieces (prompt, sample, text, ended) in order. The first continuation that is not over is printed as it
    grows; what others have made meanwhile is shown when their turn comes."""
    paper = _OrderedStreamPrinter(get_stdout_console(), prompts, num_samples, with_prompt)
    for piece in chunks:
        paper.add((piece.prompt, piece.sample), piece.text, is_finished=piece.ended is not None)
    paper.close()


class _OrderedStreamPrinter:
    def __init__(self, console: Console, prompts: Sequence[str], samples: int, with_prompt: bool) -> None:
        self.console, self.prompts, self.with_prompt = console, prompts, with_prompt
        self.order = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
        self.waiting = dict.fromkeys(self.order, "")
        self.over: set[tuple[int, int]] = set()
        self.turn = 0
        self._print_header()

    def add(self, key: tuple[int, int], text: str, *, is_finished: bool) -> None:
        self.waiting[key] += text
        if is_finished:
            self.over.add(key)
        while self.turn < len(self.order):
            here = self.order[self.turn]
            self._say(self.waiting[here])
            self.waiting[here] = ""
            if here not in self.over:
                return
            self._next()

    def close(self) -> None:
        """Say what is left, even of continuations that were cut short."""
        while self.turn < len(self.order):
            self._say(self.waiting[self.order[self.turn]])
            self._next()

    def _next(self) -> None:
        self._say("\n")
        self.turn += 1
        self._print_header()

    def _print_header(self) -> None:
        if self.turn >= len(self.order):
            return
        prompt, sample = self.order[self.turn]
        if len(self.order) > 1:
            named = f"prompt {prompt + 1}, sample {sample + 1}" if len(self.prompts) > 1 else f"sample {sample + 1}"
            self.console.print(Text(f"--- {named}", style="bold"))
        if self.with_prompt:
            self._say(self.prompts[prompt], style="dim")

    def _say(self, text: str, style: str = "") -> None:
        """Through the console for its colours, but never wrapped: the terminal breaks lines where it must."""
        if not text:
            return
        if style and self.console.is_terminal:
            self.console.print(Text(text, style=style), end="", soft_wrap=True)
        else:
            self.console.file.write(text)
        self.console.file.flush()


def print_note(message: str) -> None:
    """A line on stderr, out of the way of the text."""
    sys.stdout.flush()
    get_stderr_console().print(Text(f"h2h: note: {message}", style="yellow"), soft_wrap=True)
