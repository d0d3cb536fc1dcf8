"""Run a hyperparameter search, then compare the winner with the baseline on fresh seeds.

The comparison is an ordinary experiment with a variant named `winner`. The search trials are stored in the folder
`search` and are never scored on test data.

Points are created in sequence. A decision about point k (a TPE proposal, pruning) only uses points up to k -
DECISION_LAG, and waits for them. The result therefore does not depend on the order in which workers finish, and a
resumed search gives the same result as an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headtohead.config import experiment as config_experiment
from headtohead.config.tables.search import FIRST_SEARCH_SEED, WINNER_VARIANT, SearchConfig, SettingValues
from headtohead.config.variant_changes import build_variant_changes
from headtohead.errors import ConfigError, DiskFullError, TrialError
from headtohead.execution.worker_pool import (
    Job,
    OnJobsUpdate,
    WorkerPool,
    build_environment,
    run_jobs,
)
from headtohead.experiment import schemas
from headtohead.experiment.experiment_folder import create_experiment_folder
from headtohead.experiment.journal import Journal
from headtohead.experiment.provenance.environment import collect_versions
from headtohead.experiment.run_folder import Run, lock_folder
from headtohead.runner.budgets import ResolvedBudgets
from headtohead.runner.corpus_description import compute_corpus_digests
from headtohead.runner.search_trials import (
    build_search_trial,
    check_search_is_runnable,
    dump_baseline_tables,
    list_distinct_search_trials,
)
from headtohead.search import points as search_points
from headtohead.search import pruning, samplers, search_journal
from headtohead.search.points import SearchPoint

DECISION_LAG = 4
"""number of points that can run concurrently if decisions depend on earlier points"""
MAX_CONSECUTIVE_FAILURES = 50
"""number of consecutive failures after which a search ends"""
LOST_TWICE_MESSAGE = "its worker was killed twice"
PointAndSeed = tuple[int, int]
"""number of a search point, and the seed of one of its trials"""


def run_search(
    experiment: config_experiment.Experiment,
    folder: Path,
    pool: WorkerPool,
    *,
    device: str,
    resume: bool,
    on_update: OnJobsUpdate,
    command: list[str],
    budgets: ResolvedBudgets,
) -> SettingValues:
    """Run the search of an experiment.

    Args:
        experiment: The experiment with a search.
        folder: Folder of the experiment.
        pool: Workers that run the trials.
        device: Device to train on.
        resume: Continue an existing search.
        on_update: Called with all jobs whenever one of them changes.
        command: Command line to record.
        budgets: Resolved training budgets.

    Returns:
        The settings of the winner.
    """
    check_search_is_runnable(experiment)
    with lock_folder(folder):
        create_experiment_folder(
            folder,
            experiment,
            corpus_digests=compute_corpus_digests(experiment),
            versions=collect_versions(),
            command=command,
            resume=resume,
            budgets=budgets,
        )
        search_run = SearchRun(experiment, folder)
        search_run.run(pool, device, on_update)
        return search_run.select_winner().settings


def add_winner(experiment: config_experiment.Experiment, settings: SettingValues) -> config_experiment.Experiment:
    """Return the experiment with the winner of its search added as a variant."""
    changes = build_variant_changes(dump_baseline_tables(experiment), settings)
    return experiment.model_copy(update={"variants": {**experiment.variants, WINNER_VARIANT: changes}})


@dataclass
class SearchRun:
    """A running search: creates points, schedules their trials, and records their results in the journal."""

    experiment: config_experiment.Experiment
    folder: Path
    now: Callable[[], float] = time.monotonic
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.experiment.search is not None
        self.search: SearchConfig = self.experiment.search
        self.metric = self.experiment.primary.metric
        self.search_folder = search_points.get_search_folder(self.folder)
        self.search_folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.folder)
        events = search_journal.open_search_journal(
            self.journal, search_journal.compute_search_identity(self.experiment)
        )
        self.points = search_points.load_points(self.search_folder, self.search, events, self.metric)
        self.previous_seconds, self.start_time = search_journal.read_elapsed_seconds(events), self.now()
        self.running_jobs: dict[PointAndSeed, Job] = {}
        self.lost_trials: set[PointAndSeed] = set()
        """trials whose worker was lost once"""
        self.is_space_exhausted = False

    def run(self, pool: WorkerPool, device: str, on_update: OnJobsUpdate) -> None:
        """Run trials until the search space or the budget is exhausted."""
        run_jobs(
            self.jobs,
            pool=pool,
            log_path=self.folder / "workers.log",
            device=device,
            on_update=on_update,
            next_jobs=self.take_next_jobs,
            environment=build_environment([trial for _, trial in list_distinct_search_trials(self.experiment)]),
        )

    def add_points(self, settings: Sequence[SettingValues]) -> None:
        """Add points beyond those of the sampler. A resumed search includes them."""
        for point_settings in settings:
            self._add_point(point_settings)

    def find_best(self) -> SearchPoint | None:
        """Return the best point on validation data so far."""
        return search_points.select_best_point(self.points, self.metric)

    def select_winner(self) -> SearchPoint:
        """Return the best point on validation data and record it in the journal."""
        winner = self.find_best()
        if winner is None:
            reasons = [f"{point.name}: {point.failure}" for point in self.points if point.failure]
            raise TrialError("every point of the search failed:\n  " + "\n  ".join(reasons[:5]))
        self.journal.append(schemas.WinnerEvent(point=winner.number, budget=self.search.budget))
        return winner

    def take_next_jobs(self, num_free_workers: int) -> list[Job]:
        """Return the next trials for `num_free_workers` workers."""
        for point_and_seed, job in list(self.running_jobs.items()):
            if job.is_over:
                del self.running_jobs[point_and_seed]
                self._record_outcome(job, *point_and_seed)
        new_jobs: list[Job] = []
        while len(new_jobs) < num_free_workers and (next_trial := self._choose_next_trial()) is not None:
            new_jobs.append(self._build_job(*next_trial))
            self.running_jobs[next_trial] = new_jobs[-1]
        return new_jobs

    def get_elapsed_seconds(self) -> float:
        """Return the running time of the search in seconds, excluding interruptions."""
        return self.previous_seconds + self.now() - self.start_time

    def _choose_next_trial(self) -> PointAndSeed | None:
        """Return the next trial: one of an open point, or the first one of a new point."""
        if self._is_out_of_time():
            return None
        for point in self.points:
            self._prune_if_worse(point)
            if point.status == "open" and (seed := self._choose_next_seed(point)) is not None:
                return point.number, seed
        new_point = self._propose_point()
        return (new_point.number, FIRST_SEARCH_SEED) if new_point is not None else None

    def _list_running_seeds(self, point: SearchPoint) -> list[int]:
        """Return the seeds of a point that are being trained."""
        return [seed for number, seed in self.running_jobs if number == point.number]

    def _choose_next_seed(self, point: SearchPoint) -> int | None:
        """Return the next seed of a point. With pruning, seeds run sequentially."""
        running_seeds = self._list_running_seeds(point)
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + point.num_seeds):
            if seed in point.seed_scores or seed in running_seeds:
                continue
            return None if running_seeds and self.search.prune else seed
        return None

    def _propose_point(self) -> SearchPoint | None:
        """Return a new point that the sampler proposes, or None.

        None if the space is exhausted, if the budget does not cover the point, or if the proposal has to wait for
        points that it depends on.
        """
        while not self.is_space_exhausted and self._has_trial_budget() and self._can_decide(len(self.points)):
            number = len(self.points)
            if number >= MAX_CONSECUTIVE_FAILURES and all(
                point.failure for point in self.points[-MAX_CONSECUTIVE_FAILURES:]
            ):
                break
            earlier_settings = [point.settings for point in self.points]
            settings = samplers.suggest_settings(
                self.search, number, earlier_settings, self._score_visible_points(number)
            )
            if settings is None:
                self.is_space_exhausted = True
                return None
            point = self._add_point(settings)
            if point.failure is None:
                return point
        return None

    def _add_point(self, settings: SettingValues) -> SearchPoint:
        """Add a point to the search and the journal.

        It fails if no trial can be built from it: values that are valid individually may be invalid in combination.
        """
        point = SearchPoint(len(self.points), settings, self.search.seeds)
        self.journal.append(schemas.PointEvent(point=point.number, settings=settings))
        self.points.append(point)
        try:
            build_search_trial(self.experiment, point.name, point.settings, FIRST_SEARCH_SEED)
        except (ConfigError, ValueError) as error:
            point.failure = f"impossible: {error}"
            _write_failure(self.search_folder / point.name / f"seed-{FIRST_SEARCH_SEED}", point.failure, "Impossible")
        return point

    def _has_trial_budget(self) -> bool:
        """Return whether the budget covers all seeds of one more point."""
        if self.search.max_trials is None:
            return True
        return sum(point.num_budgeted_trials for point in self.points) + self.search.seeds <= self.search.max_trials

    def _can_decide(self, index: int) -> bool:
        """Return whether all points that a decision about point `index` depends on are complete."""
        if self.search.method != "tpe" and self.search.prune is None:
            return True
        return all(point.status != "open" for point in self._list_visible_points(index))

    def _list_visible_points(self, index: int) -> list[SearchPoint]:
        """Return the points that a decision about point `index` may use."""
        return self.points[: max(0, index - DECISION_LAG + 1)]

    def _score_visible_points(self, index: int) -> list[tuple[SettingValues, float]]:
        """Return the points that a proposal may use, with their scores. A failed point gets the lowest score."""
        visible_points = self._list_visible_points(index)
        means = {
            point.number: search_points.compute_mean(point.get_scores(self.metric))
            for point in visible_points
            if point.seed_scores
        }
        if not means:
            return []
        lowest_mean = min(means.values())
        return [(point.settings, means.get(point.number, lowest_mean)) for point in visible_points]

    def _prune_if_worse(self, point: SearchPoint) -> None:
        """Prune the point if it is worse than the best by more than noise can explain."""
        if self.search.prune is None or point.status != "open" or self._list_running_seeds(point):
            return
        finished_scores = [
            other.get_scores(self.metric)
            for other in self._list_visible_points(point.number)
            if other.status == "finished"
        ]
        point.pruned = pruning.decide_pruning(
            point.get_scores(self.metric), finished_scores, self.search.prune, point.num_seeds
        )
        if point.pruned is not None:
            self.journal.append(schemas.PrunedEvent(point=point.number, decision=point.pruned))

    def _is_out_of_time(self) -> bool:
        """Return whether the time budget is exhausted. At least one point is always finished, so that there is a
        winner.
        """
        if self.search.max_seconds is None or self.get_elapsed_seconds() < self.search.max_seconds:
            return False
        return any(point.status == "finished" for point in self.points)

    def _build_job(self, index: int, seed: int) -> Job:
        """Return the job for the worker pool that trains point `index` with `seed`."""
        point = self.points[index]
        trial = build_search_trial(self.experiment, point.name, point.settings, seed)
        return Job(trial, self.search_folder / point.name / f"seed-{seed}")

    def _record_outcome(self, job: Job, index: int, seed: int) -> None:
        """Record the scores or the failure of an ended trial. A trial whose worker was lost is retried once."""
        if job.state == "lost" and (index, seed) in self.lost_trials:
            _write_failure(job.folder, f"{LOST_TWICE_MESSAGE} ({job.message})", "Lost")
        elif job.state == "lost":
            self.lost_trials.add((index, seed))
        failure = Run(job.folder).failure
        if job.state == "failed" and (failure is None or failure.kind in search_points.RETRYABLE_ERRORS):
            # The failure was caused by the machine, not by the point's settings.
            raise (DiskFullError if job.is_request_error else TrialError)(job.message)
        search_points.record_run_outcome(self.points[index], seed, Run(job.folder), self.metric)
        self.journal.append(schemas.TrialEvent(point=index, seed=seed, seconds=round(self.get_elapsed_seconds(), 1)))


def _write_failure(run_folder: Path, message: str, kind: str) -> None:
    """Write the failure.json of a search trial that no worker could run."""
    run_folder.mkdir(parents=True, exist_ok=True)
    schemas.write_record(run_folder / "failure.json", schemas.FailureFile(message=message, kind=kind))
