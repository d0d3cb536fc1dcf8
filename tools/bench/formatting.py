"""Format measurements and tables for the terminal and for Markdown."""

from __future__ import annotations

from .measurements import Measurement, MeasurementKind, Table, Target

UNITS: dict[MeasurementKind, str] = {
    "times": " x",
    "share": " %",
    "seconds": " s",
    "gigabytes": " GB",
    "nats": " nats",
    "commands": "",
}
NUMBER_FORMATS: dict[MeasurementKind, str] = {"nats": ".0e", "commands": ".0f"}
MEASUREMENT_COLUMNS = ["measurement", "ours", "peer", "result", "target", "met"]


def format_number(value: float) -> str:
    """Format a number with three significant digits, or with all digits before the decimal point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.095 else f"{value:.3g}"


def format_value(value: float, kind: MeasurementKind) -> str:
    """Format the result of a measurement with its unit."""
    return (f"{100 * value:.1f}" if kind == "share" else format(value, NUMBER_FORMATS.get(kind, ".2f"))) + UNITS[kind]


def format_target(target: Target | None, kind: MeasurementKind) -> str:
    """Format a target: "at least 1.6 x"."""
    if target is None:
        return ""
    value = f"{100 * target.value:.0f}" if kind == "share" else f"{target.value:g}"
    return f"{'at most' if target.is_maximum else 'at least'} {value}{UNITS[kind]}"


def format_is_met(measurement: Measurement) -> str:
    """Return "yes" or "NO", or an empty cell without a target."""
    return {None: "", True: "yes", False: "NO"}[measurement.is_met]


def format_cells(measurement: Measurement) -> list[str]:
    """Return the cells of a measurement's table row."""
    peer = "" if measurement.peer_value is None else f"{measurement.peer}: {format_number(measurement.peer_value)}"
    result = "" if measurement.result is None else format_value(measurement.result, measurement.kind)
    if measurement.cpu_time_ratio is not None:
        result += f" ({measurement.cpu_time_ratio:.2f} x by CPU time)"
    ours = f"{format_number(measurement.ours)} {measurement.unit}"
    target = format_target(measurement.target, measurement.kind)
    return [measurement.name, ours, peer, result, target, format_is_met(measurement)]


def render_markdown_table(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def render_text_table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table for the terminal."""
    widths = [max(len(row[column]) for row in [columns, *rows]) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [columns, *rows]
    )


def format_result(result: Measurement | Table) -> str:
    """Return the text that the terminal shows as soon as a result is measured."""
    if isinstance(result, Table):
        note = f"\n{result.note}" if result.note else ""
        return f"\n{result.title}\n{render_text_table(result.columns, result.rows)}{note}\n"
    name, *value_cells, target, is_met = format_cells(result)
    target_text = f"   target {target}: {is_met}" if target else ""
    return f"{name:<80} {'   '.join(cell for cell in value_cells if cell)}{target_text}"
