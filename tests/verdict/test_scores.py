"""Scores: invalid input, and pairing of two variants."""

from __future__ import annotations

import numpy as np
import pytest

from headtohead.errors import ScoresError
from headtohead.verdict.scores import Scores, pair_scores

TABLE = np.arange(6.0).reshape(2, 3)


def test_total_over_total_is_not_a_mean_of_means() -> None:
    scores = Scores((1, 2), np.array([[2.0, 30.0], [4.0, 60.0]]), np.array([1.0, 9.0]))
    assert scores.compute_seed_means() == pytest.approx([3.2, 6.4])


def test_scores_cannot_be_changed_after_the_fact() -> None:
    copied = TABLE.copy()
    scores = Scores((1, 2), copied, np.ones(3))
    copied[:] = 0
    assert scores.values[1, 2] == 5
    with pytest.raises(ValueError, match="read-only"):
        scores.values[0, 0] = 1


@pytest.mark.parametrize(
    ("seeds", "values", "weights", "words"),
    [
        ((), np.zeros((0, 3)), np.ones(3), "no seeds"),
        ((1, 1), TABLE, np.ones(3), "seed 1 occurs more than once"),
        ((1, 2), TABLE, np.ones(2), r"shape \(2, 2\) for 2 seeds and 2 examples, got \(2, 3\)"),
        ((1, 2), TABLE, np.array([1.0, 0.0, 1.0]), "positive, but example 1 has weight 0"),
        ((1, 2), TABLE, np.array([1.0, np.nan, 1.0]), "positive, but example 1 has weight nan"),
        ((1, 2), TABLE * [1, 1, np.inf], np.ones(3), "2 values are not finite, the first at seed 1, example 2"),
        ((1, 2), TABLE, np.ones((1, 3)), r"weights must have the shape \(examples,\), got \(1, 3\)"),
    ],
)
def test_scores_that_cannot_be_judged_are_rejected(
    seeds: tuple[int, ...], values: np.ndarray, weights: np.ndarray, words: str
) -> None:
    with pytest.raises(ScoresError, match=words):
        Scores(seeds, values, weights)


def test_text_is_not_a_number() -> None:
    with pytest.raises(ScoresError, match="values must be an array of numbers"):
        Scores((1, 2), np.array([["a"], ["b"]]), np.ones(1))


def test_every_error_is_reported_together() -> None:
    with pytest.raises(ScoresError, match=r"more than once.*positive.*example names"):
        Scores((1, 1), TABLE, np.array([1.0, -1.0, 1.0]), examples=("a",))


def test_pairs_hold_the_common_seeds_only() -> None:
    paired = pair_scores("x", Scores((1, 2), TABLE, np.ones(3)), Scores((3, 2), TABLE + 10, np.ones(3)))
    assert paired.common_seeds == [2]
    assert paired.unused_seeds == [1, 3]
    assert np.subtract(*paired.totals).tolist() == [[-10, -10, -10]]


def test_a_score_per_seed_pairs_with_a_score_per_example() -> None:
    scores = Scores((1, 2), np.array([[5.0], [6.0]]), np.ones(1))
    fine = Scores((1, 2), np.array([[2.0, 6.0], [4.0, 8.0]]), np.array([1.0, 1.0]))
    assert np.subtract(*pair_scores("x", scores, fine).totals).tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Scores((1, 2), TABLE[:, :2], np.ones(2)), "x: scored on 2 examples, but the baseline on 3"),
        (Scores((1, 2), TABLE, np.array([1.0, 2.0, 1.0])), "example 1 has weight 2, but 1 .*bytes as weights"),
        (Scores((1, 2), TABLE, np.ones(3), ("a", "c", "b")), "example 1 is 'c', but 'b' for the baseline"),
    ],
)
def test_different_examples_are_never_paired(other: Scores, words: str) -> None:
    with pytest.raises(ScoresError, match=words):
        pair_scores("x", Scores((1, 2), TABLE, np.ones(3), ("a", "b", "c")), other)
