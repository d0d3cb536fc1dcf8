"""Estimate every metric of every strategy with an interval, and compare strategies in pairs.

Prompts are the unit. All samples of a prompt give one ratio (total, denominator); an estimate is total over total, and
its interval is that of a ratio over prompts: the t interval of the mean of each prompt's influence on the ratio,
(total - estimate * denominator) / mean denominator (the delta method; Cochran, Sampling Techniques, 1977, ch. 6). It
covers the variation between prompts and between samples. More samples per prompt reduce the second only; conclusions
about other prompts need more prompts.

Strategies are compared on the same prompts with the same random numbers, so they are paired by prompt. Each pair gets
the verdict of headtohead.verdict, simultaneous over all pairs of a metric. A verdict concerns one metric: a lower
perplexity is "helped" whether or not the text is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy import special

from headtohead.generation.likelihood import Likelihood
from headtohead.text_metrics import diversity
from headtohead.text_metrics.diversity import EMPTY_RATIO, Ratio
from headtohead.verdict import scores
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.rule import MetricName

MetricKind = Literal["perplexity", "bits", "share", "points", "count"]
PromptRatios = Sequence[Ratio]
PromptValues = Float[np.ndarray, " prompts"]
CONFIDENCE_LEVEL = 0.95
NATS_PER_BIT = math.log(2)


@dataclass(frozen=True)
class Prompt:
    """A prompt and its human continuation, if known."""

    text: str
    continuation: str | None = None


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


@dataclass(frozen=True)
class GenerationMetric:
    """A metric that is computed for every strategy."""

    name: str
    title: str
    kind: MetricKind
    better: Literal["lower", "higher"] | None
    equivalence_margin: float
    """the smallest relevant change: relative for perplexity, otherwise in the unit of the metric"""
    description: str

    @property
    def verdict_metric(self) -> MetricName:
        """The scale on which verdicts compare it."""
        if self.kind == "perplexity":
            return "perplexity"
        return "loss" if self.better == "lower" else "score"

    def to_display_value(self, mean: float) -> float:
        """Convert the mean of ratios to the displayed value."""
        return math.exp(mean) if self.kind == "perplexity" else mean

    def clip_to_range(self, value: float) -> float:
        """Clip the end of an interval to the range of the metric."""
        maximum = {"share": 1.0, "points": 100.0}.get(self.kind, math.inf)
        return min(max(value, 0.0), maximum)


METRICS = (
    GenerationMetric(
        "perplexity",
        "perplexity",
        "perplexity",
        "lower",
        0.01,
        "exp of the loss per token of the generating model on its own text",
    ),
    GenerationMetric(
        "bits", "bits per byte", "bits", "lower", 0.01, "the same loss per byte of text, independent of the tokenizer"
    ),
    GenerationMetric(
        "second",
        "bits per byte, second model",
        "bits",
        "lower",
        0.01,
        "the loss per byte of a second model with its own tokenizer on the same text",
    ),
    GenerationMetric(
        "distinct-1",
        "distinct-1",
        "share",
        "higher",
        0.01,
        "distinct words over all words in the samples of a prompt",
    ),
    GenerationMetric("distinct-2", "distinct-2", "share", "higher", 0.01, "distinct pairs of words over all pairs"),
    GenerationMetric("distinct-3", "distinct-3", "share", "higher", 0.01, "distinct triples of words over all triples"),
    GenerationMetric(
        "self-bleu", "self-BLEU", "points", "lower", 1.0, "BLEU of each sample against the other samples of its prompt"
    ),
    GenerationMetric(
        "repetition", "repetition", "share", "lower", 0.01, "4-grams that already occurred in the same sample"
    ),
    GenerationMetric(
        "nearness",
        "chrF to human text",
        "points",
        "higher",
        1.0,
        "chrF of each sample against the human continuation, truncated to the maximum length of a sample",
    ),
    GenerationMetric(
        "nearest", "chrF, best sample", "points", "higher", 1.0, "the same for the best sample of each prompt"
    ),
    GenerationMetric("length", "length", "count", None, 0.0, "tokens per sample, without the stop token"),
)
METRICS_BY_NAME = {metric.name: metric for metric in METRICS}
HUMAN_METRICS = ("perplexity", "bits", "second", "repetition", "length")
"""metrics of human continuations, of which there is one per prompt"""


@dataclass(frozen=True)
class MetricEstimate:
    """An estimate and its 95 % interval over prompts; no interval for fewer than two prompts."""

    value: float
    interval: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "interval": list(self.interval) if self.interval else None}


@dataclass(frozen=True)
class StrategyPairVerdict:
    """The verdict on one strategy compared with another by one metric."""

    measure: str
    strategy: str
    against: str
    outcome: str
    effect: float
    interval: tuple[float, float]
    adjusted_confidence: float
    min_detectable_effect: float
    prompts: int

    def to_dict(self) -> dict[str, Any]:
        return {name: _to_json_value(value) for name, value in vars(self).items()}


def compute_prompt_ratios(
    continuations: Sequence[ScoredContinuation], num_prompts: int, references: Sequence[str | None]
) -> dict[str, PromptRatios]:
    """Return the ratios of every metric, one per prompt.

    `references` are human continuations, truncated to the maximum length, or None. Metrics that do not apply are
    omitted, such as self-BLEU of a single sample.
    """
    by_prompt: list[list[ScoredContinuation]] = [[] for _ in range(num_prompts)]
    for continuation in continuations:
        by_prompt[continuation.prompt].append(continuation)
    rows = [_compute_ratios_of_prompt(samples, references[i]) for i, samples in enumerate(by_prompt)]
    columns = {name: [row.get(name, EMPTY_RATIO) for row in rows] for name in METRICS_BY_NAME}
    return {name: column for name, column in columns.items() if any(ratio.denominator for ratio in column)}


def _compute_ratios_of_prompt(continuations: Sequence[ScoredContinuation], reference: str | None) -> dict[str, Ratio]:
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
        ratios["nearness"] = Ratio(sum(chrf), len(chrf))
        if len(chrf) > 1:
            ratios["nearest"] = Ratio(max(chrf), 1)
    return ratios


def _compute_loss_ratios(continuations: Sequence[ScoredContinuation]) -> dict[str, Ratio]:
    likelihoods = [continuation.model_likelihood for continuation in continuations]
    ratios = {
        "perplexity": Ratio(
            sum(likelihood.loss for likelihood in likelihoods), sum(likelihood.tokens for likelihood in likelihoods)
        ),
        "bits": _compute_bits_per_byte(likelihoods),
    }
    scoring_model_likelihoods = [
        continuation.scoring_model_likelihood
        for continuation in continuations
        if continuation.scoring_model_likelihood is not None
    ]
    if scoring_model_likelihoods:
        ratios["second"] = _compute_bits_per_byte(scoring_model_likelihoods)
    return ratios


def _compute_bits_per_byte(likelihoods: Sequence[Likelihood]) -> Ratio:
    return Ratio(
        sum(likelihood.loss for likelihood in likelihoods) / NATS_PER_BIT,
        sum(likelihood.bytes for likelihood in likelihoods),
    )


def estimate_metric(metric_name: str, prompt_ratios: PromptRatios) -> MetricEstimate | None:
    """Return total over total with its t interval over prompts; None if all denominators are 0."""
    values = linearize_ratios(prompt_ratios)
    if values is None:
        return None
    metric, mean = METRICS_BY_NAME[metric_name], float(values.mean())
    if len(values) < 2:
        return MetricEstimate(metric.to_display_value(mean), None)
    standard_error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half_width = float(special.stdtrit(len(values) - 1, 0.5 + CONFIDENCE_LEVEL / 2)) * standard_error
    low, high = (metric.clip_to_range(metric.to_display_value(mean + sign * half_width)) for sign in (-1, 1))
    return MetricEstimate(metric.to_display_value(mean), (low, high))


def estimate_metrics(ratios_by_metric: Mapping[str, PromptRatios]) -> dict[str, dict[str, Any]]:
    """Return the estimate of every metric that has one, as JSON values."""
    estimates = {name: estimate_metric(name, ratios) for name, ratios in ratios_by_metric.items()}
    return {name: estimate.to_dict() for name, estimate in estimates.items() if estimate is not None}


def linearize_ratios(prompt_ratios: PromptRatios) -> PromptValues | None:
    """Return the estimate plus each prompt's influence on it, (prompts,). The mean is exactly the estimate."""
    total = np.array([ratio.total for ratio in prompt_ratios])
    denominator = np.array([ratio.denominator for ratio in prompt_ratios], dtype=float)
    if not denominator.sum():
        return None
    estimate = total.sum() / denominator.sum()
    return np.asarray(estimate + (total - estimate * denominator) / denominator.mean(), dtype=float)


def judge_strategy_pairs(metric_name: str, ratios_by_strategy: Mapping[str, PromptRatios]) -> list[StrategyPairVerdict]:
    """Compare every strategy with every earlier one by a metric, paired by prompt."""
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
    )
    return [
        StrategyPairVerdict(
            metric_name,
            *pairs[verdict.variant],
            verdict.outcome,
            verdict.effect,
            verdict.interval,
            verdict.adjusted_confidence,
            verdict.min_detectable_effect,
            verdict.seeds,
        )
        for verdict in verdicts
    ]


def _to_verdict_scores(values: PromptValues) -> scores.Scores:
    return scores.Scores(tuple(range(len(values))), values[:, None], np.ones(1))


def compare_strategies(ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]], baseline: str) -> dict[str, Any]:
    """Return the estimates of every strategy and the verdict on every pair by every metric, as JSON values.

    Strategies are compared with the baseline, not the baseline with them.
    """
    estimates = {strategy: estimate_metrics(columns) for strategy, columns in ratios_by_strategy.items()}
    verdicts = []
    ordered = sorted(ratios_by_strategy, key=lambda strategy: strategy != baseline)
    for name in METRICS_BY_NAME:
        columns = {
            strategy: ratios_by_strategy[strategy][name] for strategy in ordered if name in ratios_by_strategy[strategy]
        }
        verdicts += [verdict.to_dict() for verdict in judge_strategy_pairs(name, columns)]
    return {"figures": estimates, "pairs": verdicts}


def describe_metrics(ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]]) -> list[dict[str, Any]]:
    """Return the metrics that at least one strategy has, as JSON values."""
    return [
        dict(vars(metric))
        for metric in METRICS
        if any(metric.name in columns for columns in ratios_by_strategy.values())
    ]


def _to_json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
