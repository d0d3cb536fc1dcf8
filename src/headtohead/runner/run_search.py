"""Run a hyperparameter search, then compare the winner with the baseline on fresh seeds.

The comparison is an ordinary experiment with a variant named `winner`. The search trials are stored in the folder
`search` and are never scored on test data.

Points are opened in sequence. A decision about point k (a TPE proposal, pruning) uses only points up to
k - DECISION_LAG, and waits for them. The result therefore does not depend on the order in which workers finish, and an
interrupted search that is resumed gives the same result.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from headtohead.config import experiment as config_experiment
from headtohead.config.loading import build_trial
from headtohead.config.overlays import VARIANT_TABLES, RawConfig
from headtohead.config.search import (
    FIRST_SEARCH_SEED,
    WINNER_VARIANT,
    SearchConfig,
    SettingValues,
    build_variant_changes,
)
from headtohead.errors import ConfigError, DiskFullError, HeadToHeadError, RequestError, TrialError
from headtohead.execution.worker_pool import (
    Job,
    OnJobsUpdate,
    WorkerPool,
    build_environment,
    run_jobs,
)
from headtohead.experiment import schemas
from headtohead.experiment.create_runs import create_runs
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import Run, lock_folder
from headtohead.experiment.versions import collect_versions
from headtohead.runner.corpus_description import compute_corpus_digests
from headtohead.runner.preflight import check_runnable
from headtohead.search import points as search_points
from headtohead.search import pruning, samplers
from headtohead.search.points import SearchPoint
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import build_training

CPU = torch.device("cpu")
DECISION_LAG = 4
"""number of points that can run concurrently if decisions depend on earlier points"""
MAX_CHECKED_MODELS = 32
"""number of distinct models that are built as a check before training"""
MAX_CONSECUTIVE_FAILURES = 50
"""number of consecutive failures after which a search ends"""
LOST_TWICE_MESSAGE = "its worker was killed twice"


def run_search(
    experiment: config_experiment.Experiment,
    folder: Path,
    pool: WorkerPool,
    *,
    device: str,
    resume: bool,
    on_update: OnJobsUpdate,
    command: list[str],
) -> SettingValues:
    """Run an experiment's search and return the winner's settings."""
    check_search(experiment)
    with lock_folder(folder):
        create_runs(
            folder,
            experiment,
            corpus_digests=compute_corpus_digests(experiment),
            versions=collect_versions(),
            command=command,
            resume=resume,
        )
        search = SearchRun(experiment, folder)
        search.run(pool, device, on_update)
        return search.select_winner().settings


def add_winner(experiment: config_experiment.Experiment, settings: SettingValues) -> config_experiment.Experiment:
    """Return the experiment with its search winner added as a variant."""
    changes = build_variant_changes(_dump_raw_settings(experiment), settings)
    return experiment.model_copy(update={"variants": {**experiment.variants, WINNER_VARIANT: changes}})


def check_search(experiment: config_experiment.Experiment) -> None:
    """Raise RequestError if anything is wrong with the search, before anything is written."""
    assert experiment.search is not None
    samplers.check_optuna_installed(experiment.search)
    check_runnable(experiment)
    trial = build_trial(experiment, config_experiment.BASELINE, 0)
    if prepare_dataset(trial.data, trial.task).corpus.validation is None:
        raise RequestError(
            "search: the winner is selected on validation data, and there is none; set data.validation_fraction, "
            "or name a validation file in data.files"
        )
    for settings, search_trial in _list_distinct_trials(experiment):
        try:
            with tempfile.TemporaryDirectory() as scratch:
                build_training(
                    search_trial,
                    prepare_dataset(search_trial.data, search_trial.task),
                    Path(scratch),
                    CPU,
                    with_dependencies=False,
                )
        except (HeadToHeadError, ValueError) as error:
            values = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            raise RequestError(f"search.space: the point with {values} cannot be built: {error}") from None


def _list_distinct_trials(
    experiment: config_experiment.Experiment,
) -> list[tuple[SettingValues, config_experiment.Trial]]:
    """Return one trial for each distinct combination of model and optimizer that the search will build."""
    assert experiment.search is not None
    distinct_trials: list[tuple[SettingValues, config_experiment.Trial]] = []
    for settings in itertools.islice(experiment.search.iter_corner_points(), 64 * MAX_CHECKED_MODELS):
        trial = build_search_trial(experiment, "point", settings, FIRST_SEARCH_SEED)
        if len(distinct_trials) < MAX_CHECKED_MODELS and not any(
            (trial.model, trial.training.optimizer) == (known_trial.model, known_trial.training.optimizer)
            for _, known_trial in distinct_trials
        ):
            distinct_trials.append((settings, trial))
    return distinct_trials


def _dump_raw_settings(experiment: config_experiment.Experiment) -> RawConfig:
    """Return the baseline's settings as plain values."""
    return experiment.model_dump(mode="json", include={*VARIANT_TABLES})


def build_search_trial(
    experiment: config_experiment.Experiment, variant: str, settings: SettingValues, seed: int
) -> config_experiment.Trial:
    """Return a search trial: the baseline with a point's settings, without probes and without test data."""
    changes = build_variant_changes(_dump_raw_settings(experiment), settings)
    trial = build_trial(experiment.model_copy(update={"variants": {variant: changes}}), variant, seed)
    data = trial.data.model_copy(update={"monitor": ()})
    return trial.model_copy(update={"data": data, "probe": config_experiment.ProbeConfig(), "is_search": True})


@dataclass
class SearchRun:
    """A running search, which opens points, schedules their trials, and records the results in a journal."""

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
        events = search_points.open_search(self.journal, search_points.compute_search_identity(self.experiment))
        self.points = search_points.load_points(self.search_folder, self.search, events, self.metric)
        self.previous_seconds, self.start_time = search_points.read_elapsed_seconds(events), self.now()
        self.running_jobs: dict[tuple[int, int], Job] = {}
        self.lost: set[tuple[int, int]] = set()
        self.is_exhausted = False

    def run(self, pool: WorkerPool, device: str, on_update: OnJobsUpdate) -> None:
        """Run trials until nothing is left to try or the budget is used up."""
        run_jobs(
            self.jobs,
            pool=pool,
            log_path=self.folder / "workers.log",
            device=device,
            on_update=on_update,
            next_jobs=self.take_next_jobs,
            environment=build_environment([trial for _, trial in _list_distinct_trials(self.experiment)]),
        )

    def select_winner(self) -> SearchPoint:
        """Return the best point on validation data and record it in the journal."""
        winner = search_points.select_best(self.points, self.metric)
        if winner is None:
            reasons = [f"{point.name}: {point.failure}" for point in self.points if point.failure]
            raise TrialError("every point of the search failed:\n  " + "\n  ".join(reasons[:5]))
        self.journal.append(schemas.WinnerEvent(point=winner.number, budget=self.search.budget))
        return winner

    def take_next_jobs(self, num_free_workers: int) -> list[Job]:
        """Return the next trials for `num_free_workers` workers."""
        for key, job in list(self.running_jobs.items()):
            if job.is_over:
                del self.running_jobs[key]
                self._record_outcome(job, *key)
        new_jobs: list[Job] = []
        while len(new_jobs) < num_free_workers and (point_and_seed := self._choose_next_trial()) is not None:
            new_jobs.append(self._build_job(*point_and_seed))
            self.running_jobs[point_and_seed] = new_jobs[-1]
        return new_jobs

    def seconds(self) -> float:
        """Return how long the search has run in seconds, not counting interruptions."""
        return self.previous_seconds + self.now() - self.start_time

    def _choose_next_trial(self) -> tuple[int, int] | None:
        """Return the point and the seed to train next."""
        if self._is_out_of_time():
            return None
        for point in self.points:
            self._prune_if_worse(point)
            if point.status == "open" and (seed := self._choose_next_seed(point)) is not None:
                return point.number, seed
        new_point = self._open_point()
        return (new_point.number, FIRST_SEARCH_SEED) if new_point is not None else None

    def _list_running_seeds(self, point: SearchPoint) -> list[int]:
        """Return the seeds of a point that are currently being trained."""
        return [seed for number, seed in self.running_jobs if number == point.number]

    def _choose_next_seed(self, point: SearchPoint) -> int | None:
        """Return the next seed of a point. With pruning, seeds run sequentially."""
        running_seeds = self._list_running_seeds(point)
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + point.seeds):
            if seed in point.seed_scores or seed in running_seeds:
                continue
            return None if running_seeds and self.search.prune else seed
        return None

    def _open_point(self) -> SearchPoint | None:
        """Open and return a new point if one is left, the budget allows it, and the points it depends on are done."""
        while not self.is_exhausted and self._has_trial_budget() and self._is_decidable(len(self.points)):
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
                self.is_exhausted = True
                return None
            point = SearchPoint(number, settings, self.search.seeds)
            self.journal.append(schemas.PointEvent(point=number, settings=settings))
            self.points.append(point)
            if self._is_valid_point(point):
                return point
        return None

    def _is_valid_point(self, point: SearchPoint) -> bool:
        """Return whether a point can be built: values that are each within range may be invalid in combination."""
        try:
            build_search_trial(self.experiment, point.name, point.settings, FIRST_SEARCH_SEED)
        except (ConfigError, ValueError) as error:
            point.failure = f"impossible: {error}"
            _write_failure(self.search_folder / point.name / f"seed-{FIRST_SEARCH_SEED}", point.failure, "Impossible")
        return point.failure is None

    def _has_trial_budget(self) -> bool:
        """Return whether the budget covers all seeds of one more point."""
        if self.search.budget is None or self.search.budget.trials is None:
            return True
        return sum(point.budgeted_trials for point in self.points) + self.search.seeds <= self.search.budget.trials

    def _is_decidable(self, index: int) -> bool:
        """Return whether all points that a decision about this point relies on are complete."""
        if self.search.method != "tpe" and self.search.prune is None:
            return True
        return all(point.status != "open" for point in self._list_visible_points(index))

    def _list_visible_points(self, index: int) -> list[SearchPoint]:
        """Return the points that a decision about point `index` may use."""
        return self.points[: max(0, index - DECISION_LAG + 1)]

    def _score_visible_points(self, index: int) -> list[tuple[SettingValues, float]]:
        """Return the points that a proposal may use, with their scores. A failed point gets the lowest score."""
        earlier = self._list_visible_points(index)
        means = {
            point.number: search_points.compute_mean(point.scores(self.metric))
            for point in earlier
            if point.seed_scores
        }
        if not means:
            return []
        worst = min(means.values())
        return [(point.settings, means.get(point.number, worst)) for point in earlier]

    def _prune_if_worse(self, point: SearchPoint) -> None:
        """Prune the point if its deficit is larger than noise can explain."""
        if self.search.prune is None or point.status != "open" or self._list_running_seeds(point):
            return
        finished_scores = [
            other.scores(self.metric) for other in self._list_visible_points(point.number) if other.status == "finished"
        ]
        point.pruned = pruning.decide_pruning(
            point.scores(self.metric), finished_scores, self.search.prune, point.seeds
        )
        if point.pruned is not None:
            self.journal.append(schemas.PrunedEvent(point=point.number, decision=point.pruned))

    def _is_out_of_time(self) -> bool:
        """Return whether the time budget is used up. At least one point is always finished, to ensure a winner."""
        minutes = self.search.budget.minutes if self.search.budget else None
        if minutes is None or self.seconds() < 60 * minutes:
            return False
        return any(point.status == "finished" for point in self.points)

    def _build_job(self, index: int, seed: int) -> Job:
        """Return the job that trains point `index` with `seed`."""
        point = self.points[index]
        trial = build_search_trial(self.experiment, point.name, point.settings, seed)
        return Job(trial, self.search_folder / point.name / f"seed-{seed}")

    def _record_outcome(self, job: Job, index: int, seed: int) -> None:
        """Record the outcome of a trial. A trial whose worker was lost is retried once."""
        if job.state == "lost" and (index, seed) in self.lost:
            _write_failure(job.folder, f"{LOST_TWICE_MESSAGE} ({job.message})", "Lost")
        elif job.state == "lost":
            self.lost.add((index, seed))
        failure = Run(job.folder).failure
        if job.state == "failed" and (failure is None or failure.kind in search_points.RETRYABLE_ERRORS):
            # The failure was caused by the machine, not by the point's settings.
            raise (DiskFullError if job.is_request_error else TrialError)(job.message)
        search_points.record_run(self.points[index], seed, Run(job.folder), self.metric)
        self.journal.append(schemas.TrialEvent(point=index, seed=seed, seconds=round(self.seconds(), 1)))


def _write_failure(folder: Path, message: str, kind: str) -> None:
    """Write failure.json in the same way as a worker."""
    folder.mkdir(parents=True, exist_ok=True)
    schemas.write_record(folder / "failure.json", schemas.FailureFile(message=message, kind=kind))
