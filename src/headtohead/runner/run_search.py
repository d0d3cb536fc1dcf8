"""Searching: cells through the same workers into run folders, then the winner beside the baseline on fresh seeds.

The comparison at the end is an ordinary experiment in the ordinary folder, with a variant `winner`; report, verify and
findings know nothing new about it. The search lies beside it, in the folder `search`, and never scores test data.

Cells are opened one after the other. What a decision about cell k (a proposal of tpe, giving it up) knows of others are
the cells up to k - LAG and no later ones, and it waits for those: so a search gives the same whatever the order in
which workers finish, and the same again after a kill.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from headtohead.config import experiment as config_experiment
from headtohead.config.loading import build_trial as trial_of
from headtohead.config.overlays import VARIANT_TABLES, RawConfig
from headtohead.config.search import (
    FIRST_SEARCH_SEED,
    WINNER_VARIANT,
    SearchConfig,
    SettingValues,
    build_variant_changes,
)
from headtohead.errors import DiskFullError, HeadToHeadError, RequestError, TrialError
from headtohead.execution.backends import build_worker_pool
from headtohead.execution.worker_pool import (
    Job,
    OnJobsUpdate,
    WorkerPool,
    build_environment,
    run_jobs,
)
from headtohead.experiment import schemas
from headtohead.experiment.run_folder import Run, create_runs, lock_folder
from headtohead.experiment.versions import collect_versions
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.runner import run_experiment
from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER, ExperimentOutcome
from headtohead.search import points as known
from headtohead.search import pruning, samplers
from headtohead.search.points import SearchJournal, SearchPoint
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import build_training, estimate_seconds

CPU = torch.device("cpu")
DECISION_LAG = 4
"""cells that can be under way at once where decisions rest on the cells before"""
MAX_CHECKED_MODELS = 32
"""so many different models of a search are built, to see that they can be, before anything is trained"""
NUM_TIMED_POINTS = 3
"""so many cells are timed for an estimate"""
MAX_CONSECUTIVE_FAILURES = 50
"""so many cells that fail in a row end a search"""
LOST_TWICE_MESSAGE = "its worker was killed twice"


def run_with_search(
    experiment: config_experiment.Experiment,
    output_folder: Path | None = None,
    *,
    num_workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    backend: str | WorkerPool | None = None,
    on_update: OnJobsUpdate = lambda jobs: None,
    on_progress: ProgressCallback = ignore_progress,
    command: Sequence[str] = (),
) -> ExperimentOutcome:
    """Run an experiment; where it asks for a search, search first and compare the winner with the baseline."""
    folder = output_folder or DEFAULT_RUNS_FOLDER / experiment.name
    asked = list(command or sys.argv)
    if experiment.search is not None:
        settings = known.read_winner_settings(experiment, folder)
        if settings is None:
            check_search(experiment)
            settings = _run_search(
                experiment, folder, build_worker_pool(backend, num_workers, device), device, resume, on_update, asked
            )
            resume = True
        changes = build_variant_changes(_dump_raw_settings(experiment), settings)
        experiment = experiment.model_copy(update={"variants": {**experiment.variants, WINNER_VARIANT: changes}})
    return run_experiment.run_experiment(
        experiment,
        folder,
        num_workers=num_workers,
        device=device,
        resume=resume,
        backend=backend,
        on_update=on_update,
        on_progress=on_progress,
        command=asked,
    )


def _run_search(
    experiment: config_experiment.Experiment,
    folder: Path,
    pool: WorkerPool,
    device: str,
    resume: bool,
    on_update: OnJobsUpdate,
    command: list[str],
) -> SettingValues:
    """The settings of the winner."""
    with lock_folder(folder):
        create_runs(folder, experiment, versions=collect_versions(), command=command, resume=resume)
        search = SearchRun(experiment, folder)
        search.run(pool, device, on_update)
        return search.select_winner().settings


def check_search(experiment: config_experiment.Experiment) -> None:
    """Everything that can be wrong with the search is found before anything is written."""
    assert experiment.search is not None
    samplers.check_optuna_installed(experiment.search)
    run_experiment.check_runnable(experiment)
    trial = trial_of(experiment, config_experiment.BASELINE, 0)
    if prepare_dataset(trial.data, trial.task).corpus.validation is None:
        raise RequestError(
            "search: the winner is selected on validation data, and there is none; set data.validation_fraction, "
            "or name a validation file in data.files"
        )
    for settings, different in _list_distinct_trials(experiment):
        try:
            with tempfile.TemporaryDirectory() as scratch:
                build_training(
                    different,
                    prepare_dataset(different.data, different.task),
                    Path(scratch),
                    CPU,
                    with_dependencies=False,
                )
        except (HeadToHeadError, ValueError) as error:
            said = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            raise RequestError(f"search.space: the cell with {said} cannot be built: {error}") from None


def _list_distinct_trials(
    experiment: config_experiment.Experiment,
) -> list[tuple[SettingValues, config_experiment.Trial]]:
    """Cells, one for each model and optimizer that the search will build."""
    assert experiment.search is not None
    found: list[tuple[SettingValues, config_experiment.Trial]] = []
    for settings in itertools.islice(experiment.search.iter_corner_points(), 64 * MAX_CHECKED_MODELS):
        one = _build_search_trial(experiment, "cell", settings, FIRST_SEARCH_SEED)
        if len(found) < MAX_CHECKED_MODELS and not any(
            (one.model, one.training.optimizer) == (other.model, other.training.optimizer) for _, other in found
        ):
            found.append((settings, one))
    return found


def _dump_raw_settings(experiment: config_experiment.Experiment) -> RawConfig:
    return experiment.model_dump(mode="json", include={*VARIANT_TABLES})


def _build_search_trial(
    experiment: config_experiment.Experiment, variant: str, settings: SettingValues, seed: int
) -> config_experiment.Trial:
    """A trial of a search: the cell laid over the baseline, nothing tried on it at the end, no test text watched."""
    changes = build_variant_changes(_dump_raw_settings(experiment), settings)
    made = trial_of(experiment.model_copy(update={"variants": {variant: changes}}), variant, seed)
    data = made.data.model_copy(update={"monitor": ()})
    return made.model_copy(update={"data": data, "probe": config_experiment.ProbeConfig(), "choosing": True})


@dataclass
class SearchRun:
    """A search under way."""

    experiment: config_experiment.Experiment
    folder: Path
    now: Callable[[], float] = time.monotonic
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.experiment.search is not None
        self.search: SearchConfig = self.experiment.search
        self.metric = self.experiment.primary.metric
        self.place = known.get_search_folder(self.folder)
        self.journal = SearchJournal(self.place)
        lines = self.journal.open(known.compute_search_identity(self.experiment))
        self.cells = known.load_points(self.place, self.search, lines, self.metric)
        self.before, self.began = known.read_elapsed_seconds(lines), self.now()
        self.under_way: dict[tuple[int, int], Job] = {}
        self.lost: set[tuple[int, int]] = set()
        self.is_exhausted = False

    def run(self, pool: WorkerPool, device: str, on_update: OnJobsUpdate) -> None:
        """Until nothing is left to try, or the budget is used up."""
        run_jobs(
            self.jobs,
            pool=pool,
            log_path=self.folder / "workers.log",
            device=device,
            on_update=on_update,
            next_jobs=self.more,
            environment=build_environment([trial for _, trial in _list_distinct_trials(self.experiment)]),
        )

    def select_winner(self) -> SearchPoint:
        """The best cell on validation data. Once it is in the journal it stays."""
        found = known.select_best(self.cells, self.metric)
        if found is None:
            reasons = [f"{cell.name}: {cell.failure}" for cell in self.cells if cell.failure]
            raise TrialError("no cell of the search came through:\n  " + "\n  ".join(reasons[:5]))
        self.journal.write(schemas.WinnerEvent(point=found.number, budget=self.search.budget))
        return found

    def more(self, num_free_workers: int) -> list[Job]:
        """The next trials for so many free workers."""
        for key, job in list(self.under_way.items()):
            if job.is_over:
                del self.under_way[key]
                self._record_outcome(job, *key)
        made: list[Job] = []
        while len(made) < num_free_workers and (following := self._next()) is not None:
            made.append(self._build_job(*following))
            self.under_way[following] = made[-1]
        return made

    def seconds(self) -> float:
        """What the search has taken so far, breaks left out."""
        return self.before + self.now() - self.began

    def _next(self) -> tuple[int, int] | None:
        """The cell and the seed that come next."""
        if self._is_out_of_time():
            return None
        for cell in self.cells:
            self._judge(cell)
            if cell.status == "open" and (seed := self._next_seed(cell)) is not None:
                return cell.number, seed
        opened = self._open_point()
        return (opened.number, FIRST_SEARCH_SEED) if opened is not None else None

    def _list_running_seeds(self, point: SearchPoint) -> list[int]:
        return [seed for number, seed in self.under_way if number == point.number]

    def _next_seed(self, point: SearchPoint) -> int | None:
        """The seed that the cell gets now. Where cells are given up, one seed has to be over before the next begins."""
        under_way = self._list_running_seeds(point)
        for seed in range(FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + point.seeds):
            if seed in point.figures or seed in under_way:
                continue
            return None if under_way and self.search.prune else seed
        return None

    def _open_point(self) -> SearchPoint | None:
        """A new cell, if there is one, the budget allows it, and what it rests on is known."""
        while not self.is_exhausted and self._has_trial_budget() and self._is_decidable(len(self.cells)):
            number = len(self.cells)
            if number >= MAX_CONSECUTIVE_FAILURES and all(
                cell.failure for cell in self.cells[-MAX_CONSECUTIVE_FAILURES:]
            ):
                break
            before = [cell.settings for cell in self.cells]
            settings = samplers.suggest_settings(self.search, number, before, self._score_visible_points(number))
            if settings is None:
                self.is_exhausted = True
                return None
            cell = SearchPoint(number, settings, self.search.seeds)
            self.journal.write(schemas.PointEvent(point=number, settings=settings))
            self.cells.append(cell)
            if self._is_valid_point(cell):
                return cell
        return None

    def _is_valid_point(self, point: SearchPoint) -> bool:
        """Numbers from inside a range may go together badly though the range's ends do not."""
        try:
            _build_search_trial(self.experiment, point.name, point.settings, FIRST_SEARCH_SEED)
        except ValueError as error:
            point.failure = f"impossible: {error}"
            _write_failure(self.place / point.name / f"seed-{FIRST_SEARCH_SEED}", point.failure, "Impossible")
        return point.failure is None

    def _has_trial_budget(self) -> bool:
        """Are there trials left for all seeds of one more cell?"""
        if self.search.budget is None or self.search.budget.trials is None:
            return True
        return sum(cell.budgeted_trials for cell in self.cells) + self.search.seeds <= self.search.budget.trials

    def _is_decidable(self, index: int) -> bool:
        if self.search.method != "tpe" and self.search.prune is None:
            return True
        return all(cell.status != "open" for cell in self._list_visible_points(index))

    def _list_visible_points(self, index: int) -> list[SearchPoint]:
        return self.cells[: max(0, index - DECISION_LAG + 1)]

    def _score_visible_points(self, index: int) -> list[tuple[SettingValues, float]]:
        """What a proposal may know. A cell that failed counts as the worst of the others."""
        earlier = self._list_visible_points(index)
        means = {cell.number: known.compute_mean(cell.scores(self.metric)) for cell in earlier if cell.figures}
        if not means:
            return []
        worst = min(means.values())
        return [(cell.settings, means.get(cell.number, worst)) for cell in earlier]

    def _judge(self, point: SearchPoint) -> None:
        """Give the cell up if it is certainly behind."""
        if self.search.prune is None or point.status != "open" or self._list_running_seeds(point):
            return
        others = [
            one.scores(self.metric) for one in self._list_visible_points(point.number) if one.status == "finished"
        ]
        point.pruned = pruning.decide_pruning(point.scores(self.metric), others, self.search.prune, point.seeds)
        if point.pruned is not None:
            self.journal.write(schemas.PrunedEvent(point=point.number, decision=point.pruned))

    def _is_out_of_time(self) -> bool:
        """Is the time used up? One cell is always brought to its end, so that there is a winner."""
        minutes = self.search.budget.minutes if self.search.budget else None
        if minutes is None or self.seconds() < 60 * minutes:
            return False
        return any(cell.status == "finished" for cell in self.cells)

    def _build_job(self, index: int, seed: int) -> Job:
        cell = self.cells[index]
        trial = _build_search_trial(self.experiment, cell.name, cell.settings, seed)
        return Job(trial, self.place / cell.name / f"seed-{seed}")

    def _record_outcome(self, job: Job, index: int, seed: int) -> None:
        """Write down how a trial ended. One whose worker was lost is tried once more."""
        if job.state == "lost" and (index, seed) in self.lost:
            _write_failure(job.folder, f"{LOST_TWICE_MESSAGE} ({job.message})", "Lost")
        elif job.state == "lost":
            self.lost.add((index, seed))
        failure = Run(job.folder).failure
        if job.state == "failed" and (failure is None or failure.kind in known.RETRYABLE_ERRORS):
            raise (DiskFullError if job.is_request_error else TrialError)(job.message)  # no fault of the cell's
        known.record_run(self.cells[index], seed, Run(job.folder), self.metric)
        self.journal.write(schemas.TrialEvent(point=index, seed=seed, seconds=round(self.seconds(), 1)))


def _write_failure(folder: Path, message: str, kind: str) -> None:
    """Say in the run's folder that it has no result, as a worker does."""
    folder.mkdir(parents=True, exist_ok=True)
    schemas.write_record(folder / "failure.json", schemas.FailureFile(message=message, kind=kind))


@dataclass(frozen=True)
class SearchPlan:
    """What a search would do, known before it is started."""

    cells: int | None
    trials: int | None
    seconds: float
    """for one trial on one worker, a mean over a few cells"""
    minutes: float | None
    """what the budget allows"""
    of: int | None
    """cells that a grid has, if it has more than its budget allows"""

    def to_dict(self) -> dict[str, float | None]:
        return dataclasses.asdict(self)


def plan_search(experiment: config_experiment.Experiment) -> SearchPlan:
    """How many cells and trials, and how long one takes: from a few real steps of a few cells."""
    assert experiment.search is not None
    check_search(experiment)
    search = experiment.search
    settings = [samplers.suggest_settings(search, number, [], []) for number in range(NUM_TIMED_POINTS)]
    seconds = []
    for one in settings:
        if one is not None:
            with tempfile.TemporaryDirectory() as scratch:
                seconds.append(
                    estimate_seconds(
                        _build_search_trial(experiment, "cell", one, FIRST_SEARCH_SEED), Path(scratch), num_steps=1
                    )
                )
    cells, trials = search.compute_planned_counts()
    whole = search.cells() if search.method == "grid" else None
    minutes = search.budget.minutes if search.budget else None
    return SearchPlan(cells, trials, sum(seconds) / len(seconds), minutes, whole if whole != cells else None)
