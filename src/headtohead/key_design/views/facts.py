"""An answer of design by hand in words and figures: what pictures, the page and the terminal share. Made from the plain
rows that answers give (`as_row`); needs no altair.
"""

from __future__ import annotations

from typing import Any

from headtohead.presentation.table import Cell, Column, Table, table

Row = dict[str, Any]
MOST_NUMBERS = 12


def heading(row: Row) -> str:
    return f"{row['question'][0].upper()}{row['question'][1:]}: {outcome(row)}"


def outcome(row: Row) -> str:
    """Exact, exact in the limit, or not exact."""
    if not row["exact"]:
        return "not exact"
    return "exact" if row["attained"] else "exact in the limit"


def words(row: Row) -> str:
    """What the picture shows, for those who do not see it."""
    if row["kind"] == "identity":
        said = [f"row {i}: {line[i]:.4g} on its own key" for i, line in enumerate(row["weights"])]
    else:
        said = [f"key {i}: {weight:.4g}" for i, weight in enumerate(row["weights"])]
    return f"{heading(row)}. Weights: {', '.join(said)}. {row['reason']}"


def legend(row: Row) -> str:
    """What the marks stand for."""
    dims, kind = len(row["keys"][0]), row["kind"]
    if kind == "identity":
        said = "Circles: keys that can be selected; squares: others. Arrows: directions of the queries."
        return said if dims in (2, 3) else ""
    said = "Circles: keys that should get weight; squares: others; the larger, the more weight."
    if kind == "replacement" and dims in (2, 3):
        said += " Ring: the old key."
    if kind == "answer" and dims == 2 and any(row["query"]):
        said += " Dashed: where the score equals the highest key's."
    return said


def keys_table(row: Row, theirs: dict[str, Any] | None = None) -> Table:
    """Each key: its numbers, the score and weight it gets, the weight it should get."""
    if row["kind"] == "identity":
        columns = [Column("row", "row"), Column("query", "query"), Column("weight", "weight on its key", True)]
        lines = [
            (Cell(str(at), at), Cell(vector(query), query), Cell(figure(own[at]), own[at]))
            for at, (query, own) in enumerate(zip(row["query"], row["weights"], strict=True))
        ]
        return table("queries", "Queries", "The query matrix, a row for each key.", columns, lines)
    columns = [Column("key", "key"), Column("numbers", "its numbers"), Column("score", "score", True)]
    columns += [Column("weight", "weight", True), Column("target", "target", True)]
    columns += [Column("report", "report", True)] if theirs else []
    return table(
        "keys",
        "Keys",
        "The keys, their scores and weights.",
        columns,
        [_line(row, at, theirs) for at in range(len(row["keys"]))],
    )


def _line(row: Row, at: int, theirs: dict[str, Any] | None) -> list[Cell]:
    key, weight, target = row["keys"][at], row["weights"][at], row["target"][at]
    score = sum(a * b for a, b in zip(key, row["query"], strict=True))
    name = f"{at} (new)" if row["kind"] == "replacement" and at == row["at"] else str(at)
    line = [Cell(name, at), Cell(vector(key, 4), key), Cell(f"{score:.4g}", score)]
    line += [Cell(figure(weight), weight), Cell(f"{target:.4g}", target)]
    return line + ([Cell(figure(theirs["weights"][at]), theirs["weights"][at])] if theirs else [])


def facts(row: Row) -> dict[str, str]:
    """The figures of an answer, in words."""
    found = {}
    if row["kind"] != "identity":
        found["query"] = vector(row["query"])
    if row["kind"] == "replacement":
        found["new key"] = vector(row["key"])
        found["length of the key"] = f"{row['norm']:.4g}, moved by {row['moved']:.4g}"
    elif row["kind"] == "identity":
        found["longest query"] = f"{row['norm']:.4g}"
    else:
        found["length of the query"] = f"{row['norm']:.4g}"
    found["precision"] = figure(row["precision"])
    if not row["exact"]:
        is_best = row["precision"] >= row["best"] * (1 - 1e-9)
        found["precision"] += ", the best there is" if is_best else f"; the best is {figure(row['best'])}"
    if row["output"] is not None and row["kind"] != "identity":
        found["output"] = f"{vector(row['output'])}, wanted {vector(row['wanted'])}"
    return found


def vector(numbers: list[float], digits: int = 6) -> str:
    """(0.5, -1.2): with six digits the weights come out the same when it is typed in again."""
    shown = [f"{number:.{digits}g}" for number in numbers[:MOST_NUMBERS]]
    return f"({', '.join(shown)}{', …' if len(numbers) > MOST_NUMBERS else ''})"


def figure(value: float) -> str:
    """0.999, 0.0006, 1.2e-05."""
    if 0 < 1 - value < 5e-5:
        return f"1-{1 - value:.1g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if value >= 5e-5 else (f"{value:.1g}" if value else "0")
