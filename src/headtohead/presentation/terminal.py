"""Terminal building blocks: consoles, tables, a status line and verdict colors."""

from __future__ import annotations

from types import TracebackType

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def get_stdout_console() -> Console:
    return Console(highlight=False)


def get_stderr_console() -> Console:
    return Console(stderr=True, highlight=False)


def make_rich_table(*columns: str, title: str | None = None) -> Table:
    """A plain table: the first column is names, the others are figures."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return made


def format_si_number(number: float) -> str:
    """1.00 M, 863 k."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


VERDICT_TERMINAL_COLORS = {"helped": "green", "hurt": "red", "not comparable": "magenta", "cannot tell": "yellow"}


class StatusLine:
    """One line on stderr that says what is being done; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self.console = get_stderr_console()
        self.status = self.console.status("")

    def __enter__(self) -> StatusLine:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.status.stop()

    def tell(self, text: str) -> None:
        self.status.update(escape(text))
