"""What a search found, read from its folder: cells, each setting's effect, the history, and how much of the winner's
lead was luck. Plain data, no torch; docs/search.md says how each figure is computed.

Everything is computed on a scale where noise adds up (accuracy, or mean loss for perplexity) and shown in the metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from headtohead.atomic_io import sha256
from headtohead.config.experiment import BASELINE
from headtohead.config.search import FIRST_SEED, WINNER, Search
from headtohead.errors import RunFolderError
from headtohead.experiment.run_folder import Run, Runs
from headtohead.search import points as known
from headtohead.search.effects import effects
from headtohead.search.points import JOURNAL, VALIDATION, Cell
from headtohead.search.pruning import pooled_spread

CONFIDENCE = 0.95


def read(runs: Runs, finished: Mapping[str, Mapping[int, Run]]) -> dict[str, Any] | None:
    """What the search of this experiment found; nothing where there was none."""
    search = runs.experiment.search
    folder = known.folder_of(runs.folder)
    lines = known.read_journal(folder / JOURNAL)
    chosen = known.winner_in(lines)
    if search is not None and chosen is None and WINNER in runs.experiment.names:
        raise RunFolderError(
            f"{folder / JOURNAL}: has lost its end: the winner was compared, and is not named there; h2h run --resume "
            "decides it again"
        )
    if search is None or chosen is None:
        return None
    metric = runs.experiment.primary.metric
    cells = known.cells_in(folder, search, lines, metric)
    spread, freedom = pooled_spread([list(cell.figures.values()) for cell in cells])
    return {
        "method": search.method,
        "space": search.model_dump(mode="json")["space"],
        "seeds": search.seeds,
        "budget": search.model_dump(mode="json")["budget"],
        "prune": search.model_dump(mode="json")["prune"],
        "grid": search.cells() if search.method == "grid" else None,
        "trials": sum(len(cell.figures) for cell in cells),
        "seconds": known.seconds_in(lines),
        "spread": spread if freedom else None,
        "winner": int(chosen["cell"]),
        "cells": [_row(cell, metric, reach_of(spread, freedom, len(cell.figures))) for cell in cells],
        "effects": effects(search, cells, lambda figure: shown(metric, figure)),
        "history": history(cells, metric),
        "luck": luck(cells[chosen["cell"]], finished, metric),
        "seals": _seals(cells, folder, search),
    }


def shown(metric: str, figure: float) -> float:
    """Mean loss as perplexity; accuracy as it is."""
    return math.exp(min(figure, 700.0)) if metric == "perplexity" else figure


def reach_of(spread: float, freedom: int, seeds: int) -> float | None:
    """Half the t interval of a mean over so many seeds. Two seeds that happen to agree say nothing about their spread,
    so it is pooled over all cells."""
    if not freedom or not seeds:
        return None
    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * spread / math.sqrt(seeds)


def _row(cell: Cell, metric: str, reach: float | None) -> dict[str, Any]:
    figures = list(cell.figures.values())
    mean = float(np.mean(figures)) if figures else None
    return {
        "cell": cell.number,
        "name": cell.name,
        "settings": cell.settings,
        "status": "unfinished" if cell.status == "open" else cell.status,
        "values": [[seed, shown(metric, figure)] for seed, figure in sorted(cell.figures.items())],
        "mean": None if mean is None else shown(metric, mean),
        "interval": None if mean is None or reach is None else [_end(metric, mean - reach), _end(metric, mean + reach)],
        "message": cell.failure or "",
    }


def _end(metric: str, figure: float) -> float:
    """An end of an interval; no accuracy lies outside 0 to 1."""
    return min(max(figure, 0.0), 1.0) if metric == "accuracy" else shown(metric, figure)


def history(cells: Sequence[Cell], metric: str) -> list[dict[str, Any]]:
    """Cell after cell: trials so far, its figure, and the best so far among cells with all their seeds."""
    rows, trials = [], 0
    for at, cell in enumerate(cells):
        trials += len(cell.figures)
        found = known.best(cells[: at + 1], metric)
        if cell.figures and found is not None:
            own, top = (float(np.mean(list(one.figures.values()))) for one in (cell, found))
            rows.append({"trials": trials, "cell": cell.number, "mean": shown(metric, own), "best": shown(metric, top)})
    return rows


def luck(winner: Cell, finished: Mapping[str, Mapping[int, Run]], metric: str) -> dict[str, Any] | None:
    """How far the winner's figure in the search lay above what it gives with fresh seeds, on the same validation data.

    The figure of the search is what it is; what is not known is the winner's true mean, and the fresh seeds give its
    interval, with the spread of all the winner's seeds. For perplexity lead and luck are shares of the baseline's.
    """
    fresh, base = ([_validation(run, metric) for run in finished.get(name, {}).values()] for name in (WINNER, BASELINE))
    if not fresh or not base or not winner.figures:
        return None
    before, after, beside = (float(np.mean(list(one))) for one in (winner.figures.values(), fresh, base))
    spread, freedom = pooled_spread([list(winner.figures.values()), fresh])
    reach = reach_of(spread, freedom, len(fresh))
    unit = shown(metric, beside) if metric == "perplexity" else 1.0
    sign = 1 if metric == "accuracy" else -1

    def lost(mean: float) -> float:
        return sign * (shown(metric, before) - shown(metric, mean)) / unit

    ends = None if reach is None else sorted(lost(after + side * reach) for side in (-1, 1))
    return {
        "search": shown(metric, before),
        "fresh": shown(metric, after),
        "baseline": shown(metric, beside),
        "lead": sign * (shown(metric, before) - shown(metric, beside)) / unit,
        "kept": sign * (shown(metric, after) - shown(metric, beside)) / unit,
        "luck": lost(after),
        "interval": ends,
        "seeds": [len(winner.figures), len(fresh)],
    }


def _validation(run: Run, metric: str) -> float:
    return float(run.result["scores"][VALIDATION]["accuracy" if metric == "accuracy" else "loss"])


def _seals(cells: Sequence[Cell], folder: Path, search: Search) -> dict[str, str]:
    """The SHA-256 of the journal, and of each run's result.json, which holds those of its other files."""
    return {JOURNAL: sha256(folder / JOURNAL)} | {
        f"{cell.name}/seed-{seed}": sha256(folder / cell.name / f"seed-{seed}" / "result.json")
        for cell in cells
        for seed in range(FIRST_SEED, FIRST_SEED + search.seeds)
        if seed in cell.figures
    }
