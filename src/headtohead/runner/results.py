"""The Python interface: run an experiment or read a finished one, and access its verdicts, scores and models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.audit.result import CheckResult
from headtohead.config import experiment as config_experiment
from headtohead.errors import RequestError, TrialError, suggest
from headtohead.execution.progress_display import open_progress_display
from headtohead.execution.trackers.group import TrackerGroup
from headtohead.experiment import run_folder
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.experiment.schemas import Findings, ResultWarning
from headtohead.findings import compute
from headtohead.report import notebook
from headtohead.runner.experiment import Experiment, from_config, load_experiment
from headtohead.runner.run_experiment import DEFAULT_RUNS_FOLDER, run_experiment
from headtohead.saved_models.model_io import SavedModel
from headtohead.saved_models.model_io import load as load_model
from headtohead.verdict.record import Verdict


@dataclass(frozen=True, repr=False)
class Results:
    """The results of an experiment. Displays its report in a notebook."""

    runs: ExperimentRuns
    findings: Findings

    @property
    def experiment(self) -> Experiment:
        return from_config(self.runs.experiment)

    @property
    def folder(self) -> Path:
        return self.runs.folder

    @property
    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each variant, in the order of the experiment file."""
        return self.findings.verdicts

    @property
    def warnings(self) -> list[ResultWarning]:
        """Return the warnings shown above the verdicts: variants that changed nothing, and implausible scores."""
        return self.findings.warnings

    @property
    def data_audits(self) -> dict[str, list[CheckResult]]:
        """Return the corpus checks under `baseline`, and those of variants with different data under their names."""
        return {config_experiment.BASELINE: self.findings.data_audits, **self.findings.variant_data_audits}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict for each finished trial and split, from which a data frame can be built."""
        return [
            {"variant": variant, "seed": seed, "split": split, self.experiment.primary.metric: score}
            for variant, by_split in self.findings.scores.items()
            for split, seed_scores in by_split.items()
            for seed, score in seed_scores
        ]

    def curves(self) -> list[dict[str, Any]]:
        """Return one flat dict for each evaluation of each finished trial: loss, metric, seconds and learning rate."""
        return [
            {"variant": variant, "seed": seed, **line.model_dump(exclude_none=True)}
            for variant in self.experiment.names
            for seed, run in self.runs.finished(variant).items()
            for line in run.metrics
        ]

    def model(self, variant: str = config_experiment.BASELINE, seed: int = 0, *, initial: bool = False) -> SavedModel:
        """Load a trained model with its tokenizer.

        If `initial` is set, return the model as it was before training.
        """
        if variant not in self.experiment.names:
            hint = suggest(variant, self.experiment.names)
            raise RequestError(
                f"no variant {variant!r}{f', did you mean {hint!r}?' if hint else ''} "
                f"(there are: {', '.join(self.experiment.names)})"
            )
        return load_model(self.runs.run(variant, seed).folder, use_initial_weights=initial)

    def _repr_html_(self) -> str:
        return notebook.render_html(self.findings, self.folder)

    def __repr__(self) -> str:
        outcomes = ", ".join(f"{verdict.variant}: {verdict.outcome}" for verdict in self.verdicts)
        return f"<results in {self.folder}: {outcomes or 'no verdicts'}>"

    def __str__(self) -> str:
        warnings = [f"- {warning.kind}: {warning.message} {warning.advice}" for warning in self.warnings]
        verdicts = [f"- {verdict.variant}: {verdict.summary}" for verdict in self.verdicts]
        return "\n".join([self.experiment.question, *warnings, *verdicts])


def run(
    experiment: config_experiment.Experiment | str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    device: str = "auto",
    resume: bool = False,
    overrides: Sequence[str] = (),
    trackers: Sequence[str] = (),
) -> Results:
    """Run an experiment and return its results. If any trial fails, raise TrialError after all trials have ended.

    Args:
        experiment: An experiment, the name of a recipe, or the path of an experiment file.
        out: Folder to store the runs in; defaults to runs/NAME.
        workers: Number of worker processes.
        device: Device to train on, such as "cpu" or "cuda"; "auto" selects one.
        resume: Continue an experiment whose folder already exists.
        overrides: Settings of the form "name=value", for recipes and files.
        trackers: Experiment trackers to log to: tensorboard, wandb, trackio.
    """
    if not isinstance(experiment, config_experiment.Experiment):
        experiment = load_experiment(experiment, overrides)
    folder = Path(out) if out is not None else DEFAULT_RUNS_FOLDER / experiment.name
    with ExitStack() as stack:
        display = open_progress_display(experiment)
        stack.enter_context(display)
        tracker_group = stack.enter_context(TrackerGroup(folder, trackers, display.print_line))
        outcome = run_experiment(
            experiment,
            folder,
            num_workers=workers,
            device=device,
            resume=resume,
            on_update=tracker_group.wrap_callback(display.update),
            on_progress=display.show_progress,
        )
    if outcome.findings is None or outcome.failed_jobs:
        raise TrialError(outcome.failure_message)
    return Results(outcome.runs, outcome.findings)


def read_results(folder: str | Path) -> Results:
    """Read a finished experiment's results from its folder."""
    runs = run_folder.open_runs(Path(folder))
    return Results(runs, compute.compute_findings(runs))
