"""`h2h plan` estimates detectable effects by number of seeds, from a pilot or from the noise of the recipes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headtohead.config import recipe_catalog
from headtohead.errors import RequestError
from headtohead.experiment.loading import load_experiment
from headtohead.runner.detectable_effects import DetectableEffects, estimate_detectable_effects
from headtohead.runner.run_experiment import run_experiment

pytestmark = pytest.mark.usefixtures("in_process_workers")

NOISE = json.loads((Path(recipe_catalog.__file__).parent / "recipes" / "noise.json").read_text())


def check_power(row: DetectableEffects, seeds: int, deviation: float, num_comparisons: int) -> None:
    """Compare with the power of the t test at the detectable effect."""
    level = 0.05 * (1 - 2 / seeds) / num_comparisons
    quantile = stats.t.ppf(1 - level / 2, seeds - 1)
    noncentrality = math.log1p(row.effects[seeds]) / deviation * math.sqrt(seeds)
    assert stats.nct.sf(quantile, seeds - 1, noncentrality) == pytest.approx(0.8, abs=0.01)


def test_earlier_runs_of_the_experiment_give_the_noise(small: Any, tmp_path: Path) -> None:
    experiment = small(seeds=3, training={"budget": "10 steps"})
    outcome = run_experiment(experiment, tmp_path / "runs", num_workers=2)
    assert outcome.findings is not None
    (verdict,) = outcome.findings.verdicts
    (row,) = estimate_detectable_effects(experiment, None, tmp_path / "runs")
    assert (row.variant, row.documents) == ("alibi", verdict.documents) and not row.is_typical_noise
    assert row.noise_source == f"earlier runs in {tmp_path / 'runs'}"
    # The first analysis of 3 seeds has detected what the plan says that it detects.
    assert row.effects[3] == pytest.approx(verdict.min_detectable_effect)
    assert np.all(np.diff(list(row.effects.values())) < 0)

    other = small(seeds=3, training={"budget": "11 steps"})
    (recorded,) = estimate_detectable_effects(other, None, tmp_path / "runs")
    assert recorded.is_typical_noise
    assert recorded.variant == "any variant", "runs of another experiment are used only on request"
    (pilot,) = estimate_detectable_effects(other, tmp_path / "runs", tmp_path / "none")
    assert pilot.effects == row.effects
    with pytest.raises(RequestError, match="is judged by perplexity, but the experiment by accuracy"):
        estimate_detectable_effects(load_experiment("speeches-classifier"), tmp_path / "runs", tmp_path / "none")


def test_recipes_give_the_noise_without_earlier_runs(small: Any, tmp_path: Path) -> None:
    recipe = load_experiment("window")
    (row,) = estimate_detectable_effects(recipe, None, tmp_path / "none")
    assert row.noise_source == "complete runs of the recipe window" and not row.is_typical_noise
    for seeds in (3, 5, 12):
        check_power(row, seeds, NOISE["perplexity"]["window"], len(recipe.variants))
    (row,) = estimate_detectable_effects(small(seeds=7), None, tmp_path / "none")
    assert 7 in row.effects
    check_power(row, 5, float(np.median(list(NOISE["perplexity"].values()))), 1)
