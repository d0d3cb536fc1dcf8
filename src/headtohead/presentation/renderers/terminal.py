"""Render tables in the terminal, fitted to its width, and provide consoles and a status line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable

from headtohead.control_characters import escape_control_characters
from headtohead.presentation.table import Column, Table, make_table, make_text_columns

UNLIMITED_WIDTH = 1000
"""width in characters at which nothing wraps"""
VERDICT_TERMINAL_COLORS = {"helped": "green", "hurt": "red", "not comparable": "magenta", "cannot tell": "yellow"}
OUTCOME_COLORS = {
    **VERDICT_TERMINAL_COLORS,
    "passed": "green",
    "failed": "red",
    "note": "yellow",
    "does not apply": "dim",
}
OUTCOME_COLUMNS = ("result", "verdict", "outcome")
"""columns whose cells are colored by their outcome"""


class SafeConsole(Console):
    """A console that shows control characters in printed text as escapes, since models may generate them.

    Colors and cursor moves of the console itself are unchanged.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return a renderable's segments with escaped text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_control_characters(text), style, control)


def get_stdout_console() -> Console:
    """Return a console for results."""
    return SafeConsole(highlight=False, emoji=False)


def get_stderr_console() -> Console:
    """Return a console for progress and notes."""
    return SafeConsole(stderr=True, highlight=False, emoji=False)


def print_indented(text: str, indent: int = 2) -> None:
    """Print text with rich markup, indented by `indent` columns."""
    get_stdout_console().print(Padding(text, (0, 0, 0, indent)))


def print_table(table: Table, *, max_rows: int | None = None) -> None:
    """Print a table in the terminal: its title, rows and caption.

    If it is too wide, optional columns are dropped, then `Cell.short_text` is used, then numeric columns are wrapped.
    `max_rows` limits the rows.
    """
    console = get_stdout_console()
    columns, use_short_text = list(table.columns), False
    rich_table = build_rich_table(table, columns, max_rows)
    while _exceeds_terminal_width(console, rich_table) and any(column.is_optional for column in columns):
        columns.remove([column for column in columns if column.is_optional][-1])
        rich_table = build_rich_table(table, columns, max_rows)
    if _exceeds_terminal_width(console, rich_table):
        use_short_text = True
        rich_table = build_rich_table(table, columns, max_rows, use_short_text=True)
    if _exceeds_terminal_width(console, rich_table):
        _narrow_numeric_columns(rich_table, columns)
    console.print(rich_table)
    notes = [table.caption] if table.caption else []
    if max_rows is not None and len(table.rows) > max_rows:
        notes.append(f"{len(table.rows) - max_rows} more rows in the report.")
    hidden_titles = [column.title for column in table.columns if column not in columns]
    if use_short_text and any(cell.short_text for row in table.rows for cell in row):
        hidden_titles.append("intervals")
    if hidden_titles:
        notes.append(f"Only in the report: {', '.join(hidden_titles)}.")
    if notes:
        console.print(f"[dim]{escape(' '.join(notes))}[/]")


def print_text_table(column_titles: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table whose columns are all text."""
    print_table(make_table("", title, "", make_text_columns(*column_titles), rows))


def build_rich_table(
    table: Table, columns: Sequence[Column] = (), max_rows: int | None = None, *, use_short_text: bool = False
) -> RichTable:
    """Return a table for the terminal with the given columns (default: all), with verdicts and results in color."""
    rich_table = RichTable(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    rich_table.title = escape(table.title) or None
    columns = columns or table.columns
    for column in columns:
        rich_table.add_column(escape(column.title), justify="right" if column.is_numeric else "left", overflow="fold")
    column_indices = [table.columns.index(column) for column in columns]
    for row in table.rows[:max_rows]:
        texts = []
        for index in column_indices:
            cell = row[index]
            text = escape(cell.short_text if use_short_text and cell.short_text else cell.text)
            color = OUTCOME_COLORS.get(cell.text) if table.columns[index].name in OUTCOME_COLUMNS else cell.color
            texts.append(f"[{color}]{text}[/]" if color else text)
        rich_table.add_row(*texts)
    return rich_table


def _exceeds_terminal_width(console: Console, rich_table: RichTable) -> bool:
    """Return whether a table is too wide for the terminal even if text columns wrap between words."""
    options = console.options.update_width(UNLIMITED_WIDTH)
    for column in rich_table.columns:
        column.no_wrap = column.justify == "right"
    minimum = console.measure(rich_table, options=options).minimum
    for column in rich_table.columns:
        column.no_wrap = False
    return minimum > console.width


def _narrow_numeric_columns(rich_table: RichTable, columns: Sequence[Column]) -> None:
    """Wrap a terminal table's numeric columns between words, which leaves more width for text columns."""
    rich_table.padding = (0, 1, 0, 0)
    for rich_column, column in zip(rich_table.columns, columns, strict=True):
        if column.is_numeric:
            texts = [str(rich_column.header), *(str(cell) for cell in rich_column.cells)]
            rich_column.max_width = max(len(word) for text in texts for word in text.split())


class StatusLine:
    """A status line on stderr that shows the current activity. Prints nothing if stderr is not a terminal."""

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

    def update(self, text: str) -> None:
        """Show `text` as the current activity."""
        self.status.update(escape(text))
