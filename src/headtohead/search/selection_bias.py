"""What a search found, read from its folder: cells, each setting's effect, the history, and how much of the winner's
lead was luck. Plain data, no torch; docs/search.md says how each figure is computed.

Everything is computed on a scale where noise adds up (accuracy, or mean loss for perplexity) and shown in the metric.
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
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import SearchFindings, SearchHistoryEntry, SearchPointResult, SelectionBias
from headtohead.search import points as known
from headtohead.search.effects import compute_setting_effects
from headtohead.search.points import JOURNAL_FILE, VALIDATION_SPLIT, SearchPoint
from headtohead.search.pruning import compute_pooled_std

CONFIDENCE_LEVEL = 0.95


def summarize_search(runs: ExperimentRuns, finished_runs: FinishedRuns) -> SearchFindings | None:
    """What the search of this experiment found; nothing where there was none."""
    search = runs.experiment.search
    folder = known.get_search_folder(runs.folder)
    lines = known.read_journal_events(folder / JOURNAL_FILE)
    chosen = known.find_winner_event(lines)
    if search is not None and chosen is None and WINNER_VARIANT in runs.experiment.names:
        raise RunFolderError(
            f"{folder / JOURNAL_FILE}: has lost its end: the winner was compared, and is not named there; h2h run --resume "  # noqa: E501
            "decides it again"
        )
    if search is None or chosen is None:
        return None
    metric = runs.experiment.primary.metric
    cells = known.load_points(folder, search, lines, metric)
    spread, freedom = compute_pooled_std([list(cell.figures.values()) for cell in cells])
    return SearchFindings(
        method=search.method,
        space=search.space,
        seeds=search.seeds,
        budget=search.budget,
        prune=search.prune,
        grid_size=search.cells() if search.method == "grid" else None,
        trials=sum(len(cell.figures) for cell in cells),
        seconds=known.read_elapsed_seconds(lines),
        seed_std=spread if freedom else None,
        winner=chosen.point,
        points=[
            _build_point_row(cell, metric, compute_interval_half_width(spread, freedom, len(cell.figures)))
            for cell in cells
        ],
        effects=compute_setting_effects(search, cells, lambda figure: to_metric_scale(metric, figure)),
        history=compute_search_history(cells, metric),
        selection_bias=estimate_selection_bias(cells[chosen.point], finished_runs, metric),
        checksums=_compute_checksums(cells, folder, search),
    )


def to_metric_scale(metric: str, value: float) -> float:
    """Mean loss as perplexity; accuracy as it is."""
    return math.exp(min(value, 700.0)) if metric == "perplexity" else value


def compute_interval_half_width(std: float, degrees_of_freedom: int, num_seeds: int) -> float | None:
    """Half the t interval of a mean over so many seeds. Two seeds that happen to agree say nothing about their spread,
    so it is pooled over all cells."""
    if not degrees_of_freedom or not num_seeds:
        return None
    return float(special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE_LEVEL) / 2)) * std / math.sqrt(num_seeds)


def _build_point_row(point: SearchPoint, metric: str, half_width: float | None) -> SearchPointResult:
    losses_or_accuracies = list(point.figures.values())
    mean = float(np.mean(losses_or_accuracies)) if losses_or_accuracies else None
    interval = None
    if mean is not None and half_width is not None:
        interval = (_convert_interval_end(metric, mean - half_width), _convert_interval_end(metric, mean + half_width))
    return SearchPointResult(
        point=point.number,
        name=point.name,
        settings=point.settings,
        status="unfinished" if point.status == "open" else point.status,
        scores=[(seed, to_metric_scale(metric, figure)) for seed, figure in sorted(point.figures.items())],
        mean=None if mean is None else to_metric_scale(metric, mean),
        interval=interval,
        message=point.failure or "",
    )


def _convert_interval_end(metric: str, value: float) -> float:
    """An end of an interval; no accuracy lies outside 0 to 1."""
    return min(max(value, 0.0), 1.0) if metric == "accuracy" else to_metric_scale(metric, value)


def compute_search_history(points: Sequence[SearchPoint], metric: str) -> list[SearchHistoryEntry]:
    """Cell after cell: trials so far, its figure, and the best so far among cells with all their seeds."""
    rows, trials = [], 0
    for at, cell in enumerate(points):
        trials += len(cell.figures)
        found = known.select_best(points[: at + 1], metric)
        if cell.figures and found is not None:
            own, top = (float(np.mean(list(one.figures.values()))) for one in (cell, found))
            rows.append(
                SearchHistoryEntry(
                    trials=trials,
                    point=cell.number,
                    mean=to_metric_scale(metric, own),
                    best=to_metric_scale(metric, top),
                )
            )
    return rows


def estimate_selection_bias(winner: SearchPoint, finished_runs: FinishedRuns, metric: str) -> SelectionBias | None:
    """How far the winner's figure in the search lay above what it gives with fresh seeds, on the same validation data.

    The figure of the search is what it is; what is not known is the winner's true mean, and the fresh seeds give its
    interval, with the spread of all the winner's seeds. For perplexity lead and luck are shares of the baseline's.
    """
    fresh, base = (
        [_read_validation_metric(run, metric) for run in finished_runs.get(name, {}).values()]
        for name in (WINNER_VARIANT, BASELINE)
    )
    if not fresh or not base or not winner.figures:
        return None
    before, after, beside = (float(np.mean(list(one))) for one in (winner.figures.values(), fresh, base))
    spread, freedom = compute_pooled_std([list(winner.figures.values()), fresh])
    reach = compute_interval_half_width(spread, freedom, len(fresh))
    unit = to_metric_scale(metric, beside) if metric == "perplexity" else 1.0
    sign = 1 if metric == "accuracy" else -1

    def lost(mean: float) -> float:
        return sign * (to_metric_scale(metric, before) - to_metric_scale(metric, mean)) / unit

    interval = None
    if reach is not None:
        low, high = sorted(lost(after + side * reach) for side in (-1, 1))
        interval = (low, high)
    return SelectionBias(
        search=to_metric_scale(metric, before),
        fresh=to_metric_scale(metric, after),
        baseline=to_metric_scale(metric, beside),
        lead=sign * (to_metric_scale(metric, before) - to_metric_scale(metric, beside)) / unit,
        kept=sign * (to_metric_scale(metric, after) - to_metric_scale(metric, beside)) / unit,
        bias=lost(after),
        interval=interval,
        seeds=(len(winner.figures), len(fresh)),
    )


def _read_validation_metric(run: Run, metric: str) -> float:
    scores = run.result.scores[VALIDATION_SPLIT]
    value = scores.get_metric("accuracy" if metric == "accuracy" else "loss")
    if value is None:
        raise ValueError(f"{run.folder} has no {metric} on validation data")
    return value


def _compute_checksums(points: Sequence[SearchPoint], search_folder: Path, search: SearchConfig) -> dict[str, str]:
    """The SHA-256 of the journal, and of each run's result.json, which holds those of its other files."""
    return {JOURNAL_FILE: compute_sha256(search_folder / JOURNAL_FILE)} | {
        f"{cell.name}/seed-{seed}": compute_sha256(search_folder / cell.name / f"seed-{seed}" / "result.json")
        for cell in points
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + search.seeds)
        if seed in cell.figures
    }
