"""The calibration in small: batched training equals the package's own, simulations have a known truth, and the studies
measure what they claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.calibration import aa_training, page
from tools.calibration.batched_training import TinyModels, compare_with_trainer
from tools.calibration.coverage import CoverageCell, list_synthetic_groups, measure_coverage
from tools.calibration.power import SPREADS, VARIANTS, moderate, pooled, separate
from tools.calibration.results import ResultStore
from tools.calibration.simulations import MeasuredDocuments, SyntheticDocuments


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TinyModels, TinyModels]]:
    folder = tmp_path_factory.mktemp("corpora")
    return {kind: aa_training.prepare_sides(kind, folder) for kind in aa_training.KINDS}


@pytest.mark.parametrize("kind", list(aa_training.KINDS))
def test_batched_training_ends_with_the_weights_of_the_trainer(
    kind: str, sides: dict[str, tuple[TinyModels, TinyModels]]
) -> None:
    for models in sides[kind]:
        assert compare_with_trainer(models, [3, 4]) < 1e-4


@pytest.mark.parametrize("kind", list(aa_training.KINDS))
def test_both_sides_of_an_aa_experiment_start_equal_and_end_different(
    kind: str, sides: dict[str, tuple[TinyModels, TinyModels]]
) -> None:
    baseline, shift = sides[kind]
    first, second = baseline.init_parameters([5]), shift.init_parameters([5])
    assert all((first[name] == second[name]).all() for name in first)
    trained = baseline.train([5]), shift.train([5])
    assert any((trained[0][name] != trained[1][name]).any() for name in first)


@pytest.mark.parametrize("kind", list(aa_training.KINDS))
def test_every_aa_experiment_has_its_own_test_documents(
    kind: str, sides: dict[str, tuple[TinyModels, TinyModels]]
) -> None:
    drawn = [tuple(aa_training.draw_documents(kind, experiment)) for experiment in range(20)]
    assert len(set(drawn)) == 20
    assert {len(documents) for documents in drawn} == set(aa_training.DOCUMENT_COUNTS)
    assert min(min(documents) for documents in drawn) >= aa_training.TRAINING_ADDRESSES
    examples = aa_training.build_test_examples(kind, 3, sides[kind][0])
    assert sorted(set(examples.documents)) == list(drawn[3])
    assert len(examples.documents) == pytest.approx(aa_training.EXAMPLES, abs=5)


def test_measured_documents_have_a_true_difference_of_0() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 9, 6).astype(float)
    simulation = MeasuredDocuments("m", tokens * (5 + rng.exponential(1, (4, 6))), tokens)
    for lengths in ("equal", "unequal"):
        sample = simulation.sample(rng, 40_000, 2, 2, lengths)
        assert sample.differences.sum() / sample.weights.sum() == pytest.approx(0, abs=0.02)


def test_blended_seeds_keep_the_variance_of_the_measured_ones() -> None:
    rng = np.random.default_rng(0)
    totals = rng.standard_normal((40, 1)) + rng.standard_normal((40, 8))
    sample = MeasuredDocuments("m", totals, np.ones(8)).sample(rng, 40_000, 2, 3, "equal")
    measured = (totals - totals.mean(axis=0)).var()
    assert (sample.differences[:, 0] - sample.differences[:, 1]).var() / 2 == pytest.approx(measured, rel=0.05)


def test_coverage_is_that_of_the_interval() -> None:
    cell = measure_coverage(SyntheticDocuments("both", 1.0, 1.0, 0.3), "unequal", 5, 10, 4_000)
    assert 0.93 <= cell.coverage <= 0.975
    assert cell.half_width == pytest.approx(2.3, abs=0.4)
    skewed = measure_coverage(SyntheticDocuments("skewed", 0.01, 1.0, 0.0, 0.0, "skewed"), "equal", 5, 3, 4_000)
    assert skewed.coverage < 0.93


@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.997])
def test_other_confidences_hold_too(confidence: float) -> None:
    for seeds in (3, 5):
        simulation = SyntheticDocuments("mostly seeds", 1.0, 1.0, 0.3)
        cell = measure_coverage(simulation, "equal", seeds, 60, 4_000, confidence)
        error = np.sqrt(confidence * (1 - confidence) / 4_000)
        assert cell.coverage >= confidence - 0.3 * (1 - confidence) - 2 * error


@pytest.mark.parametrize("seeds", [5, 12])
def test_two_documents_with_interaction_are_covered(seeds: int) -> None:
    # X of at least B / 4 instead of B / 2 covers 92.8 % with 12 seeds.
    simulation = SyntheticDocuments("interaction", 1.0, 3.0, 1.0, 1.0)
    assert measure_coverage(simulation, "equal", seeds, 2, 40_000).coverage >= 0.934


def test_a_cell_that_misses_its_target_is_listed() -> None:
    few = CoverageCell("a", "equal", 3, 9, 4_000, 0.931, 2.0)
    assert not few.misses_target
    wide, narrow = (CoverageCell("b", "equal", 3, 10, 4_000, coverage, 2.0) for coverage in (0.971, 0.934))
    text = page.format_misses([few, wide, narrow])
    assert "2 of 3 cells" in text and "97.1 %" in text and "93.4 %" in text


def test_results_are_computed_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> CoverageCell:
        calls.append(1)
        return CoverageCell("a", "equal", 3, 9, 10, 0.9, 2.0)

    for _ in range(2):
        store = ResultStore(tmp_path)
        assert store.get("s", "key", CoverageCell, compute) == CoverageCell("a", "equal", 3, 9, 10, 0.9, 2.0)
    assert len(calls) == 1
    assert list(ResultStore(tmp_path).load("s")) == ["key"]


def test_a_variance_borrowed_from_unequal_variants_makes_errors() -> None:
    rng = np.random.default_rng(0)
    scale = SPREADS["one e times the others"](rng, 4_000)
    differences = scale[:, None, :] * rng.standard_normal((4_000, 5, VARIANTS))
    means, variances = differences.mean(1), differences.var(1, ddof=1)
    errors = {
        method: float((np.abs(means) > half_width(variances, 5, 0.05 / VARIANTS)).any(1).mean())
        for method, half_width in {"separate": separate, "moderated": moderate(6), "pooled": pooled}.items()
    }
    assert errors["separate"] < 0.06 < errors["pooled"]
    assert errors["separate"] < errors["moderated"] < errors["pooled"]


def test_all_groups_of_simulations_have_distinct_names() -> None:
    names = [simulation.name for group in list_synthetic_groups().values() for simulation in group]
    assert len(names) == len(set(names))
