"""Tuned comparisons: one search for the baseline and for every variant, and the noise of choosing their optima.

RUNS/EXPERIMENT/
  tune/VARIANT/       the search for one variant: experiment.json, journal.jsonl, search/point-001/seed-1000/

The noise of the choice is estimated by simulation: noise with the standard deviation between seeds is added to the mean
of every point, and the best simulated point is compared with the chosen one. Noise that all points of a seed share does
not affect the choice and is excluded. The root mean square of the difference is added to the interval of the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.overlays import VARIANT_TABLES
from headtohead.config.tables.search import TUNING_FOLDER, NumericRange, SearchConfig, SettingValues
from headtohead.config.trial_settings import build_trial
from headtohead.config.variant_changes import build_variant_changes
from headtohead.errors import ConfigError
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.experiment.schemas import TunedSide, TuningEffect, TuningFindings
from headtohead.search import points as search_points
from headtohead.search import search_journal
from headtohead.search.points import SearchPoint
from headtohead.search.search_findings import build_point_result, compute_result_checksums
from headtohead.search.seed_noise import compute_mean_half_width, compute_pooled_std
from headtohead.verdict.metric import get_metric
from headtohead.verdict.tuning_variance import TuningVariance, estimate_tuning_variance

MIN_GEOMETRIC_RATIO = 1.5
"""positive values whose ratios are at least this large are extended by a factor, others by a difference"""
EDGE_FRACTION = 0.05
"""fraction of a continuous range, at either end, that is treated as its edge"""


def get_tuning_folder(experiment_folder: Path, variant: str) -> Path:
    """Return the folder that contains the search for the baseline or for a variant."""
    return experiment_folder / TUNING_FOLDER / variant


def build_tuning_experiment(experiment: Experiment, variant: str) -> Experiment:
    """Return the experiment that tunes the baseline or a variant: it is the only model, and [tune] is the search."""
    assert experiment.tune is not None
    trial = build_trial(experiment.model_copy(update={"tuned": {}}), variant, 0)
    search = SearchConfig.model_validate(experiment.tune.model_dump(mode="json", exclude={"extend"}))
    removed_tables: dict[str, Any] = {"variants": {}, "tuned": {}, "tune": None, "sweep": None}
    removed_tables |= dict.fromkeys(("comparisons", "claims", "published", "text"), ())
    return experiment.model_copy(
        update={
            "data": trial.data,
            "model": trial.model,
            "training": trial.training,
            "search": search,
            **removed_tables,
        }
    )


def read_tuned_settings(experiment: Experiment, experiment_folder: Path) -> dict[str, SettingValues]:
    """Return the tuned settings of the baseline and of each variant whose tuning is complete."""
    settings_by_variant = {}
    for variant in experiment.names:
        tuning_folder = get_tuning_folder(experiment_folder, variant)
        if (tuning_folder / "experiment.json").is_file():
            tuning_experiment = build_tuning_experiment(experiment, variant)
            settings = search_journal.read_winner_settings(tuning_experiment, tuning_folder)
            if settings is not None:
                settings_by_variant[variant] = settings
    return settings_by_variant


def load_tuning_points(experiment: Experiment, experiment_folder: Path, variant: str) -> list[SearchPoint]:
    """Return the points of the search that tunes the baseline or a variant, with their scores."""
    tuning_experiment = build_tuning_experiment(experiment, variant)
    tuning_folder = get_tuning_folder(experiment_folder, variant)
    assert tuning_experiment.search is not None
    events = search_journal.read_search_events(Journal(tuning_folder))
    search_folder = search_points.get_search_folder(tuning_folder)
    return search_points.load_points(search_folder, tuning_experiment.search, events, experiment.primary.metric)


def find_grid_extensions(
    tuning_experiment: Experiment, points: Sequence[SearchPoint], chosen_settings: SettingValues
) -> dict[str, Any]:
    """Return, for every setting whose chosen value lies at the edge of the tuned values, the next value to try.

    If the next value is invalid, the chosen one does not count as an edge. For a continuous range, the chosen value
    itself is returned, because ranges are not extended.
    """
    assert tuning_experiment.search is not None
    next_values = {}
    for setting, axis in tuning_experiment.search.space.items():
        chosen_value = chosen_settings[setting]
        if isinstance(axis, NumericRange) and axis.step is None:
            if _is_near_range_end(axis, chosen_value):
                next_values[setting] = chosen_value
            continue
        tried_values = sorted({point.settings[setting] for point in points if _is_number(point.settings[setting])})
        if not _is_number(chosen_value) or len(tried_values) < 2:
            continue
        if chosen_value not in (tried_values[0], tried_values[-1]):
            continue
        next_value = compute_next_value(tried_values, is_upper=chosen_value == tried_values[-1])
        if _passes_validation(tuning_experiment, {**chosen_settings, setting: next_value}):
            next_values[setting] = next_value
    return next_values


def list_grid_extension_points(points: Sequence[SearchPoint], setting: str, value: Any) -> list[SettingValues]:
    """Return the points that extend a tuning grid: `value` with every combination of the other settings' values."""
    tried_settings = [point.settings for point in points]
    values_by_setting = {
        name: [value] if name == setting else list(dict.fromkeys(settings[name] for settings in tried_settings))
        for name in tried_settings[0]
    }
    combinations = [
        dict(zip(values_by_setting, combination, strict=True)) for combination in product(*values_by_setting.values())
    ]
    return [settings for settings in combinations if settings not in tried_settings]


def compute_next_value(values: Sequence[float], *, is_upper: bool) -> float:
    """Extrapolate the values of a tuning grid by one step at either end, geometrically or linearly."""
    is_geometric = values[0] > 0 and all(high / low >= MIN_GEOMETRIC_RATIO for low, high in pairwise(values))
    end, neighbor = (values[-1], values[-2]) if is_upper else (values[0], values[1])
    next_value = end * end / neighbor if is_geometric else end + (end - neighbor)
    if all(isinstance(number, int) for number in values):
        return round(next_value)
    return float(f"{next_value:.2g}" if is_geometric else f"{next_value:.6g}")


def _passes_validation(tuning_experiment: Experiment, settings: SettingValues) -> bool:
    """Return whether a trial of the tuning can have the settings of a point."""
    raw_tables = tuning_experiment.model_dump(mode="json", include={*VARIANT_TABLES})
    try:
        changes = build_variant_changes(raw_tables, settings)
        build_trial(tuning_experiment.model_copy(update={"variants": {"point": changes}}), "point", 0)
    except (ConfigError, ValueError):
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_near_range_end(value_range: NumericRange, value: float) -> bool:
    """Return whether a tuned value lies at the edge of a continuous range."""
    low, high, position = (
        (math.log(number) if value_range.log else float(number))
        for number in (value_range.low, value_range.high, value)
    )
    return not EDGE_FRACTION < (position - low) / (high - low) < 1 - EDGE_FRACTION


def estimate_tuning_choice_error(
    points: Sequence[SearchPoint], chosen_settings: SettingValues, metric: str
) -> TuningVariance | None:
    """Return the error of choosing these settings among the finished points; None with a single seed or point."""
    finished_points = [point for point in points if point.status == "finished"]
    if len(finished_points) < 2 or finished_points[0].num_seeds < 2:
        return None
    scores = np.array([point.get_scores(metric) for point in finished_points])
    return estimate_tuning_variance(scores, [point.settings for point in finished_points].index(chosen_settings))


def build_tuning_findings(runs: ExperimentRuns) -> TuningFindings | None:
    """Return the tuning section of findings.json, or None without a [tune] table or before tuning is complete."""
    experiment = runs.experiment
    tune = experiment.tune
    if tune is None or not experiment.tuned:
        return None
    points_by_variant = {variant: load_tuning_points(experiment, runs.folder, variant) for variant in experiment.tuned}
    return TuningFindings(
        method=tune.method,
        space=tune.space,
        seeds=tune.seeds,
        trials=sum(len(point.seed_scores) for points in points_by_variant.values() for point in points),
        sides=[_build_tuned_side(experiment, variant, points) for variant, points in points_by_variant.items()],
        effects=[
            _compute_tuning_effect(experiment, variant, points_by_variant)
            for variant in experiment.variants
            if variant in points_by_variant
            and BASELINE in points_by_variant
            and _has_baseline_data(experiment, variant)
        ],
        checksums={
            f"{TUNING_FOLDER}/{variant}/{run_path}": checksum
            for variant, points in points_by_variant.items()
            for run_path, checksum in compute_result_checksums(
                points, search_points.get_search_folder(get_tuning_folder(runs.folder, variant)), tune
            ).items()
        },
    )


def _has_baseline_data(experiment: Experiment, variant: str) -> bool:
    """Return whether validation scores of a variant and of the baseline are for the same tokens."""
    return build_trial(experiment, variant, 0).data == build_trial(experiment, BASELINE, 0).data


def _build_tuned_side(experiment: Experiment, variant: str, points: Sequence[SearchPoint]) -> TunedSide:
    """Return the tuning results of the baseline or a variant: its points, its optimum and the error of the choice."""
    metric, chosen_settings = experiment.primary.metric, experiment.tuned[variant]
    pooled_std, degrees_of_freedom = compute_pooled_std([list(point.seed_scores.values()) for point in points])
    choice_error = estimate_tuning_choice_error(points, chosen_settings, metric)
    return TunedSide(
        name=variant,
        settings=chosen_settings,
        point=next(point.number for point in points if point.settings == chosen_settings),
        points=[
            build_point_result(
                point, metric, compute_mean_half_width(pooled_std, degrees_of_freedom, len(point.seed_scores))
            )
            for point in points
        ],
        edges=list(find_grid_extensions(build_tuning_experiment(experiment, variant), points, chosen_settings)),
        choice_error=None if choice_error is None else math.sqrt(choice_error.variance),
        choice_freedom=0 if choice_error is None else choice_error.degrees_of_freedom,
    )


def _compute_tuning_effect(
    experiment: Experiment, variant: str, points_by_variant: Mapping[str, Sequence[SearchPoint]]
) -> TuningEffect:
    """Return a variant's effect on validation data, with the baseline's settings and with its own tuned settings."""
    metric = get_metric(experiment.primary.metric)

    def compute_mean_score(name: str, settings: SettingValues) -> float | None:
        """Return the mean score over seeds of the point with these settings, if there is one."""
        scores = [point.get_scores(metric.name) for point in points_by_variant[name] if point.settings == settings]
        sign = 1 if metric.name == "accuracy" else -1  # point scores are negated losses unless the metric is accuracy
        return sign * float(np.mean(scores[0])) if scores and scores[0] else None

    def compute_effect(baseline_settings: SettingValues, variant_settings: SettingValues) -> float | None:
        """Return the difference between the variant and the baseline with the given settings."""
        baseline_score = compute_mean_score(BASELINE, baseline_settings)
        variant_score = compute_mean_score(variant, variant_settings)
        if baseline_score is None or variant_score is None:
            return None
        return metric.to_display_effect(variant_score - baseline_score)

    file_settings = read_file_settings(experiment)
    baseline_optimum = experiment.tuned[BASELINE]
    return TuningEffect(
        variant=variant,
        at_file_settings=compute_effect(file_settings, file_settings),
        at_baseline_optimum=compute_effect(baseline_optimum, baseline_optimum),
        tuned=compute_effect(baseline_optimum, experiment.tuned[variant]) or 0.0,
    )


def read_file_settings(experiment: Experiment) -> SettingValues:
    """Return the values that the experiment file gives the tuned settings."""
    assert experiment.tune is not None
    settings: SettingValues = {}
    for setting in experiment.tune.space:
        value: Any = experiment.model_dump(mode="json")
        for key in setting.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        settings[setting] = value
    return settings


def list_finished_tuning_runs(experiment_folder: Path) -> list[tuple[str, Any]]:
    """Return the finished tuning runs with their paths relative to the experiment folder."""
    tuning_folders = sorted(path.parent for path in (experiment_folder / TUNING_FOLDER).glob("*/experiment.json"))
    return [
        (f"{TUNING_FOLDER}/{folder.name}/{run_path}", run)
        for folder in tuning_folders
        for run_path, run in search_points.list_finished_search_runs(folder)
    ]


def get_tuning_variances(findings: TuningFindings | None) -> dict[str, TuningVariance]:
    """Return, from the tuning findings, the error of choosing the settings of the baseline and each variant."""
    return {
        side.name: TuningVariance(side.choice_error**2, side.choice_freedom)
        for side in (findings.sides if findings else ())
        if side.choice_error is not None
    }
