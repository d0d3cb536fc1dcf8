"""The tables of the decoding comparison, made once for the page, for Markdown and for CSV."""

from __future__ import annotations

from typing import Any

from headtohead.decoding_comparison import phrasing as say
from headtohead.presentation import number_format, style
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell

DecodingResults = dict[str, Any]
NUM_LISTED_TOKENS = 3
"""so many of a step's likeliest tokens are listed"""


def build_tables(results: DecodingResults) -> list[Table]:
    """Those that have a row, in the page's order."""
    made = [
        build_metrics_table(results),
        build_pairwise_matrix(results),
        build_tests_table(results),
        build_sweep_table(results),
        build_invariants_table(results),
        *map(build_trace_table, results["traces"]),
    ]
    return [one for one in made if one.rows]


def build_metrics_table(results: DecodingResults) -> Table:
    """Every measure, a column a strategy; people's last."""
    names = list(results["figures"])
    columns = [Column("measure", "measure"), *(Column(name, name, is_numeric=True) for name in names)]
    if results["people"]:
        columns.append(Column("people", "people", is_numeric=True))
    rows = []
    for one in results["measures"]:
        of = [results["figures"][name].get(one["name"]) for name in names]
        if results["people"]:
            of.append(results["people"].get(one["name"]))
        rows.append([make_text_cell(one["title"]), *(_build_estimate_cell(one, figure) for figure in of)])
    prompts, samples = len(results["prompts"]), results["settings"]["samples"]
    caption = f"Figures over {prompts} prompts with {samples} samples each, and their 95 % intervals over prompts."
    if prompts < 2:
        caption = f"Figures of {samples} samples after one prompt; an interval needs more prompts."
    return make_table("measures", "Figures", caption, columns, rows)


def _build_estimate_cell(metric: DecodingResults, estimate: DecodingResults | None) -> Cell:
    value = None if estimate is None else [estimate["value"], *(estimate["interval"] or [])]
    text = say.format_estimate(metric["kind"], estimate)
    return Cell(text, value, short_text=say.format_value(metric["kind"], estimate and estimate["value"]))


def build_pairwise_matrix(results: DecodingResults) -> Table:
    """Every pair of strategies with every measure, as a sign and a size."""
    judged = [one for one in results["measures"] if any(pair["measure"] == one["name"] for pair in results["pairs"])]
    by_place = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in results["pairs"]}
    pairs = dict.fromkeys((pair["strategy"], pair["against"]) for pair in results["pairs"])
    columns = [Column("pair", "strategy against another"), *(Column(one["name"], one["title"], True) for one in judged)]
    rows = []
    for strategy, against in pairs:
        cells = [_build_pair_cell(by_place.get((strategy, against, one["name"])), one) for one in judged]
        rows.append([make_text_cell(f"{strategy} / {against}"), *cells])
    signs = ", ".join(f"{style.VERDICT_SYMBOLS[word]} {word}" for word in ("helped", "hurt", "no practical difference"))
    caption = f"The first strategy’s change against the second’s, paired by prompt: {signs}, ? cannot tell."
    return make_table("pairs", "Strategy against strategy", caption, columns, rows)


def _build_pair_cell(pair: DecodingResults | None, metric: DecodingResults) -> Cell:
    if pair is None:
        return Cell(number_format.MISSING_VALUE)
    said = say.format_change(metric["kind"], pair["effect"])
    return Cell(
        f"{style.VERDICT_SYMBOLS[pair['outcome']]}{number_format.NO_BREAK_SPACE}{said.removesuffix('points').strip()}",
        pair["effect"],
    )


def build_tests_table(results: DecodingResults) -> Table:
    """The same in full: a row for each pair and measure."""
    kinds = {one["name"]: one for one in results["measures"]}
    columns = [
        Column("strategy", "strategy"),
        Column("against", "against"),
        Column("measure", "measure"),
        Column("verdict", "verdict"),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
        Column("min_detectable_effect", "could have been seen", True),
    ]
    rows = []
    for pair in results["pairs"]:
        one = kinds[pair["measure"]]
        interval = pair["interval"]
        rows.append(
            [
                make_text_cell(pair["strategy"]),
                make_text_cell(pair["against"]),
                make_text_cell(one["title"]),
                make_text_cell(pair["outcome"]),
                Cell(say.format_change(one["kind"], pair["effect"], interval), pair["effect"]),
                Cell(say.describe_change_interval(one["kind"], interval), interval),
                Cell(
                    say.format_change(one["kind"], pair["min_detectable_effect"]).lstrip("+"),
                    pair["min_detectable_effect"],
                ),
            ]
        )
    caption = "Every test. Intervals hold for all pairs of a measure at once; the last column is the smallest change "
    return make_table("tests", "Every test", caption + "that would have been seen four times in five.", columns, rows)


def build_sweep_table(results: DecodingResults) -> Table:
    points = results["sweep"]["points"]
    measures = [one for one in results["measures"] if any(one["name"] in point["figures"] for point in points)]
    columns = [
        Column("family", "strategy"),
        Column("setting", "setting"),
        *(Column(one["name"], one["title"], is_numeric=True) for one in measures),
    ]
    rows = [
        [
            make_text_cell(point["family"]),
            make_text_cell(point["label"]),
            *(_build_value_cell(one, point["figures"].get(one["name"])) for one in measures),
        ]
        for point in points
    ]
    caption = (
        f"The sweep, with {results['sweep']['samples']} samples a prompt, on which distinct n-grams and self-BLEU hang."
    )
    return make_table("sweep", "Sweep", caption, columns, rows)


def _build_value_cell(metric: DecodingResults, estimate: DecodingResults | None) -> Cell:
    return Cell(say.format_value(metric["kind"], estimate and estimate["value"]), estimate and estimate["value"])


def build_invariants_table(results: DecodingResults) -> Table:
    """The limits of the strategies, tried on this model and these prompts."""
    columns = [Column("law", "law"), Column("tried", "tried"), Column("found", "found"), Column("result", "result")]
    rows = [
        [
            make_text_cell(one["law"]),
            make_text_cell(one["tried"]),
            make_text_cell(one["found"]),
            make_text_cell("passed" if one["passed"] else "failed"),
        ]
        for one in results["laws"]
    ]
    return make_table(
        "laws", "Limits as laws", "Limits of the strategies, on this model and these prompts.", columns, rows
    )


def build_trace_table(trace: DecodingResults) -> Table:
    """What was drawn, token by token."""
    columns = [
        Column("step", "step"),
        Column("token", "drawn"),
        Column("rank", "rank", True),
        Column("probability", "model’s", True),
        Column("kept", "tokens kept", True),
        Column("mass", "their share", True),
        Column("after", "then", True),
        Column("likeliest", "the model’s likeliest"),
    ]
    rows = []
    for one in trace["steps"]:
        likeliest = [top for top in one["top"] if top["token"] is not None][:NUM_LISTED_TOKENS]
        listed = ", ".join(
            f"{say.format_token(top['token'])} {say.format_percent(top['probability'])}" for top in likeliest
        )
        rows.append(
            [
                make_text_cell(one["step"]),
                make_text_cell(say.format_token(one["token"])),
                Cell(f"{one['rank']:,}", one["rank"]),
                Cell(say.format_percent(one["probability"]), one["probability"]),
                Cell(number_format.format_count(one["kept"]), one["kept"]),
                Cell(
                    number_format.MISSING_VALUE if one["mass"] is None else say.format_percent(one["mass"]), one["mass"]
                ),
                Cell(
                    number_format.MISSING_VALUE if one["after"] is None else say.format_percent(one["after"]),
                    one["after"],
                ),
                make_text_cell(listed),
            ]
        )
    caption = "What was drawn; its probability in the model’s distribution and in what the strategy made of it (then)."
    return make_table(f"trace-{trace['strategy']}", f"{trace['strategy']}, token by token", caption, columns, rows)
