"""Calibration by simulation: the intervals hold the truth as often as they say, and power is as theory has it."""

from __future__ import annotations

import numpy as np
import pytest

from headtohead.errors import ScoresError
from headtohead.verdict.calibration import calibrate_fixed_seeds, to_markdown
from headtohead.verdict.simulations import ResampledSimulation, SyntheticSimulation
from headtohead.verdict.statistics import (
    compute_interval,
    compute_rare_difference_variance,
    estimate_variance_components,
)

EXPERIMENTS = 2000
CHANCE = 3 * np.sqrt(0.05 * 0.95 / EXPERIMENTS)  # three standard errors of a share of 5 %

WORLDS = [
    SyntheticSimulation("seeds", 1.0, 0.1, 0.1),
    SyntheticSimulation("examples", 0.1, 1.0, 0.1),
    SyntheticSimulation("both", 1.0, 1.0, 0.3),
    SyntheticSimulation("residual", 0.0, 0.0, 1.0),
    SyntheticSimulation("mostly seeds", 1.0, 0.4, 0.3),
    SyntheticSimulation("heavy", 1.0, 1.0, 0.5, example_distribution="heavy", has_variable_lengths=True),
    SyntheticSimulation("skewed", 0.5, 1.0, 0.5, example_distribution="skewed", has_variable_lengths=True),
]


def measured() -> ResampledSimulation:
    """Tables as trainings give them: seeds differ a little, examples of unequal length, heavy tails."""
    rng = np.random.default_rng(7)
    weights = np.ceil(20 * np.exp(0.5 * rng.standard_normal(300)))
    tables = [
        weights
        * (
            0.02
            + 0.01 * rng.standard_normal((10, 1))
            + 0.05 * rng.standard_t(4, 300)
            + 0.1 * rng.standard_t(4, (10, 300))
        )
        for _ in range(2)
    ]
    return ResampledSimulation("measured", tables, [weights, weights])


@pytest.mark.parametrize("world", [*WORLDS, measured()], ids=lambda world: world.name)
def test_intervals_hold_the_truth_as_often_as_they_say(world: SyntheticSimulation | ResampledSimulation) -> None:
    for row in calibrate_fixed_seeds(world, num_examples=60, num_experiments=EXPERIMENTS, rng_seed=1):
        assert 0.93 - CHANCE / 3 <= row.coverage <= 0.97 + CHANCE / 3, row
        assert abs(row.test_set_coverage - 0.95) <= 1.5 * CHANCE, row
        assert row.false_verdicts == pytest.approx(1 - row.coverage)
        assert row.false_equivalence <= 0.05 + CHANCE, row
        # Heavy tails make the middle narrower than the normal, so that power is above theory.
        assert -0.04 <= row.power - row.theoretical_power <= 0.08, row


def test_a_wrong_interval_would_be_found_out() -> None:
    # Examples pooled with seeds, as if every cell were a new observation: the mistake this room exists to avoid.
    world = SyntheticSimulation("seeds", 1.0, 0.1, 0.1)
    rng = np.random.default_rng(0)
    draw = world.sample(rng, EXPERIMENTS, 5, 60)
    cells = draw.differences.reshape(EXPERIMENTS, -1)
    pooled = 1.96 * cells.std(axis=1) / np.sqrt(cells.shape[1])
    assert (np.abs(cells.mean(axis=1)) <= pooled).mean() < 0.7


def test_noise_of_no_examples_does_not_widen_the_interval() -> None:
    # Cutting B - R at 0 alone would add the positive half of its noise, and cover 97 %.
    row = calibrate_fixed_seeds(
        SyntheticSimulation("residual", 0.0, 0.0, 1.0), seed_counts=(3,), num_examples=50, num_experiments=8000
    )[0]
    assert 0.945 <= row.coverage <= 0.963


def test_skewed_examples_widen_the_interval() -> None:
    # A plain t interval covers 93.4 % here.
    row = calibrate_fixed_seeds(
        SyntheticSimulation("skewed", 0.05, 1.0, 0.05, example_distribution="skewed"),
        seed_counts=(5,),
        num_examples=50,
        num_experiments=8000,
    )[0]
    assert 0.941 <= row.coverage <= 0.96


@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.997])
def test_other_confidences_hold_too(confidence: float) -> None:
    for row in calibrate_fixed_seeds(
        WORLDS[4], seed_counts=(3, 5), num_examples=60, num_experiments=4000, confidence=confidence
    ):
        error = np.sqrt(confidence * (1 - confidence) / 4000)
        assert row.coverage >= confidence - 0.3 * (1 - confidence) - 2 * error, row


def test_answers_that_rarely_differ_are_covered() -> None:
    rng = np.random.default_rng(0)
    # One row in a hundred differs, either way: most tables of 50 rows show no difference at all.
    rows = rng.choice([-1.0, 0.0, 1.0], p=[0.005, 0.99, 0.005], size=(EXPERIMENTS, 1, 50))
    table = np.repeat(rows, 3, axis=1)
    weights = np.ones((EXPERIMENTS, 50))
    bare, kept = (
        estimate_variance_components(table, weights),
        estimate_variance_components(table, weights, compute_rare_difference_variance(table)),
    )
    here = table.mean(axis=(1, 2))
    shift = 0.005  # a true difference of half a point, which the bare interval of no width never holds
    assert (np.abs(here - shift) <= compute_interval(bare, 0.95).half_width).mean() < 0.6
    assert (np.abs(here - shift) <= compute_interval(kept, 0.95).half_width).mean() > 0.93


def test_the_truth_of_measured_worlds_is_exactly_0() -> None:
    rng = np.random.default_rng(0)
    table, weights = 5 + rng.exponential(1, (4, 6)), rng.integers(1, 9, 6).astype(float)
    world = ResampledSimulation("m", [table], [weights])
    pool = world._pools[0]
    # Every row with every column, each as likely as the next.
    assert (pool.seed_effects + pool.example_effects).sum() == pytest.approx(0, abs=1e-9)
    assert pool.example_effects.sum() == pytest.approx(0, abs=1e-9)
    assert pool.seed_effects.sum(axis=0) == pytest.approx(np.zeros(6), abs=1e-9)


def test_a_measured_table_without_example_effects_gives_a_world_without_them() -> None:
    rng = np.random.default_rng(4)
    table = rng.standard_normal((6, 1)) + rng.standard_normal((6, 400))
    assert ResampledSimulation("m", [table], [np.ones(400)]).compute_true_components(5, 400).document_variance[0] == 0
    shared = ResampledSimulation("m", [table + rng.standard_normal(400)], [np.ones(400)]).compute_true_components(
        5, 400
    )
    assert shared.document_variance[0] == pytest.approx(1 / 400, rel=0.2)


@pytest.mark.parametrize("world", [WORLDS[2], WORLDS[5], measured()], ids=lambda world: world.name)
def test_worlds_have_the_variance_that_they_claim(world: SyntheticSimulation | ResampledSimulation) -> None:
    draw = world.sample(np.random.default_rng(2), 4000, 5, 60)
    truth = world.compute_true_components(5, 60)
    d = draw.differences.sum(axis=(1, 2)) / draw.weights.sum(axis=1) / 5
    assert d.var() == pytest.approx(float((truth.seed_variance + truth.document_variance).mean()), rel=0.15)
    assert d.mean() == pytest.approx(0, abs=4 * d.std() / np.sqrt(4000))


def test_the_same_random_seed_gives_the_same_rows() -> None:
    first, second = (
        calibrate_fixed_seeds(WORLDS[0], seed_counts=(3,), num_examples=20, num_experiments=100, rng_seed=s)
        for s in (4, 4)
    )
    assert first == second
    assert first != calibrate_fixed_seeds(WORLDS[0], seed_counts=(3,), num_examples=20, num_experiments=100, rng_seed=5)


def test_rows_become_a_table() -> None:
    text = to_markdown(calibrate_fixed_seeds(WORLDS[0], seed_counts=(3, 5), num_examples=20, num_experiments=50))
    lines = text.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("| simulation | seeds | examples | experiments | coverage |")
    assert lines[2].startswith("| seeds | 3 | 20 | 50 | ")
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("tables", "weights", "words"),
    [
        ([], [], "0 tables of differences"),
        ([np.zeros((2, 5))], [np.ones(5)], r"needs at least 3 seeds, 2 examples .* shape \(2, 5\)"),
        ([np.zeros((4, 5))], [np.ones(4)], r"shape \(4, 5\) and 4 weights"),
    ],
)
def test_tables_too_small_to_draw_from_are_refused(
    tables: list[np.ndarray], weights: list[np.ndarray], words: str
) -> None:
    with pytest.raises(ScoresError, match=words):
        ResampledSimulation("m", tables, weights)
