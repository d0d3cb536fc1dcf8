"""Estimate the effects that an experiment can detect before it runs, from the noise of a pilot or of the recipes."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.errors import RequestError
from headtohead.experiment.run_folder import ExperimentRuns, open_experiment_runs
from headtohead.findings.evaluation_sets import select_evaluation_sets
from headtohead.findings.example_scores import stack_example_scores
from headtohead.verdict.interim import MIN_SEEDS, compute_interim_confidence
from headtohead.verdict.metric import get_metric
from headtohead.verdict.power import compute_min_detectable_effect
from headtohead.verdict.scores import pair_scores
from headtohead.verdict.variance_components import VarianceComponents, estimate_variance_components

SEED_COUNTS = (3, 5, 8, 12, 20)
"""numbers of seeds for which a plan states the detectable effect"""


@dataclass(frozen=True)
class DetectableEffects:
    """The minimum detectable effect of a variant at 80 % power, for each number of seeds.

    Effects are relative for perplexity and absolute for accuracy. `documents` is the number of test documents over
    which the effect generalizes to new text. It is 1 if the between-document noise is unknown; the effect is then
    specific to this test set.
    """

    variant: str
    noise_source: str
    documents: int
    effects: dict[int, float]
    is_typical_noise: bool = False
    """whether the noise is that of other experiments"""


def estimate_detectable_effects(experiment: Experiment, pilot: Path | None, folder: Path) -> list[DetectableEffects]:
    """Return the effects that each variant's comparison can detect, for several numbers of seeds.

    Without pairs of runs, the estimate uses the noise of the recipe with the same name, or else the typical noise of
    recipes with the same metric.

    Args:
        experiment: The experiment to plan.
        pilot: Folder with earlier runs. Variants need at least three pairs of runs.
        folder: Folder of the experiment, used as the pilot by default if it contains runs of the same experiment.
    """
    pilot_runs = _open_pilot_runs(experiment, pilot, folder)
    seed_counts = sorted({*SEED_COUNTS, max(experiment.max_seeds, MIN_SEEDS)})
    noise_by_variant = {} if pilot_runs is None else _estimate_pilot_noise(pilot_runs, experiment.variants)
    is_typical_noise = not noise_by_variant and experiment.name not in _read_recipe_deviations(experiment)
    noise_source = "" if pilot_runs is None else f"earlier runs in {pilot_runs.folder}"
    if not noise_by_variant:
        if (recipe_noise := _estimate_recipe_noise(experiment)) is None:
            return []
        noise_by_variant, noise_source = {"any variant": recipe_noise[0]}, recipe_noise[1]
    metric, num_comparisons = get_metric(experiment.primary.metric), max(len(experiment.variants), 1)
    return [
        DetectableEffects(
            variant,
            noise_source,
            components.num_documents,
            {
                seeds: metric.to_display_effect(
                    compute_min_detectable_effect(
                        components.extrapolate(seeds, components.num_documents),
                        compute_interim_confidence(seeds, num_comparisons=num_comparisons),
                    )
                )
                for seeds in seed_counts
            },
            is_typical_noise,
        )
        for variant, components in noise_by_variant.items()
    ]


def _open_pilot_runs(experiment: Experiment, pilot: Path | None, folder: Path) -> ExperimentRuns | None:
    """Return the runs of the pilot from which detectable effects are estimated, or those in `folder`, or None."""
    if pilot is not None:
        runs = open_experiment_runs(pilot)
        metric, pilot_metric = experiment.primary.metric, runs.experiment.primary.metric
        if metric != pilot_metric:
            raise RequestError(f"--pilot {pilot} is judged by {pilot_metric}, but the experiment by {metric}")
        return runs
    if not (folder / "experiment.json").is_file():
        return None
    runs = open_experiment_runs(folder)
    return runs if runs.metadata.identity == experiment.identity() else None


def _estimate_pilot_noise(runs: ExperimentRuns, variants: Collection[str]) -> dict[str, VarianceComponents]:
    """Return the noise that limits detectable effects: of paired differences, for variants with three pairs of runs."""
    evaluation_set = select_evaluation_sets(runs.experiment, runs.corpus)[0]
    metric, baseline = runs.experiment.primary.metric, runs.finished(BASELINE)
    noise = {}
    for name in variants:
        finished_runs = runs.finished(name) if name in runs.experiment.variants else {}
        if len(baseline.keys() & finished_runs.keys()) >= MIN_SEEDS:
            baseline_scores, variant_scores = (
                stack_example_scores(runs_by_seed, runs.corpus, evaluation_set, metric)
                for runs_by_seed in (baseline, finished_runs)
            )
            pairs = pair_scores(name, baseline_scores, variant_scores)
            baseline_totals, variant_totals = pairs.totals
            noise[name] = estimate_variance_components(
                pairs.sum_by_document(variant_totals - baseline_totals)[None],
                pairs.sum_by_document(pairs.weights)[None],
            )
    return noise


def _estimate_recipe_noise(experiment: Experiment) -> tuple[VarianceComponents, str] | None:
    """Return the between-seed noise of complete recipe runs, from which detectable effects follow, and its description.

    Return None if no recipe has this metric.
    """
    deviations = _read_recipe_deviations(experiment)
    if not deviations:
        return None
    if experiment.name in deviations:
        deviation, noise_source = deviations[experiment.name], f"complete runs of the recipe {experiment.name}"
    else:
        deviation = statistics.median(deviations.values())
        noise_source = f"complete runs of {len(deviations)} recipes"
    # Two paired differences whose standard deviation is that of the recipe
    differences = np.array([[[1.0], [-1.0]]]) * deviation / math.sqrt(2)
    return estimate_variance_components(differences, np.ones((1, 1))), noise_source


def _read_recipe_deviations(experiment: Experiment) -> Mapping[str, float]:
    """Return the between-seed standard deviation of the recipes that are judged by the experiment's metric."""
    noise_json = (resources.files("headtohead.config") / "recipes" / "noise.json").read_text(encoding="utf-8")
    deviations: Mapping[str, float] = json.loads(noise_json).get(experiment.primary.metric, {})
    return deviations
