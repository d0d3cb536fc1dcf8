"""Summary of a finished search: its points, the effect of each setting, the history, and the selection bias.

The best of many points owes part of its lead to chance, so its score in the search is biased upwards; fresh seeds
measure by how much. Computations use a scale on which noise is additive (accuracy, or mean loss for perplexity);
results are converted to the metric. docs/how-to/search.md explains each figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import special

from headtohead.atomic_io import compute_sha256
from headtohead.config.experiment import BASELINE
from headtohead.config.search import FIRST_SEARCH_SEED, WINNER_VARIANT, SearchConfig
from headtohead.errors import RunFolderError
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import SearchFindings, SearchHistoryEntry, SearchPointResult, SelectionBias
from headtohead.search import points as search_points
from headtohead.search.effects import compute_setting_effects
from headtohead.search.points import VALIDATION_SPLIT, SearchPoint
from headtohead.search.pruning import compute_pooled_std

CONFIDENCE_LEVEL = 0.95


def summarize_search(runs: ExperimentRuns, finished_runs: FinishedRuns) -> SearchFindings | None:
    """Return the `search` section of the findings, or None without a finished search."""
    search = runs.experiment.search
    folder = search_points.get_search_folder(runs.folder)
    journal = Journal(runs.folder)
    events = search_points.read_search_events(journal)
    winner_event = search_points.find_winner_event(events)
    if search is not None and winner_event is None and WINNER_VARIANT in runs.experiment.names:
        raise RunFolderError(
            f"{journal.path} is truncated: it does not name the winner, which was compared; h2h run --resume "
            "selects it again"
        )
    if search is None or winner_event is None:
        return None
    metric = runs.experiment.primary.metric
    points = search_points.load_points(folder, search, events, metric)
    pooled_std, degrees_of_freedom = compute_pooled_std([list(point.seed_scores.values()) for point in points])
    return SearchFindings(
        method=search.method,
        space=search.space,
        seeds=search.seeds,
        budget=search.budget,
        prune=search.prune,
        grid_size=search.count_points() if search.method == "grid" else None,
        trials=sum(len(point.seed_scores) for point in points),
        seconds=search_points.read_elapsed_seconds(events),
        seed_std=pooled_std if degrees_of_freedom else None,
        winner=winner_event.point,
        points=[
            _build_point_row(
                point, metric, compute_interval_half_width(pooled_std, degrees_of_freedom, len(point.seed_scores))
            )
            for point in points
        ],
        effects=compute_setting_effects(search, points, lambda figure: to_metric_scale(metric, figure)),
        history=compute_search_history(points, metric),
        selection_bias=estimate_selection_bias(points[winner_event.point], finished_runs, metric),
        checksums=_compute_checksums(points, folder, search),
    )


def to_metric_scale(metric: str, value: float) -> float:
    """Convert mean loss to perplexity; return accuracy unchanged."""
    return math.exp(min(value, 700.0)) if metric == "perplexity" else value


def compute_interval_half_width(std: float, degrees_of_freedom: int, num_seeds: int) -> float | None:
    """Return half the width of the t interval for a mean over `num_seeds` seeds.

    `std` is pooled over all points, because the standard deviation of two or three seeds is unreliable.
    """
    if not degrees_of_freedom or not num_seeds:
        return None
    return float(special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE_LEVEL) / 2)) * std / math.sqrt(num_seeds)


def _build_point_row(point: SearchPoint, metric: str, half_width: float | None) -> SearchPointResult:
    """Return a point with its scores, mean and interval on the metric's scale."""
    losses_or_accuracies = list(point.seed_scores.values())
    mean = float(np.mean(losses_or_accuracies)) if losses_or_accuracies else None
    interval = None
    if mean is not None and half_width is not None:
        interval = (_convert_interval_end(metric, mean - half_width), _convert_interval_end(metric, mean + half_width))
    return SearchPointResult(
        point=point.number,
        name=point.name,
        settings=point.settings,
        status="unfinished" if point.status == "open" else point.status,
        scores=[(seed, to_metric_scale(metric, figure)) for seed, figure in sorted(point.seed_scores.items())],
        mean=None if mean is None else to_metric_scale(metric, mean),
        interval=interval,
        message=point.failure or "",
    )


def _convert_interval_end(metric: str, value: float) -> float:
    """Convert an interval bound to the metric; clip accuracies to [0, 1]."""
    return min(max(value, 0.0), 1.0) if metric == "accuracy" else to_metric_scale(metric, value)


def compute_search_history(points: Sequence[SearchPoint], metric: str) -> list[SearchHistoryEntry]:
    """Return an entry per point: the trials so far, the point's mean and the best mean so far."""
    history, trials = [], 0
    for index, point in enumerate(points):
        trials += len(point.seed_scores)
        best = search_points.select_best(points[: index + 1], metric)
        if point.seed_scores and best is not None:
            mean, best_mean = (float(np.mean(list(candidate.seed_scores.values()))) for candidate in (point, best))
            history.append(
                SearchHistoryEntry(
                    trials=trials,
                    point=point.number,
                    mean=to_metric_scale(metric, mean),
                    best=to_metric_scale(metric, best_mean),
                )
            )
    return history


def estimate_selection_bias(winner: SearchPoint, finished_runs: FinishedRuns, metric: str) -> SelectionBias | None:
    """Compare the winner's score in the search with its score on fresh seeds, on the same validation data.

    The interval is for the mean over fresh seeds, with the standard deviation pooled over all of the winner's seeds.
    For perplexity, the lead and the bias are relative to the baseline's perplexity. Returns None without finished runs.
    """
    fresh_values, baseline_values = (
        [_read_validation_metric(run, metric) for run in finished_runs.get(name, {}).values()]
        for name in (WINNER_VARIANT, BASELINE)
    )
    if not fresh_values or not baseline_values or not winner.seed_scores:
        return None
    search_mean, fresh_mean, baseline_mean = (
        float(np.mean(list(values))) for values in (winner.seed_scores.values(), fresh_values, baseline_values)
    )
    pooled_std, degrees_of_freedom = compute_pooled_std([list(winner.seed_scores.values()), fresh_values])
    half_width = compute_interval_half_width(pooled_std, degrees_of_freedom, len(fresh_values))
    unit = to_metric_scale(metric, baseline_mean) if metric == "perplexity" else 1.0
    sign = 1 if metric == "accuracy" else -1

    def compute_gain(mean: float, reference: float) -> float:
        """Return the improvement of `mean` over `reference`, in units of the metric."""
        return sign * (to_metric_scale(metric, mean) - to_metric_scale(metric, reference)) / unit

    interval = None
    if half_width is not None:
        low, high = sorted(compute_gain(search_mean, fresh_mean + side * half_width) for side in (-1, 1))
        interval = (low, high)
    return SelectionBias(
        search=to_metric_scale(metric, search_mean),
        fresh=to_metric_scale(metric, fresh_mean),
        baseline=to_metric_scale(metric, baseline_mean),
        lead=compute_gain(search_mean, baseline_mean),
        kept=compute_gain(fresh_mean, baseline_mean),
        bias=compute_gain(search_mean, fresh_mean),
        interval=interval,
        seeds=(len(winner.seed_scores), len(fresh_values)),
    )


def _read_validation_metric(run: Run, metric: str) -> float:
    """Return the validation accuracy, or loss for other metrics."""
    scores = run.result.scores[VALIDATION_SPLIT]
    value = scores.get_metric("accuracy" if metric == "accuracy" else "loss")
    if value is None:
        raise ValueError(f"{run.folder} has no {metric} on validation data")
    return value


def _compute_checksums(points: Sequence[SearchPoint], search_folder: Path, search: SearchConfig) -> dict[str, str]:
    """Return the SHA-256 of each result.json, which in turn contains those of the run's other files."""
    return {
        f"{point.name}/seed-{seed}": compute_sha256(search_folder / point.name / f"seed-{seed}" / "result.json")
        for point in points
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search.seeds)
        if seed in point.seed_scores
    }
