"""Calibration at a small scale: batched training equals the package's, and studies recover known simulated truths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.calibration import aa_training, coverage_page
from tools.calibration.batched_training import TinyModels, compare_with_trainer
from tools.calibration.coverage import CoverageCell, list_synthetic_groups, measure_coverage
from tools.calibration.power import (
    NUM_VARIANTS,
    STD_SPREADS,
    build_moderated_half_widths,
    compute_pooled_half_widths,
    compute_separate_half_widths,
)
from tools.calibration.results import ResultStore
from tools.calibration.simulations import MeasuredDocuments, SyntheticDocuments


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TinyModels, TinyModels]]:
    folder = tmp_path_factory.mktemp("corpora")
    return {kind: aa_training.prepare_sides(kind, folder) for kind in aa_training.AA_EXPERIMENTS}


@pytest.mark.parametrize("kind", list(aa_training.AA_EXPERIMENTS))
def test_batched_training_has_the_final_weights_of_the_trainer(
    kind: str, sides: dict[str, tuple[TinyModels, TinyModels]]
) -> None:
    for models in sides[kind]:
        assert compare_with_trainer(models, [3, 4]) < 1e-4


@pytest.mark.parametrize("kind", list(aa_training.AA_EXPERIMENTS))
def test_baseline_and_variant_of_an_aa_experiment_start_equal_and_end_different(
    kind: str, sides: dict[str, tuple[TinyModels, TinyModels]]
) -> None:
    baseline, shift = sides[kind]
    initial_baseline, initial_shift = baseline.init_parameters([5]), shift.init_parameters([5])
    assert all((initial_baseline[name] == initial_shift[name]).all() for name in initial_baseline)
    trained_baseline, trained_shift = baseline.train([5]), shift.train([5])
    assert any((trained_baseline[name] != trained_shift[name]).any() for name in trained_baseline)


@pytest.mark.parametrize("kind", list(aa_training.AA_EXPERIMENTS))
def test_aa_experiments_have_different_test_documents(
    kind: str, sides: dict[str, tuple[TinyModels, TinyModels]]
) -> None:
    documents_by_experiment = [tuple(aa_training.draw_documents(kind, experiment)) for experiment in range(20)]
    assert len(set(documents_by_experiment)) == 20
    assert {len(documents) for documents in documents_by_experiment} == set(aa_training.DOCUMENT_COUNTS)
    assert min(min(documents) for documents in documents_by_experiment) >= aa_training.TRAINING_ADDRESSES
    examples = aa_training.build_test_examples(kind, 3, sides[kind][0])
    assert sorted(set(examples.documents)) == list(documents_by_experiment[3])
    assert len(examples.documents) == pytest.approx(aa_training.EXAMPLES, abs=5)


def test_measured_documents_have_a_true_difference_of_0() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 9, 6).astype(float)
    simulation = MeasuredDocuments("m", tokens * (5 + rng.exponential(1, (4, 6))), tokens)
    for lengths in ("equal", "unequal"):
        sample = simulation.sample(rng, 40_000, 2, 2, lengths)
        assert sample.differences.sum() / sample.weights.sum() == pytest.approx(0, abs=0.02)


def test_resampled_seeds_have_the_variance_of_the_measured_seeds() -> None:
    rng = np.random.default_rng(0)
    totals = rng.standard_normal((40, 1)) + rng.standard_normal((40, 8))
    sample = MeasuredDocuments("m", totals, np.ones(8)).sample(rng, 40_000, 2, 3, "equal")
    measured_variance = (totals - totals.mean(axis=0)).var()
    assert (sample.differences[:, 0] - sample.differences[:, 1]).var() / 2 == pytest.approx(measured_variance, rel=0.05)


def test_coverage_of_well_behaved_and_skewed_documents() -> None:
    cell = measure_coverage(SyntheticDocuments("both", 1.0, 1.0, 0.3), "unequal", 5, 10, 4_000)
    assert 0.93 <= cell.coverage <= 0.975
    assert cell.half_width == pytest.approx(2.3, abs=0.4)
    skewed = measure_coverage(SyntheticDocuments("skewed", 0.01, 1.0, 0.0, 0.0, "skewed"), "equal", 5, 3, 4_000)
    assert skewed.coverage < 0.93


@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.997])
def test_coverage_at_different_confidence_levels(confidence: float) -> None:
    for seeds in (3, 5):
        simulation = SyntheticDocuments("mostly seeds", 1.0, 1.0, 0.3)
        cell = measure_coverage(simulation, "equal", seeds, 60, 4_000, confidence)
        standard_error = np.sqrt(confidence * (1 - confidence) / 4_000)
        assert cell.coverage >= confidence - 0.3 * (1 - confidence) - 2 * standard_error


@pytest.mark.parametrize("seeds", [5, 12])
def test_coverage_with_two_documents_and_interaction(seeds: int) -> None:
    # X of at least B / 4 instead of B / 2 covers 92.8 % with 12 seeds.
    simulation = SyntheticDocuments("interaction", 1.0, 3.0, 1.0, 1.0)
    assert measure_coverage(simulation, "equal", seeds, 2, 40_000).coverage >= 0.934


def test_cells_that_miss_their_target_are_listed() -> None:
    few_documents_cell = CoverageCell("a", "equal", 3, 9, 4_000, 0.931, 2.0)
    assert not few_documents_cell.misses_target
    high_cell, low_cell = (CoverageCell("b", "equal", 3, 10, 4_000, coverage, 2.0) for coverage in (0.971, 0.934))
    text = coverage_page.format_misses([few_documents_cell, high_cell, low_cell])
    assert "2 of 3 cells" in text and "97.1 %" in text and "93.4 %" in text


def test_results_are_cached(tmp_path: Path) -> None:
    calls = []

    def compute() -> CoverageCell:
        calls.append(1)
        return CoverageCell("a", "equal", 3, 9, 10, 0.9, 2.0)

    for _ in range(2):
        store = ResultStore(tmp_path)
        assert store.get("s", "key", CoverageCell, compute) == CoverageCell("a", "equal", 3, 9, 10, 0.9, 2.0)
    assert len(calls) == 1
    assert list(ResultStore(tmp_path).load("s")) == ["key"]


def test_sharing_unequal_variances_increases_the_familywise_error() -> None:
    rng = np.random.default_rng(0)
    stds = STD_SPREADS["one e times the others"](rng, 4_000)
    differences = stds[:, None, :] * rng.standard_normal((4_000, 5, NUM_VARIANTS))
    means, variances = differences.mean(1), differences.var(1, ddof=1)
    errors = {
        method: float((np.abs(means) > compute_half_widths(variances, 5, 0.05 / NUM_VARIANTS)).any(1).mean())
        for method, compute_half_widths in {
            "separate": compute_separate_half_widths,
            "moderated": build_moderated_half_widths(6),
            "pooled": compute_pooled_half_widths,
        }.items()
    }
    assert errors["separate"] < 0.06 < errors["pooled"]
    assert errors["separate"] < errors["moderated"] < errors["pooled"]


def test_simulations_have_distinct_names() -> None:
    names = [simulation.name for group in list_synthetic_groups().values() for simulation in group]
    assert len(names) == len(set(names))
