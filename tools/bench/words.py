"""Findings and tables as text: for the terminal and for the page."""

from __future__ import annotations

from .findings import Bar, Finding, Kind, Table


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.095 else f"{value:.3g}"


UNITS: dict[Kind, str] = {
    "times": " x",
    "share": " %",
    "seconds": " s",
    "gigabytes": " GB",
    "nats": " nats",
    "verbs": "",
}
FORMS: dict[Kind, str] = {"nats": ".0e", "verbs": ".0f"}


def figure(value: float, kind: Kind) -> str:
    return (f"{100 * value:.1f}" if kind == "share" else format(value, FORMS.get(kind, ".2f"))) + UNITS[kind]


def bar(one: Bar | None, kind: Kind) -> str:
    if one is None:
        return ""
    wanted = f"{100 * one.wanted:.0f}" if kind == "share" else f"{one.wanted:g}"
    return f"{'at most' if one.at_most else 'at least'} {wanted}{UNITS[kind]}"


def holds(finding: Finding) -> str:
    return {None: "", True: "yes", False: "NO"}[finding.holds]


COLUMNS = ["what", "ours", "beside it", "figure", "wanted", "holds"]


def cells(finding: Finding) -> list[str]:
    """A finding as a row of a table."""
    beside = "" if finding.theirs is None else f"{finding.other}: {number(finding.theirs)}"
    shown = "" if finding.figure is None else figure(finding.figure, finding.kind)
    if finding.on_processor is not None:
        shown += f" ({finding.on_processor:.2f} x by processor time)"
    ours = f"{number(finding.ours)} {finding.unit}"
    return [finding.what, ours, beside, shown, bar(finding.bar, finding.kind), holds(finding)]


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A table of a page."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def plain(columns: list[str], rows: list[list[str]]) -> str:
    """A table of the terminal."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [columns, *rows]
    )


def said(found: Finding | Table) -> str:
    """What the terminal shows as soon as it is known."""
    if isinstance(found, Table):
        note = f"\n{found.note}" if found.note else ""
        return f"\n{found.title}\n{plain(found.columns, found.rows)}{note}\n"
    what, *rest = cells(found)
    wanted, answer = rest[-2:]
    promise = f"   wanted {wanted}: {answer}" if wanted else ""
    return f"{what:<80} {'   '.join(cell for cell in rest[:-2] if cell)}{promise}"
