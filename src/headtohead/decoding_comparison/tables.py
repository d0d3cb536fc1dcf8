"""Build the tables of a decoding comparison, shared by the page, Markdown and CSV."""

from __future__ import annotations

from typing import Any

from headtohead.decoding_comparison import phrasing
from headtohead.presentation import number_format, style
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell

DecodingResults = dict[str, Any]
NUM_LISTED_TOKENS = 3
"""most likely tokens listed per step"""


def build_tables(results: DecodingResults) -> list[Table]:
    """Return the tables that have rows, in the order of the page."""
    tables = [
        build_metrics_table(results),
        build_pairwise_matrix(results),
        build_tests_table(results),
        build_sweep_table(results),
        build_invariants_table(results),
        *map(build_trace_table, results["traces"]),
    ]
    return [table for table in tables if table.rows]


def build_metrics_table(results: DecodingResults) -> Table:
    """Build the table of estimates: one row per metric, one column per strategy, human text last."""
    strategies = list(results["figures"])
    columns = [Column("measure", "measure"), *(Column(strategy, strategy, is_numeric=True) for strategy in strategies)]
    if results["people"]:
        columns.append(Column("people", "people", is_numeric=True))
    rows = []
    for metric in results["measures"]:
        estimates = [results["figures"][strategy].get(metric["name"]) for strategy in strategies]
        if results["people"]:
            estimates.append(results["people"].get(metric["name"]))
        rows.append(
            [make_text_cell(metric["title"]), *(_build_estimate_cell(metric, estimate) for estimate in estimates)]
        )
    num_prompts, num_samples = len(results["prompts"]), results["settings"]["samples"]
    caption = (
        f"Figures over {num_prompts} prompts with {num_samples} samples each, and their 95 % intervals over prompts."
    )
    if num_prompts < 2:
        caption = f"Figures of {num_samples} samples after one prompt; an interval needs more prompts."
    return make_table("measures", "Figures", caption, columns, rows)


def _build_estimate_cell(metric: DecodingResults, estimate: DecodingResults | None) -> Cell:
    """Return the cell of an estimate with its interval; its short text has the value only."""
    value = None if estimate is None else [estimate["value"], *(estimate["interval"] or [])]
    text = phrasing.format_estimate(metric["kind"], estimate)
    return Cell(text, value, short_text=phrasing.format_value(metric["kind"], estimate and estimate["value"]))


def build_pairwise_matrix(results: DecodingResults) -> Table:
    """Build the matrix of verdict symbols and effect sizes: one row per pair of strategies, one column per metric."""
    metrics = [
        metric for metric in results["measures"] if any(pair["measure"] == metric["name"] for pair in results["pairs"])
    ]
    pairs_by_key = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in results["pairs"]}
    strategy_pairs = dict.fromkeys((pair["strategy"], pair["against"]) for pair in results["pairs"])
    columns = [
        Column("pair", "strategy against another"),
        *(Column(metric["name"], metric["title"], True) for metric in metrics),
    ]
    rows = []
    for strategy, against in strategy_pairs:
        cells = [_build_pair_cell(pairs_by_key.get((strategy, against, metric["name"])), metric) for metric in metrics]
        rows.append([make_text_cell(f"{strategy} / {against}"), *cells])
    legend = ", ".join(
        f"{style.VERDICT_SYMBOLS[outcome]} {outcome}" for outcome in ("helped", "hurt", "no practical difference")
    )
    caption = f"The first strategy’s change against the second’s, paired by prompt: {legend}, ? cannot tell."
    return make_table("pairs", "Strategy against strategy", caption, columns, rows)


def _build_pair_cell(pair: DecodingResults | None, metric: DecodingResults) -> Cell:
    """Return the verdict symbol and the effect of a pair, or a placeholder if it was not tested."""
    if pair is None:
        return Cell(number_format.MISSING_VALUE)
    change = phrasing.format_change(metric["kind"], pair["effect"])
    return Cell(
        f"{style.VERDICT_SYMBOLS[pair['outcome']]}{number_format.NO_BREAK_SPACE}{change.removesuffix('points').strip()}",
        pair["effect"],
    )


def build_tests_table(results: DecodingResults) -> Table:
    """Build the table of all tests in full: one row per pair of strategies and metric."""
    metrics = {metric["name"]: metric for metric in results["measures"]}
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
        metric = metrics[pair["measure"]]
        interval = pair["interval"]
        rows.append(
            [
                make_text_cell(pair["strategy"]),
                make_text_cell(pair["against"]),
                make_text_cell(metric["title"]),
                make_text_cell(pair["outcome"]),
                Cell(phrasing.format_change(metric["kind"], pair["effect"], interval), pair["effect"]),
                Cell(phrasing.describe_change_interval(metric["kind"], interval), interval),
                Cell(
                    phrasing.format_change(metric["kind"], pair["min_detectable_effect"]).lstrip("+"),
                    pair["min_detectable_effect"],
                ),
            ]
        )
    caption = "Every test. Intervals hold for all pairs of a measure at once; the last column is the smallest change "
    return make_table("tests", "Every test", caption + "that would have been seen four times in five.", columns, rows)


def build_sweep_table(results: DecodingResults) -> Table:
    """Build the table of the sweep: one row per setting, one column per metric."""
    points = results["sweep"]["points"]
    metrics = [metric for metric in results["measures"] if any(metric["name"] in point["figures"] for point in points)]
    columns = [
        Column("family", "strategy"),
        Column("setting", "setting"),
        *(Column(metric["name"], metric["title"], is_numeric=True) for metric in metrics),
    ]
    rows = [
        [
            make_text_cell(point["family"]),
            make_text_cell(point["label"]),
            *(_build_value_cell(metric, point["figures"].get(metric["name"])) for metric in metrics),
        ]
        for point in points
    ]
    caption = (
        f"The sweep, with {results['sweep']['samples']} samples a prompt, on which distinct n-grams and self-BLEU hang."
    )
    return make_table("sweep", "Sweep", caption, columns, rows)


def _build_value_cell(metric: DecodingResults, estimate: DecodingResults | None) -> Cell:
    """Return the cell of an estimate without its interval."""
    return Cell(phrasing.format_value(metric["kind"], estimate and estimate["value"]), estimate and estimate["value"])


def build_invariants_table(results: DecodingResults) -> Table:
    """Build the table of limit checks: one row per invariant."""
    columns = [Column("law", "law"), Column("tried", "tried"), Column("found", "found"), Column("result", "result")]
    rows = [
        [
            make_text_cell(check["law"]),
            make_text_cell(check["tried"]),
            make_text_cell(check["found"]),
            make_text_cell("passed" if check["passed"] else "failed"),
        ]
        for check in results["laws"]
    ]
    return make_table(
        "laws", "Limits as laws", "Limits of the strategies, on this model and these prompts.", columns, rows
    )


def build_trace_table(trace: DecodingResults) -> Table:
    """Build the token-by-token table of a strategy: one row per step."""
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
    for step in trace["steps"]:
        likeliest = [entry for entry in step["top"] if entry["token"] is not None][:NUM_LISTED_TOKENS]
        listed = ", ".join(
            f"{phrasing.format_token(entry['token'])} {phrasing.format_percent(entry['probability'])}"
            for entry in likeliest
        )
        rows.append(
            [
                make_text_cell(step["step"]),
                make_text_cell(phrasing.format_token(step["token"])),
                Cell(f"{step['rank']:,}", step["rank"]),
                Cell(phrasing.format_percent(step["probability"]), step["probability"]),
                Cell(number_format.format_count(step["kept"]), step["kept"]),
                Cell(
                    number_format.MISSING_VALUE if step["mass"] is None else phrasing.format_percent(step["mass"]),
                    step["mass"],
                ),
                Cell(
                    number_format.MISSING_VALUE if step["after"] is None else phrasing.format_percent(step["after"]),
                    step["after"],
                ),
                make_text_cell(listed),
            ]
        )
    caption = "What was drawn; its probability in the model’s distribution and in what the strategy made of it (then)."
    return make_table(f"trace-{trace['strategy']}", f"{trace['strategy']}, token by token", caption, columns, rows)
