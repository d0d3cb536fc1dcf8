"""Lost runs: runs that diverged or learned nothing are outcomes of a variant, not missing data.

The interval for a difference is based on the runs that finished. If the baseline or a variant loses its bad runs, the
remaining ones make it look better than it is. The one that lost more runs is therefore judged better only if a rank
test in which lost runs rank worst agrees (Lachin, Controlled Clinical Trials 20, 1999). This condition is required in
addition to the interval, so it does not increase the error rate. If more than a quarter of all runs were lost, or fewer
than three pairs are left, the rank-sum test alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Float

from headtohead.verdict.decision_rule import CANNOT_TELL, HELPED, HURT, NO_PRACTICAL_DIFFERENCE, VerdictOutcome
from headtohead.verdict.metric import Metric
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import ScorePair

MAX_EXACT_RUNS = 60
"""number of runs above which the rank-sum test uses the normal approximation"""
MAX_RANK_TEST_P_VALUE = 0.025
MAX_LOST_SHARE = 0.25
"""share of all runs, of baseline and variant, above which the runs that finished say too little"""


def are_too_many_runs_lost(num_lost: int, num_runs: int) -> bool:
    """Return whether more than a quarter of all runs were lost, so that ranks decide instead of an interval.

    That is as many as if baseline or variant alone lost more than half. Their combined number of lost runs does not
    depend on which of them fails more often, so choosing the test by it does not favor either outcome.
    """
    return num_lost > MAX_LOST_SHARE * num_runs


def compute_max_failure_rate(num_lost: int, num_runs: int, confidence: float = 0.95) -> float:
    """Return an upper bound on the probability that a run is lost (Clopper and Pearson, Biometrika 26, 1934)."""
    if num_lost >= num_runs:
        return 1.0
    return float(scipy.special.betaincinv(num_lost + 1, num_runs - num_lost, confidence))


def compute_failure_rate_p_value(num_lost: int, num_runs: int, baseline_lost: int, baseline_runs: int) -> float:
    """Return the two-sided p value of Fisher's exact test for equal rates of lost runs."""
    from scipy import stats  # slow to import, and needed only if runs were lost

    contingency_table = np.array([[num_lost, num_runs - num_lost], [baseline_lost, baseline_runs - baseline_lost]])
    return float(stats.fisher_exact(contingency_table).pvalue)


def compute_worst_rank_p_value(
    better: Float[np.ndarray, " better_runs"], worse: Float[np.ndarray, " worse_runs"], *, is_paired: bool
) -> float:
    """Return the one-sided p value for the null hypothesis that `better` is not better than `worse`.

    Higher scores are better; NaN marks a lost run, which ranks below all others. The result is the p value of the exact
    rank-sum test or, if `is_paired` and smaller, that of the sign test. Paired means that run i of both has the same
    seed.
    """
    better, worse = (np.where(np.isnan(scores), -np.inf, scores) for scores in (better, worse))
    p_value = _compute_rank_sum_p_value(better, worse)
    if is_paired:
        wins, losses = int((better > worse).sum()), int((better < worse).sum())
        p_value = min(p_value, float(scipy.special.bdtrc(wins - 1, wins + losses, 0.5)) if wins else 1.0)
    return p_value


def find_min_worst_rank_seeds(compute_max_p_value: Callable[[int], float]) -> int:
    """Return the smallest number of seeds with which the test that ranks lost runs worst can reach a decision.

    With n runs of baseline and variant each, the smallest two-sided p value of the rank-sum test is 2 n! n! / (2n)!.
    `compute_max_p_value` returns the required one, given n.
    """
    num_seeds = 1
    while 2 / math.comb(2 * num_seeds, num_seeds) > compute_max_p_value(num_seeds):
        num_seeds += 1
    return num_seeds


def _compute_rank_sum_p_value(
    better: Float[np.ndarray, " better_runs"], worse: Float[np.ndarray, " worse_runs"]
) -> float:
    """Return the p value of the rank-sum test, assigning mean ranks to ties."""
    from scipy import stats  # slow to import, and needed only if runs were lost

    num_better, num_runs = len(better), len(better) + len(worse)
    if num_runs > MAX_EXACT_RUNS:
        return float(stats.mannwhitneyu(better, worse, alternative="greater", method="asymptotic").pvalue)
    double_ranks = np.rint(2 * stats.rankdata([*better, *worse])).astype(int)
    # num_subsets[k, s]: number of sets of k runs whose doubled ranks sum to s
    num_subsets = np.zeros((num_better + 1, int(double_ranks.sum()) + 1))
    num_subsets[0, 0] = 1
    for rank in double_ranks:
        num_subsets[1:, rank:] += num_subsets[:-1, : num_subsets.shape[1] - rank].copy()
    null_distribution = num_subsets[num_better]
    observed_rank_sum = int(double_ranks[:num_better].sum())
    return float(null_distribution[observed_rank_sum:].sum() / null_distribution.sum())


def require_worst_rank_agreement(
    outcome: VerdictOutcome, verdict: Verdict, score_pair: ScorePair, metric: Metric
) -> VerdictOutcome:
    """Return the outcome of a comparison by interval, or "cannot tell" if it may be an artifact of losing bad runs.

    If the one that lost more runs is better, it must also be better in a test in which lost runs rank worst.
    Equivalence requires that baseline and variant lost the same number of runs.
    """
    if verdict.lost_runs == verdict.baseline_lost_runs:
        return outcome
    if outcome == NO_PRACTICAL_DIFFERENCE:
        return CANNOT_TELL
    baseline, variant = score_pair.list_run_scores(higher_is_better=not metric.lower_is_better)
    variant_lost_more = verdict.lost_runs > verdict.baseline_lost_runs
    if outcome != (HELPED if variant_lost_more else HURT):
        return outcome
    better, worse = (variant, baseline) if variant_lost_more else (baseline, variant)
    p_value = compute_worst_rank_p_value(better, worse, is_paired=score_pair.is_paired)
    return outcome if p_value <= MAX_RANK_TEST_P_VALUE else CANNOT_TELL
