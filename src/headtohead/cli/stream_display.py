"""Stream continuations to the terminal one after the other, although they are generated in parallel."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from headtohead.errors import escape_control_characters
from headtohead.presentation.terminal import get_stderr_console, get_stdout_console


def print_stream(chunks: Iterable[Any], prompts: Sequence[str], num_samples: int, *, with_prompt: bool = True) -> None:
    """Print chunks of generated text in the order of the prompts.

    The first unfinished continuation is printed as it grows; the text of later ones is buffered.
    """
    printer = _OrderedStreamPrinter(get_stdout_console(), prompts, num_samples, with_prompt)
    for chunk in chunks:
        printer.add((chunk.prompt, chunk.sample), chunk.text, is_finished=chunk.finish_reason is not None)
    printer.close()


class _OrderedStreamPrinter:
    """Print the continuations in order: stream the first unfinished one, and buffer the text of the others."""

    def __init__(self, console: Console, prompts: Sequence[str], samples: int, with_prompt: bool) -> None:
        self.console, self.prompts, self.with_prompt = console, prompts, with_prompt
        self.order = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
        self.buffered = dict.fromkeys(self.order, "")
        self.finished: set[tuple[int, int]] = set()
        self.index = 0
        self._print_header()

    def add(self, key: tuple[int, int], text: str, *, is_finished: bool) -> None:
        """Add text to the continuation `key`, a pair (prompt index, sample index), and print what is due."""
        self.buffered[key] += text
        if is_finished:
            self.finished.add(key)
        while self.index < len(self.order):
            current = self.order[self.index]
            self._write(self.buffered[current])
            self.buffered[current] = ""
            if current not in self.finished:
                return
            self._next()

    def close(self) -> None:
        """Print the remaining text, including that of interrupted continuations."""
        while self.index < len(self.order):
            self._write(self.buffered[self.order[self.index]])
            self._next()

    def _next(self) -> None:
        """End the current continuation and print the header of the next one."""
        self._write("\n")
        self.index += 1
        self._print_header()

    def _print_header(self) -> None:
        """Print the title of the current continuation and its prompt."""
        if self.index >= len(self.order):
            return
        prompt, sample = self.order[self.index]
        if len(self.order) > 1:
            title = f"prompt {prompt + 1}, sample {sample + 1}" if len(self.prompts) > 1 else f"sample {sample + 1}"
            self.console.print(Text(f"--- {title}", style="bold"))
        if self.with_prompt:
            self._write(self.prompts[prompt], style="dim")

    def _write(self, text: str, style: str = "") -> None:
        """Write without wrapping; use the console only for colour."""
        if not text:
            return
        if style and self.console.is_terminal:
            self.console.print(Text(text, style=style), end="", soft_wrap=True)
        else:
            self.console.file.write(escape_control_characters(text))
        self.console.file.flush()


def print_note(message: str) -> None:
    """Print a note on stderr."""
    sys.stdout.flush()
    get_stderr_console().print(Text(f"h2h: note: {message}", style="yellow"), soft_wrap=True)
