"""A batch on the terminal: its tensors as a table, one example in words."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from headtohead.presentation.terminal import get_stdout_console


def print_batch(batch: Any) -> None:
    """What `h2h run --show-batch` prints."""
    console: Console = get_stdout_console()
    made = Table(box=box.SIMPLE_HEAD)
    for title in ("tensor", "dtype", "shape", "meaning"):
        made.add_column(title, no_wrap=title != "meaning")
    for one in batch.tensors:
        made.add_row(one.name, one.dtype, " x ".join(map(str, one.shape)), escape(one.meaning))
    console.print(f"[bold]the first batch[/] (task {batch.task}, seed {batch.seed})")
    console.print(made)
    for note in batch.notes:
        console.print(Padding(escape(note), (0, 0, 0, 2)))
    for title, text in (("tokens", " ".join(batch.tokens)), ("text", batch.text), ("is to say", batch.answer)):
        console.print(f"[bold]{title}[/]")
        console.print(Padding(escape(text), (0, 0, 0, 2)))
