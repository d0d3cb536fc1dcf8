"""Estimate every metric for every strategy with a confidence interval, and compare strategies in pairs.

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
from jaxtyping import Float
from scipy import special

from headtohead.decoding_comparison.results import Estimates, GenerationMetric, MetricEstimate, StrategyPairVerdict
from headtohead.generation.likelihood import Likelihood
from headtohead.text_metrics import diversity
from headtohead.text_metrics.diversity import EMPTY_RATIO, Ratio
from headtohead.verdict.compare import ErrorBudget, compare_scores
from headtohead.verdict.rule import CANNOT_TELL, TOO_FEW_SEEDS
from headtohead.verdict.scores import Scores

PromptRatios = Sequence[Ratio]
PromptValues = Float[np.ndarray, " prompts"]
CONFIDENCE_LEVEL = 0.95
NATS_PER_BIT = math.log(2)
MAX_VALUES = {"share": 1.0, "points": 100.0}
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

    prompt: int
    """index of the prompt"""
    sample: int
    ids: tuple[int, ...]
    text: str
    model_likelihood: Likelihood
    scoring_model_likelihood: Likelihood | None = None


def compute_prompt_ratios(
    continuations: Sequence[ScoredContinuation], num_prompts: int, references: Sequence[str | None]
) -> dict[str, PromptRatios]:
    """Return the ratios for every metric, one per prompt.

    `references` are human continuations, truncated to the maximum length, or None. Metrics that do not apply, such as
    self-BLEU for a single sample, are omitted.
    """
    by_prompt: list[list[ScoredContinuation]] = [[] for _ in range(num_prompts)]
    for continuation in continuations:
        by_prompt[continuation.prompt].append(continuation)
    rows = [_compute_ratios_of_prompt(samples, references[i]) for i, samples in enumerate(by_prompt)]
    columns = {name: [row.get(name, EMPTY_RATIO) for row in rows] for name in METRICS_BY_NAME}
    return {name: column for name, column in columns.items() if any(ratio.denominator for ratio in column)}


def _compute_ratios_of_prompt(continuations: Sequence[ScoredContinuation], reference: str | None) -> dict[str, Ratio]:
    """Return every metric for one prompt's continuations, as a numerator and a denominator."""
    texts = [continuation.text for continuation in continuations]
    ratios = {
        **_compute_loss_ratios(continuations),
        **{f"distinct-{n}": diversity.compute_distinct_n(texts, n) for n in (1, 2, 3)},
        "self-bleu": diversity.compute_self_bleu(texts),
        "repetition": diversity.compute_repetition(texts),
        "length": Ratio(sum(len(continuation.ids) for continuation in continuations), len(continuations)),
    }
    if reference and texts:
        chrf = diversity.compute_chrf(texts, reference)
        ratios["chrf"] = Ratio(sum(chrf), len(chrf))
        if len(chrf) > 1:
            ratios["best-chrf"] = Ratio(max(chrf), 1)
    return ratios


def _compute_loss_ratios(continuations: Sequence[ScoredContinuation]) -> dict[str, Ratio]:
    """Return the continuations' perplexity and bits per byte, also under the scoring model if there is one."""
    likelihoods = [continuation.model_likelihood for continuation in continuations]
    loss, tokens = sum(item.loss for item in likelihoods), sum(item.tokens for item in likelihoods)
    ratios = {"perplexity": Ratio(loss, tokens), "bits-per-byte": _compute_bits_per_byte(likelihoods)}
    scored_likelihoods = [
        item for continuation in continuations if (item := continuation.scoring_model_likelihood) is not None
    ]
    return ratios | ({"scoring-bits": _compute_bits_per_byte(scored_likelihoods)} if scored_likelihoods else {})


def _compute_bits_per_byte(likelihoods: Sequence[Likelihood]) -> Ratio:
    return Ratio(sum(item.loss for item in likelihoods) / NATS_PER_BIT, sum(item.bytes for item in likelihoods))


def estimate_metric(metric_name: str, prompt_ratios: PromptRatios) -> MetricEstimate | None:
    """Return the ratio of sums with its t interval over prompts; None if all denominators are 0."""
    values = linearize_ratios(prompt_ratios)
    if values is None:
        return None
    kind, mean = METRICS_BY_NAME[metric_name].kind, float(values.mean())

    def convert(number: float) -> float:
        return math.exp(number) if kind == "perplexity" else number

    if len(values) < 2:
        return MetricEstimate(value=convert(mean), interval=None)
    standard_error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half_width = float(special.stdtrit(len(values) - 1, 0.5 + CONFIDENCE_LEVEL / 2)) * standard_error
    maximum = MAX_VALUES.get(kind, math.inf)
    low, high = (min(max(convert(mean + sign * half_width), 0.0), maximum) for sign in (-1, 1))
    return MetricEstimate(value=convert(mean), interval=(low, high))


def estimate_metrics(ratios_by_metric: Mapping[str, PromptRatios]) -> Estimates:
    """Return the estimate for every metric that has one."""
    estimates = {name: estimate_metric(name, ratios) for name, ratios in ratios_by_metric.items()}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def linearize_ratios(prompt_ratios: PromptRatios) -> PromptValues | None:
    """Return the estimate plus each prompt's influence on it, (prompts,). The mean is exactly the estimate."""
    total = np.array([ratio.total for ratio in prompt_ratios])
    denominator = np.array([ratio.denominator for ratio in prompt_ratios], dtype=float)
    if not denominator.sum():
        return None
    estimate = total.sum() / denominator.sum()
    return np.asarray(estimate + (total - estimate * denominator) / denominator.mean(), dtype=float)


def judge_strategy_pairs(metric_name: str, ratios_by_strategy: Mapping[str, PromptRatios]) -> list[StrategyPairVerdict]:
    """Compare every strategy with every earlier one on one metric, paired by prompt."""
    metric = METRICS_BY_NAME[metric_name]
    linearized = {strategy: linearize_ratios(column) for strategy, column in ratios_by_strategy.items()}
    values = {strategy: value for strategy, value in linearized.items() if value is not None}
    if metric.better is None or len(values) < 2:
        return []
    pairs = {f"{b}\n{a}": (b, a) for a, b in combinations(values, 2)}
    # Prompts take the place of seeds as the random unit. Differences are compared with a baseline of zeros, so that one
    # call covers all pairs and its intervals hold for all of them simultaneously.
    differences = {key: _to_verdict_scores(values[b] - values[a]) for key, (b, a) in pairs.items()}
    num_prompts = len(next(iter(values.values())))
    verdicts = compare_scores(
        _to_verdict_scores(np.zeros(num_prompts)),
        differences,
        metric=metric.verdict_metric,
        equivalence_margin=metric.equivalence_margin,
        budget=ErrorBudget(is_final=True),  # prompts are fixed in advance
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


def _to_verdict_scores(values: PromptValues) -> Scores:
    return Scores(tuple(range(len(values))), values[:, None], np.ones(1), resolution=0.0)


def compare_strategies(
    ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]], baseline: str
) -> list[StrategyPairVerdict]:
    """Return the verdict on every pair of strategies for every metric.

    Each strategy is compared with the baseline, not the other way round.
    """
    verdicts = []
    ordered = sorted(ratios_by_strategy, key=lambda strategy: strategy != baseline)
    for name in METRICS_BY_NAME:
        columns = {key: ratios_by_strategy[key][name] for key in ordered if name in ratios_by_strategy[key]}
        verdicts += judge_strategy_pairs(name, columns)
    return verdicts


def list_metrics(ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]]) -> list[GenerationMetric]:
    """Return the metrics that at least one strategy has."""
    return [
        metric
        for name, metric in METRICS_BY_NAME.items()
        if any(name in columns for columns in ratios_by_strategy.values())
    ]
