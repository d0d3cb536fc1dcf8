"""The wording of a decoding report: its title and lead, values of metrics, verdicts on strategies and trace steps."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from headtohead.decoding_comparison.results import (
    DecodingResults,
    GenerationMetric,
    MetricEstimate,
    StrategyPairVerdict,
    TraceStep,
)
from headtohead.presentation import number_format
from headtohead.presentation.section import VerdictCard
from headtohead.verdict.phrasing import format_confidence

HEADLINE_METRICS = ("perplexity", "scoring-bits", "distinct-2", "repetition", "chrf")
"""likelihood, diversity and human-similarity metrics for the verdicts at the top"""
DECIMALS = {"bits": 3, "points": 1, "count": 1}
VISIBLE_CHARACTERS = {" ": "␣", "\n": "↵", "\t": "⇥"}
SHORT_DECIMALS = {"perplexity": 0, "bits": 2, "share": 1, "points": 1, "count": 1}
"""decimals of a difference that is shown without its interval"""


def format_metric_value(kind: str, number: Any) -> str:
    """Phrase a decoding metric's value with its unit, or the placeholder for a missing value."""
    if not number_format.is_finite_number(number):
        return number_format.MISSING_VALUE
    if kind == "perplexity":
        return number_format.format_perplexity(number)
    return number_format.format_percentage(number) if kind == "share" else f"{number:,.{DECIMALS[kind]}f}"


def format_metric_interval(kind: str, interval: Sequence[Any] | None) -> str:
    """Return the interval of a decoding metric with its unit once, such as "371.2 to 386.4"; empty if there is none."""
    if not interval or not all(number_format.is_finite_number(end) for end in interval):
        return ""
    low, high = (format_metric_value(kind, end) for end in interval)
    return f"{low.removesuffix(f'{number_format.NO_BREAK_SPACE}%')} to {high}"


def format_metric_estimate(metric: GenerationMetric, estimate: MetricEstimate | None) -> str:
    """Return a decoding metric's estimate followed by its interval in parentheses."""
    if estimate is None:
        return number_format.MISSING_VALUE
    interval = format_metric_interval(metric.kind, estimate.interval).replace(" ", number_format.NO_BREAK_SPACE)
    return format_metric_value(metric.kind, estimate.value) + (f" ({interval})" if interval else "")


def format_metric_change(kind: str, effect: Any, interval: Sequence[Any] | None = None) -> str:
    """Return the change of a decoding metric with its sign and unit, such as "−61 %", "+3.1 points" or "−0.21".

    With `interval`, the number of decimals follows from its width.
    """
    if not number_format.is_finite_number(effect):
        return number_format.MISSING_VALUE
    metric = _get_number_format(kind)
    return number_format.format_effect(
        metric, effect, number_format.choose_decimals(metric, interval) if interval else SHORT_DECIMALS[kind]
    )


def describe_metric_change_interval(kind: str, interval: Sequence[Any]) -> str:
    """Describe the interval of a metric's change, such as "55 to 66 % lower" or "2 % lower to 3 % higher"."""
    if not all(number_format.is_finite_number(end) for end in interval):
        return "no interval"
    metric, (low, high) = _get_number_format(kind), interval
    decimals = number_format.choose_decimals(metric, interval)
    if low == high:
        return "no width"
    if (low < 0) == (high < 0):
        smallest, largest = sorted((abs(low), abs(high)))
        smallest_text = number_format.format_signed_effect(metric, smallest, decimals).lstrip("+")
        largest_text = number_format.format_effect(metric, largest, decimals).lstrip("+")
        return f"{smallest_text} to {largest_text} {'lower' if high < 0 else 'higher'}"
    return f"{describe_metric_change(kind, low, decimals)} to {describe_metric_change(kind, high, decimals)}"


def describe_metric_change(kind: str, effect: float, decimals: int | None = None) -> str:
    """Describe the change of a decoding metric in words, such as "61 % lower"."""
    if effect == 0:
        return "the same"
    size = number_format.format_effect(_get_number_format(kind), abs(effect), decimals).lstrip("+")
    return f"{size} {'lower' if effect < 0 else 'higher'}"


def describe_strategy_pair(pair: StrategyPairVerdict, metric: GenerationMetric) -> str:
    """Phrase one strategy's effect on a metric, relative to a reference strategy.

    For example "perplexity 61 % lower (99.2 % confidence interval 55 to 66 % lower)".
    """
    kind = metric.kind
    if pair.effect == 0:
        return f"{metric.title} the same"
    decimals = number_format.choose_decimals(_get_number_format(kind), pair.interval)
    if not all(number_format.is_finite_number(end) for end in pair.interval):
        return f"{metric.title} {describe_metric_change(kind, pair.effect)} (one prompt: no interval)"
    level = format_confidence(pair.adjusted_confidence).replace(" ", number_format.NO_BREAK_SPACE)
    interval = f"{level} confidence interval {describe_metric_change_interval(kind, pair.interval)}"
    return f"{metric.title} {describe_metric_change(kind, pair.effect, decimals)} ({interval})"


def build_verdict_cards(results: DecodingResults) -> dict[str, list[VerdictCard]]:
    """Return the verdicts on each strategy against the baseline strategy, one per headline metric."""
    cards: dict[str, list[VerdictCard]] = {}
    for strategy in results.estimates:
        for name in HEADLINE_METRICS:
            if pair := results.find_pair(strategy, results.baseline, name):
                summary = describe_strategy_pair(pair, results.metrics_by_name[name])
                card = VerdictCard(strategy, pair.outcome, summary)
                cards.setdefault(strategy, []).append(card)
    return cards


def build_report_title(results: DecodingResults) -> str:
    """Return the title of a decoding report, such as "Five ways to decode SmolLM2"."""
    num_strategies = len(results.estimates)
    number_words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    number = number_words[num_strategies] if num_strategies < len(number_words) else str(num_strategies)
    return f"{number} way{'s' if num_strategies != 1 else ''} to decode {results.model.name}"


def build_report_lead(results: DecodingResults) -> str:
    """Return the first paragraph of a decoding report: prompts, samples, length, seed and scoring model."""
    settings, num_prompts = results.settings, len(results.prompts)
    scoring = f"Scoring model: {results.scoring_model.name}" if results.scoring_model else "No scoring model was given"
    return (
        f"{num_prompts:,} prompt{'s' if num_prompts != 1 else ''}, "
        f"{settings.samples} sample{'s' if settings.samples != 1 else ''} each, "
        f"up to {settings.max_new_tokens} new tokens, seed {settings.seed}. {scoring}."
    )


def describe_trace_step(step: TraceStep) -> str:
    """Phrase a step of a decoding trace: the sampled token, its rank and probability, and the tokens kept."""
    probability = format_trace_probability(step.probability)
    description = f"sampled {format_trace_token(step.token)}, rank {step.rank:,}, probability {probability}"
    if step.kept is None:
        return description
    noun = "token" if step.kept == 1 else "tokens"
    return f"{description}; kept {step.kept:,} {noun} with {format_trace_probability(step.mass)}"


def format_trace_token(text: str) -> str:
    """Return a token of a decoding trace with spaces, line breaks and control characters made visible.

    Control characters must be replaced because XML, and therefore SVG, does not allow them.
    """
    return "".join(_make_character_visible(character) for character in text) or "∅"


def _make_character_visible(character: str) -> str:
    """Return a visible symbol for a whitespace or control character of a traced token; others are unchanged."""
    if character in VISIBLE_CHARACTERS:
        return VISIBLE_CHARACTERS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))  # Unicode control pictures
    is_invisible = unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co")
    return f"U+{ord(character):04X}" if is_invisible else character


def format_trace_probability(probability: float | None) -> str:
    """Return a token's probability in a decoding trace with at least two significant digits, such as "12.3 %"."""
    if probability is None:
        return number_format.MISSING_VALUE
    if probability <= 0:
        return f"0{number_format.NO_BREAK_SPACE}%"
    decimals = min(max(1, 1 - math.floor(math.log10(100 * probability))), 6)
    return f"{100 * probability:.{decimals}f}{number_format.NO_BREAK_SPACE}%"


def _get_number_format(kind: str) -> str:
    """Return the metric name under which `number_format` formats this kind of metric."""
    return {"perplexity": "perplexity", "share": "accuracy"}.get(kind, "loss")
