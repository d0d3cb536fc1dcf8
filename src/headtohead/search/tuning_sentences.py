"""Sentences about a tuned comparison: each optimum, the effects before and after tuning, and withheld verdicts."""

from __future__ import annotations

from headtohead.experiment.schemas import TunedSide, TuningEffect, TuningFindings
from headtohead.presentation import number_format
from headtohead.search.phrasing import format_seed_count, format_settings


def describe_tuning(tuning: TuningFindings, metric: str) -> list[str]:
    """Return sentences about the tuning budget, the optima of baseline and variants, and the effect of each variant."""
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
    """Return a sentence with the tuned settings of the baseline or a variant, and whether they lie at an edge."""
    sentence = f"{side.name}: best with {format_settings(side.settings)}"
    if side.edges:
        return f"{sentence}, at the edge of the tuned values; its verdict is withheld."
    return f"{sentence}."


def _describe_tuning_effect(effect: TuningEffect, metric: str) -> str:
    """Return a sentence with a variant's effect on validation data, with tuned and with equal settings."""
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
    """Return, for each variant whose optimum is at the edge of the tuned values, why its verdict is withheld."""
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
