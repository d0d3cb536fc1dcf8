"""Attention as one HTML file that needs nothing else: pick a head, pick a token, point at a cell.

The maps are PNG pictures that carry their weights; our script reads them from there, so that nothing is sent twice and
the page shows all maps without JavaScript too. Everything that comes from a user or a model is escaped by jinja2 or set
as text by the script; a content security policy forbids every request and every script but our own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from headtohead.attention_analysis.pictures import Panel, Pictures, Row, Sheet, label, pictures, said, ticks
from headtohead.presentation import style
from headtohead.presentation.png import uri
from headtohead.report.page import _environment, _file, embedded

STATES = {True: "passed", False: "failed", None: "does not apply"}
COLUMNS = {
    "entropy": ("entropy", "bits", 2),
    "distance": ("distance", "tokens", 2),
    "first": ("on the first", "%", 1),
    "itself": ("on itself", "%", 1),
    "previous": ("on the one before", "%", 1),
    "padding": ("on padding", "%", 1),
    "induction": ("copying", "%", 1),
    "control": ("by position alone", "%", 1),
    "rise": ("loss rise", "nats", 3),
}
"""measure: its title, its unit, and its decimals"""


def render(sheet: Sheet) -> str:
    """The page."""
    view = _view(sheet)
    digest = base64.b64encode(hashlib.sha256(str(view["script"]).encode()).digest()).decode()
    return _environment().get_template("attention_page.html").render(**view, script_hash=digest)


def fragment(sheet: Sheet) -> str:
    """The same for a place inside another page, such as a notebook."""
    return _environment().get_template("attention_fragment.html").render(**_view(sheet))


def inner(sheet: Sheet) -> str:
    """The text, the maps and the measures alone, for a page that has our style and script already."""
    return _environment().get_template("attention_inner.html").render(**_view(sheet))


def _view(sheet: Sheet) -> dict[str, Any]:
    """All that the templates show."""
    made = pictures(sheet)
    return {
        "style": Markup(_file("report.css") + _file("attention.css")),
        "script": Markup(_file("attention.js")),
        "dark": list(style.AFTER_DARK.items()),
        "data": Markup(embedded(_data(sheet, made))),
        "title": sheet.title,
        "text": sheet.text,
        "notes": sheet.notes,
        "tokens": [{"text": label(token, 40), "real": bool(real)} for token, real in _tokens(sheet)],
        "length": int(sheet.real.sum()),
        "kept": round(100 * float(sheet.real.mean()), 3),
        "panels": [_panel(panel, index, sheet, made) for index, panel in enumerate(sheet.panels)],
        "signed": any(panel.signed for panel in sheet.panels),
        "ramp": [(f"{one:g}", round(100 * one**made.scale.power, 1)) for one in ticks(made.scale.power)],
        "power": f"{made.scale.power:.2f}".rstrip("0"),
        "pool": made.scale.pool,
        "precision": f"{made.scale.precision:.1g}",
        "checks": [{"title": title, "rows": [_check(row) for row in rows]} for title, rows in sheet.checks.items()],
        "tables": [_table(title, rows) for title, rows in sheet.measures.items() if rows],
    }


def _tokens(sheet: Sheet) -> Sequence[tuple[str, bool]]:
    return list(zip(sheet.tokens, sheet.real, strict=True))


def _data(sheet: Sheet, made: Pictures) -> dict[str, Any]:
    """What the script needs beside the pictures."""
    return {
        "tokens": list(sheet.tokens),
        "real": int(sheet.real.sum()),
        "power": made.scale.power,
        "pool": made.scale.pool,
        "panels": [{"title": panel.title, "signed": panel.signed} for panel in sheet.panels],
    }


def _panel(panel: Panel, index: int, sheet: Sheet, made: Pictures) -> dict[str, Any]:
    measured = {(row["layer"], row["head"]): row for row in sheet.measures.get(panel.title, ())}
    layers = []
    for row, layer in enumerate(panel.layer_numbers):
        heads = []
        for column, head in enumerate(panel.head_numbers):
            known = measured.get((layer, head), {"layer": layer, "head": head})
            heads.append({"number": head, "words": said(known), "uri": uri(made.heads[index, row, column])})
        layers.append({"number": layer, "heads": heads})
    return {"title": panel.title, "signed": panel.signed, "layers": layers, "heads": panel.head_numbers}


def _check(row: Row) -> dict[str, Any]:
    return {**row, "state": STATES[row["passed"]]}


def _table(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The measures of a panel; a cell is shaded by where it stands between the least and the most of its column."""
    names = shown_columns(rows)
    ends = {name: _ends(row.get(name) for row in rows) for name in names}
    made = [
        {
            "layer": row["layer"],
            "head": row["head"],
            "cells": [(figure(name, row.get(name)), _shade(row.get(name), ends[name])) for name in names],
        }
        for row in rows
    ]
    heads = [f"{COLUMNS[name][0]}, {COLUMNS[name][1]}" for name in names]
    return {"title": title, "columns": heads, "rows": made}


def _ends(values: Iterable[float | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _shade(value: float | None, ends: tuple[float, float]) -> str:
    low, high = ends
    return "0" if value is None or high <= low else f"{(value - low) / (high - low):.3f}"


def shown_columns(rows: Sequence[Row]) -> list[str]:
    """The measures that say something: padding is left out where there is none."""
    known = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    return [name for name in known if name != "padding" or any(row["padding"] for row in rows)]


def figure(name: str, value: float | None) -> str:
    """A measure as people read it, without its unit."""
    if value is None:
        return "–"
    _, unit, places = COLUMNS[name]
    text = f"{value * (100 if unit == '%' else 1):.{places}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")
