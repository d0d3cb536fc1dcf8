"""Checks of scores from other sources: mistakes that are found, and honest tables that are not accused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float

from headtohead.verdict.external_scores.copied_examples import group_copied_examples
from headtohead.verdict.external_scores.judge_csv import judge_csv
from headtohead.verdict.external_scores.score_checks import run_score_checks
from headtohead.verdict.external_scores.score_issues import ScoreWarning
from headtohead.verdict.metric import MetricName
from headtohead.verdict.scores import Scores

Table = Float[np.ndarray, "seeds examples"]
Random = np.random.Generator
NUM_HONEST_TABLES = 300


def build_scores(table: Table, weights: Float[np.ndarray, " examples"] | None = None) -> Scores:
    weights = np.ones(table.shape[1]) if weights is None else weights
    return Scores(tuple(range(len(table))), table * weights, weights)


def list_kinds(baseline: Table, variant: Table, metric: MetricName = "loss") -> dict[str, bool]:
    """Return the kinds of the issues, and whether they withhold the verdict."""
    issues = run_score_checks("base", build_scores(baseline), {"new": build_scores(variant)}, metric)
    return {issue.kind: issue.is_blocking for issue in issues}


def draw(random: Random, num_seeds: int = 6, mean: float = 3.0, noise: float = 0.02) -> Table:
    return mean + noise * random.standard_normal((num_seeds, 1))


def draw_examples(random: Random, num_seeds: int = 3, num_examples: int = 200) -> tuple[Table, Table]:
    difficulty = np.abs(random.normal(3, 1, num_examples))
    first, second = (difficulty + random.normal(0, 0.1, (num_seeds, num_examples)) for _ in range(2))
    return first, second - 0.05


def copy_runs(random: Random, noise: float) -> tuple[Table, Table]:
    first, second = draw(random, 3), draw(random, 3)
    tables = (np.tile(table, (4, 1)) for table in (first, second))
    baseline, variant = (table + noise * random.standard_normal(table.shape) for table in tables)
    return baseline, variant


def shift_seeds(random: Random) -> tuple[Table, Table]:
    values = draw(random, 7)
    return values[:6], values[1:]


def exchange_texts(random: Random) -> tuple[Table, Table]:
    (first, _), (second, _) = draw_examples(random), draw_examples(random)
    return first, second


def repeat_one_run(random: Random) -> tuple[Table, Table]:
    first, second = draw_examples(random, num_seeds=1)
    return np.repeat(first, 5, axis=0), np.repeat(second, 5, axis=0)


def multiply(random: Random) -> tuple[Table, Table]:
    values = draw(random)
    return values, values / np.log(2)


def subtract(random: Random) -> tuple[Table, Table]:
    values = draw(random)
    return values, values - 0.02


def leave_out_all_examples(random: Random) -> tuple[Table, Table]:
    return draw(random), np.array([[0.0], [2.9], [2.8], [0.0]])


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda random: copy_runs(random, 0.0), "copied runs"),
        (lambda random: copy_runs(random, 1e-7), "copied runs"),
        (repeat_one_run, "copied runs"),
        (shift_seeds, "copied runs"),
        (multiply, "computed scores"),
        (subtract, "computed scores"),
        (exchange_texts, "different texts"),
        (leave_out_all_examples, "empty evaluation"),
    ],
)
def test_impossible_scores_withhold_the_verdict(plant: Callable[[Random], tuple[Table, Table]], kind: str) -> None:
    assert list_kinds(*plant(np.random.default_rng(5)))[kind]


def test_probabilities_beside_correct_answers_withhold_the_verdict() -> None:
    random = np.random.default_rng(5)
    answers, probabilities = (random.random((3, 150)) < 0.7).astype(float), random.uniform(0.5, 1, (3, 150))
    assert list_kinds(answers, probabilities, "accuracy") == {"different units": True}


def test_unusual_scores_are_warnings() -> None:
    random = np.random.default_rng(5)
    independent = draw(random)
    assert list_kinds(draw(random), draw(random) / np.log(2)) == {"different units": False}
    assert list_kinds(draw(random), np.log(draw(random)), "perplexity") == {"different units": False}
    assert list_kinds(np.full((6, 1), 2.9), independent) == {"repeated scores": False}
    assert list_kinds(np.sort(draw(random), axis=0), independent) == {"ordered scores": False}
    assert list_kinds(np.vstack([draw(random, 4), [[0.02]]]), independent)["outlier"] is False
    assert list_kinds(-draw(random), -draw(random)) == {"negative loss": False}
    losses, weights = draw_examples(random)[0], random.integers(3, 40, 200).astype(float)
    summed = build_scores(losses * weights, weights)
    (issue, *_) = run_score_checks("base", summed, {"new": build_scores(losses - 0.1, weights)}, "loss")
    assert "proportional to the weights" in issue.message


def test_copies_of_examples_count_as_one_document() -> None:
    random = np.random.default_rng(5)
    first, second = draw_examples(random, num_examples=12)
    copies = [build_scores(np.tile(table, (1, 50))) for table in (first, second)]
    baseline, variants, num_copies = group_copied_examples(copies[0], {"new": copies[1]})
    assert num_copies == 588
    assert len(set(baseline.documents)) == 12
    assert variants["new"].documents == baseline.documents
    assert group_copied_examples(build_scores(first), {"new": build_scores(second)})[2] == 0


def draw_honest_table(random: Random) -> tuple[Table, Table, MetricName]:
    """Return scores of independent runs: of few or many seeds, rounded or not, with or without a shared seed effect."""
    num_seeds, noise = int(random.integers(3, 13)), float(10 ** random.uniform(-3, -1))
    effect, shared = noise * random.normal(), noise * random.uniform(0, 3) * random.standard_normal((num_seeds, 1))
    baseline, variant = (draw(random, num_seeds, 3.0 + change, noise) + shared for change in (0.0, effect))
    if random.random() < 0.5:
        digits = int(random.integers(2, 5))
        baseline, variant = baseline.round(digits), variant.round(digits)
    if random.random() < 0.3:  # accuracies of a small test set
        num_examples = int(random.integers(40, 400))
        baseline, variant = (random.binomial(num_examples, 0.8, (num_seeds, 1)) / num_examples for _ in range(2))
        return baseline, variant, "accuracy"
    return baseline, variant, "loss"


def test_correct_tables_are_not_withheld() -> None:
    random = np.random.default_rng(5)
    num_withheld = sum(any(list_kinds(*draw_honest_table(random)).values()) for _ in range(NUM_HONEST_TABLES))
    assert num_withheld <= 2  # at most 0.1 % for each check


def test_judging_a_file_warns_and_withholds(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    rows = [
        f"{name},{seed},{2.9 + 0.01 * seed**2 + change}"
        for name, change in (("a", 0.0), ("b", -0.1))
        for seed in range(6)
    ]
    path.write_text("\n".join(["variant,seed,loss", *rows]))
    with pytest.warns(ScoreWarning) as warnings:
        (verdict,) = judge_csv(path, equivalence_margin=0.01)
    assert str(warnings[0].message).startswith("the scores of a rise from seed to seed.")
    assert verdict.outcome == "not comparable"
    assert "Scores of two trained models are never this regular" in verdict.reason
