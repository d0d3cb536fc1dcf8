"""Titles, tables and main figures of key-design solutions, for charts, pages and the terminal. Imports no altair."""

from __future__ import annotations

from typing import Any

from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table

ResultDict = dict[str, Any]
MAX_SHOWN_NUMBERS = 12
"""largest number of vector components that are printed"""


def format_heading(result: ResultDict) -> str:
    """Return a solution's question and outcome as a title."""
    return f"{result['question'][0].upper()}{result['question'][1:]}: {format_outcome(result)}"


def format_outcome(result: ResultDict) -> str:
    """Return "exact", "exact in the limit" or "not exact"."""
    if not result["exact"]:
        return "not exact"
    return "exact" if result["attained"] else "exact in the limit"


def format_alt_text(result: ResultDict) -> str:
    """Summarize a solution as alternative text for its chart."""
    if result["kind"] == "identity":
        weights = [f"row {index}: {row[index]:.4g} on its own key" for index, row in enumerate(result["weights"])]
    else:
        weights = [f"key {index}: {weight:.4g}" for index, weight in enumerate(result["weights"])]
    return f"{format_heading(result)}. Weights: {', '.join(weights)}. {result['reason']}"


def format_legend(result: ResultDict) -> str:
    """Summarize in sentences what the marks of a solution's chart mean."""
    head_dim, kind = len(result["keys"][0]), result["kind"]
    if kind == "identity":
        legend = "Circles: keys that can be selected. Squares: other keys. Arrows: query directions."
        return legend if head_dim in (2, 3) else ""
    legend = "Circles: target keys. Squares: other keys. Area grows with weight."
    if kind == "replacement" and head_dim in (2, 3):
        legend += " Ring: old key."
    if kind == "answer" and head_dim == 2 and any(result["query"]):
        legend += " Dashed: points with the highest key's score."
    return legend


def build_keys_table(result: ResultDict, published: dict[str, Any] | None = None) -> Table:
    """Return the summary table of the keys: scores, weights and target weights, or the rows of a query matrix."""
    if result["kind"] == "identity":
        columns = [Column("row", "row"), Column("query", "query", format=format_vector)]
        columns += make_numeric_columns(weight="weight on its key", format=format_weight)
        queries = enumerate(zip(result["query"], result["weights"], strict=True))
        rows = [[index, query, weights[index]] for index, (query, weights) in queries]
        return make_table("queries", "Queries", "The query matrix, one row per key.", columns, rows)
    columns = [
        Column("key", "key"),
        Column("numbers", "vector", format=lambda key: format_vector(key, 4)),
        *make_numeric_columns("score", format="{:.4g}".format),
        *make_numeric_columns("weight", format=format_weight),
        *make_numeric_columns("target", format="{:.4g}".format),
        *(make_numeric_columns("report", format=format_weight) if published else []),
    ]
    new_index = result["at"] if result["kind"] == "replacement" else None
    rows = []
    for index, key in enumerate(result["keys"]):
        score = sum(k * q for k, q in zip(key, result["query"], strict=True))
        key_cell = Cell(f"{index} (new)" if index == new_index else str(index), index)
        published_weight = [published["weights"][index]] if published else []
        rows.append([key_cell, key, score, result["weights"][index], result["target"][index], *published_weight])
    return make_table("keys", "Keys", "The keys, their scores and weights.", columns, rows)


def build_weight_matrix_table(result: ResultDict) -> Table:
    """Return the summary table of an identity design: attention weights, with a row per query and a column per key."""
    columns = [Column("query", "weights", format="row {}".format)]
    columns += make_numeric_columns(
        *(f"key {index}" for index in range(len(result["weights"]))),
        format=lambda weight: format_weight(weight) if weight >= 5e-5 else "0",
    )
    rows = [[index, *weights] for index, weights in enumerate(result["weights"])]
    return make_table("weights", "", "", columns, rows)


def build_summary(result: ResultDict) -> dict[str, str]:
    """Return the main figures of a solution as {label: formatted value}."""
    summary = {}
    if result["kind"] != "identity":
        summary["query"] = format_vector(result["query"])
    if result["kind"] == "replacement":
        summary["new key"] = format_vector(result["key"])
        summary["norm of the key"] = f"{result['norm']:.4g}, moved by {result['moved']:.4g}"
    elif result["kind"] == "identity":
        summary["largest query norm"] = f"{result['norm']:.4g}"
    else:
        summary["norm of the query"] = f"{result['norm']:.4g}"
    summary["precision"] = format_weight(result["precision"])
    if not result["exact"]:
        is_best = result["precision"] >= result["best"] * (1 - 1e-9)
        summary["precision"] += " (best possible)" if is_best else f"; best possible {format_weight(result['best'])}"
    if result["output"] is not None and result["kind"] != "identity":
        summary["output"] = f"{format_vector(result['output'])}, target {format_vector(result['wanted'])}"
    return summary


def format_vector(numbers: list[float], digits: int = 6) -> str:
    """Format a vector with enough digits to reproduce the weights: (0.5, -1.2)."""
    formatted_numbers = [f"{number:.{digits}g}" for number in numbers[:MAX_SHOWN_NUMBERS]]
    return f"({', '.join(formatted_numbers)}{', …' if len(numbers) > MAX_SHOWN_NUMBERS else ''})"


def format_weight(value: float) -> str:
    """Format a weight: 0.999, 0.0006, 1.2e-05."""
    if 0 < 1 - value < 5e-5:
        return f"1-{1 - value:.1g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if value >= 5e-5 else (f"{value:.1g}" if value else "0")
