"""`headtohead.Results`: the verdicts, scores and models of an experiment that has been run, for use from Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.audit.result import CheckResult
from headtohead.config import experiment as config_experiment
from headtohead.errors import RequestError, format_suggestion, suggest
from headtohead.experiment import run_folder
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.experiment.schemas import Findings, ResultWarning
from headtohead.findings import compute
from headtohead.report import notebook
from headtohead.runner.api.experiment import Experiment, add_api_methods
from headtohead.saved_models.model_io import SavedModel, load_saved_model
from headtohead.verdict.record import Verdict


@dataclass(frozen=True, repr=False)
class Results:
    """The results of an experiment. Displays its report in a notebook."""

    runs: ExperimentRuns
    findings: Findings

    @property
    def experiment(self) -> Experiment:
        return add_api_methods(self.runs.experiment)

    @property
    def folder(self) -> Path:
        return self.runs.folder

    @property
    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each variant, in the order of the experiment file."""
        return self.findings.verdicts

    @property
    def warnings(self) -> list[ResultWarning]:
        """Return the warnings above the verdicts, such as variants that changed nothing and implausible scores."""
        return self.findings.warnings

    @property
    def data_audits(self) -> dict[str, list[CheckResult]]:
        """Return the data audits of the baseline, and of each variant that changes the data, by variant name."""
        return {config_experiment.BASELINE: self.findings.data_audits, **self.findings.variant_data_audits}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per finished trial and split with its score, suitable for a data frame."""
        return [
            {"variant": variant, "seed": seed, "split": split, self.experiment.primary.metric: score}
            for variant, variant_scores in self.findings.scores.items()
            for split, seed_scores in variant_scores.items()
            for seed, score in seed_scores
        ]

    def curves(self) -> list[dict[str, Any]]:
        """Return one flat dict per evaluation of each finished trial: loss, metric, seconds and learning rate.

        All dicts have the same keys; values that an evaluation does not have are None.
        """
        rows = [
            {"variant": variant, "seed": seed, **line.model_dump()}
            for variant, seed, run in self._iterate_finished_runs()
            for line in run.metrics
        ]
        used_keys = {key for row in rows for key, value in row.items() if value is not None}
        return [{key: value for key, value in row.items() if key in used_keys} for row in rows]

    def costs(self) -> list[dict[str, Any]]:
        """Return one flat dict per finished trial: parameters, FLOPs per token, seconds and peak memory in bytes."""
        return [
            {
                "variant": variant,
                "seed": seed,
                "parameters": run.start.parameters,
                "flops_per_token": run.start.flops_per_token,
                **run.result.training.model_dump(include={"steps", "seconds", "seconds_per_step", "peak_memory"}),
            }
            for variant, seed, run in self._iterate_finished_runs()
        ]

    def example_scores(self, split: str) -> list[dict[str, Any]]:
        """Return one flat dict per finished trial and example of a split: the sum of the losses of its predictions, and
        the numbers of all predictions and of correct ones.
        """
        rows = []
        for variant, seed, run in self._iterate_finished_runs():
            splits = [name.removesuffix(".losses") for name in run.scores if name.endswith(".losses")]
            if split not in splits:
                raise RequestError(
                    f"no split {split!r}{format_suggestion(split, splits)} (available: {', '.join(splits)})"
                )
            names = {"losses": "loss", "counts": "count", "correct": "correct"}
            columns = {
                name: run.scores[f"{split}.{column}"].tolist()
                for column, name in names.items()
                if f"{split}.{column}" in run.scores
            }
            for index, values in enumerate(zip(*columns.values(), strict=True)):
                rows.append(
                    {"variant": variant, "seed": seed, "example": index, **dict(zip(columns, values, strict=True))}
                )
        return rows

    def _iterate_finished_runs(self) -> Iterator[tuple[str, int, Run]]:
        """Yield variant, seed and run of every finished trial, in the order of the experiment file."""
        for variant in self.experiment.names:
            for seed, run in self.runs.finished(variant).items():
                yield variant, seed, run

    def model(self, variant: str = config_experiment.BASELINE, seed: int = 0, *, initial: bool = False) -> SavedModel:
        """Load a trained model with its tokenizer.

        Args:
            variant: Name of the variant.
            seed: Seed of the run.
            initial: Return the model with its initial weights.
        """
        if variant not in self.experiment.names:
            hint = suggest(variant, self.experiment.names)
            raise RequestError(
                f"no variant {variant!r}{f', did you mean {hint!r}?' if hint else ''} "
                f"(available: {', '.join(self.experiment.names)})"
            )
        return load_saved_model(self.runs.run(variant, seed).folder, use_initial_weights=initial)

    def _repr_html_(self) -> str:
        return notebook.render_html(self.findings, self.folder)

    def __repr__(self) -> str:
        outcomes = ", ".join(f"{verdict.variant}: {verdict.outcome}" for verdict in self.verdicts)
        return f"<results in {self.folder}: {outcomes or 'no verdicts'}>"

    def __str__(self) -> str:
        warnings = [f"- {warning.kind}: {warning.message} {warning.advice}" for warning in self.warnings]
        verdicts = [f"- {verdict.variant}: {verdict.summary}" for verdict in self.verdicts]
        return "\n".join([self.experiment.question, *warnings, *verdicts])


def read_results(folder: str | Path) -> Results:
    """Read the results of an experiment from its folder.

    A variant gets no verdict if the journal records no analysis with its number of seeds, as in an interrupted
    experiment.
    """
    runs = run_folder.open_experiment_runs(Path(folder))
    return Results(runs, compute.compute_findings(runs, is_live=True))
