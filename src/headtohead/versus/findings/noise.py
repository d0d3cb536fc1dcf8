"""The noise of a command over seeds, and the changes that can be detected despite it (`h2h versus --noise`)."""

from __future__ import annotations

import math
import statistics

import numpy as np

from headtohead.experiment.schemas.versus import NoiseEstimate
from headtohead.verdict.power import compute_min_detectable_effect
from headtohead.verdict.variance_components import estimate_variance_components
from headtohead.versus.file_schemas import RunsByVariant

REPORTED_SEED_COUNTS = (3, 5, 8, 12, 20)
"""seeds per variant for which the smallest detectable change is reported"""


def estimate_noise(valid_runs: RunsByVariant) -> NoiseEstimate | None:
    """Return the between-seed noise of a command compared with itself, and the effects that can be detected despite it.

    Return None if neither of the two has at least two runs. A difference between runs with different seeds contains
    the noise of both, so its variance is twice that of a run.
    """
    replicates = [
        [run.value for run in runs_by_seed.values()] for runs_by_seed in valid_runs.values() if len(runs_by_seed) > 1
    ]
    if not replicates:
        return None
    degrees_of_freedom = sum(len(values) - 1 for values in replicates)
    sum_of_squares = sum(statistics.variance(values) * (len(values) - 1) for values in replicates)
    standard_deviation = math.sqrt(sum_of_squares / degrees_of_freedom)
    # Two paired differences with a difference's standard deviation, extrapolated to more seeds.
    differences = np.array([[[standard_deviation], [-standard_deviation]]])
    components = estimate_variance_components(differences, np.ones((1, 1)))
    return NoiseEstimate(
        standard_deviation=standard_deviation,
        seeds=sum(map(len, replicates)),
        detectable_effects={
            str(num_seeds): compute_min_detectable_effect(components.extrapolate(num_seeds, 1), 0.95)
            for num_seeds in REPORTED_SEED_COUNTS
        },
    )
