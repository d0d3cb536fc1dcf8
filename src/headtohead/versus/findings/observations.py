"""Questions and answers about a comparison of commands that the report lists, whether or not something is wrong.

Problems are reported elsewhere: comparison_warnings.py and withholding_reasons.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from headtohead.config.experiment import BASELINE
from headtohead.experiment.schemas.versus import Observation
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.file_schemas import CommandRun, RunsByVariant

MAX_LISTED_FILES = 5


def list_observations(comparison: ComparisonFolder, valid_runs: RunsByVariant) -> list[Observation]:
    """Return the questions about the fairness of the comparison that its recorded runs answer.

    `valid_runs` holds the runs with a finite value.
    """
    observations = []
    if comparison.config.is_paired:
        observations += _observe_determinism(comparison, valid_runs[BASELINE])
        for name in comparison.config.variants:
            observations += _observe_equal_starts(name, valid_runs[BASELINE], valid_runs[name])
    observations += _observe_written_files(valid_runs)
    if not comparison.config.is_aa_test and not comparison.config.equivalence_margin:
        observations.append(
            Observation(
                question="Which difference is large enough to matter?",
                answer="any, however small: set --equivalence-margin to the smallest difference of practical interest",
            )
        )
    median_seconds = {
        name: statistics.median(run.seconds for run in runs_by_seed.values())
        for name, runs_by_seed in valid_runs.items()
        if runs_by_seed
    }
    if baseline_seconds := median_seconds.get(BASELINE):
        observations += [
            Observation(
                question=f"How long does {name} take?",
                answer=f"{median_seconds[name]:.1f} s per run, {median_seconds[name] / baseline_seconds:.2f} times the "
                "baseline",
            )
            for name in comparison.config.variants
            if name in median_seconds
        ]
    return observations


def _observe_determinism(comparison: ComparisonFolder, baseline: Mapping[int, CommandRun]) -> list[Observation]:
    """Answer whether repeating the baseline's first seed gave the same values."""
    seed, repeated_run = comparison.config.first_seed, comparison.read_repeated_run()
    if seed not in baseline:
        return []
    first_run = baseline[seed]
    if repeated_run is None:
        answer = "unknown: no run was repeated"
    elif not repeated_run.has_finite_value:
        answer = f"no: the second run has no value ({repeated_run.status})"
    elif repeated_run.curve == first_run.curve:
        num_values = len(first_run.curve)
        subject = f"all {num_values} values of seed {seed} are" if num_values > 1 else f"seed {seed} is"
        answer = f"yes: {subject} bit-identical"
    else:
        answer = f"no: seed {seed} gives {first_run.value:.6g} and {repeated_run.value:.6g}"
    return [Observation(question=f"Is {BASELINE} deterministic given the seed?", answer=answer)]


def _observe_equal_starts(
    name: str, baseline: Mapping[int, CommandRun], variant: Mapping[int, CommandRun]
) -> list[Observation]:
    """Answer whether baseline and variant had equal first values, initial weights and batches for equal seeds."""
    pairs = [(baseline[seed], variant[seed]) for seed in baseline if seed in variant]
    if not pairs:
        return []
    answers = {}
    if all(len(run.curve) > 1 for pair in pairs for run in pair):
        num_equal = sum(baseline_run.curve[0] == variant_run.curve[0] for baseline_run, variant_run in pairs)
        answers[f"Do {BASELINE} and {name} report the same first value with the same seed?"] = (
            f"{num_equal} of {len(pairs)} seeds"
        )
    for label, field in (("initial weights", "start_digest"), ("batches", "batch_digest")):
        digests = [(getattr(baseline_run, field), getattr(variant_run, field)) for baseline_run, variant_run in pairs]
        if all(baseline_digest and variant_digest for baseline_digest, variant_digest in digests):
            num_equal = sum(baseline_digest == variant_digest for baseline_digest, variant_digest in digests)
            question = f"Do {BASELINE} and {name} have the same {label} with the same seed?"
            answers[question] = f"{num_equal} of {len(digests)} seeds"
    return [Observation(question=question, answer=answer) for question, answer in answers.items()]


def _observe_written_files(valid_runs: RunsByVariant) -> list[Observation]:
    """Answer which files the runs wrote in the working directory, where later runs can read them."""
    written_files = dict.fromkeys(
        file for runs_by_seed in valid_runs.values() for run in runs_by_seed.values() for file in run.written_files
    )
    if not written_files:
        return []
    listed = ", ".join(list(written_files)[:MAX_LISTED_FILES])
    num_omitted = len(written_files) - MAX_LISTED_FILES
    omitted = f" and {num_omitted} more" if num_omitted > 0 else ""
    return [Observation(question="What did runs write outside of {out}?", answer=f"{listed}{omitted}")]
