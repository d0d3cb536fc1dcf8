"""Select settings before the comparison: by one search, or by tuning the baseline and every variant.

Tuning searches one space with one budget for the baseline and for each variant, so that none has an advantage. The
searches are stored in `tune/NAME`, and their seeds differ from those of the verdict. If an optimum is at the edge of
the grid, the grids of all searches without a recorded optimum are extended by one value, up to `extend` times at each
end. Recorded optima never change, so an interrupted experiment can be resumed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.config.experiment import Experiment
from headtohead.config.tables.search import WINNER_VARIANT, SettingValues
from headtohead.errors import RequestError, TrialError
from headtohead.execution.worker_pool import OnJobsUpdate, WorkerPool
from headtohead.experiment.experiment_folder import create_experiment_folder
from headtohead.experiment.provenance.environment import collect_versions
from headtohead.experiment.run_folder import lock_folder
from headtohead.runner.budgets import ResolvedBudgets
from headtohead.runner.corpus_description import compute_corpus_digests
from headtohead.runner.run_search import SearchRun, add_winner, run_search
from headtohead.runner.search_trials import check_search_is_runnable
from headtohead.search import tuning
from headtohead.search.search_journal import read_winner_settings


@dataclass(frozen=True)
class SearchOptions:
    """Options for running the trials of a search or of [tune]."""

    pool: WorkerPool
    device: str
    on_update: OnJobsUpdate
    command: list[str]
    resume: bool


ChosenSettings = dict[str, SettingValues]
"""by variant name: the settings of the search winner, or the tuned settings of the baseline and every variant"""


def add_chosen_settings(experiment: Experiment, chosen: ChosenSettings) -> Experiment:
    """Return the experiment with its search winner as a variant, or with tuned settings."""
    if experiment.search is not None:
        return add_winner(experiment, chosen[WINNER_VARIANT])
    return experiment.model_copy(update={"tuned": chosen})


def choose_settings(
    experiment: Experiment, folder: Path, options: SearchOptions, budgets: ResolvedBudgets
) -> ChosenSettings:
    """Run the search or the tuning unless the journal records its result; return the chosen settings."""
    if experiment.tune is not None:
        return _tune_all(experiment, folder, options, budgets)
    settings = read_winner_settings(experiment, folder)
    if settings is None:
        settings = run_search(
            experiment,
            folder,
            options.pool,
            device=options.device,
            resume=options.resume,
            on_update=options.on_update,
            command=options.command,
            budgets=budgets,
        )
    return {WINNER_VARIANT: settings}


def _tune_all(experiment: Experiment, folder: Path, options: SearchOptions, budgets: ResolvedBudgets) -> ChosenSettings:
    """Tune the baseline and every variant unless their optimum is recorded; return the tuned settings of each."""
    optima = tuning.read_tuned_settings(experiment, folder)
    untuned_names = [name for name in experiment.names if name not in optima]
    if untuned_names:
        searches = {name: tuning.build_tuning_experiment(experiment, name) for name in untuned_names}
        for name, search_experiment in searches.items():
            try:
                check_search_is_runnable(search_experiment)
            except RequestError as error:
                raise RequestError(f"tune, {name}: {error}") from None
        with lock_folder(folder):
            create_experiment_folder(
                folder,
                experiment.model_copy(update={"tuned": optima}),
                corpus_digests=compute_corpus_digests(experiment),
                versions=collect_versions(),
                command=options.command,
                resume=options.resume,
                budgets=budgets,
            )
            optima |= _run_tuning_searches(experiment, folder, searches, options)
    return {name: optima[name] for name in experiment.names}


def _run_tuning_searches(
    experiment: Experiment, folder: Path, searches: dict[str, Experiment], options: SearchOptions
) -> dict[str, SettingValues]:
    """Run the searches by variant name, extend the grid while an optimum lies at its edge, and record the optima."""
    assert experiment.tune is not None
    with contextlib.ExitStack() as stack:
        search_runs = {}
        for name, search_experiment in searches.items():
            search_folder = tuning.get_tuning_folder(folder, name)
            search_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_folder(search_folder))
            create_experiment_folder(
                search_folder,
                search_experiment,
                corpus_digests=compute_corpus_digests(search_experiment),
                versions=collect_versions(),
                command=options.command,
                resume=True,
            )
            search_runs[name] = SearchRun(search_experiment, search_folder)
            search_runs[name].run(options.pool, options.device, options.on_update)
        num_extensions: Counter[tuple[str, bool]] = Counter()
        while extension := _find_grid_extension(search_runs, num_extensions, experiment.tune.extend):
            setting, value, is_upper = extension
            num_extensions[setting, is_upper] += 1
            for search_run in search_runs.values():
                search_run.add_points(tuning.list_grid_extension_points(search_run.points, setting, value))
                search_run.run(options.pool, options.device, options.on_update)
        return {name: search_run.select_winner().settings for name, search_run in search_runs.items()}


def _find_grid_extension(
    search_runs: dict[str, SearchRun], num_extensions: Counter[tuple[str, bool]], max_extensions: int
) -> tuple[str, Any, bool] | None:
    """Return the next extension of the grid as (setting, value, is_upper), or None if none is needed or allowed."""
    for name, search_run in search_runs.items():
        if search_run.search.method != "grid":
            continue
        best_point = search_run.find_best()
        if best_point is None:
            reasons = "; ".join(point.failure for point in search_run.points if point.failure)
            raise TrialError(f"every point of {name} failed: {reasons}")
        extensions = tuning.find_grid_extensions(search_run.experiment, search_run.points, best_point.settings)
        for setting, value in extensions.items():
            is_upper = value > best_point.settings[setting]
            if num_extensions[setting, is_upper] < max_extensions:
                return setting, value, is_upper
    return None
