"""Run all commands of a comparison on parallel workers, in interleaved order, and record the results in its folder."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from headtohead.atomic_io import compute_sha256
from headtohead.config.experiment import BASELINE
from headtohead.errors import HeadToHeadError, RequestError
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import lock_folder
from headtohead.experiment.schemas import RunEvent, SettingsEvent
from headtohead.versus.command_runner import CLOCK_TICK_NANOSECONDS, RunProcess, run_command, run_local_process
from headtohead.versus.comparison_folder import ComparisonFolder, create_comparison_folder, read_journaled_run_digests
from headtohead.versus.config import OUT_PLACEHOLDER, VersusConfig
from headtohead.versus.file_schemas import RUN_FILE, CommandRun
from headtohead.versus.findings.withholding_reasons import ignores_seed
from headtohead.versus.jobs import CommandJob, build_jobs

OnUpdate = Callable[[Sequence[CommandJob]], None]
UPDATE_SECONDS = 0.25
MAX_FAILED_RUNS = 2
"""number of failed runs after which the remaining runs of a variant without any value are skipped"""
MIN_DISTINCT_CURVE_VALUES = 3
"""two seeds with the same learning curve are no coincidence if it has at least so many distinct values"""


def run_comparison(
    folder: Path,
    config: VersusConfig,
    *,
    directory: Path,
    num_workers: int = 1,
    devices: Sequence[str] = (),
    resume: bool = False,
    run_process: RunProcess = run_local_process,
    on_update: OnUpdate = lambda jobs: None,
) -> ComparisonFolder:
    """Run every planned run that has not ended yet, on `num_workers` threads, and return the comparison's folder.

    `directory` is the working directory of the commands. `devices` are assigned to the threads in turn. `run_process`
    runs a process on this machine or elsewhere.
    """
    if config.metric.is_file_shared_by_runs and num_workers > 1:
        raise RequestError(
            f"parallel runs would all write {config.metric.file}; put {OUT_PLACEHOLDER} in its path, or use --workers 1"
        )
    with lock_folder(folder):
        comparison = create_comparison_folder(folder, config, directory, resume=resume)
        journal = Journal(folder)
        journal.append(
            SettingsEvent(
                digest=hashlib.sha256(json.dumps(comparison.record.to_json(), sort_keys=True).encode()).hexdigest(),
                seeds=config.seeds,
                variants=list(config.variants),
                versions=comparison.record.versions,
            )
        )
        scheduler = _ComparisonScheduler(comparison, build_jobs(comparison, directory), journal, run_process)
        scheduler.journal_reused_runs(read_journaled_run_digests(folder))
        worker_devices = [devices[index % len(devices)] if devices else None for index in range(num_workers)]
        scheduler.run_jobs(worker_devices, on_update)
    return comparison


def explain_skipped_runs(ended_runs: Collection[CommandRun]) -> str:
    """Return why a running comparison skips the remaining runs of a variant, or "" if it does not skip them.

    They are skipped if, given the runs that have ended, no further run can lead to a verdict.
    """
    if any(run.has_value for run in ended_runs):
        runs_by_seed = {run.seed: run for run in ended_runs if run.has_finite_value}
        is_curve = all(len({value for _, value in run.curve}) >= MIN_DISTINCT_CURVE_VALUES for run in ended_runs)
        return "every seed gives the same values" if is_curve and ignores_seed(runs_by_seed) else ""
    if any(run.status == "no metric" for run in ended_runs):
        return "the metric is missing"
    return "every run fails" if len(ended_runs) >= MAX_FAILED_RUNS else ""


class _ComparisonScheduler:
    """Runs a comparison's jobs on worker threads, one process each, and records their outcomes in the journal."""

    def __init__(
        self, comparison: ComparisonFolder, jobs: Sequence[CommandJob], journal: Journal, run_process: RunProcess
    ) -> None:
        self.comparison, self.jobs, self.journal, self.run_process = comparison, jobs, journal, run_process
        self.stop_event = threading.Event()
        self.lock = threading.Lock()
        self.start_ns = time.time_ns() - CLOCK_TICK_NANOSECONDS
        self.errors: list[HeadToHeadError] = []

    def journal_reused_runs(self, journaled_digests: Mapping[tuple[str, int], set[str]]) -> None:
        """Add the runs to the journal that an earlier process finished, but was killed before it recorded them."""
        for job in self.jobs:
            if job.state == "reused" and job.run is not None and (job.variant, job.seed) not in journaled_digests:
                self._append_run_event(job, job.run)

    def run_jobs(self, devices: Sequence[str | None], on_update: OnUpdate) -> None:
        """Run all waiting jobs, one thread per device. Terminate all processes if this one is interrupted."""
        threads = [threading.Thread(target=self._run_worker_thread, args=(device,), daemon=True) for device in devices]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                on_update(self.jobs)
                for thread in threads:
                    thread.join(timeout=UPDATE_SECONDS / len(threads))
        except BaseException:
            self.stop_event.set()
            for thread in threads:
                thread.join()
            raise
        on_update(self.jobs)
        if self.errors:
            raise self.errors[0]

    def _run_worker_thread(self, device: str | None) -> None:
        """Run waiting jobs of the comparison until none are left. Stop all worker threads at the first error."""
        while not self.stop_event.is_set():
            with self.lock:
                job = next((job for job in self.jobs if job.state == "waiting"), None)
                if job is None:
                    return
                job.state, job.start_time = "running", time.monotonic()
            try:
                run = run_command(
                    self.comparison,
                    job,
                    self.stop_event,
                    comparison_start_ns=self.start_ns,
                    run_process=self.run_process,
                    device=device,
                )
            except InterruptedError:
                return
            except HeadToHeadError as error:
                self.errors.append(error)
                self.stop_event.set()
                return
            with self.lock:
                self._finish_job(job, run)

    def _finish_job(self, job: CommandJob, run: CommandRun) -> None:
        """Update a job's state, add its run to the journal, and skip the runs that cannot lead to a verdict."""
        job.run, job.end_time = run, time.monotonic()
        job.state = "finished" if run.has_finite_value else "failed"
        self._append_run_event(job, run)
        ended_runs = [
            variant_job.run
            for variant_job in self.jobs
            if variant_job.variant == job.variant and variant_job.run is not None
        ]
        if explain_skipped_runs(ended_runs):
            for waiting_job in self.jobs:
                # Without baseline runs, no variant can be judged.
                if waiting_job.state == "waiting" and job.variant in (waiting_job.variant, BASELINE):
                    waiting_job.state = "skipped"

    def _append_run_event(self, job: CommandJob, run: CommandRun) -> None:
        """Append the outcome of a run to the journal."""
        event = RunEvent(
            status="finished" if run.has_finite_value else "failed",
            variant=job.variant,
            seed=job.seed,
            digest=compute_sha256(job.folder / RUN_FILE),
            message=run.message.split("\n")[0],
        )
        self.journal.append(event)
