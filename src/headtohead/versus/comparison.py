"""Run all commands in a comparison on parallel workers, in interleaved order, and record the results in its folder."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headtohead.atomic_io import compute_sha256, verify_checksum
from headtohead.config.experiment import BASELINE
from headtohead.errors import HeadToHeadError, RunFolderError
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import lock_folder
from headtohead.experiment.schemas import RunEvent, SettingsEvent, read_record, write_record
from headtohead.versus.command_runner import CommandJob, execute
from headtohead.versus.config import VersusConfig
from headtohead.versus.records import COMPARISON_FILE, RUN_FILE, CommandRun, ComparisonFile
from headtohead.versus.revisions import check_out, collect_diffs, resolve_revisions

OnUpdate = Callable[[Sequence[CommandJob]], None]
UPDATE_SECONDS = 0.25
REPEAT_SUFFIX = "-repeat"
REMEDY = "delete the folder of this run and use --resume"


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of a comparison: comparison.json, journal.jsonl and VARIANT/seed-N/run.json.

    baseline/seed-N-repeat holds a second baseline run with the first seed, which shows whether results are repeatable.
    """

    path: Path
    file: ComparisonFile

    @property
    def config(self) -> VersusConfig:
        return self.file.config

    def get_run_folder(self, variant: str, seed: int) -> Path:
        return self.path / variant / f"seed-{seed}"

    @property
    def repeat_folder(self) -> Path:
        """The folder of the second baseline run with the first seed."""
        return self.path / BASELINE / f"seed-{self.config.first_seed}{REPEAT_SUFFIX}"

    def read_repeat(self) -> CommandRun | None:
        """Return the second baseline run with the first seed, or None if there is none."""
        return read_run(self.repeat_folder, BASELINE, self.config.first_seed)

    def read_runs(self) -> dict[str, dict[int, CommandRun]]:
        """Return the runs that have ended, keyed by variant and seed. Raise RunFolderError if a file was modified."""
        return {
            name: {
                seed: run
                for seed in self.config.list_seeds(name)
                if (run := read_run(self.get_run_folder(name, seed), name, seed)) is not None
            }
            for name in self.config.commands
        }


def read_run(folder: Path, variant: str, seed: int) -> CommandRun | None:
    """Return a run's record, or None if it has not ended. Raise RunFolderError if the file was modified."""
    path = folder / RUN_FILE
    if not path.is_file():
        return None
    verify_checksum(path, REMEDY)
    run = read_record(path, CommandRun)
    if (run.variant, run.seed) != (variant, seed):
        raise RunFolderError(f"{path} belongs to {run.variant}/seed-{run.seed}; {REMEDY}")
    return run


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a command comparison."""
    return (folder / COMPARISON_FILE).is_file()


def open_comparison(folder: Path) -> ComparisonFolder:
    """Open a comparison's folder."""
    return ComparisonFolder(folder, read_record(folder / COMPARISON_FILE, ComparisonFile))


def create_comparison(
    folder: Path, config: VersusConfig, directory: Path, versions: dict[str, str], *, resume: bool
) -> ComparisonFolder:
    """Write comparison.json, or check that an existing folder holds the same comparison.

    Only the number of seeds may differ, so that seeds can be added later.
    """
    names = {variant.revision for variant in config.commands.values() if variant.revision is not None}
    records = resolve_revisions(directory, sorted(names)) if names else {}
    revisions = {
        name: records[variant.revision] for name, variant in config.commands.items() if variant.revision is not None
    }
    file = ComparisonFile(
        config=config,
        revisions=revisions,
        diffs=collect_diffs(directory, revisions),
        versions=versions,
        directory=str(directory.resolve()),
    )
    path = folder / COMPARISON_FILE
    if path.exists():
        if not resume:
            raise RunFolderError(f"{folder} exists; continue it with --resume, or choose another folder with --out")
        previous = read_record(path, ComparisonFile)
        changes = list_changes(previous, file)
        if changes:
            raise RunFolderError(
                f"{folder} holds another comparison ({'; '.join(changes)}); choose another folder with --out"
            )
    write_record(path, file)
    return ComparisonFolder(folder, file)


def list_changes(previous: ComparisonFile, current: ComparisonFile) -> list[str]:
    """Return what differs between two comparisons, ignoring the number of seeds, wording and margins."""
    ignored = {"seeds", "question", "equivalence_margin", "timeout", "retries", "repeat"}
    old, new = (file.config.model_dump(mode="json", exclude=ignored) for file in (previous, current))
    changes = [f"{key} is {old[key]!r}, not {new[key]!r}" for key in new if old[key] != new[key]]
    changes += [
        f"revision {record.name!r} of {name} was {previous.revisions[name].commit[:12]}, not {record.commit[:12]}"
        for name, record in current.revisions.items()
        if name in previous.revisions and previous.revisions[name] != record
    ]
    if previous.config.is_noise and previous.config.seeds != current.config.seeds:
        changes.append("a noise measurement cannot change its number of seeds")
    return changes


def run_comparison(
    folder: Path,
    config: VersusConfig,
    *,
    directory: Path,
    versions: dict[str, str],
    num_workers: int = 1,
    devices: Sequence[str] = (),
    resume: bool = False,
    on_update: OnUpdate = lambda jobs: None,
) -> ComparisonFolder:
    """Run every command that has not ended yet, interleaved so that slow drift affects all variants equally."""
    with lock_folder(folder):
        comparison = create_comparison(folder, config, directory, versions, resume=resume)
        journal = Journal(folder)
        journal.append(
            SettingsEvent(
                digest=hashlib.sha256(json.dumps(comparison.file.to_json(), sort_keys=True).encode()).hexdigest(),
                seeds=config.seeds,
                variants=list(config.variants),
                versions=versions,
            )
        )
        directories = {
            name: check_out(directory, folder, comparison.file.revisions[name])
            if name in comparison.file.revisions
            else directory
            for name in config.commands
        }
        finished = comparison.read_runs()
        jobs = [
            CommandJob(name, seed, comparison.get_run_folder(name, seed).resolve(), directories[name])
            for name, seed in config.list_runs()
        ]
        runs = [finished[job.variant].get(job.seed) for job in jobs]
        if config.repeat and not config.is_noise:
            repeat_folder = comparison.repeat_folder.resolve()
            jobs.append(CommandJob(BASELINE, config.first_seed, repeat_folder, directories[BASELINE]))
            runs.append(comparison.read_repeat())
        for job, run in zip(jobs, runs, strict=True):
            if run is not None and run.status in ("finished", "not finite"):
                job.state, job.run = "kept", run
        assigned = [devices[index % len(devices)] if devices else None for index in range(num_workers)]
        _JobRunner(config, jobs, journal).run(assigned, on_update)
    return comparison


class _JobRunner:
    """Runs jobs on threads, one process each, and records their outcomes in the journal."""

    def __init__(self, config: VersusConfig, jobs: Sequence[CommandJob], journal: Journal) -> None:
        self.config, self.jobs, self.journal = config, jobs, journal
        self.waiting: queue.SimpleQueue[CommandJob] = queue.SimpleQueue()
        for job in jobs:
            if job.state == "waiting":
                self.waiting.put(job)
        self.stop, self.journal_lock = threading.Event(), threading.Lock()
        self.errors: list[HeadToHeadError] = []

    def run(self, devices: Sequence[str | None], on_update: OnUpdate) -> None:
        """Run all waiting jobs, one thread per device. Terminate all processes if this one is interrupted."""
        threads = [threading.Thread(target=self._work, args=(device,), daemon=True) for device in devices]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                on_update(self.jobs)
                for thread in threads:
                    thread.join(timeout=UPDATE_SECONDS / len(threads))
        except BaseException:
            self.stop.set()
            for thread in threads:
                thread.join()
            raise
        on_update(self.jobs)
        if self.errors:
            raise self.errors[0]

    def _work(self, device: str | None) -> None:
        """Run waiting jobs until none are left. Stop all workers at the first error."""
        while not self.stop.is_set():
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                return
            job.state, job.start_time = "running", time.monotonic()
            try:
                job.run = execute(self.config, job, self.stop, device)
            except InterruptedError:
                return
            except HeadToHeadError as error:
                self.errors.append(error)
                self.stop.set()
                return
            self._record(job, job.run)

    def _record(self, job: CommandJob, run: CommandRun) -> None:
        """Update the state of a finished job and append it to the journal."""
        job.state = "finished" if run.is_counted else "failed"
        job.end_time = time.monotonic()
        event = RunEvent(
            status="finished" if run.is_counted else "failed",
            variant=job.variant,
            seed=job.seed,
            digest=compute_sha256(job.folder / RUN_FILE),
            message=run.message.split("\n")[0],
        )
        with self.journal_lock:
            self.journal.append(event)
