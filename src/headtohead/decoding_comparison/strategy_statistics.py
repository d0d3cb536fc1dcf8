"""Estimate the metrics of decoding strategies with confidence intervals, and judge strategies in pairs.

The prompt is the sampling unit. All of a prompt's samples yield one ratio (total, denominator); an estimate is the sum
of the totals over the sum of the denominators, and its interval is that of a ratio over prompts: the t interval of the
mean of each prompt's influence on the ratio, (total - estimate * denominator) / mean denominator (the delta method;
Cochran, Sampling Techniques, 1977, ch. 6). It covers the variation between prompts and between samples. More samples
per prompt reduce only the latter; conclusions about new prompts need more prompts.

Strategies are compared on the same prompts with the same random numbers, so they are paired by prompt. Each pair gets a
verdict from headtohead.verdict, with simultaneous confidence over all pairs for a metric. A verdict concerns one
metric: a lower perplexity is "helped" whether or not the text is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy
from jaxtyping import Float

from headtohead.decoding_comparison.results import Estimates, GenerationMetric, MetricEstimate, StrategyPairVerdict
from headtohead.generation.likelihood import Likelihood
from headtohead.text_metrics import ngram_metrics
from headtohead.text_metrics.ngram_metrics import EMPTY_RATIO, Ratio
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import CANNOT_TELL, TOO_FEW_SEEDS
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.scores import Scores

PromptRatios = Sequence[Ratio]
LinearizedRatios = Float[np.ndarray, " prompts"]
CONFIDENCE_LEVEL = 0.95
NATS_PER_BIT = math.log(2)
MAX_METRIC_VALUES = {"share": 1.0, "points": 100.0}
"""the upper end of a metric's range, by kind"""
METRICS_BY_NAME = {
    str(row[0]): GenerationMetric.model_validate(dict(zip(GenerationMetric.model_fields, row, strict=True)))
    for row in (
        ("perplexity", "perplexity", "perplexity", "lower", 0.01, "exp of the generating model's loss per token"),
        ("bits-per-byte", "bits per byte", "bits", "lower", 0.01, "the same loss per byte, for any tokenizer"),
        ("scoring-bits", "bits per byte, scoring model", "bits", "lower", 0.01, "bits per byte of a second model"),
        ("distinct-1", "distinct-1", "share", "higher", 0.01, "distinct words over all words in samples of a prompt"),
        ("distinct-2", "distinct-2", "share", "higher", 0.01, "distinct pairs of words over all pairs"),
        ("distinct-3", "distinct-3", "share", "higher", 0.01, "distinct triples of words over all triples"),
        ("self-bleu", "self-BLEU", "points", "lower", 1.0, "BLEU of a sample against the others of its prompt"),
        ("repetition", "repetition", "share", "lower", 0.01, "4-grams that already occurred in the same sample"),
        ("chrf", "chrF to human text", "points", "higher", 1.0, "chrF of a sample against the human continuation"),
        ("best-chrf", "chrF, best sample", "points", "higher", 1.0, "the same for the best sample of each prompt"),
        ("length", "length", "count", None, 0.0, "tokens per sample, without the stop token"),
    )
}
HUMAN_METRICS = ("perplexity", "bits-per-byte", "scoring-bits", "repetition", "length")
"""metrics for human continuations, of which there is one per prompt, truncated to a sample's length"""


@dataclass(frozen=True)
class ScoredContinuation:
    """A generated continuation and its likelihood under two models."""

    prompt_index: int
    sample_index: int
    token_ids: tuple[int, ...]
    text: str
    model_likelihood: Likelihood
    scoring_model_likelihood: Likelihood | None = None


def compute_prompt_ratios(
    continuations: Sequence[ScoredContinuation], num_prompts: int, human_continuations: Sequence[str | None]
) -> dict[str, PromptRatios]:
    """Return the ratios that a strategy's statistics are based on: for every metric, one per prompt.

    `human_continuations` are truncated to the maximum length, or None. Metrics that do not apply, such as
    self-BLEU for a single sample, are omitted.
    """
    continuations_by_prompt: list[list[ScoredContinuation]] = [[] for _ in range(num_prompts)]
    for continuation in continuations:
        continuations_by_prompt[continuation.prompt_index].append(continuation)
    ratios_by_prompt = [
        _compute_ratios_of_prompt(samples, human_continuation)
        for samples, human_continuation in zip(continuations_by_prompt, human_continuations, strict=True)
    ]
    ratios_by_metric = {
        name: [prompt_ratios.get(name, EMPTY_RATIO) for prompt_ratios in ratios_by_prompt] for name in METRICS_BY_NAME
    }
    return {name: ratios for name, ratios in ratios_by_metric.items() if any(ratio.denominator for ratio in ratios)}


def _compute_ratios_of_prompt(
    continuations: Sequence[ScoredContinuation], human_continuation: str | None
) -> dict[str, Ratio]:
    """Return every metric of a strategy for one prompt's continuations, as a numerator and a denominator."""
    texts = [continuation.text for continuation in continuations]
    ratios = {
        **_compute_loss_ratios(continuations),
        **{f"distinct-{n}": ngram_metrics.compute_distinct_n(texts, n) for n in (1, 2, 3)},
        "self-bleu": ngram_metrics.compute_self_bleu(texts),
        "repetition": ngram_metrics.compute_repetition(texts),
        "length": Ratio(sum(len(continuation.token_ids) for continuation in continuations), len(continuations)),
    }
    if human_continuation and texts:
        chrf = ngram_metrics.compute_chrf(texts, human_continuation)
        ratios["chrf"] = Ratio(sum(chrf), len(chrf))
        if len(chrf) > 1:
            ratios["best-chrf"] = Ratio(max(chrf), 1)
    return ratios


def _compute_loss_ratios(continuations: Sequence[ScoredContinuation]) -> dict[str, Ratio]:
    """Return the perplexity and bits per byte of a strategy's continuations, also under the scoring model if any."""
    likelihoods = [continuation.model_likelihood for continuation in continuations]
    ratios = {
        "perplexity": Ratio(
            sum(likelihood.loss for likelihood in likelihoods), sum(likelihood.tokens for likelihood in likelihoods)
        ),
        "bits-per-byte": _compute_bits_per_byte(likelihoods),
    }
    scoring_likelihoods = [
        likelihood
        for continuation in continuations
        if (likelihood := continuation.scoring_model_likelihood) is not None
    ]
    return ratios | ({"scoring-bits": _compute_bits_per_byte(scoring_likelihoods)} if scoring_likelihoods else {})


def _compute_bits_per_byte(likelihoods: Sequence[Likelihood]) -> Ratio:
    """Return the total loss in bits over the number of bytes."""
    loss_bits = sum(likelihood.loss for likelihood in likelihoods) / NATS_PER_BIT
    return Ratio(loss_bits, sum(likelihood.bytes for likelihood in likelihoods))


def estimate_metric(metric_name: str, prompt_ratios: PromptRatios) -> MetricEstimate | None:
    """Return a strategy's estimate of a metric, a ratio of sums, with its interval over prompts; None if undefined."""
    linearized = linearize_ratios(prompt_ratios)
    if linearized is None:
        return None
    kind, mean = METRICS_BY_NAME[metric_name].kind, float(linearized.mean())

    def to_metric_scale(number: float) -> float:
        return math.exp(number) if kind == "perplexity" else number

    if len(linearized) < 2:
        return MetricEstimate(value=to_metric_scale(mean), interval=None)
    standard_error = float(linearized.std(ddof=1)) / math.sqrt(len(linearized))
    half_width = float(scipy.special.stdtrit(len(linearized) - 1, 0.5 + CONFIDENCE_LEVEL / 2)) * standard_error
    maximum = MAX_METRIC_VALUES.get(kind, math.inf)
    low, high = (min(max(to_metric_scale(mean + sign * half_width), 0.0), maximum) for sign in (-1, 1))
    return MetricEstimate(value=to_metric_scale(mean), interval=(low, high))


def estimate_metrics(ratios_by_metric: Mapping[str, PromptRatios]) -> Estimates:
    """Return the estimate for every metric that has one."""
    estimates = {name: estimate_metric(name, ratios) for name, ratios in ratios_by_metric.items()}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def linearize_ratios(prompt_ratios: PromptRatios) -> LinearizedRatios | None:
    """Return a strategy's estimate plus each prompt's influence on it, (prompts,). The mean is exactly the estimate."""
    totals = np.array([ratio.total for ratio in prompt_ratios])
    denominators = np.array([ratio.denominator for ratio in prompt_ratios], dtype=float)
    if not denominators.sum():
        return None
    estimate = totals.sum() / denominators.sum()
    return np.asarray(estimate + (totals - estimate * denominators) / denominators.mean(), dtype=float)


def judge_strategy_pairs(metric_name: str, ratios_by_strategy: Mapping[str, PromptRatios]) -> list[StrategyPairVerdict]:
    """Return the verdicts on every strategy against every earlier one by one metric, paired by prompt."""
    metric = METRICS_BY_NAME[metric_name]
    linearized: dict[str, LinearizedRatios] = {}
    for strategy, prompt_ratios in ratios_by_strategy.items():
        if (strategy_ratios := linearize_ratios(prompt_ratios)) is not None:
            linearized[strategy] = strategy_ratios
    if metric.better is None or len(linearized) < 2:
        return []
    pairs = {f"{strategy}\n{reference}": (strategy, reference) for reference, strategy in combinations(linearized, 2)}
    # Prompts take the place of seeds as the random unit. Differences are compared with a baseline of zeros, so that one
    # call covers all pairs and its intervals hold for all of them simultaneously.
    differences = {
        key: _build_verdict_scores(linearized[strategy] - linearized[reference])
        for key, (strategy, reference) in pairs.items()
    }
    num_prompts = len(next(iter(linearized.values())))
    verdicts = compare_scores(
        _build_verdict_scores(np.zeros(num_prompts)),
        differences,
        metric=metric.verdict_metric,
        equivalence_margin=metric.equivalence_margin,
        budget=AlphaBudget(is_final=True),  # prompts are fixed in advance
    )
    return [
        StrategyPairVerdict(
            metric=metric_name,
            strategy=pairs[verdict.variant][0],
            reference=pairs[verdict.variant][1],
            outcome=CANNOT_TELL if verdict.outcome == TOO_FEW_SEEDS else verdict.outcome,
            effect=verdict.effect,
            interval=verdict.interval,
            adjusted_confidence=verdict.adjusted_confidence,
            min_detectable_effect=verdict.min_detectable_effect,
            prompts=verdict.seeds,
        )
        for verdict in verdicts
    ]


def _build_verdict_scores(prompt_scores: LinearizedRatios) -> Scores:
    """Return one score per prompt in the form that verdicts compare."""
    return Scores(tuple(range(len(prompt_scores))), prompt_scores[:, None], np.ones(1), resolution=0.0)


def compare_strategies(
    ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]], baseline: str
) -> list[StrategyPairVerdict]:
    """Return the verdict on every pair of strategies for every metric.

    Each strategy is compared with the baseline, not the other way round.
    """
    verdicts = []
    ordered_strategies = sorted(ratios_by_strategy, key=lambda strategy: strategy != baseline)
    for name in METRICS_BY_NAME:
        metric_ratios = {
            strategy: ratios_by_strategy[strategy][name]
            for strategy in ordered_strategies
            if name in ratios_by_strategy[strategy]
        }
        verdicts += judge_strategy_pairs(name, metric_ratios)
    return verdicts


def list_metrics(ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]]) -> list[GenerationMetric]:
    """Return the metrics that have statistics for at least one strategy."""
    return [
        metric
        for name, metric in METRICS_BY_NAME.items()
        if any(name in ratios_by_metric for ratios_by_metric in ratios_by_strategy.values())
    ]
