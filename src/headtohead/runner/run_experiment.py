"""Run an experiment: run its search, prepare the corpus and the teacher, train all trials, and compute the findings."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headtohead.atomic_io import compute_sha256
from headtohead.config import experiment
from headtohead.config.experiment import BASELINE
from headtohead.config.loading import build_trial
from headtohead.execution.backends import build_worker_pool
from headtohead.execution.local_worker import prestart_workers
from headtohead.execution.teacher_workers import run_teacher
from headtohead.execution.worker_pool import (
    Job,
    JobState,
    OnJobsUpdate,
    WorkerPool,
    build_environment,
    run_jobs,
)
from headtohead.experiment import schemas
from headtohead.experiment.create_runs import create_runs
from headtohead.experiment.journal import Journal
from headtohead.experiment.machines import OtherMachineWarning, describe_other_machines
from headtohead.experiment.run_folder import ExperimentRuns, build_trials, lock_folder
from headtohead.experiment.versions import collect_versions
from headtohead.findings import compute
from headtohead.model_cost import ModelCost
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.runner.corpus_description import compute_corpus_digests, describe_corpus
from headtohead.runner.preflight import check_disk_space, check_runnable
from headtohead.runner.run_search import add_winner, run_search
from headtohead.search.points import read_winner_settings
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.devices import select_device
from headtohead.trials.outputs import remove_checkpoints
from headtohead.trials.trial import run_trial
from headtohead.verdict.interim import plan_interim_analyses
from headtohead.verdict.rule import OPEN_OUTCOMES

DEFAULT_RUNS_FOLDER = Path("runs")


@dataclass(frozen=True)
class ExperimentOutcome:
    """The outcome of an experiment. `findings` is None if no baseline trial finished."""

    runs: ExperimentRuns
    jobs: tuple[Job, ...]
    findings: schemas.Findings | None

    @property
    def failed_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job.state in ("failed", "lost")]

    @property
    def failure_message(self) -> str:
        """Return the variant, seed and error of each failed job, separated by semicolons."""
        return "; ".join(f"{job.trial.variant}, seed {job.trial.seed}: {job.message}" for job in self.failed_jobs)


def run_experiment(
    experiment: experiment.Experiment,
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
    """Run the experiment's search, if it has one, and then every unfinished trial.

    Args:
        experiment: The experiment to run.
        output_folder: Folder to store the runs in; defaults to runs/NAME.
        num_workers: Number of worker processes; by default, chosen to suit the machine.
        device: Device to train on; "auto" selects one.
        resume: Continue an experiment whose folder already exists.
        backend: Name of a cluster backend, or a worker pool; defaults to local processes.
        on_update: Called with all jobs whenever one of them changes.
        on_progress: Called with the progress of any work that precedes the trials, such as training a teacher.
        command: Command line to record in experiment.json; defaults to sys.argv.
    """
    folder = output_folder or DEFAULT_RUNS_FOLDER / experiment.name
    command_line = list(command or sys.argv)
    # A finished search is not repeated: its winner is read from the journal.
    if experiment.search is not None:
        settings = read_winner_settings(experiment, folder)
        if settings is None:
            search_pool = build_worker_pool(backend, num_workers, device)
            settings = run_search(
                experiment,
                folder,
                search_pool,
                device=device,
                resume=resume,
                on_update=on_update,
                command=command_line,
            )
            resume = True
        experiment = add_winner(experiment, settings)
    with contextlib.ExitStack() as exit_stack:
        pool = None
        # Start the workers now, so that they import torch while models and data are checked.
        if backend is None:
            first_trials = [build_trial(experiment, name, 0) for name in experiment.names]
            num_trials = 0 if resume else experiment.max_seeds * len(first_trials)
            prestarted = prestart_workers(
                build_worker_pool(None, num_workers, device), num_trials, build_environment(first_trials)
            )
            pool = exit_stack.enter_context(prestarted)
        # Check everything that can be checked before anything is written.
        sizes = check_runnable(experiment)
        pool = pool or build_worker_pool(backend, num_workers, device)
        check_disk_space(experiment, folder, pool.size, sizes[BASELINE].weights_bytes)
        folder_existed = folder.exists()
        exit_stack.enter_context(lock_folder(folder))
        try:
            runs = prepare_folder(folder, experiment, command=command_line, resume=resume)
            if resume and backend is None:
                _warn_other_machines(runs, device)
        except BaseException:
            if not folder_existed:
                _remove_if_empty(folder)
            raise
        # Train or run the models that trials depend on.
        if experiment.spec.has_teacher:
            description = run_teacher(experiment, folder, on_progress, pool)
            schemas.write_record(folder / "teacher.json", description, with_checksum=True)
        for trial in (build_trial(experiment, name, 0) for name in experiment.names):
            dataset = prepare_dataset(trial.data, trial.task)
            get_task(trial.task).train_dependencies(trial, dataset, run_trial, on_progress)
        is_auto = isinstance(experiment.seeds, str)
        jobs: list[Job] = []
        recorder = RunRecorder(Journal(folder))
        findings: schemas.Findings | None = None
        num_started = 0
        open_variants = set(experiment.names)
        # With seeds = "auto", variants without a settled verdict get more seeds after each analysis.
        for seeds in plan_interim_analyses(experiment.max_seeds) if is_auto else (experiment.max_seeds,):
            jobs += _build_jobs(runs, experiment, open_variants, range(num_started, seeds), sizes)
            num_started = seeds
            num_trials = sum(job.state == "waiting" for job in jobs)
            run_jobs(
                jobs,
                pool=replace(pool, size=max(1, min(pool.size, num_trials))),
                log_path=folder / "workers.log",
                device=device,
                on_start=recorder.record_start,
                on_update=recorder.wrap_callback(on_update),
            )
            recorder.record_ends(jobs)
            if not runs.finished(BASELINE):
                break
            findings = compute.write_findings(runs)
            open_variants = {verdict.variant for verdict in findings.verdicts if verdict.outcome in OPEN_OUTCOMES}
            if not open_variants:
                break
            open_variants.add(BASELINE)
    return ExperimentOutcome(runs, tuple(jobs), findings)


def prepare_folder(
    folder: Path, experiment: experiment.Experiment, *, command: list[str], resume: bool
) -> ExperimentRuns:
    """Create an experiment's folder, or open it if `resume` is set, and write experiment.json and corpus.json."""
    runs = create_runs(
        folder,
        experiment,
        corpus_digests=compute_corpus_digests(experiment),
        versions=collect_versions(),
        command=command,
        resume=resume,
    )
    schemas.write_record(folder / "corpus.json", describe_corpus(experiment), with_checksum=True)
    Journal(folder).append_new(schemas.CorpusEvent(digest=compute_sha256(folder / "corpus.json")))
    return runs


def _warn_other_machines(runs: ExperimentRuns, device: str) -> None:
    """Warn if runs were trained with different package versions, or on a different device or processor."""
    started = [
        run
        for variant in runs.experiment.names
        for seed in runs.seeds(variant)
        if ((run := runs.run(variant, seed)).folder / "start.json").is_file()
    ]
    if differences := describe_other_machines(started, collect_versions(), select_device(device).type):
        message = f"{runs.folder} has runs that were trained elsewhere: {differences}; results may differ slightly"
        warnings.warn(message, OtherMachineWarning, stacklevel=3)


@dataclass
class RunRecorder:
    """Records in the journal when runs start and end."""

    journal: Journal

    def __post_init__(self) -> None:
        events = [event for event in self.journal.read() if isinstance(event, schemas.RunEvent)]
        self.statuses = {(event.variant, event.seed): event.status for event in events}

    def record_start(self, job: Job) -> None:
        self._record(schemas.RunEvent(status="started", variant=job.trial.variant, seed=job.trial.seed))

    def record_ends(self, jobs: Sequence[Job]) -> None:
        """Record the jobs that have ended since the last call, and finished runs whose end has not been recorded."""
        for job in jobs:
            variant, seed = job.trial.variant, job.trial.seed
            if not job.is_over or self.statuses.get((variant, seed), "finished") == "finished":
                continue
            if job.state in ("finished", "kept"):
                self.journal.record_finished(variant, seed, job.folder)
                self.statuses[variant, seed] = "finished"
            elif self.statuses[variant, seed] == "started":
                status: Literal["lost", "failed"] = "lost" if job.state == "lost" else "failed"
                self._record(schemas.RunEvent(status=status, variant=variant, seed=seed, message=job.message))

    def wrap_callback(self, on_update: OnJobsUpdate) -> OnJobsUpdate:
        """Return a callback that also records the jobs that have ended."""

        def update(jobs: Sequence[Job]) -> None:
            self.record_ends(jobs)
            on_update(jobs)

        return update

    def _record(self, event: schemas.RunEvent) -> None:
        self.journal.append(event)
        self.statuses[event.variant, event.seed] = event.status


def _build_jobs(
    runs: ExperimentRuns,
    experiment: experiment.Experiment,
    variants: Collection[str],
    seeds: range,
    model_sizes: Mapping[str, ModelCost],
) -> list[Job]:
    """Return a job for each trial of these variants. Finished runs are kept."""
    jobs = []
    for trial in (trial for trial in build_trials(experiment, seeds) if trial.variant in variants):
        run = runs.run(trial.variant, trial.seed)
        if run.is_finished:
            remove_checkpoints(run.folder)  # the process may have been killed before it removed them
        state: JobState = "kept" if run.is_finished else "waiting"
        jobs.append(Job(trial, run.folder, state, model_cost=model_sizes.get(trial.variant)))
    return jobs


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of an experiment that failed to start, unless the folder contains files."""
    try:
        folder.rmdir()
    except OSError:
        pass
