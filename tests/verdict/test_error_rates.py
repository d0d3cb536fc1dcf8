"""Situations in which verdicts used to be wrong too often: lost runs, removed variants, ties, other seeds, wording."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from headtohead.config.recipe_catalog import list_recipes
from headtohead.experiment.loading import load_experiment
from headtohead.report.sections.verdicts import build_verdict_card
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.external_scores.judge_csv import judge_csv
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.lost_runs import compute_max_failure_rate, compute_worst_rank_p_value
from headtohead.verdict.metric import MetricName
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores, infer_resolution

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def make_scores(values: Sequence[float] | np.ndarray, seeds: Sequence[int] = (), lost: Sequence[int] = ()) -> Scores:
    seeds = seeds or [seed for seed in range(len(values) + len(lost)) if seed not in lost]
    return Scores(tuple(seeds), np.array(values, float)[:, None], np.ones(1), lost=tuple(lost))


def judge(baseline: Scores, variant: Scores, metric: MetricName = "loss", margin: float = 1e-9) -> Verdict:
    return compare_scores(baseline, {"x": variant}, metric=metric, equivalence_margin=margin)[0]


def test_a_removed_variant_still_shares_the_error_rate() -> None:
    baseline, variant = make_scores([1.0, 1.012, 0.993]), make_scores([0.9, 0.917, 0.892])
    variants = dict.fromkeys("ab", variant)
    (both, _), (rest,) = (
        compare_scores(
            baseline,
            {name: variants[name] for name in names},
            metric="loss",
            equivalence_margin=0.01,
            budget=AlphaBudget(num_comparisons=2),
        )
        for names in ("ab", "a")
    )
    assert both.interval == rest.interval
    assert "one of 2 comparisons" in rest.summary


def test_survivors_of_a_variant_that_loses_runs_did_not_help() -> None:
    rng = np.random.default_rng(0)
    baseline = rng.normal(5, 0.05, 10)
    survivors = baseline[:4] - 0.143 + rng.normal(0, 0.005, 4)
    verdict = judge(make_scores(baseline), make_scores(survivors, range(4), range(4, 10)), "perplexity", 0.01)
    assert verdict.outcome == "cannot tell"
    assert (verdict.runs, verdict.lost_runs, verdict.baseline_lost_runs) == (10, 6, 0)
    # Most runs of the variant are lost, so the rank-sum test decides instead of the interval of the survivors.
    assert np.isnan(verdict.interval).all()
    expected = stats.mannwhitneyu(np.repeat([1, -1], [4, 6]), np.zeros(10), method="asymptotic").pvalue
    assert expected > 0.04
    assert (
        "6 of 10 runs were lost (baseline: 0 of 10) (rank-sum test with lost runs ranked worst: p = " in verdict.summary
    )
    assert verdict.summary.endswith("Failure rates up to 85 % cannot be excluded.")
    # The same loss of the baseline does not make the variant worse.
    assert judge(make_scores(survivors, range(4), range(4, 10)), make_scores(baseline), "perplexity").outcome == (
        "cannot tell"
    )


def test_survivors_of_a_variant_that_loses_a_few_runs_did_not_help() -> None:
    rng = np.random.default_rng(0)
    baseline = rng.normal(5, 0.05, 10)
    survivors = baseline[:6] - 0.06 + rng.normal(0, 0.005, 6)
    verdict = judge(make_scores(baseline), make_scores(survivors, range(6), range(6, 10)), "perplexity", 0.01)
    assert verdict.outcome == "cannot tell"
    assert verdict.interval[1] < -0.01
    assert (
        "4 of 10 runs of the variant and 0 of 10 of the baseline diverged or learned nothing (Fisher's exact test: "
        "p = 0.087); failure rates up to 70 % cannot be excluded." in verdict.summary
    )


def test_a_variant_that_lost_one_of_many_runs_may_still_help() -> None:
    rng = np.random.default_rng(0)
    baseline = rng.normal(5, 0.05, 12)
    variant = make_scores(baseline[:11] - 0.5 + rng.normal(0, 0.005, 11), range(11), [11])
    assert judge(make_scores(baseline), variant).outcome == "helped"


def test_a_variant_that_lost_more_runs_needs_the_rank_test() -> None:
    """5 survivors of 8 runs, each better than its pair: 5 wins and 3 losses do not agree with the interval."""
    baseline = 1 + 0.01 * np.arange(8)
    variant = baseline[:5] - 0.5 - 0.01 * np.arange(5)
    equal = judge(make_scores(baseline[:5]), make_scores(variant))
    verdict = judge(make_scores(baseline), make_scores(variant, range(5), range(5, 8)))
    assert (equal.outcome, verdict.outcome) == ("helped", "cannot tell")
    assert verdict.interval[1] < 0
    sides = np.append(-variant, np.full(3, np.nan)), -baseline
    assert compute_worst_rank_p_value(*sides, is_paired=True) > 0.025


def test_lost_runs_rank_worst() -> None:
    # 5 against 5 without ties: the smallest p value is one in 252.
    assert compute_worst_rank_p_value(np.arange(5.0) + 9, np.arange(5.0), is_paired=False) == pytest.approx(1 / 252)
    assert compute_worst_rank_p_value(np.array([9.0, 9, 9, np.nan]), np.zeros(4), is_paired=True) > 0.025
    both_lost = compute_worst_rank_p_value(np.full(4, np.nan), np.full(4, np.nan), is_paired=True)
    assert both_lost == 1.0


def test_the_rank_sum_test_agrees_with_scipy() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        first, second = rng.standard_normal(6), rng.standard_normal(5)
        expected = stats.mannwhitneyu(first, second, alternative="greater", method="exact").pvalue
        assert compute_worst_rank_p_value(first, second, is_paired=False) == pytest.approx(expected)


def test_seeds_exclude_only_high_failure_rates() -> None:
    assert compute_max_failure_rate(0, 5) == pytest.approx(1 - 0.05 ** (1 / 5))
    assert compute_max_failure_rate(2, 5) == pytest.approx(stats.beta.ppf(0.95, 3, 3))
    assert compute_max_failure_rate(5, 5) == 1
    verdict = judge(make_scores([1.0, 1.1, 1.2, 1.0, 1.15]), make_scores([0.5, 0.61, 0.7, 0.52, 0.64]))
    assert "No run failed; with 5 runs, failure rates up to 45 % cannot be excluded." in verdict.summary


def test_a_variant_whose_runs_are_all_lost() -> None:
    variant = Scores((), np.empty((0, 1)), np.ones(1), lost=(0, 1, 2, 3))
    verdict = judge(make_scores([1.0, 1.1, 1.2, 1.3]), variant)
    assert verdict.outcome == "cannot tell"
    assert "4 of 4 runs were lost (baseline: 0 of 4), which leaves 0 pairs where an interval needs 3" in verdict.summary


def test_a_variant_whose_runs_are_all_lost_hurts_from_five_seeds() -> None:
    """The rank-sum test decides: with 3 runs per side its smallest p value is 2/20, with 5 it is 2/252."""
    for seeds, outcome in ((3, "cannot tell"), (5, "hurt")):
        finished = make_scores(1 + 0.01 * np.arange(seeds))
        lost = Scores((), np.empty((0, 1)), np.ones(1), lost=tuple(range(seeds)))
        verdict = judge(finished, lost)
        assert verdict.outcome == outcome
        assert ("This test needs at least 5 seeds." in verdict.summary) == (seeds == 3)
        opposite = judge(lost, finished)
        assert opposite.outcome == {"hurt": "helped"}.get(outcome, outcome)
        assert opposite.is_better


def test_the_rank_test_decides_if_more_than_a_quarter_of_all_runs_is_lost() -> None:
    baseline = make_scores(1 + 0.01 * np.arange(12))
    better = 0.9 + 0.01 * np.arange(12)
    few, many = (make_scores(better[:number], range(number), range(number, 12)) for number in (6, 5))
    assert not np.isnan(judge(baseline, few).interval).any()
    assert np.isnan(judge(baseline, many).interval).all()


def test_scores_that_are_not_finite_are_lost_runs(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    rows = [f"{name},{seed},{loss + 0.01 * seed}" for name, loss in (("a", 2.0), ("b", 1.5)) for seed in range(4)]
    path.write_text("\n".join(["variant,seed,loss", *rows, "a,4,2.01", "b,4,nan"]))
    (verdict,) = judge_csv(path, equivalence_margin=0.01)
    assert (verdict.runs, verdict.lost_runs) == (5, 1)


def test_ties_of_rounded_scores_are_no_certainty() -> None:
    """Three seeds whose differences are 0 or one rounding step do not show a difference; two seeds never do."""
    baseline = [0.80, 0.81, 0.79]
    for steps in product((0, 1), repeat=3):
        variant = [score + 0.01 * step for score, step in zip(baseline, steps, strict=True)]
        assert judge(make_scores(baseline), make_scores(variant), "accuracy").outcome == "cannot tell"
        two = judge(make_scores(baseline[:2]), make_scores(variant[:2]), "accuracy")
        assert two.outcome == "too few seeds"


def test_an_interval_is_not_narrower_than_the_step_of_the_scores() -> None:
    verdict = judge(make_scores([0.80, 0.81, 0.79]), make_scores([0.81, 0.82, 0.80]), "accuracy")
    assert verdict.outcome == "cannot tell"
    assert verdict.interval == pytest.approx((0.0, 0.02), abs=1e-6)
    assert infer_resolution([0.8, 0.81]) == pytest.approx(0.01)
    assert infer_resolution([80, 80, 85]) == 5
    assert infer_resolution([0.1234567891, 0.5]) == 0
    assert infer_resolution([1.0, 2.0]) == 0


def test_other_seeds_are_compared_without_pairing() -> None:
    rng = np.random.default_rng(0)
    baseline, variant = rng.normal(1, 0.01, 5), rng.normal(0.9, 0.01, 6)
    verdict = judge(make_scores(baseline, range(5)), make_scores(variant, range(5, 11)))
    assert verdict.outcome == "helped"
    assert not verdict.is_paired
    confidence = 1 - 0.05 * (1 - 2 / 5)
    low, high = stats.ttest_ind(variant, baseline, equal_var=False).confidence_interval(confidence)
    assert verdict.interval == pytest.approx((low, high))
    assert "run with different seeds, so they are compared without pairing" in verdict.summary
    # A common seed decides for pairing, whichever interval is narrower.
    assert judge(make_scores(baseline, range(5)), make_scores(variant, range(4, 10))).outcome == "too few seeds"


def test_sentences_state_the_confidence_of_the_interval() -> None:
    rng = np.random.default_rng(0)
    variants = {f"v{index}": make_scores(rng.normal(0.9, 0.001, 5)) for index in range(20)}
    verdicts = compare_scores(make_scores(rng.normal(1, 0.001, 5)), variants, metric="loss", equivalence_margin=0.001)
    assert verdicts[0].summary.startswith("v0 helped: loss 0.")
    assert "(99.85 % confidence interval" in verdicts[0].summary
    assert "5 seeds, one of 20 comparisons with 95 % joint confidence)" in verdicts[0].summary


EQUALITY = re.compile("no (practical |measurable )?difference|changes? nothing|gains? nothing|no effect|as good as")


@pytest.mark.parametrize("name", list_recipes())
def test_conclusions_of_recipes_claim_equality_only_where_a_verdict_shows_it(name: str) -> None:
    """The recipe `merges` said "change nothing" where both verdicts were "cannot tell"."""
    path = FIGURES / f"{name}.json"
    outcomes = (
        {row["variant"]: row["outcome"] for row in json.loads(path.read_text())["verdicts"]} if path.is_file() else {}
    )
    conclusions = " ".join(load_experiment(name).conclusions.split())
    if EQUALITY.search(conclusions):
        assert "no practical difference" in outcomes.values()
    if name == "merges":
        assert outcomes["shuffle"] == outcomes["shift"] == "cannot tell"
        assert "Five seeds cannot tell whether changing the order of the heads matters." in conclusions


def test_small_numbers_are_shown() -> None:
    rng = np.random.default_rng(0)
    baseline = rng.normal(1, 0.1, 4)
    verdict = judge(make_scores(baseline), make_scores(baseline - 1e-9 * np.array([1, 1.1, 0.9, 1.2])), margin=0.01)
    assert "loss 1.1e-09 lower" in verdict.summary
    assert "0.000000" not in verdict.summary


def test_no_interval_beyond_the_metric() -> None:
    values = judge(make_scores([0.5, 0.9]), make_scores([0.9, 0.6]), "accuracy")
    assert values.outcome == "too few seeds"
    assert values.summary == (
        "x: accuracy 90.0 %, 60.0 %; baseline 50.0 %, 90.0 % (2 seeds; on average 5.0 points higher). "
        "An interval needs at least 3 seeds."
    )
    wide = judge(make_scores([0.5, 0.9, 0.2]), make_scores([0.9, 0.6, 0.1]), "accuracy")
    assert wide.interval == (-1.0, 1.0)
    assert wide.min_detectable_effect == 1
    card = build_verdict_card(wide, "accuracy")
    assert card.notes == "minimum detectable effect: too few seeds"
    halved = judge(make_scores([5.0, 5.0, 5.0]), make_scores([-5.0, 4.0, -6.0]), "perplexity", 0.01)
    assert "more than 99.9 % lower" in halved.summary
    assert halved.interval[0] >= -1
