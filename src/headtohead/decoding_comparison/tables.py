"""Build the tables of a decoding comparison, shared by the page, Markdown and CSV."""

from __future__ import annotations

from typing import Any

from headtohead.decoding_comparison import phrasing
from headtohead.presentation import number_format, style
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns

DecodingResults = dict[str, Any]
NUM_LISTED_TOKENS = 3
"""most likely tokens listed per step"""


def build_tables(results: DecodingResults) -> list[Table]:
    """Return the tables that have rows, in the order of the page."""
    builders = build_metrics_table, build_pairwise_matrix, build_tests_table, build_sweep_table, build_invariants_table
    tables = [*(build(results) for build in builders), *map(build_trace_table, results["traces"])]
    return [table for table in tables if table.rows]


def build_metrics_table(results: DecodingResults) -> Table:
    """Build the table of estimates: one row per metric, one column per strategy, human text last."""
    estimates_by_source = results["figures"] | ({"people": results["people"]} if results["people"] else {})
    columns = make_text_columns("measure") + make_numeric_columns(*estimates_by_source)
    rows = [
        [metric["title"], *(_build_estimate_cell(metric, by_name) for by_name in estimates_by_source.values())]
        for metric in results["measures"]
    ]
    num_prompts, num_samples = len(results["prompts"]), results["settings"]["samples"]
    caption = (
        f"Figures over {num_prompts} prompts with {num_samples} samples each, and their 95 % intervals over prompts."
    )
    if num_prompts < 2:
        caption = f"Figures of {num_samples} samples after one prompt; an interval needs more prompts."
    return make_table("measures", "Figures", caption, columns, rows)


def _build_estimate_cell(metric: DecodingResults, estimates: DecodingResults) -> Cell:
    """Return the cell of an estimate with its interval; its short text has the value only."""
    estimate = estimates.get(metric["name"])
    value = None if estimate is None else [estimate["value"], *(estimate["interval"] or [])]
    text = phrasing.format_estimate(metric["kind"], estimate)
    return Cell(text, value, short_text=phrasing.format_value(metric["kind"], estimate and estimate["value"]))


def build_pairwise_matrix(results: DecodingResults) -> Table:
    """Build the matrix of verdict symbols and effect sizes: one row per pair of strategies, one column per metric."""
    pairs_by_key = {(pair["strategy"], pair["against"], pair["measure"]): pair for pair in results["pairs"]}
    tested_metrics = {pair["measure"] for pair in results["pairs"]}
    metrics = [metric for metric in results["measures"] if metric["name"] in tested_metrics]
    columns = make_text_columns(pair="strategy against another") + _build_metric_columns(metrics)
    rows = []
    for strategy, against in dict.fromkeys((pair["strategy"], pair["against"]) for pair in results["pairs"]):
        cells = [_build_pair_cell(pairs_by_key.get((strategy, against, metric["name"])), metric) for metric in metrics]
        rows.append([f"{strategy} / {against}", *cells])
    outcomes = ("helped", "hurt", "no practical difference")
    legend = ", ".join(f"{style.VERDICT_SYMBOLS[outcome]} {outcome}" for outcome in outcomes)
    caption = f"The first strategy’s change against the second’s, paired by prompt: {legend}, ? cannot tell."
    return make_table("pairs", "Strategy against strategy", caption, columns, rows)


def _build_metric_columns(metrics: list[DecodingResults]) -> list[Column]:
    return make_numeric_columns(**{metric["name"]: metric["title"] for metric in metrics})


def _build_pair_cell(pair: DecodingResults | None, metric: DecodingResults) -> Cell:
    """Return the verdict symbol and the effect of a pair, or a placeholder if it was not tested."""
    if pair is None:
        return Cell(number_format.MISSING_VALUE)
    change = phrasing.format_change(metric["kind"], pair["effect"]).removesuffix("points").strip()
    symbol = style.VERDICT_SYMBOLS[pair["outcome"]]
    return Cell(f"{symbol}{number_format.NO_BREAK_SPACE}{change}", pair["effect"])


def build_tests_table(results: DecodingResults) -> Table:
    """Build the table of all tests in full: one row per pair of strategies and metric."""
    metrics = {metric["name"]: metric for metric in results["measures"]}
    columns = make_text_columns("strategy", "against", "measure", "verdict") + make_numeric_columns(
        effect="change", interval="95 % interval", min_detectable_effect="could have been seen"
    )
    rows = []
    for pair in results["pairs"]:
        kind, title = metrics[pair["measure"]]["kind"], metrics[pair["measure"]]["title"]
        interval, detectable = pair["interval"], pair["min_detectable_effect"]
        effect_cell = Cell(phrasing.format_change(kind, pair["effect"], interval), pair["effect"])
        interval_cell = Cell(phrasing.describe_change_interval(kind, interval), interval)
        detectable_cell = Cell(phrasing.format_change(kind, detectable).lstrip("+"), detectable)
        names = pair["strategy"], pair["against"], title, pair["outcome"]
        rows.append([*names, effect_cell, interval_cell, detectable_cell])
    caption = "Every test. Intervals hold for all pairs of a measure at once; the last column is the smallest change "
    return make_table("tests", "Every test", caption + "that would have been seen four times in five.", columns, rows)


def build_sweep_table(results: DecodingResults) -> Table:
    """Build the table of the sweep: one row per setting, one column per metric."""
    points = results["sweep"]["points"]
    metrics = [metric for metric in results["measures"] if any(metric["name"] in point["figures"] for point in points)]
    columns = make_text_columns(family="strategy", setting="setting") + _build_metric_columns(metrics)
    rows = [
        [point["family"], point["label"], *(_build_value_cell(metric, point["figures"]) for metric in metrics)]
        for point in points
    ]
    caption = (
        f"The sweep, with {results['sweep']['samples']} samples a prompt, on which distinct n-grams and self-BLEU hang."
    )
    return make_table("sweep", "Sweep", caption, columns, rows)


def _build_value_cell(metric: DecodingResults, estimates: DecodingResults) -> Cell:
    """Return the cell of an estimate without its interval."""
    value = estimates.get(metric["name"], {}).get("value")
    return Cell(phrasing.format_value(metric["kind"], value), value)


def build_invariants_table(results: DecodingResults) -> Table:
    """Build the table of limit checks: one row per invariant."""
    rows = [
        [check["law"], check["tried"], check["found"], "passed" if check["passed"] else "failed"]
        for check in results["laws"]
    ]
    caption = "Limits of the strategies, on this model and these prompts."
    return make_table("laws", "Limits as laws", caption, make_text_columns("law", "tried", "found", "result"), rows)


def build_trace_table(trace: DecodingResults) -> Table:
    """Build the token-by-token table of a strategy: one row per step."""
    columns = [
        *make_text_columns(step="step", token="drawn"),
        *make_numeric_columns(rank="rank", probability="model’s", kept="tokens kept", mass="their share", after="then"),
        *make_text_columns(likeliest="the model’s likeliest"),
    ]
    rows = []
    for step in trace["steps"]:
        likeliest = [entry for entry in step["top"] if entry["token"] is not None][:NUM_LISTED_TOKENS]
        counts = [Cell(number_format.format_count(step[name]), step[name]) for name in ("rank", "kept")]
        shares = [Cell(phrasing.format_percent(step[name]), step[name]) for name in ("probability", "mass", "after")]
        listed = ", ".join(
            f"{phrasing.format_token(entry['token'])} {phrasing.format_percent(entry['probability'])}"
            for entry in likeliest
        )
        token = phrasing.format_token(step["token"])
        rows.append([step["step"], token, counts[0], shares[0], counts[1], *shares[1:], listed])
    caption = "What was drawn; its probability in the model’s distribution and in what the strategy made of it (then)."
    return make_table(f"trace-{trace['strategy']}", f"{trace['strategy']}, token by token", caption, columns, rows)
