"""Design by hand as files: a page that needs nothing else, or a picture for paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.atomic_io import write_bytes
from headtohead.errors import RequestError
from headtohead.key_design.views.facts import Row, facts, figure, heading, keys_table, legend, outcome
from headtohead.key_design.views.picture import picture
from headtohead.presentation import style
from headtohead.report.page import _chart, _environment, _file, embedded

SUFFIXES = (".html", ".svg", ".pdf", ".png")


def check(path: Path) -> None:
    """Before any work is done: can this be written?"""
    if path.suffix.lower() not in SUFFIXES:
        raise RequestError(f"{path}: the ending {path.suffix!r} is not known; allowed: {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise RequestError(f"{path}: there is no folder {path.parent}")


def save(row: Row, path: Path) -> None:
    """An answer, or the tour, as a page (.html) or a picture (.svg, .pdf, .png)."""
    check(path)
    makers: dict[str, Callable[[], bytes]] = {
        ".html": lambda: render(row).encode(),
        ".svg": lambda: picture(row).svg(background="white").encode(),
        ".pdf": lambda: picture(row).pdf(),
        ".png": lambda: picture(row).png(),
    }
    write_bytes(path, makers[path.suffix.lower()]())


def render(row: Row) -> str:
    """The page."""
    script = _file("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    steps = row["steps"] if row["kind"] == "tour" else [{"asks": None, "ours": row, "theirs": None, "short": []}]
    return (
        _environment()
        .get_template("design.html")
        .render(
            title="The questions of report C, part 1" if row["kind"] == "tour" else heading(row),
            lead=row["reason"],
            steps=[_section(step) for step in steps],
            style=Markup(_file("report.css")),  # our own file
            script=Markup(script),
            script_hash=digest,
            dark=list(style.AFTER_DARK.items()),
            data=Markup(embedded(row)),
        )
    )


def _section(step: dict[str, Any]) -> dict[str, Any]:
    ours, theirs = step["ours"], step["theirs"]
    drawn = picture(ours, titled=False, theirs=theirs and theirs["weights"])
    return {
        "asks": step["asks"],
        "outcome": outcome(ours),
        "reason": ours["reason"],
        "chart": _chart(drawn),
        "legend": legend(ours) + (" Orange rings: the report's weights." if theirs else ""),
        "table": keys_table(ours, theirs),
        "facts": facts(ours),
        "theirs": theirs and f"{theirs['said']} Precision {figure(theirs['precision'])}.",
        "short": step["short"],
    }
