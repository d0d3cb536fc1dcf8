"""Sentences about a search, its selection bias and a tuned comparison, and short names for settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import (
    Findings,
    SearchFindings,
    SelectionBias,
    TunedSide,
    TuningEffect,
    TuningFindings,
)
from headtohead.presentation import number_format


def shorten_setting_names(settings: Sequence[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each setting for use in sentences, such as lr for training.optimizer.lr."""
    short_names = {}
    for setting in settings:
        components = setting.split(".")
        for length in range(1, len(components) + 1):
            suffix = short_names[setting] = ".".join(components[-length:])
            if sum(candidate.endswith(f".{suffix}") or candidate == suffix for candidate in settings) == 1:
                break
    return short_names


def format_settings(settings: Mapping[str, JsonValue]) -> str:
    """Phrase settings with short names, for example: lr 0.003, batch_size 8."""
    short_names = shorten_setting_names(list(settings))
    return ", ".join(
        f"{short_names[setting]} {number_format.format_setting(value)}" for setting, value in settings.items()
    )


def describe_search(findings: Findings) -> list[str]:
    """Phrase the size of a search, its winner and the selection bias."""
    search = findings.search
    if search is None:
        return []
    winner = search.points[search.winner]
    sentences = [_describe_search_size(search), f"The winner is {winner.name}: {format_settings(winner.settings)}."]
    if search.selection_bias is not None:
        sentences.append(describe_selection_bias(findings_view.get_metric(findings), search.selection_bias))
    return sentences


def _describe_search_size(search: SearchFindings) -> str:
    """Phrase the method of a search, the numbers of points, seeds and trials, and the points that did not finish."""
    num_points, statuses = len(search.points), [point.status for point in search.points]
    method_titles = {"grid": "Grid search", "random": "Random search", "tpe": "TPE search"}
    grid_note = f" (of {search.grid_size:,} in the grid)" if search.grid_size and search.grid_size > num_points else ""
    at_most = "up to " if {"pruned", "unfinished"} & set(statuses) else ""
    seeds = f"{at_most}{format_seed_count(search.seeds)}"
    sentence = f"{method_titles[search.method]} tried {num_points:,} points{grid_note} with {seeds}"
    status_counts = [
        f"{statuses.count(status)} {status}" for status in ("pruned", "failed", "unfinished") if status in statuses
    ]
    return (
        f"{sentence} each, {search.trials:,} trials in total"
        + (f"; {', '.join(status_counts)}" if status_counts else "")
        + "."
    )


def format_seed_count(num_seeds: int) -> str:
    """Format a number of seeds: 1 seed, 3 seeds."""
    return f"{num_seeds} seed{'' if num_seeds == 1 else 's'}"


def describe_selection_bias(metric: str, bias: SelectionBias) -> str:
    """Phrase a selection bias, such as: Of the lead of 3.1 points, 1.4 were selection bias."""
    search_score, fresh_score = (number_format.format_score(metric, score) for score in (bias.search, bias.fresh))
    decimals = number_format.choose_decimals(metric, bias.interval)
    interval = ""
    if bias.interval:
        bounds = _format_bias_interval(metric, bias.interval, decimals)
        interval = f" (95{number_format.NO_BREAK_SPACE}% interval {bounds})"
    lead = _format_magnitude(metric, bias.lead, decimals) + number_format.get_effect_unit(metric)
    direction = "below" if (metric in number_format.LOWER_IS_BETTER_METRICS) == (bias.lead > 0) else "above"
    sentences = f"In the search it reached {metric} {search_score} on validation data, {lead} "
    sentences += f"{direction} the baseline with fresh seeds; "
    sentences += f"with {format_seed_count(int(bias.seeds[1]))} that the search did not use, it reached {fresh_score}. "
    if bias.lead <= 0:
        return sentences + "It did not lead even in the search, so there is no selection bias to estimate."
    if bias.bias <= 0:
        return sentences + f"Fresh seeds confirm the lead of {lead}: there is no selection bias{interval}."
    bias_size = _format_magnitude(metric, bias.bias, decimals)
    return sentences + f"Of the lead of {lead}, {bias_size} were selection bias{interval}."


def _format_magnitude(metric: str, difference: float, decimals: int) -> str:
    """Format a difference of a metric without sign and unit, in percentage points where the metric is a percentage."""
    return f"{abs(difference) * (100 if number_format.is_shown_in_percent(metric) else 1):,.{decimals}f}"


def _format_bias_interval(metric: str, bounds: Sequence[float], decimals: int) -> str:
    """Phrase the interval of a selection bias: "0.2 to 1.5"."""
    low, high = (
        ("" if bound >= 0 else number_format.MINUS_SIGN) + _format_magnitude(metric, bound, decimals)
        for bound in bounds
    )
    return f"{low} to {high}"


def describe_tuning(tuning: TuningFindings, metric: str) -> list[str]:
    """Phrase the tuning budget, the optima of baseline and variants, and the effect of each variant."""
    num_points = max((len(side.points) for side in tuning.sides), default=0)
    budget_sentence = (
        f"The baseline and every variant were tuned on validation data with the same budget: up to {num_points} points "
        f"with {format_seed_count(tuning.seeds)} each, {tuning.trials:,} trials in total. The verdict uses "
        "different seeds."
    )
    optimum_sentences = [_describe_optimum(side) for side in tuning.sides]
    effect_sentences = [_describe_tuning_effect(effect, metric) for effect in tuning.effects]
    return [budget_sentence, *optimum_sentences, *effect_sentences]


def _describe_optimum(side: TunedSide) -> str:
    """Phrase the tuned settings of the baseline or a variant, and whether they lie at an edge."""
    sentence = f"{side.name}: best with {format_settings(side.settings)}"
    if side.edges:
        return f"{sentence}, at the edge of the tuned values; its verdict is withheld."
    return f"{sentence}."


def _describe_tuning_effect(effect: TuningEffect, metric: str) -> str:
    """Phrase a variant's effect on validation data, with tuned and with equal settings."""
    tuned = number_format.format_effect(metric, effect.tuned)
    untuned_effects = [
        f"{number_format.format_effect(metric, untuned_effect)} with {settings}"
        for settings, untuned_effect in (
            ("the settings of the file", effect.at_file_settings),
            ("the optimum of the baseline for both", effect.at_baseline_optimum),
        )
        if untuned_effect is not None
    ]
    untuned_text = f", {' and '.join(untuned_effects)}" if untuned_effects else ""
    return f"{effect.variant}, on validation data with tuning seeds: {tuned} with each at its optimum{untuned_text}."


def explain_edge_optima(tuning: TuningFindings | None) -> dict[str, str]:
    """Phrase, for each variant whose optimum is at the edge of the tuned values, why its verdict is withheld."""
    reasons = {}
    for side in tuning.sides if tuning else ():
        edge_values = ", ".join(
            f"{setting} = {number_format.format_setting(side.settings[setting])}" for setting in side.edges
        )
        if edge_values:
            reasons[side.name] = (
                f"has its optimum at the edge of the tuned values ({edge_values}); add values to tune.space"
            )
    return reasons
