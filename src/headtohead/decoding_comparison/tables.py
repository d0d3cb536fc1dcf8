"""Build the tables of a decoding report: metrics, pairs of strategies, the sweep, limit checks and traces."""

from __future__ import annotations

from functools import partial

from headtohead.decoding_comparison import phrasing
from headtohead.decoding_comparison.results import (
    DecodingResults,
    Estimates,
    GenerationMetric,
    StrategyPairVerdict,
    StrategyTrace,
)
from headtohead.presentation import number_format, style
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns

NUM_LISTED_TOKENS = 3
"""most likely tokens listed per step"""


def build_tables(results: DecodingResults) -> list[Table]:
    """Return the tables of a decoding report that have rows, in page order."""
    builders = build_metrics_table, build_pairwise_matrix, build_tests_table, build_sweep_table, build_invariants_table
    tables = [*(build(results) for build in builders), *map(build_trace_table, results.traces)]
    return [table for table in tables if table.rows]


def build_metrics_table(results: DecodingResults) -> Table:
    """Build the table of estimates: one row per metric, one column per strategy, human text last."""
    estimates_by_source = results.estimates | ({"human": results.human} if results.human else {})
    columns = make_text_columns("metric") + make_numeric_columns(*estimates_by_source)
    rows = [
        [metric.title, *(_build_estimate_cell(metric, estimates) for estimates in estimates_by_source.values())]
        for metric in results.metrics
    ]
    num_prompts, num_samples = len(results.prompts), results.settings.samples
    caption = f"Estimates over {num_prompts} prompts with {num_samples} samples each, with 95 % intervals over prompts."
    if num_prompts < 2:
        caption = f"Estimates from {num_samples} samples of one prompt; an interval needs more prompts."
    return make_table("metrics", "Metrics", caption, columns, rows)


def _build_estimate_cell(metric: GenerationMetric, estimates: Estimates) -> Cell:
    """Return the table cell of an estimate with its interval; its short text has the value only."""
    estimate = estimates.get(metric.name)
    if estimate is None:
        return Cell(number_format.MISSING_VALUE)
    short_text = phrasing.format_metric_value(metric.kind, estimate.value)
    return Cell(
        phrasing.format_metric_estimate(metric, estimate), [estimate.value, *(estimate.interval or [])], short_text
    )


def build_pairwise_matrix(results: DecodingResults) -> Table:
    """Build the matrix of verdict symbols and effect sizes: one row per pair of strategies, one column per metric."""
    tested_metrics = {pair.metric for pair in results.pairs}
    metrics = [metric for metric in results.metrics if metric.name in tested_metrics]
    columns = make_text_columns(pair="strategy / reference") + _build_metric_columns(metrics)
    rows = []
    for strategy, reference in dict.fromkeys((pair.strategy, pair.reference) for pair in results.pairs):
        pairs = [results.find_pair(strategy, reference, metric.name) for metric in metrics]
        cells = [_build_pair_cell(pair, metric) for pair, metric in zip(pairs, metrics, strict=True)]
        rows.append([f"{strategy} / {reference}", *cells])
    outcomes = ("helped", "hurt", "no practical difference")
    legend = ", ".join(f"{style.VERDICT_SYMBOLS[outcome]} {outcome}" for outcome in outcomes)
    caption = f"Change of the first strategy relative to the second, paired by prompt: {legend}, ? cannot tell."
    return make_table("pairs", "Pairs of strategies", caption, columns, rows)


def _build_metric_columns(metrics: list[GenerationMetric]) -> list[Column]:
    """Return one numeric column of a table per decoding metric, formatted with its unit."""
    return [
        Column(metric.name, metric.title, True, format=partial(phrasing.format_metric_value, metric.kind))
        for metric in metrics
    ]


def _build_pair_cell(pair: StrategyPairVerdict | None, metric: GenerationMetric) -> Cell:
    """Return the table cell of a pair of strategies: verdict symbol and effect, or a placeholder if not tested."""
    if pair is None:
        return Cell(number_format.MISSING_VALUE)
    change = phrasing.format_metric_change(metric.kind, pair.effect).removesuffix("points").strip()
    return Cell(f"{style.VERDICT_SYMBOLS[pair.outcome]}{number_format.NO_BREAK_SPACE}{change}", pair.effect)


def build_tests_table(results: DecodingResults) -> Table:
    """Build the table of all tests in full: one row per pair of strategies and metric."""
    columns = make_text_columns("strategy", "reference", "metric", "verdict") + make_numeric_columns(
        effect="change", interval="interval", min_detectable_effect="minimum detectable"
    )
    rows = []
    for pair in results.pairs:
        metric = results.metrics_by_name[pair.metric]
        effect_cell = Cell(phrasing.format_metric_change(metric.kind, pair.effect, pair.interval), pair.effect)
        interval_cell = Cell(phrasing.describe_metric_change_interval(metric.kind, pair.interval), pair.interval)
        detectable_text = phrasing.format_metric_change(metric.kind, pair.min_detectable_effect).lstrip("+")
        detectable_cell = Cell(detectable_text, pair.min_detectable_effect)
        names = pair.strategy, pair.reference, metric.title, pair.outcome
        rows.append([*names, effect_cell, interval_cell, detectable_cell])
    caption = "All tests. Intervals hold jointly with 95 % for all pairs of a metric; the last column is the smallest "
    return make_table("tests", "All tests", f"{caption}change that would be detected in 80 % of cases.", columns, rows)


def build_sweep_table(results: DecodingResults) -> Table:
    """Build the table of the sweep: one row per setting, one column per metric."""
    points = results.sweep.points
    metrics = [metric for metric in results.metrics if any(metric.name in point.estimates for point in points)]
    columns = make_text_columns(family="strategy", setting="setting") + _build_metric_columns(metrics)
    rows = []
    for point in points:
        estimates = (point.estimates.get(metric.name) for metric in metrics)
        rows.append([point.family, point.label, *(estimate and estimate.value for estimate in estimates)])
    caption = (
        f"The sweep, with {results.sweep.samples} samples per prompt. Distinct n-grams and self-BLEU depend on this "
        "number."
    )
    return make_table("sweep", "Sweep", caption, columns, rows)


def build_invariants_table(results: DecodingResults) -> Table:
    """Build the table of limit checks: one row per invariant."""
    rows = [
        [check.invariant, check.procedure, check.observation, "passed" if check.passed else "failed"]
        for check in results.limit_checks
    ]
    columns = make_text_columns("invariant", "procedure", "observation", "result")
    caption = "Limits in which strategies must agree, checked on this model and these prompts."
    return make_table("limits", "Limit checks", caption, columns, rows)


def build_trace_table(trace: StrategyTrace) -> Table:
    """Build a strategy's token-by-token table: one row per step."""
    columns = [
        *make_text_columns("step"),
        *make_text_columns(token="sampled"),
        *make_numeric_columns("rank", format=number_format.format_count),
        *make_numeric_columns("probability", format=phrasing.format_trace_probability),
        *make_numeric_columns(kept="tokens kept", format=number_format.format_count),
        *make_numeric_columns(mass="their probability", after="renormalized", format=phrasing.format_trace_probability),
        *make_text_columns(most_likely="most likely tokens"),
    ]
    rows = []
    for step in trace.steps:
        tokens = [(entry.token, entry.probability) for entry in step.top if entry.token is not None]
        top_tokens = [
            f"{phrasing.format_trace_token(token)} {phrasing.format_trace_probability(probability)}"
            for token, probability in tokens[:NUM_LISTED_TOKENS]
        ]
        numbers = step.rank, step.probability, step.kept, step.mass, step.after
        rows.append([step.step, phrasing.format_trace_token(step.token), *numbers, ", ".join(top_tokens)])
    caption = "The sampled token, and its probability under the model and after the strategy (renormalized)."
    return make_table(f"trace-{trace.strategy}", f"{trace.strategy}, token by token", caption, columns, rows)
