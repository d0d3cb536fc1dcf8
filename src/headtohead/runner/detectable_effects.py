"""Estimate before a run which effects it can detect, from the noise in a pilot or in the recipes."""

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
from headtohead.experiment.run_folder import ExperimentRuns, open_runs
from headtohead.findings.evaluation_sets import select_evaluation_sets, stack_scores
from headtohead.verdict.interim import MIN_SEEDS, compute_analysis_confidence
from headtohead.verdict.rule import get_metric
from headtohead.verdict.scores import pair_scores
from headtohead.verdict.statistics import (
    VarianceComponents,
    compute_min_detectable_effect,
    estimate_variance_components,
)

SEED_COUNTS = (3, 5, 8, 12, 20)


@dataclass(frozen=True)
class DetectableEffects:
    """A variant's minimum detectable effect at 80 % power, for each number of seeds.

    Effects are relative for perplexity and absolute for accuracy. `documents` is the number of test documents over
    which the effect generalises to new text. It is 1 if the between-document noise is unknown, in which case the effect
    holds for this test set only.
    """

    variant: str
    noise_source: str
    documents: int
    effects: dict[int, float]


def estimate_detectable_effects(experiment: Experiment, pilot: Path | None, folder: Path) -> list[DetectableEffects]:
    """Return the detectable effects of each variant with at least three pairs of runs in `pilot`.

    By default, `folder` serves as the pilot if it holds runs of the same experiment. If there are no pairs, the effects
    are based on the noise of the recipe with this name, or else on the typical noise of recipes with this metric.
    """
    runs = _open_pilot(experiment, pilot, folder)
    seed_counts = sorted({*SEED_COUNTS, max(experiment.max_seeds, MIN_SEEDS)})
    variants = {} if runs is None else _estimate_pilot_noise(runs, experiment.variants)
    source = "" if runs is None else f"earlier runs in {runs.folder}"
    if not variants:
        if (recipe_noise := _estimate_recipe_noise(experiment)) is None:
            return []
        variants, source = {"any variant": recipe_noise[0]}, recipe_noise[1]
    metric, num_comparisons = get_metric(experiment.primary.metric), max(len(experiment.variants), 1)
    return [
        DetectableEffects(
            variant,
            source,
            components.num_documents,
            {
                seeds: metric.to_display_effect(
                    compute_min_detectable_effect(
                        components.extrapolate(seeds, components.num_documents),
                        compute_analysis_confidence(seeds, num_comparisons=num_comparisons),
                    )
                )
                for seeds in seed_counts
            },
        )
        for variant, components in variants.items()
    ]


def _open_pilot(experiment: Experiment, pilot: Path | None, folder: Path) -> ExperimentRuns | None:
    """Return the pilot's runs, or those of the same experiment in `folder`, or None if there are none."""
    if pilot is not None:
        runs = open_runs(pilot)
        metrics = experiment.primary.metric, runs.experiment.primary.metric
        if metrics[0] != metrics[1]:
            raise RequestError(f"--pilot {pilot} is judged by {metrics[1]}, but the experiment by {metrics[0]}")
        return runs
    if not (folder / "experiment.json").is_file():
        return None
    runs = open_runs(folder)
    return runs if runs.metadata.identity == experiment.identity() else None


def _estimate_pilot_noise(runs: ExperimentRuns, variants: Collection[str]) -> dict[str, VarianceComponents]:
    """Return the noise of each variant with at least three pairs of runs."""
    evaluation_set = select_evaluation_sets(runs.experiment, runs.corpus)[0]
    metric, baseline = runs.experiment.primary.metric, runs.finished(BASELINE)
    noise = {}
    for name in variants:
        finished = runs.finished(name) if name in runs.experiment.variants else {}
        if len(baseline.keys() & finished.keys()) >= MIN_SEEDS:
            sides = (stack_scores(side, runs.corpus, evaluation_set, metric) for side in (baseline, finished))
            pairs = pair_scores(name, *sides)
            first, second = pairs.totals
            noise[name] = estimate_variance_components(
                pairs.sum_by_document(second - first)[None], pairs.sum_by_document(pairs.weights)[None]
            )
    return noise


def _estimate_recipe_noise(experiment: Experiment) -> tuple[VarianceComponents, str] | None:
    """Return the between-seed noise measured in complete recipe runs, and its description.

    Return None if no recipe has this metric.
    """
    text = (resources.files("headtohead.config") / "recipes" / "noise.json").read_text(encoding="utf-8")
    deviations: Mapping[str, float] = json.loads(text).get(experiment.primary.metric, {})
    if not deviations:
        return None
    if experiment.name in deviations:
        deviation, source = deviations[experiment.name], f"complete runs of the recipe {experiment.name}"
    else:
        deviation = statistics.median(deviations.values())
        source = f"complete runs of {len(deviations)} recipes"
    # Two paired differences with the recipe's standard deviation
    differences = np.array([[[1.0], [-1.0]]]) * deviation / math.sqrt(2)
    return estimate_variance_components(differences, np.ones((1, 1))), source
