"""Values at which scores, rules, error budgets and tests of lost runs change their result."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from headtohead.errors import ScoresError
from headtohead.verdict import interim, lost_runs
from headtohead.verdict.bootstrap import bootstrap_mean
from headtohead.verdict.compare import compare_scores, mark_as_quick_looks
from headtohead.verdict.decision_rule import answer_claim, decide_outcomes, find_settled_experiments
from headtohead.verdict.external_scores.csv_reader import read_csv
from headtohead.verdict.external_scores.judge_csv import DEFAULT_EQUIVALENCE_MARGINS, judge_csv
from headtohead.verdict.interim import AlphaBudget, InterimAnalysis, compute_interim_confidence, parse_interim_analysis
from headtohead.verdict.metric import METRICS
from headtohead.verdict.prediction_interval import compute_prediction_interval
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores, infer_resolution, pair_scores
from headtohead.verdict.tuning_variance import TuningVariance


def build_seed_scores(*values: float, seeds: tuple[int, ...] | None = None, lost: tuple[int, ...] = ()) -> Scores:
    return Scores(seeds or tuple(range(len(values))), np.array(values)[:, None], np.ones(1), lost=lost)


def judge_variant(
    baseline: Scores, variant: Scores, metric: str = "loss", margin: float = 0.01, **more: object
) -> Verdict:
    return compare_scores(baseline, {"x": variant}, metric=metric, equivalence_margin=margin, **more)[0]  # type: ignore[arg-type]


def write_score_file(folder: Path, *lines: str) -> Path:
    path = folder / "scores.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# ---- the rule


def test_an_interval_that_ends_at_zero_is_open_and_one_that_ends_at_the_margin_is_inside() -> None:
    def decide(difference: float, half: float, equivalence_half: float) -> str:
        arrays = (np.array([value]) for value in (difference, half, equivalence_half))
        return decide_outcomes(*arrays, (-1.0, 2.0), lower_is_better=True)[0]

    assert decide(4.0, 4.0, 3.9) == "cannot tell"
    assert decide(4.0, 3.99, 3.9) == "hurt"
    assert decide(-4.0, 3.99, 3.9) == "helped"
    assert decide(0.5, 9.0, 1.5) == "no practical difference"
    assert decide(0.5, 9.0, 1.51) == "cannot tell"
    assert decide(1.0, 9.0, 1.0) == "no practical difference"
    assert decide(0.0, 9.0, 1.0) == "no practical difference"
    assert decide(0.0, 9.0, 1.01) == "cannot tell"
    settled = find_settled_experiments(np.array([4.0, 4.0]), np.array([4.0, 3.9]), np.array([4.0, 3.9]), (-1.0, 1.0))
    assert settled.tolist() == [False, True]


def test_displayed_effects_and_bands() -> None:
    accuracy, perplexity, loss = (METRICS[name] for name in ("accuracy", "perplexity", "loss"))
    assert [accuracy.to_display_effect(value) for value in (-1.5, -0.5, 0.5, 1.5)] == [-1.0, -0.5, 0.5, 1.0]
    assert loss.to_display_effect(-1.5) == -1.5
    assert perplexity.to_display_effect(1.0) == pytest.approx(math.e - 1)
    assert (perplexity.to_display_mean(1.0), loss.to_display_mean(1.0)) == (pytest.approx(math.e), 1.0)
    assert loss.compute_equivalence_bounds(0.3) == (-0.3, 0.3)
    assert loss.compute_equivalence_bounds(0.0) == (0.0, 0.0)
    assert loss.compute_equivalence_bounds(1.5) == (-1.5, 1.5)
    assert not loss.is_better(0.0)
    assert not accuracy.is_better(0.0)
    for metric, margin in ((perplexity, 1.0), (perplexity, 1.5), (loss, math.nan), (loss, math.inf), (accuracy, -0.1)):
        with pytest.raises(ScoresError, match="equivalence margin"):
            metric.compute_equivalence_bounds(margin)


def test_claims() -> None:
    answers = {"helped": "holds", "hurt": "does not hold", "no practical difference": "does not hold"}
    answers |= dict.fromkeys(("cannot tell", "too few seeds"), "cannot tell")
    answers |= dict.fromkeys(("not comparable", "quick look"), "cannot be tested")
    for outcome, answer in answers.items():
        assert answer_claim(outcome, "helped") == answer  # type: ignore[arg-type]


# ---- error budgets


def test_shares_of_the_error_rate() -> None:
    assert compute_interim_confidence(4) == pytest.approx(1 - 0.05 * 0.5)
    assert compute_interim_confidence(4, num_comparisons=5, confidence=0.9) == pytest.approx(1 - 0.1 * 0.5 / 5)
    assert compute_interim_confidence(3, num_planned_seeds=12) == pytest.approx(1 - 0.05 * (10 / 12) * (3 / 12) ** 2)
    planned = compute_interim_confidence(8, [InterimAnalysis(3, 12)], num_planned_seeds=12)
    assert planned == pytest.approx(1 - 0.05 * (10 / 12) * (8**2 - 3**2) / 12**2)
    after = compute_interim_confidence(8, [InterimAnalysis(4), InterimAnalysis(6, 9)], num_planned_seeds=9)
    assert after == pytest.approx(1 - 0.05 * 0.85 * (7 / 9 - 2 / 4) * (8**2 - 6**2) / (9**2 - 4**2))
    assert compute_interim_confidence(2) == 1.0
    assert InterimAnalysis(5, 3).num_planned_seeds == 5
    assert InterimAnalysis(5, 9).num_planned_seeds == 9


def test_error_budgets() -> None:
    budget = AlphaBudget({"x": (InterimAnalysis(3),)}, num_planned_seeds=8, num_comparisons=2)
    assert budget.compute_confidence("x", 8, 0.95) == compute_interim_confidence(
        8, [InterimAnalysis(3)], num_planned_seeds=8, num_comparisons=2
    )
    assert budget.compute_confidence("y", 9, 0.95) == compute_interim_confidence(9, num_comparisons=2)
    final = AlphaBudget({"x": (InterimAnalysis(3),)}, num_comparisons=4, is_final=True)
    assert final.compute_confidence("x", 8, 0.9) == pytest.approx(1 - 0.1 / 4)
    added = budget.add_analysis("x", 5, 30)
    assert added.previous_analyses["x"] == (InterimAnalysis(3, num_documents=30), InterimAnalysis(5, 8, 30))
    assert added.add_analysis("x", 5, 30) == added
    assert added.add_analysis("x", 5, 20).previous_analyses == added.previous_analyses
    assert added.add_analysis("x", 4, 30).previous_analyses == added.previous_analyses
    assert len(added.add_analysis("x", 5, 31).previous_analyses["x"]) == 3
    assert len(added.add_analysis("x", 6, 30).previous_analyses["x"]) == 3
    assert added.add_analysis("y", 3).previous_analyses["y"] == (InterimAnalysis(3, 8),)
    assert budget.previous_analyses["x"] == (InterimAnalysis(3),)


def test_more_documents_multiply_planned_seeds_too() -> None:
    found = interim._count_equivalent_seeds(
        [InterimAnalysis(4), InterimAnalysis(4, 8, 10), InterimAnalysis(6, 12, 15), InterimAnalysis(6, 9, 5)]
    )
    assert found == [(4.0, 4.0), (4.0, 8.0), (9.0, 18.0), (6.0, 9.0)]


# ---- lost runs


def test_upper_bounds_of_failure_rates() -> None:
    assert lost_runs.compute_max_failure_rate(1, 4) == pytest.approx(stats.beta.ppf(0.95, 2, 3))
    assert lost_runs.compute_max_failure_rate(3, 4, 0.8) == pytest.approx(stats.beta.ppf(0.8, 4, 1))
    assert lost_runs.compute_max_failure_rate(4, 4) == 1.0
    expected = stats.fisher_exact([[4, 6], [1, 11]]).pvalue
    assert lost_runs.compute_failure_rate_p_value(4, 10, 1, 12) == pytest.approx(expected)


def test_rank_tests_with_ties_and_many_runs() -> None:
    better, worse = np.array([3.0, 2.0, np.nan, 2.0]), np.array([2.0, 1.0, np.nan])
    ranks = stats.rankdata([3, 2, -np.inf, 2, 2, 1, -np.inf])
    sums = [sum(ranks[list(chosen)]) for chosen in combinations(range(7), 4)]
    expected = np.mean([total >= sum(ranks[:4]) for total in sums])
    assert lost_runs.compute_worst_rank_p_value(better, worse, is_paired=False) == pytest.approx(expected)
    rng = np.random.default_rng(0)
    for counts in ((30, 30), (31, 30)):
        sides = [rng.normal(size=count) + shift for count, shift in zip(counts, (0.4, 0), strict=True)]
        method = "exact" if sum(counts) <= 60 else "asymptotic"
        expected = stats.mannwhitneyu(*sides, alternative="greater", method=method).pvalue
        assert lost_runs.compute_worst_rank_p_value(*sides, is_paired=False) == pytest.approx(expected, rel=1e-9)


def test_the_sign_test_counts_wins_of_pairs() -> None:
    base = 10.0 * np.arange(8)
    better = base + np.array([1, 1, 1, 1, 1, 1, 1, -1])
    assert lost_runs.compute_worst_rank_p_value(better, base, is_paired=True) == pytest.approx(9 / 256)
    tied = base + np.array([1, 1, 1, 1, 1, 1, 0, 0])
    assert lost_runs.compute_worst_rank_p_value(tied, base, is_paired=True) == pytest.approx(1 / 64)
    assert lost_runs.compute_worst_rank_p_value(base, better, is_paired=True) > 0.4
    assert lost_runs.compute_worst_rank_p_value(better, base, is_paired=False) > 0.3


def test_the_smallest_number_of_seeds_of_the_rank_test() -> None:
    for seeds in range(2, 7):
        smallest = 2 / math.comb(2 * seeds, seeds)
        assert lost_runs.find_min_worst_rank_seeds(lambda _, p=smallest: p) == seeds
        assert lost_runs.find_min_worst_rank_seeds(lambda _, p=smallest: 0.999 * p) == seeds + 1
    assert lost_runs.find_min_worst_rank_seeds(lambda n: 0.1 if n >= 5 else 0.0) == 5


# ---- pairs of scores


def test_resolutions_of_rounded_scores() -> None:
    assert infer_resolution([0.5, 0.25], [1.125]) == pytest.approx(0.01)  # the coarser of the two
    assert infer_resolution([0.5], [1.0]) == 0.1
    assert infer_resolution([0.123456, 0.5]) == pytest.approx(1e-6)
    assert infer_resolution([0.1234567, 0.5]) == 0
    assert infer_resolution([3.0, 5.0, 9.0]) == 0
    assert infer_resolution([3.0, 5.0, 9.0, 9.0]) == 2.0
    assert infer_resolution([3.0, 3.0]) == 0
    assert infer_resolution([0.1, 0.5, 0.5]) == pytest.approx(0.4)
    assert infer_resolution([]) == 0


def test_the_resolution_of_pairs() -> None:
    def pair(*sides: Scores) -> float:
        return pair_scores("x", *sides).resolution

    assert pair(build_seed_scores(0.25, 0.5), build_seed_scores(0.125, 0.75)) == pytest.approx(0.01)
    known = Scores((0, 1), np.array([[0.2], [0.3]]), np.ones(1), resolution=0.5)
    assert pair(known, build_seed_scores(0.125, 0.75)) == 0.5
    assert pair(build_seed_scores(0.125, 0.75), known) == 0.5
    table = Scores((0, 1), np.array([[0.2, 0.1], [0.3, 0.3]]), np.ones(2))
    assert pair(table, table) == 0
    fine = Scores((0, 1), np.array([[0.2, 0.1], [0.3, 0.3]]), np.ones(2), resolution=0.5)
    assert fine.aggregate_per_seed().resolution == 0.0
    assert known.aggregate_per_seed().resolution == 0.5
    assert table.aggregate_per_seed().values[:, 0] == pytest.approx([0.15, 0.3])


def test_runs_of_pairs() -> None:
    baseline = build_seed_scores(1.0, 2.0, 3.0, seeds=(0, 1, 2), lost=(5, 6))
    variant = build_seed_scores(7.0, 8.0, seeds=(1, 4), lost=(2, 6))
    pairs = pair_scores("x", baseline, variant)
    assert pairs.is_paired
    assert pairs.common_seeds == [1]
    assert pairs.unused_seeds == [0, 4]
    assert (pairs.num_seeds, pairs.num_analyzed_seeds, pairs.num_examples, pairs.num_documents) == (1, 3, 1, 1)
    first, second = pairs.list_run_scores(higher_is_better=True)
    assert np.array_equal(first, [2.0, 3.0, np.nan], equal_nan=True)
    assert np.array_equal(second, [7.0, np.nan, np.nan], equal_nan=True)
    assert pairs.list_run_scores(higher_is_better=False)[0][0] == -2.0
    apart = pair_scores("x", baseline, build_seed_scores(7.0, 8.0, seeds=(8, 9), lost=(10,)))
    assert (apart.is_paired, apart.unused_seeds, apart.num_seeds, apart.num_analyzed_seeds) == (False, [], 2, 3)
    assert len(apart.list_run_scores(higher_is_better=True)[0]) == 5
    assert pair_scores("x", baseline, build_seed_scores(7.0, seeds=(8,), lost=(5,))).is_paired


def test_sums_by_document() -> None:
    values = np.arange(8.0).reshape(2, 4)
    scores = Scores((0, 1), values, np.array([1.0, 2, 3, 4]), (), ("b", "a", "b", "c"))
    pairs = pair_scores("x", scores, Scores((0, 1), values, scores.weights))
    assert pairs.num_documents == 3
    assert pairs.sum_by_document(values).tolist() == [[1, 2, 3], [5, 10, 7]]
    assert pairs.sum_by_document(pairs.weights).tolist() == [2, 4, 4]
    unnamed = Scores((0, 1), values, scores.weights)
    assert pair_scores("x", unnamed, unnamed).num_documents == 4
    assert pair_scores("x", unnamed, scores).num_documents == 3


def test_selected_seeds_keep_lost_runs() -> None:
    scores = build_seed_scores(1.0, 2.0, 3.0, seeds=(4, 5, 6), lost=(9,))
    chosen = scores.select_seeds((6, 4))
    assert (chosen.seeds, chosen.lost, chosen.values[:, 0].tolist()) == ((6, 4), (9,), [3.0, 1.0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((1, 2, 1, 2, 3), np.zeros((5, 1)), np.ones(1)), "seed 1, 2 occurs more than once"),
        (((1,), np.zeros((1, 0)), np.ones(0)), r"weights must have the shape \(examples,\), got \(0,\)"),
        (((1,), np.zeros((1, 2)), np.array([1.0, -2.5])), "but example 1 has weight -2.5$"),
        (((1,), np.zeros((1, 2)), np.array([np.inf, 1.0])), "but example 0 has weight inf$"),
        (((1,), np.array([[0.0, np.nan]]), np.ones(2)), "1 values are not finite, the first at seed 1, example 1"),
        (((1,), np.zeros((1, 2)), np.ones(2), ("a",)), "1 example names for 2 weights"),
    ],
)
def test_invalid_scores_are_described(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ScoresError, match=words):
        Scores(*arguments)  # type: ignore[arg-type]
    assert Scores((), np.zeros((0, 1)), np.ones(1), lost=(3,)).seeds == ()
    with pytest.raises(ScoresError, match="seed 3 occurs more than once"):
        Scores((3,), np.zeros((1, 1)), np.ones(1), lost=(3,))


# ---- verdicts


def test_confidences_between_one_half_and_one_are_allowed() -> None:
    sides = build_seed_scores(1.0, 1.1, 1.3), build_seed_scores(1.2, 1.4, 1.35)
    assert judge_variant(*sides, confidence=0.5).adjusted_confidence == pytest.approx(1 - 0.5 / 3)
    for confidence in (0.49, 1.0):
        with pytest.raises(ScoresError, match="confidence must be at least"):
            judge_variant(*sides, confidence=confidence)


def test_accuracies_are_between_zero_and_one() -> None:
    ends = build_seed_scores(0.0, 1.0, 0.5)
    assert judge_variant(ends, ends, "accuracy").outcome == "cannot tell"
    weighted = Scores((0,), np.array([[3.0, 0.0]]), np.array([3.0, 2.0]))
    assert judge_variant(weighted, weighted, "accuracy").baseline_mean == pytest.approx(0.6)
    for wrong, worst in (((0.5, -0.1, 1.05), "-0.1"), ((0.5, 1.3, -0.1), "1.3")):
        with pytest.raises(ScoresError, match=f"x: accuracy must be between 0 and 1, got {worst};"):
            judge_variant(build_seed_scores(0.5, 0.5, 0.5), build_seed_scores(*wrong), "accuracy")


def test_comparisons_are_counted_once_each_and_at_least_one() -> None:
    sides = {"a": build_seed_scores(1.0, 1.2, 1.3), "b": build_seed_scores(1.0, 1.1, 1.2)}

    def count(**more: object) -> int:
        return compare_scores(sides["a"], sides, metric="loss", equivalence_margin=0.1, **more)[0].comparisons  # type: ignore[arg-type]

    assert count() == 2
    assert count(withheld={"a": ["no"]}) == 1
    assert count(withheld={"a": ["no"], "b": ["no"]}) == 1
    assert count(budget=AlphaBudget(num_comparisons=5)) == 5
    assert count(budget=AlphaBudget(num_comparisons=1)) == 2


def test_quick_looks_have_no_judgement() -> None:
    judged = judge_variant(build_seed_scores(1.0, 1.2, 1.25), build_seed_scores(0.5, 0.63, 0.8))
    withheld = judge_variant(
        build_seed_scores(1.0, 1.2, 1.25), build_seed_scores(0.5, 0.63, 0.8), withheld={"x": ["no"]}
    )
    quick, kept = mark_as_quick_looks([judged, withheld])
    assert (quick.outcome, quick.reason, quick.additional_seeds, quick.additional_documents) == (
        *("quick look", ""),
        *(None, None),
    )
    assert quick.summary == "x: loss 0.507 lower in a quick look (3 seeds, 1 example), which is not judged."
    assert kept is withheld


def test_the_choice_of_settings_widens_all_intervals() -> None:
    sides = build_seed_scores(1.0, 1.21, 1.3333333), build_seed_scores(0.5, 0.63, 0.8123457)
    plain, tuned = judge_variant(*sides), judge_variant(*sides, tuning_variances={"x": TuningVariance(0.01, 8)})
    level = plain.adjusted_confidence
    for name, confidence in (("interval", level), ("seed_interval", level), ("equivalence_interval", 2 * level - 1)):
        half, wide = (np.diff(getattr(verdict, name))[0] / 2 for verdict in (plain, tuned))
        assert wide == pytest.approx(math.hypot(half, 0.1 * stats.t.ppf((1 + confidence) / 2, 8)))
    effects = (plain.min_detectable_effect, 0.1 * stats.t.ppf((1 + level) / 2, 8))
    assert tuned.min_detectable_effect == pytest.approx(math.hypot(*effects))
    lost = Scores((), np.empty((0, 1)), np.ones(1), lost=tuple(range(6)))
    finished = build_seed_scores(*(1.0 + 0.01 * seed for seed in range(6)))
    assert judge_variant(finished, lost).outcome == "hurt"
    assert judge_variant(finished, lost, tuning_variances={"x": TuningVariance(0.01, 8)}).outcome == "cannot tell"


def test_the_larger_part_of_the_variance_is_reported() -> None:
    rng = np.random.default_rng(0)

    def find(of_seeds: float, of_documents: float, documents: int = 20) -> str:
        table = of_seeds * rng.normal(size=(4, 1)) + of_documents * rng.normal(size=documents) * np.ones((4, 1))
        zeros = Scores((0, 1, 2, 3), 0 * table, np.ones(documents))
        return judge_variant(zeros, Scores((0, 1, 2, 3), table, np.ones(documents))).dominant_noise_source

    assert find(1.0, 0.1) == "seeds"
    assert find(0.01, 1.0) == "documents"
    assert find(0.0, 0.0) == "unknown"
    assert find(1.0, 1.0, documents=1) == "unknown"


def test_equivalence_needs_equally_many_lost_runs() -> None:
    values = [1.0 + 0.1 * seed for seed in range(9)]
    baseline = build_seed_scores(*values)
    variant = build_seed_scores(*(value + 1e-5 * (index % 2) for index, value in enumerate(values[:8])))
    lost = build_seed_scores(*variant.values[:, 0], lost=(8,))
    assert judge_variant(baseline, variant, margin=0.5).outcome == "no practical difference"
    assert judge_variant(baseline, lost, margin=0.5).outcome == "cannot tell"
    assert (
        judge_variant(build_seed_scores(*values[:8], lost=(8,)), lost, margin=0.5).outcome == "no practical difference"
    )


def test_a_side_that_lost_fewer_runs_needs_no_rank_test() -> None:
    baseline = build_seed_scores(*(1 + 0.01 * seed for seed in range(8)))
    survivors = build_seed_scores(*(1.5 + 0.0111 * seed for seed in range(5)), lost=(5, 6, 7))
    assert judge_variant(baseline, survivors).outcome == "hurt"
    assert judge_variant(survivors, baseline).outcome == "helped"
    better = build_seed_scores(*(0.5 + 0.0111 * seed for seed in range(5)), lost=(5, 6, 7))
    assert judge_variant(baseline, better).outcome == "cannot tell"
    assert judge_variant(better, baseline).outcome == "cannot tell"
    assert judge_variant(better, baseline).reason == "0 of 8 runs were lost (baseline: 3 of 8)"


def test_ranks_decide_above_a_quarter_of_lost_runs() -> None:
    quarter = build_seed_scores(*(1 + 0.01 * seed for seed in range(6)), lost=(6, 7))
    assert not math.isnan(judge_variant(quarter, quarter).interval[0])
    more = build_seed_scores(*(1 + 0.01 * seed for seed in range(5)), lost=(5, 6, 7))
    assert math.isnan(judge_variant(quarter, more).interval[0])


def test_means_and_counts_without_an_interval() -> None:
    verdict = judge_variant(build_seed_scores(1.0, 2.0), build_seed_scores(4.0, 6.0), margin=0.25)
    assert (verdict.baseline_mean, verdict.variant_mean, verdict.effect, verdict.is_better) == (1.5, 5.0, 3.5, False)
    assert (verdict.seeds, verdict.examples, verdict.documents, verdict.runs, verdict.baseline_runs) == (2, 1, 1, 2, 2)
    assert (verdict.additional_seeds, verdict.reason) == (1, "run 1 more seed")
    assert verdict.equivalence_margin == 0.25
    assert verdict.adjusted_confidence == pytest.approx(1 - 0.05 / 3)
    assert verdict.max_failure_rate == pytest.approx(1 - 0.05**0.5)
    table = Scores((0,), np.array([[2.0, 6.0]]), np.array([1.0, 3.0]))
    assert judge_variant(table, table).summary.startswith("x: loss 2; baseline 2 (1 seed; on average the same).")


# ---- files of scores


def test_earlier_analyses_are_counts_of_seeds_and_documents() -> None:
    assert parse_interim_analysis("7") == InterimAnalysis(7)
    assert parse_interim_analysis("7:1") == InterimAnalysis(7, num_documents=1)
    for text in ("", "0", "7:0", "7:3:1", "-7", "7:", "7.5"):
        with pytest.raises(ScoresError, match="earlier analysis"):
            parse_interim_analysis(text)


def test_seeds_are_integers_of_limited_size(tmp_path: Path) -> None:
    table = read_csv(write_score_file(tmp_path, "variant,seed,loss", f"a,{2**53},1", f"a,-{2**53},2", "a,3.0,3"))
    assert table.scores["a"].seeds == (-(2**53), 3, 2**53)
    for seed in (str(2**53 + 2), "1.5", "inf", "nan", "x", ""):
        with pytest.raises(ScoresError, match=f"line 2: seed '{seed}' is not an integer"):
            read_csv(write_score_file(tmp_path, "variant,seed,loss", f"a,{seed},1"))


@pytest.mark.parametrize("count", [1, 19, 20, 21])
def test_twenty_errors_are_listed(tmp_path: Path, count: int) -> None:
    with pytest.raises(ScoresError, match=f": {count} error") as caught:
        read_csv(write_score_file(tmp_path, "variant,seed,loss", *["a,1,x"] * count))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path / 'scores.csv'}: {count} error{'' if count == 1 else 's'}"
    assert len(lines) == 1 + min(count, 20) + (count > 20)
    assert lines[1] == "  line 2: loss 'x' is not a number"
    assert count < 21 or lines[-1] == "  and 1 more"


def test_missing_examples_are_listed_up_to_five(tmp_path: Path) -> None:
    def read(count: int) -> str:
        rows = [f"a,1,e{index},1" for index in range(count + 1)]
        with pytest.raises(ScoresError, match="lacks") as caught:
            read_csv(write_score_file(tmp_path, "variant,seed,example,loss", *rows, f"b,1,e{count},1"))
        return str(caught.value).splitlines()[1]

    assert read(5) == "  line 8: b, seed 1 lacks 5 examples: e0, e1, e2, e3, e4"
    assert read(6) == "  line 9: b, seed 1 lacks 6 examples: e0, e1, e2, e3, e4, ..."


def test_score_columns_and_metrics(tmp_path: Path) -> None:
    both = write_score_file(tmp_path, "variant,seed,loss,accuracy", "a,1,2,0.5")
    assert read_csv(both, metric="accuracy").scores["a"].values.tolist() == [[0.5]]
    with pytest.raises(ScoresError, match="line 1: several score columns: accuracy, loss; keep one, or set metric"):
        read_csv(both, metric="perplexity")
    total = write_score_file(tmp_path, "variant,seed,total,weight", "a,1,20,10", "b,1,30,10")
    assert read_csv(total, metric="loss").metric == "loss"
    assert read_csv(total).scores["b"].compute_seed_means() == pytest.approx([3.0])
    with pytest.raises(ScoresError, match="column 'total' does not hold the metric accuracy"):
        read_csv(total, metric="accuracy")
    loss = write_score_file(tmp_path, "variant,seed,loss", "a,1,2")
    with pytest.raises(ScoresError, match="column 'loss' does not hold the metric perplexity"):
        read_csv(loss, metric="perplexity")
    zero_or_one = write_score_file(tmp_path, "variant,seed,score", "a,1,1", "b,1,0")
    assert read_csv(zero_or_one).metric is None, "without examples these may be anything"
    halves = write_score_file(tmp_path, "variant,seed,example,score", "a,1,x,1", "b,1,x,0.5")
    assert read_csv(halves).metric is None


def test_weights_of_seeds_and_of_examples(tmp_path: Path) -> None:
    free = write_score_file(tmp_path, "variant,seed,loss,weight", "a,1,2,10", "a,2,3,20")
    assert read_csv(free).scores["a"].values.tolist() == [[2], [3]]
    fixed = write_score_file(tmp_path, "variant,seed,total,weight", "a,1,2,10", "a,2,3,20")
    with pytest.raises(ScoresError, match="line 3: the row has weight 20, but 10 at line 2"):
        read_csv(fixed)
    for weight in ("0", "-1", "inf", "x"):
        with pytest.raises(ScoresError, match=f"weight '{weight}' is not a positive number"):
            read_csv(write_score_file(tmp_path, "variant,seed,loss,weight", f"a,1,2,{weight}"))


def test_rounded_perplexities_have_a_resolution(tmp_path: Path) -> None:
    path = write_score_file(tmp_path, "variant,seed,perplexity", "a,1,50.25", "a,2,40.5")
    assert read_csv(path).scores["a"].resolution == pytest.approx(0.01 / 40.5)
    assert read_csv(write_score_file(tmp_path, "variant,seed,loss", "a,1,50.25")).scores["a"].resolution is None
    examples = write_score_file(tmp_path, "variant,seed,example,perplexity", "a,1,x,50.25", "a,1,y,40.5")
    assert read_csv(examples).scores["a"].resolution is None


def test_a_lost_run_has_no_rows(tmp_path: Path) -> None:
    lines = ["a,1,x,1", "a,1,y,2", "a,2,x,1", "a,2,y,nan", "b,1,x,1", "b,1,y,inf", "b,2,x,3", "b,2,y,4"]
    table = read_csv(write_score_file(tmp_path, "variant,seed,example,loss", *lines))
    assert (table.scores["a"].seeds, table.scores["a"].lost) == ((1,), (2,))
    assert (table.scores["b"].seeds, table.scores["b"].lost) == ((2,), (1,))
    assert table.scores["b"].values.tolist() == [[3, 4]]
    only_lost = read_csv(write_score_file(tmp_path, "variant,seed,loss", "a,1,1", "b,1,nan", "b,0,nan"))
    assert only_lost.scores["b"].lost == (0, 1)


def test_perplexities_and_accuracies_have_a_range(tmp_path: Path) -> None:
    for value in ("0", "1"):
        assert read_csv(write_score_file(tmp_path, "variant,seed,accuracy", f"a,1,{value}")).metric == "accuracy"
    for value in ("-0.01", "1.01"):
        with pytest.raises(ScoresError, match="accuracy must be between 0 and 1"):
            read_csv(write_score_file(tmp_path, "variant,seed,accuracy", f"a,1,{value}"))
    assert read_csv(write_score_file(tmp_path, "variant,seed,total", "a,1,0")).metric == "perplexity"


def test_the_margin_and_the_metric_of_a_column_named_score(tmp_path: Path) -> None:
    rows = [f"{name},{seed},{1 + seed * 0.1}" for name in "ab" for seed in range(3)]
    path = write_score_file(tmp_path, "variant,seed,score", *rows)
    assert judge_csv(path, metric="perplexity")[0].equivalence_margin == 0.01
    assert judge_csv(path, metric="loss", equivalence_margin=0.0)[0].equivalence_margin == 0.0
    assert DEFAULT_EQUIVALENCE_MARGINS == {"perplexity": 0.01, "accuracy": 0.01}
    history = (InterimAnalysis(3, num_documents=5), InterimAnalysis(2), InterimAnalysis(3, num_documents=5))
    assert judge_csv(path, metric="perplexity", earlier_analyses=history)[0].adjusted_confidence < 1
    assert judge_csv(path, metric="perplexity", confidence=0.8)[0].confidence == 0.8


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScoresError, match="cannot be read as text"):
        read_csv(path)
    with pytest.raises(ScoresError, match="not a regular file"):
        read_csv(tmp_path)
    with pytest.raises(ScoresError, match="line 2: not valid CSV"):
        read_csv(write_score_file(tmp_path, "variant,seed,loss", "a,1," + "1" * 200_000))


# ---- other intervals


def test_bootstrap_quantiles_and_resamples() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    few = bootstrap_mean(values, num_resamples=501, confidence=0.8, seed=3)
    generator = np.random.default_rng(3)
    array = np.array(values)
    means = np.concatenate([array[generator.integers(4, size=(count, 4))].mean(axis=1) for count in (500, 1)])
    assert few.interval == pytest.approx(tuple(np.percentile(means, [10, 90])))
    assert (few.value, few.num_documents) == (4.0, 4)
    assert bootstrap_mean([-1.0, 0.0]).positive_share == 0.0
    assert bootstrap_mean([1.0, 1.0]).to_dict()["interval"] == [1.0, 1.0]
    with pytest.raises(ScoresError, match="one finite number"):
        bootstrap_mean([math.nan, 1.0])


def test_the_prediction_interval_of_a_new_corpus() -> None:
    low, high = compute_prediction_interval([1.0, 2.0, 4.0, 5.0], 0.9) or (0.0, 0.0)
    half = stats.t.ppf(0.95, 3) * np.std([1.0, 2.0, 4.0, 5.0], ddof=1) * math.sqrt(1.25)
    assert (low, high) == pytest.approx((3 - half, 3 + half))
