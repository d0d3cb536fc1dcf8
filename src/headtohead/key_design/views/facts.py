"""An answer of design by hand in words and figures: what pictures, the page and the terminal share. Made from the plain
rows that answers give (`as_row`); needs no altair.
"""

from __future__ import annotations

from typing import Any

from headtohead.presentation.table import Cell, Column, Table, make_table

ResultDict = dict[str, Any]
MAX_SHOWN_NUMBERS = 12


def format_heading(result: ResultDict) -> str:
    return f"{result['question'][0].upper()}{result['question'][1:]}: {format_outcome(result)}"


def format_outcome(result: ResultDict) -> str:
    """Exact, exact in the limit, or not exact."""
    if not result["exact"]:
        return "not exact"
    return "exact" if result["attained"] else "exact in the limit"


def format_alt_text(result: ResultDict) -> str:
    """What the picture shows, for those who do not see it."""
    if result["kind"] == "identity":
        said = [f"row {i}: {line[i]:.4g} on its own key" for i, line in enumerate(result["weights"])]
    else:
        said = [f"key {i}: {weight:.4g}" for i, weight in enumerate(result["weights"])]
    return f"{format_heading(result)}. Weights: {', '.join(said)}. {result['reason']}"


def format_legend(result: ResultDict) -> str:
    """What the marks stand for."""
    dims, kind = len(result["keys"][0]), result["kind"]
    if kind == "identity":
        said = "Circles: keys that can be selected; squares: others. Arrows: directions of the queries."
        return said if dims in (2, 3) else ""
    said = "Circles: keys that should get weight; squares: others; the larger, the more weight."
    if kind == "replacement" and dims in (2, 3):
        said += " Ring: the old key."
    if kind == "answer" and dims == 2 and any(result["query"]):
        said += " Dashed: where the score equals the highest key's."
    return said


def build_keys_table(result: ResultDict, published: dict[str, Any] | None = None) -> Table:
    """Each key: its numbers, the score and weight it gets, the weight it should get."""
    if result["kind"] == "identity":
        columns = [Column("row", "row"), Column("query", "query"), Column("weight", "weight on its key", True)]
        lines = [
            (Cell(str(at), at), Cell(format_vector(query), query), Cell(format_weight(own[at]), own[at]))
            for at, (query, own) in enumerate(zip(result["query"], result["weights"], strict=True))
        ]
        return make_table("queries", "Queries", "The query matrix, a row for each key.", columns, lines)
    columns = [Column("key", "key"), Column("numbers", "its numbers"), Column("score", "score", True)]
    columns += [Column("weight", "weight", True), Column("target", "target", True)]
    columns += [Column("report", "report", True)] if published else []
    return make_table(
        "keys",
        "Keys",
        "The keys, their scores and weights.",
        columns,
        [_build_key_cells(result, at, published) for at in range(len(result["keys"]))],
    )


def _build_key_cells(result: ResultDict, key_index: int, published: dict[str, Any] | None) -> list[Cell]:
    key, weight, target = result["keys"][key_index], result["weights"][key_index], result["target"][key_index]
    score = sum(a * b for a, b in zip(key, result["query"], strict=True))
    name = f"{key_index} (new)" if result["kind"] == "replacement" and key_index == result["at"] else str(key_index)
    line = [Cell(name, key_index), Cell(format_vector(key, 4), key), Cell(f"{score:.4g}", score)]
    line += [Cell(format_weight(weight), weight), Cell(f"{target:.4g}", target)]
    return line + (
        [Cell(format_weight(published["weights"][key_index]), published["weights"][key_index])] if published else []
    )


def build_summary(result: ResultDict) -> dict[str, str]:
    """The figures of an answer, in words."""
    found = {}
    if result["kind"] != "identity":
        found["query"] = format_vector(result["query"])
    if result["kind"] == "replacement":
        found["new key"] = format_vector(result["key"])
        found["length of the key"] = f"{result['norm']:.4g}, moved by {result['moved']:.4g}"
    elif result["kind"] == "identity":
        found["longest query"] = f"{result['norm']:.4g}"
    else:
        found["length of the query"] = f"{result['norm']:.4g}"
    found["precision"] = format_weight(result["precision"])
    if not result["exact"]:
        is_best = result["precision"] >= result["best"] * (1 - 1e-9)
        found["precision"] += ", the best there is" if is_best else f"; the best is {format_weight(result['best'])}"
    if result["output"] is not None and result["kind"] != "identity":
        found["output"] = f"{format_vector(result['output'])}, wanted {format_vector(result['wanted'])}"
    return found


def format_vector(numbers: list[float], digits: int = 6) -> str:
    """(0.5, -1.2): with six digits the weights come out the same when it is typed in again."""
    shown = [f"{number:.{digits}g}" for number in numbers[:MAX_SHOWN_NUMBERS]]
    return f"({', '.join(shown)}{', …' if len(numbers) > MAX_SHOWN_NUMBERS else ''})"


def format_weight(value: float) -> str:
    """0.999, 0.0006, 1.2e-05."""
    if 0 < 1 - value < 5e-5:
        return f"1-{1 - value:.1g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if value >= 5e-5 else (f"{value:.1g}" if value else "0")
