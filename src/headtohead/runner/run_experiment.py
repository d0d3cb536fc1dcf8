"""Run an experiment: its search or tuning, its teacher, all its trials, and the analyses of their results."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from headtohead.atomic_io import compute_sha256
from headtohead.child_process import ChildProcess
from headtohead.config import experiment
from headtohead.config.experiment import BASELINE
from headtohead.config.trial_settings import build_trial
from headtohead.execution.backends import build_backend_pool
from headtohead.execution.local_worker import prestart_local_workers
from headtohead.execution.teacher_workers import run_teacher_in_workers
from headtohead.execution.worker_pool import (
    Job,
    JobState,
    OnJobsUpdate,
    WorkerPool,
    build_environment,
    run_jobs,
)
from headtohead.experiment import schemas
from headtohead.experiment.experiment_folder import NO_BUDGETS, create_experiment_folder
from headtohead.experiment.journal import Journal
from headtohead.experiment.provenance.environment import collect_versions
from headtohead.experiment.provenance.environment_comparison import (
    EnvironmentChangedWarning,
    describe_environment_changes,
)
from headtohead.experiment.run_folder import ExperimentRuns, build_trials, lock_folder
from headtohead.findings import compute
from headtohead.model_cost import ModelCost
from headtohead.progress import ProgressCallback, ignore_progress
from headtohead.runner.budgets import ResolvedBudgets, read_budgets, resolve_budgets
from headtohead.runner.corpus_description import compute_corpus_digests, describe_corpus
from headtohead.runner.preflight import check_disk_space, check_runnable
from headtohead.runner.run_recorder import RunRecorder
from headtohead.runner.run_sweep import run_sweep
from headtohead.runner.run_tuning import SearchOptions, add_chosen_settings, choose_settings
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.hardware.devices import select_device
from headtohead.trials.result_files import remove_checkpoints_of_finished_trial
from headtohead.trials.trial import run_trial
from headtohead.verdict.decision_rule import OPEN_OUTCOMES
from headtohead.verdict.interim import plan_interim_analyses

DEFAULT_RUNS_FOLDER = Path("runs")


@dataclass(frozen=True)
class ExperimentOutcome:
    """The runs, jobs and findings of an experiment that has been run."""

    runs: ExperimentRuns
    jobs: tuple[Job, ...]
    findings: schemas.Findings | None
    """None if no baseline trial finished"""

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
    first_workers: list[ChildProcess] | None = None,
) -> ExperimentOutcome:
    """Run the search of an experiment, if it has one, and then every unfinished trial, or every cell of its sweep.

    Args:
        experiment: The experiment to run.
        output_folder: Folder to store the runs in; defaults to runs/NAME.
        num_workers: Number of worker processes; by default, chosen for this machine.
        device: Device to train on; "auto" selects one.
        resume: Continue an experiment whose folder already exists.
        backend: Name of a cluster backend, or a worker pool; defaults to local processes.
        on_update: Called with all jobs whenever one of them changes.
        on_progress: Called with the progress of work that precedes the trials, such as training a teacher.
        command: Command line to record in experiment.json; defaults to sys.argv.
        first_workers: Processes of local workers that have been started already; those that are used are removed.
    """
    folder = output_folder or DEFAULT_RUNS_FOLDER / experiment.name
    command_line = list(command or sys.argv)
    run_comparison = partial(
        _run_comparison,
        num_workers=num_workers,
        device=device,
        backend=backend,
        on_update=on_update,
        on_progress=on_progress,
        command=command_line,
        first_workers=[] if first_workers is None else first_workers,
    )
    if experiment.sweep is None:
        return run_comparison(experiment, folder, resume)
    runs, cell_outcomes = run_sweep(
        experiment, folder, run_comparison, resume=resume, on_progress=on_progress, command=command_line
    )
    jobs = tuple(job for outcome in cell_outcomes for job in outcome.jobs)
    return ExperimentOutcome(runs, jobs, compute.write_findings(runs))


def _run_comparison(
    experiment: experiment.Experiment,
    folder: Path,
    resume: bool,
    *,
    num_workers: int | None,
    device: str,
    backend: str | WorkerPool | None,
    on_update: OnJobsUpdate,
    on_progress: ProgressCallback,
    command: list[str],
    first_workers: list[ChildProcess],
) -> ExperimentOutcome:
    """Run the search or the tuning of an experiment without a sweep, and then every unfinished trial."""
    is_continued = (folder / "experiment.json").is_file()
    requested_experiment = experiment
    experiment, budgets = resolve_budgets(requested_experiment, read_budgets(folder))
    if experiment.search is not None or experiment.tune is not None:
        options = SearchOptions(build_backend_pool(backend, num_workers, device), device, on_update, command, resume)
        requested_experiment = add_chosen_settings(
            requested_experiment, choose_settings(experiment, folder, options, budgets)
        )
        experiment, budgets = resolve_budgets(requested_experiment, budgets)
        resume = resume or not is_continued  # the search has created the folder
    with contextlib.ExitStack() as exit_stack:
        pool: WorkerPool | None = None
        # Start the workers now, so that they import torch while models and data are checked.
        if backend is None:
            first_trials = [build_trial(experiment, name, 0) for name in experiment.names]
            num_trials = 0 if resume else experiment.max_seeds * len(first_trials)
            worker_context = prestart_local_workers(
                build_backend_pool(None, num_workers, device),
                num_trials,
                build_environment(first_trials),
                first_workers,
            )
            pool = exit_stack.enter_context(worker_context)
        # Run all checks before writing any file.
        model_costs = check_runnable(experiment)
        pool = pool or build_backend_pool(backend, num_workers, device)
        check_disk_space(experiment, folder, pool.size, model_costs[BASELINE].weights_bytes)
        folder_existed = folder.exists()
        exit_stack.enter_context(lock_folder(folder))
        try:
            runs = create_folder_with_corpus(folder, experiment, command=command, resume=resume, budgets=budgets)
            if resume and backend is None:
                _warn_if_environment_changed(runs, device)
        except BaseException:
            if not folder_existed:
                _remove_folder_of_failed_start(folder)
            raise
        # Train or run the models on which trials depend.
        if experiment.spec.has_teacher:
            teacher_file = run_teacher_in_workers(experiment, folder, on_progress, pool)
            schemas.write_record(folder / "teacher.json", teacher_file, with_checksum=True)
        for trial in (build_trial(experiment, name, 0) for name in experiment.names):
            dataset = prepare_dataset(trial.data, trial.task)
            get_task(trial.task).train_dependencies(trial, dataset, run_trial, on_progress)
        has_interim_analyses = isinstance(experiment.seeds, str)
        jobs: list[Job] = []
        recorder = RunRecorder(Journal(folder))
        findings: schemas.Findings | None = None
        num_started_seeds = 0
        open_variants = set(experiment.names)
        # With seeds = "auto", variants without a settled verdict get more seeds after each interim analysis.
        analyses = plan_interim_analyses(experiment.max_seeds) if has_interim_analyses else (experiment.max_seeds,)
        for num_seeds in analyses:
            jobs += _build_jobs(runs, experiment, open_variants, range(num_started_seeds, num_seeds), model_costs)
            num_started_seeds = num_seeds
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


def create_folder_with_corpus(
    folder: Path,
    experiment: experiment.Experiment,
    *,
    command: list[str],
    resume: bool,
    budgets: ResolvedBudgets = NO_BUDGETS,
) -> ExperimentRuns:
    """Create the folder of an experiment to run, or open it if `resume` is set, and write corpus.json."""
    runs = create_experiment_folder(
        folder,
        experiment,
        corpus_digests=compute_corpus_digests(experiment),
        versions=collect_versions(),
        command=command,
        resume=resume,
        budgets=budgets,
    )
    schemas.write_record(folder / "corpus.json", describe_corpus(experiment), with_checksum=True)
    Journal(folder).append_new(schemas.CorpusEvent(digest=compute_sha256(folder / "corpus.json")))
    return runs


def _warn_if_environment_changed(runs: ExperimentRuns, device: str) -> None:
    """Warn if a resumed experiment has runs trained with different package versions, or on different hardware."""
    started_runs = [
        run
        for variant in runs.experiment.names
        for seed in runs.seeds(variant)
        if ((run := runs.run(variant, seed)).folder / "start.json").is_file()
    ]
    if changes := describe_environment_changes(started_runs, collect_versions(), select_device(device).type):
        message = f"{runs.folder} has runs that were trained elsewhere: {changes}; results may differ slightly"
        warnings.warn(message, EnvironmentChangedWarning, stacklevel=3)


def _build_jobs(
    runs: ExperimentRuns,
    experiment: experiment.Experiment,
    variants: Collection[str],
    seeds: range,
    model_costs: Mapping[str, ModelCost],
) -> list[Job]:
    """Return a job for each trial of an experiment's `variants` to run. Jobs of finished runs are not run again."""
    jobs = []
    for trial in (trial for trial in build_trials(experiment, seeds) if trial.variant in variants):
        run = runs.run(trial.variant, trial.seed)
        if run.is_finished:
            remove_checkpoints_of_finished_trial(run.folder)  # the process may have been killed before it removed them
        state: JobState = "kept" if run.is_finished else "waiting"
        jobs.append(Job(trial, run.folder, state, model_cost=model_costs.get(trial.variant)))
    return jobs


def _remove_folder_of_failed_start(folder: Path) -> None:
    """Remove the new folder of an experiment that did not run because a check failed, unless it contains files."""
    try:
        folder.rmdir()
    except OSError:
        pass
