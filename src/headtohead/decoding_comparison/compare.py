"""Strategies side by side: a figure with its interval for every measure, and paired tests between strategies.

Prompts are the unit. All samples of a prompt give one tally, a figure is total over total, and its interval is that of
a ratio over prompts: each prompt's influence on the ratio, (total - figure x of) / mean of, and the t interval of their
mean (the delta method; Cochran, Sampling Techniques, 1977, ch. 6). Both noises are in it, that of the prompts and that
of the draws: more samples of a prompt make its tally steadier, and only more prompts tell about other prompts.

Two strategies meet on the same prompts with the same random numbers, so they are paired by prompt. The verdict on a
pair is the one of headtohead.verdict, by its rule and with its words, simultaneous over all pairs of a measure. Each
word is about one measure: lower perplexity is "helped" whether or not the text is the better for it.
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
    """A text to go on from, and how people went on, if that is known."""

    text: str
    continuation: str | None = None


@dataclass(frozen=True)
class ScoredContinuation:
    """What a strategy wrote after a prompt, and how likely two models find it."""

    prompt: int
    """which prompt, counted from 0"""
    sample: int
    ids: tuple[int, ...]
    text: str
    model_likelihood: Likelihood
    second: Likelihood | None = None


@dataclass(frozen=True)
class GenerationMetric:
    """A figure that is given for every strategy. `matters` is relative for a perplexity, else in the figure's unit."""

    name: str
    title: str
    kind: MetricKind
    better: Literal["lower", "higher"] | None
    matters: float
    about: str

    @property
    def metric(self) -> MetricName:
        """The scale on which it is judged."""
        if self.kind == "perplexity":
            return "perplexity"
        return "loss" if self.better == "lower" else "score"

    def shown(self, mean: float) -> float:
        """From the mean of the tallies to the figure that is read."""
        return math.exp(mean) if self.kind == "perplexity" else mean

    def clip_to_range(self, value: float) -> float:
        """An interval does not leave the range of its figure."""
        most = {"share": 1.0, "points": 100.0}.get(self.kind, math.inf)
        return min(max(value, 0.0), most)


METRICS = (
    GenerationMetric(
        "perplexity",
        "perplexity",
        "perplexity",
        "lower",
        0.01,
        "under the model itself, per token: exp of its loss on what was written",
    ),
    GenerationMetric(
        "bits", "bits per byte", "bits", "lower", 0.01, "the same loss per byte of text, whatever the tokens"
    ),
    GenerationMetric(
        "second",
        "bits per byte, second model",
        "bits",
        "lower",
        0.01,
        "the loss of the second model on the same text, cut by its own tokenizer, per byte",
    ),
    GenerationMetric(
        "distinct-1", "distinct-1", "share", "higher", 0.01, "different words of all words in a prompt's samples"
    ),
    GenerationMetric("distinct-2", "distinct-2", "share", "higher", 0.01, "different pairs of words of all pairs"),
    GenerationMetric("distinct-3", "distinct-3", "share", "higher", 0.01, "different triples of words of all triples"),
    GenerationMetric(
        "self-bleu", "self-BLEU", "points", "lower", 1.0, "BLEU of a sample against its prompt's other samples"
    ),
    GenerationMetric(
        "repetition", "repetition", "share", "lower", 0.01, "runs of four words that a sample already held"
    ),
    GenerationMetric(
        "nearness",
        "chrF to people",
        "points",
        "higher",
        1.0,
        "chrF of a sample against what people wrote, cut to as many tokens as a sample may have",
    ),
    GenerationMetric(
        "nearest", "chrF, nearest sample", "points", "higher", 1.0, "the same for the nearest sample of a prompt"
    ),
    GenerationMetric("length", "length", "count", None, 0.0, "tokens of a sample; the stop token is not counted"),
)
METRICS_BY_NAME = {one.name: one for one in METRICS}
HUMAN_METRICS = ("perplexity", "bits", "second", "repetition", "length")
"""what can be said of people's continuations, of which there is one a prompt"""


@dataclass(frozen=True)
class MetricEstimate:
    """A figure and its 95 % interval over prompts; no interval from fewer than two prompts."""

    value: float
    interval: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "interval": list(self.interval) if self.interval else None}


@dataclass(frozen=True)
class StrategyPairVerdict:
    """One strategy against another on one measure: the verdict of headtohead.verdict on `strategy` beside `against`."""

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
    """Every measure's tally for each prompt. `people` is what people wrote, cut to the samples' length.

    A measure that does not apply is left out: one of a second model where there is none, self-BLEU of one sample.
    """
    of_prompt: list[list[ScoredContinuation]] = [[] for _ in range(num_prompts)]
    for one in continuations:
        of_prompt[one.prompt].append(one)
    made = [_compute_ratios_of_prompt(own, references[i]) for i, own in enumerate(of_prompt)]
    columns = {name: [row.get(name, EMPTY_RATIO) for row in made] for name in METRICS_BY_NAME}
    return {name: column for name, column in columns.items() if any(tally.of for tally in column)}


def _compute_ratios_of_prompt(continuations: Sequence[ScoredContinuation], reference: str | None) -> dict[str, Ratio]:
    texts = [one.text for one in continuations]
    made = {
        **_compute_loss_ratios([one.model_likelihood for one in continuations], [one.second for one in continuations]),
        **{f"distinct-{n}": diversity.compute_distinct_n(texts, n) for n in (1, 2, 3)},
        "self-bleu": diversity.compute_self_bleu(texts),
        "repetition": diversity.compute_repetition(texts),
        "length": Ratio(sum(len(one.ids) for one in continuations), len(continuations)),
    }
    if reference and texts:
        near = diversity.compute_chrf(texts, reference)
        made["nearness"] = Ratio(sum(near), len(near))
        if len(near) > 1:
            made["nearest"] = Ratio(max(near), 1)
    return made


def _compute_loss_ratios(
    model_likelihoods: Sequence[Likelihood], scoring_model_likelihoods: Sequence[Likelihood | None]
) -> dict[str, Ratio]:
    loss = sum(one.loss for one in model_likelihoods)
    made = {
        "perplexity": Ratio(loss, sum(one.tokens for one in model_likelihoods)),
        "bits": Ratio(loss / NATS_PER_BIT, sum(one.bytes for one in model_likelihoods)),
    }
    others = [one for one in scoring_model_likelihoods if one is not None]
    if others:
        made["second"] = Ratio(sum(one.loss for one in others) / NATS_PER_BIT, sum(one.bytes for one in others))
    return made


def estimate_metric(metric_name: str, prompt_ratios: PromptRatios) -> MetricEstimate | None:
    """Total over total, with its t interval over prompts; None where there is nothing to count."""
    values = linearize_ratios(prompt_ratios)
    if values is None:
        return None
    one, mean = METRICS_BY_NAME[metric_name], float(values.mean())
    if len(values) < 2:
        return MetricEstimate(one.shown(mean), None)
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = float(special.stdtrit(len(values) - 1, 0.5 + CONFIDENCE_LEVEL / 2)) * error
    low, high = (one.clip_to_range(one.shown(mean + side * half)) for side in (-1, 1))
    return MetricEstimate(one.shown(mean), (low, high))


def linearize_ratios(prompt_ratios: PromptRatios) -> PromptValues | None:
    """What each prompt says: the figure plus the prompt's influence on it. Their mean is the figure, exactly."""
    total, of = np.array([one.total for one in prompt_ratios]), np.array([one.of for one in prompt_ratios], dtype=float)
    if not of.sum():
        return None
    ratio = total.sum() / of.sum()
    return np.asarray(ratio + (total - ratio * of) / of.mean(), dtype=float)


def judge_strategy_pairs(metric_name: str, ratios_by_strategy: Mapping[str, PromptRatios]) -> list[StrategyPairVerdict]:
    """Every strategy against every earlier one on this measure, paired by prompt."""
    one = METRICS_BY_NAME[metric_name]
    found = {strategy: linearize_ratios(column) for strategy, column in ratios_by_strategy.items()}
    values = {strategy: value for strategy, value in found.items() if value is not None}
    if one.better is None or len(values) < 2:
        return []
    names = {f"{b}\n{a}": (b, a) for a, b in combinations(values, 2)}
    # A prompt stands where the rule has a seed, as what is drawn anew; differences meet a baseline of nothing, so that
    # one call judges all pairs and its intervals hold for all of them at once.
    against = {key: _to_verdict_scores(values[b] - values[a]) for key, (b, a) in names.items()}
    prompts = len(next(iter(values.values())))
    judged = compare_scores(
        _to_verdict_scores(np.zeros(prompts)), against, metric=one.metric, equivalence_margin=one.matters
    )
    made = []
    for row in judged:
        strategy, other = names[row.variant]
        made.append(
            StrategyPairVerdict(
                metric_name,
                strategy,
                other,
                row.outcome,
                row.effect,
                row.interval,
                row.adjusted_confidence,
                row.min_detectable_effect,
                row.seeds,
            )
        )
    return made


def _to_verdict_scores(values: PromptValues) -> scores.Scores:
    return scores.Scores(tuple(range(len(values))), values[:, None], np.ones(1))


def compare_strategies(ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]], baseline: str) -> dict[str, Any]:
    """Plain JSON values: the figures of every strategy, and a verdict for every pair on every measure. In a pair with
    the baseline, it is the baseline that the other is held against."""
    figures = {
        strategy: {
            name: found.to_dict()
            for name, column in columns.items()
            if (found := estimate_metric(name, column)) is not None
        }
        for strategy, columns in ratios_by_strategy.items()
    }
    judged = []
    ordered = sorted(ratios_by_strategy, key=lambda strategy: strategy != baseline)
    for name in METRICS_BY_NAME:
        columns = {
            strategy: ratios_by_strategy[strategy][name] for strategy in ordered if name in ratios_by_strategy[strategy]
        }
        judged += [one.to_dict() for one in judge_strategy_pairs(name, columns)]
    return {"figures": figures, "pairs": judged}


def describe_metrics(ratios_by_strategy: Mapping[str, Mapping[str, PromptRatios]]) -> list[dict[str, Any]]:
    """The measures that some strategy has, described."""
    return [dict(vars(one)) for one in METRICS if any(one.name in columns for columns in ratios_by_strategy.values())]


def _to_json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
