"""Build the search section of findings.json: its points, the effect of each setting, history and selection bias.

Computations use a scale on which noise is additive (accuracy, or mean loss for perplexity); results are converted to
the metric. docs/how-to/search.md explains each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headtohead.atomic_io import compute_sha256
from headtohead.config.tables.search import FIRST_SEARCH_SEED, WINNER_VARIANT, SearchConfig
from headtohead.errors import RunFolderError
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns
from headtohead.experiment.schemas import SearchFindings, SearchHistoryEntry, SearchPointResult
from headtohead.search import points as search_points
from headtohead.search import search_journal
from headtohead.search.effects import compute_setting_effects
from headtohead.search.points import SearchPoint
from headtohead.search.seed_noise import compute_mean_half_width, compute_pooled_std
from headtohead.search.selection_bias import estimate_selection_bias, to_metric_scale


def build_search_findings(runs: ExperimentRuns, finished_runs: FinishedRuns) -> SearchFindings | None:
    """Return the `search` section of the findings, or None without a finished search."""
    search = runs.experiment.search
    folder = search_points.get_search_folder(runs.folder)
    journal = Journal(runs.folder)
    events = search_journal.read_search_events(journal)
    winner_event = search_journal.find_winner_event(events)
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
        seconds=search_journal.read_elapsed_seconds(events),
        seed_std=pooled_std if degrees_of_freedom else None,
        winner=winner_event.point,
        points=[
            build_point_result(
                point, metric, compute_mean_half_width(pooled_std, degrees_of_freedom, len(point.seed_scores))
            )
            for point in points
        ],
        effects=compute_setting_effects(search, points, lambda score: to_metric_scale(metric, score)),
        history=compute_search_history(points, metric),
        selection_bias=estimate_selection_bias(points[winner_event.point], finished_runs, metric),
        checksums=compute_result_checksums(points, folder, search),
    )


def build_point_result(point: SearchPoint, metric: str, half_width: float | None) -> SearchPointResult:
    """Return a point for findings.json, with its scores, mean and interval on the metric's scale."""
    seed_scores = list(point.seed_scores.values())
    mean = float(np.mean(seed_scores)) if seed_scores else None
    interval = None
    if mean is not None and half_width is not None:
        interval = (
            _convert_interval_bound(metric, mean - half_width),
            _convert_interval_bound(metric, mean + half_width),
        )
    return SearchPointResult(
        point=point.number,
        name=point.name,
        settings=point.settings,
        status="unfinished" if point.status == "open" else point.status,
        scores=[(seed, to_metric_scale(metric, score)) for seed, score in sorted(point.seed_scores.items())],
        mean=None if mean is None else to_metric_scale(metric, mean),
        interval=interval,
        message=point.failure or "",
    )


def _convert_interval_bound(metric: str, bound: float) -> float:
    """Convert the bound of an interval to the metric's scale; clip accuracies to [0, 1]."""
    return min(max(bound, 0.0), 1.0) if metric == "accuracy" else to_metric_scale(metric, bound)


def compute_search_history(points: Sequence[SearchPoint], metric: str) -> list[SearchHistoryEntry]:
    """Return an entry per point of the search history: the trials so far, its mean and the best mean so far."""
    history = []
    num_trials = 0
    for index, point in enumerate(points):
        num_trials += len(point.seed_scores)
        best_point = search_points.select_best_point(points[: index + 1], metric)
        if point.seed_scores and best_point is not None:
            mean, best_mean = (
                float(np.mean(list(candidate.seed_scores.values()))) for candidate in (point, best_point)
            )
            history.append(
                SearchHistoryEntry(
                    trials=num_trials,
                    point=point.number,
                    mean=to_metric_scale(metric, mean),
                    best=to_metric_scale(metric, best_mean),
                )
            )
    return history


def compute_result_checksums(
    points: Sequence[SearchPoint], search_folder: Path, search: SearchConfig
) -> dict[str, str]:
    """Return, for findings.json, the SHA-256 of result.json of each search run, which has those of other files."""
    return {
        f"{point.name}/seed-{seed}": compute_sha256(search_folder / point.name / f"seed-{seed}" / "result.json")
        for point in points
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search.seeds)
        if seed in point.seed_scores
    }
