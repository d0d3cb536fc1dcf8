"""The runs of a comparison as jobs: each runs one command with one seed, in its own folder, and has a state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headtohead.config.experiment import BASELINE
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.config import (
    OUT_PLACEHOLDER,
    SEED_PLACEHOLDER,
    VARIANT_PLACEHOLDER,
    VersusConfig,
    replace_placeholders,
)
from headtohead.versus.file_schemas import OUTPUT_FOLDER, CommandRun
from headtohead.versus.revisions import check_out_revision

JobState = Literal["waiting", "running", "finished", "failed", "reused", "skipped"]
"""reused: an earlier call of `h2h versus` ran it (--resume); skipped: it would not lead to a verdict"""


@dataclass
class CommandJob:
    """One pending or running command: a variant with a seed. The state is updated while it runs."""

    variant: str
    seed: int
    folder: Path
    """the run folder, with the captured output and run.json"""
    working_directory: Path
    is_repeat: bool = False
    """whether it repeats the baseline's first seed"""
    state: JobState = "waiting"
    start_time: float = 0.0
    end_time: float = 0.0
    run: CommandRun | None = None

    def reuse_earlier_run(self, run: CommandRun | None) -> CommandJob:
        """Take over the outcome of an earlier run, if that has a value. Return this job."""
        if run is not None and run.has_value:
            self.state, self.run = "reused", run
        return self

    @property
    def output_folder(self) -> Path:
        """The folder that replaces {out}."""
        return self.folder / OUTPUT_FOLDER

    @property
    def run_name(self) -> str:
        """The run folder relative to the comparison's folder, such as baseline/seed-0."""
        return f"{self.variant}/{self.folder.name}"

    @property
    def placeholder_values(self) -> dict[str, str]:
        """The values of {seed}, {out} and {variant}."""
        return {
            SEED_PLACEHOLDER: str(self.seed),
            OUT_PLACEHOLDER: str(self.output_folder),
            VARIANT_PLACEHOLDER: self.variant,
        }

    def get_metric_file(self, config: VersusConfig) -> Path | None:
        """Return the file or folder in which the run writes the metric, or None if it prints the metric."""
        return self._resolve_configured_path(config.metric.file)

    def get_example_scores_file(self, config: VersusConfig) -> Path | None:
        """Return the file in which the run writes scores per example, or None if it writes none."""
        return self._resolve_configured_path(config.metric.example_scores)

    def _resolve_configured_path(self, path: str | None) -> Path | None:
        """Return a path of the settings for this run: placeholders replaced, relative to the working directory."""
        return None if path is None else self.working_directory / replace_placeholders(path, self.placeholder_values)


def build_jobs(comparison: ComparisonFolder, directory: Path) -> list[CommandJob]:
    """Return one job per planned run of a comparison, in order, with the outcomes of runs that have already ended.

    Git revisions are checked out, so that each job has a working directory. `directory` is that of all other commands.
    """
    config, finished_runs = comparison.config, comparison.read_runs()
    working_directories = {
        name: check_out_revision(directory, comparison.path, comparison.record.revisions[name], config.links)
        if name in comparison.record.revisions
        else directory
        for name in config.commands
    }
    jobs = []
    for name, seed in config.list_planned_runs():
        job = CommandJob(name, seed, comparison.get_run_folder(name, seed).resolve(), working_directories[name])
        jobs.append(job.reuse_earlier_run(finished_runs[name].get(seed)))
    if config.check_determinism and config.is_paired:
        folder = comparison.repeated_run_folder.resolve()
        job = CommandJob(BASELINE, config.first_seed, folder, working_directories[BASELINE], is_repeat=True)
        jobs.append(job.reuse_earlier_run(comparison.read_repeated_run()))
    return jobs
