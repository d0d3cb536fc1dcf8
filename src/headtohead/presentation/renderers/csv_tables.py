"""Render tables as CSV. Text that a spreadsheet would evaluate is quoted."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from typing import Any

from headtohead.presentation.table import Table

FORMULA_START = re.compile(r"[\s\x00-\x1f\u200b\ufeff]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]|[\t\r]")
"""start of text that spreadsheets evaluate; they skip white space and accept full-width characters"""


def render_csv(table: Table) -> str:
    """Return a table's plain values, in long form if it has one.

    An interval is written to two columns, NAME_low and NAME_high.
    """
    table = table.long_form or table
    file = io.StringIO()
    interval_columns = {
        column_index
        for row in table.rows
        for column_index, cell in enumerate(row)
        if isinstance(cell.value, list | tuple)
    }
    writer = csv.writer(file, lineterminator="\n")
    header: list[str] = []
    for column_index, column in enumerate(table.columns):
        header += [f"{column.name}_low", f"{column.name}_high"] if column_index in interval_columns else [column.name]
    writer.writerow(header)
    for row in table.rows:
        cells: list[Any] = []
        for column_index, cell in enumerate(row):
            cells += (
                _split_interval_bounds(cell.value)
                if column_index in interval_columns
                else [_format_csv_value(cell.value)]
            )
        writer.writerow(cells)
    return file.getvalue()


def _split_interval_bounds(value: Any) -> list[Any]:
    """Return an interval's lower and upper bounds, or two empty cells if the value is missing."""
    return [_format_csv_value(end) for end in value] if isinstance(value, list | tuple) else ["", ""]


def _format_csv_value(value: Any) -> Any:
    """Return a value that the csv module can write. Missing and non-finite numbers become empty cells."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and FORMULA_START.match(value):
        return "'" + value  # otherwise a spreadsheet would evaluate it as a formula
    return value if isinstance(value, str | int | float) else json.dumps(value)
