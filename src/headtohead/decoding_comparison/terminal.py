"""The decoding comparison in the terminal: a bar with the time left on stderr, figures and tests on stdout."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headtohead.decoding_comparison import phrasing as say
from headtohead.progress import OnStderr, Pace
from headtohead.report.terminal import VERDICT_COLOURS, err, out, table

Found = dict[str, Any]
SHOWN = ("perplexity", "second", "distinct-2", "self-bleu", "repetition", "nearness")
"""what fits into 80 columns; the page has all"""
HEADINGS = {"second": "2nd b/B", "distinct-2": "dist-2", "repetition": "repeats", "nearness": "chrF"}


class Bar:
    """What is being done, how far it is and how long it will take; a line now and then where there is no terminal."""

    def __init__(self) -> None:
        console = err()
        self.is_shown = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self.task: TaskID | None = None
        self.phase = ""
        self.line = OnStderr()

    def __enter__(self) -> Bar:
        if self.is_shown:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def watch(self, what: str, done: int, of: int) -> None:
        """A new phase begins a new bar, since its pace is another."""
        phase = what.partition(":")[0]
        if not self.is_shown:
            self.line(Pace(phase, done, of))
            return
        if self.task is None or phase != self.phase:
            if self.task is not None:
                self.progress.remove_task(self.task)
            self.task, self.phase = self.progress.add_task(escape(what), total=None), phase
        self.progress.update(self.task, description=escape(what), completed=done, total=of or None)


def show(found: Found, folder: str, page: str) -> None:
    """Figures of every strategy, what each does beside the baseline, the laws, and where things are."""
    console = out()
    from headtohead.decoding_comparison.page import cards, lead, title

    console.print(f"\n[bold]{escape(title(found))}[/]")
    console.print(escape(lead(found)))
    measures = [one for one in found["measures"] if one["name"] in SHOWN]
    made = table("", *(HEADINGS.get(one["name"], one["title"]) for one in measures))
    made.columns[0].no_wrap = True
    for name, figures in {**found["figures"], **({"people": found["people"]} if found["people"] else {})}.items():
        cells = (say.value(one["kind"], (figures.get(one["name"]) or {}).get("value")) for one in measures)
        made.add_row(escape(name), *cells)
    console.print(made)
    for card in cards(found):
        console.print(f"  [bold]{escape(card['strategy'])}[/] against {escape(found['baseline'])}")
        for line in card["lines"]:
            colour = VERDICT_COLOURS.get(line["word"], "cyan")
            console.print(Padding(f"[{colour}]{line['word']}:[/] {escape(line['sentence'])}", (0, 0, 0, 4)))
    held = sum(one["passed"] for one in found["laws"])
    console.print(f"limits as laws: {held} of {len(found['laws'])} hold")
    for one in found["laws"]:
        if not one["passed"]:
            console.print(Padding(f"[red]{escape(one['law'])}:[/] {escape(one['found'])}", (0, 0, 0, 4)))
    for note in found["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(f"folder: {escape(folder)}", soft_wrap=True)
    console.print(f"report: {escape(page)}", soft_wrap=True)
