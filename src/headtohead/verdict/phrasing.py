"""Format verdicts as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headtohead.verdict.interim import MIN_SEEDS
from headtohead.verdict.lost_runs import compute_failure_rate_p_value
from headtohead.verdict.prediction import MAX_SEEDS, TARGET_PROBABILITY, AdditionalData
from headtohead.verdict.record import Interval, Verdict
from headtohead.verdict.rule import CANNOT_TELL, METRICS, NO_PRACTICAL_DIFFERENCE, Metric

FEW_DOCUMENTS = 5
"""number of documents below which a verdict speaks of these documents first"""
MAX_SHOWN_CHANGE = 10.0
"""relative change above which only "more than 1,000 %" is displayed"""
MAX_SHOWN_REDUCTION = 0.999
"""relative reduction above which only "more than 99.9 %" is displayed"""
MAX_DECIMALS = 6


def format_summary(verdict: Verdict, additional_data: AdditionalData, unused_seeds: Sequence[int] = ()) -> str:
    """Return the outcome, effect, deciding interval, amount of data, and what would settle an open verdict."""
    low, high = verdict.interval
    has_excess_losses = verdict.lost_runs != verdict.baseline_lost_runs
    is_settled_by_interval = low > 0 or high < 0 or _is_equivalent(verdict)
    if verdict.outcome == CANNOT_TELL and has_excess_losses and is_settled_by_interval:
        sentence, needed = _format_excess_losses(verdict), ""
    else:
        sentence = (_format_few_documents if 1 < verdict.documents < FEW_DOCUMENTS else _format_verdict)(verdict)
        needed = _format_additional_data(verdict, additional_data)
    parts = [sentence, needed, _format_failure_rate(verdict), _format_caveats(verdict, unused_seeds)]
    return " ".join(filter(None, parts))


def _is_equivalent(verdict: Verdict) -> bool:
    low, high = verdict.equivalence_interval
    return -verdict.equivalence_margin <= low and high <= verdict.equivalence_margin


def _format_verdict(verdict: Verdict) -> str:
    """Return the sentence about new text, or about this test set if its documents are unknown."""
    metric, name = METRICS[verdict.metric], verdict.variant
    decimals = _choose_decimals(metric, verdict.interval)
    change = f"{metric.name} {_format_change(metric, verdict.effect, decimals)}"
    data = f"{verdict.seeds} seeds" + (f", {_format_documents(verdict)}" if verdict.documents > 1 else "")
    data += _format_comparisons(verdict)
    interval = f"{_format_level(verdict)} interval {_format_interval(metric, verdict.interval, decimals)}"
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE and verdict.interval == (0.0, 0.0):
        return f"{name} makes no practical difference: its scores are identical to those of the baseline ({data})."
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE:
        bounds = _format_interval(metric, verdict.equivalence_interval, decimals)
        margin = f"inside ±{_format_with_unit(metric, verdict.equivalence_margin)}"
        interval = f"{_format_level(verdict, is_equivalence=True)} equivalence interval {bounds}"
        return f"{name} makes no practical difference: {change} ({interval}, {margin}; {data})."
    if verdict.outcome == CANNOT_TELL:
        return f"{name}: cannot tell. {_capitalize_first(change)}, but the {interval} ({data})."
    return f"{name} {verdict.outcome}: {change} ({interval}; {data})."


def _format_few_documents(verdict: Verdict) -> str:
    """Return the sentence about these documents, with the interval for new text beside it."""
    metric = METRICS[verdict.metric]
    decimals = _choose_decimals(metric, verdict.seed_interval)
    here = _format_interval(metric, verdict.seed_interval, decimals)
    new_text = _format_interval(metric, verdict.interval, _choose_decimals(metric, verdict.interval))
    outcome = "" if verdict.outcome == CANNOT_TELL else f" {verdict.outcome}"
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE:
        outcome = " makes no practical difference"
    return (
        f"{verdict.variant}{outcome}: on these {_format_documents(verdict)}, {metric.name} "
        f"{_format_change(metric, verdict.effect, decimals)} ({_format_level(verdict)} interval "
        f"{here}; {verdict.seeds} seeds{_format_comparisons(verdict)}). For new text the interval "
        + (f"{new_text}: cannot tell." if verdict.outcome == CANNOT_TELL else f"is {new_text.removeprefix('runs ')}.")
    )


def _format_excess_losses(verdict: Verdict) -> str:
    """Return the sentence about a difference between the finished runs that may be due to lost runs."""
    metric = METRICS[verdict.metric]
    decimals = _choose_decimals(metric, verdict.interval)
    bounds = _format_interval(metric, verdict.interval, decimals)
    return (
        f"{verdict.variant}: cannot tell. In the runs that finished, {metric.name} is "
        f"{_format_change(metric, verdict.effect, decimals)} ({_format_level(verdict)} interval "
        f"{bounds}; {verdict.seeds} seeds{_format_comparisons(verdict)}), "
        "but the losses of the two sides differ, and the interval does not count lost runs."
    )


def _format_comparisons(verdict: Verdict) -> str:
    return f", one of {verdict.comparisons} comparisons" if verdict.comparisons > 1 else ""


def _format_level(verdict: Verdict, *, is_equivalence: bool = False) -> str:
    """Return the confidence level of the interval, with two digits of its error rate, such as "99.75 %"."""
    error = 100 * (1 - verdict.adjusted_confidence) * (2 if is_equivalence else 1)
    decimals = max(1 - math.floor(math.log10(error)), 0) if error > 0 else 0
    return f"{round(100 - error, decimals):g} %"


def _format_documents(verdict: Verdict) -> str:
    return f"{verdict.documents:,} {_get_document_noun(verdict)}{'' if verdict.documents == 1 else 's'}"


def _get_document_noun(verdict: Verdict) -> str:
    return "example" if verdict.documents == verdict.examples else "document"


def format_quick_look(verdict: Verdict, occasion: str) -> str:
    """Return the effect and the amount of data behind a difference that is not judged."""
    change = "no score in common with the baseline"
    if math.isfinite(verdict.effect):
        metric = METRICS[verdict.metric]
        change = f"{metric.name} {_format_change(metric, verdict.effect, 1 if _is_shown_as_percentage(metric) else 3)}"
    seeds = f"{verdict.seeds} seed{'' if verdict.seeds == 1 else 's'}"
    return f"{verdict.variant}: {change} {occasion} ({seeds}, {_format_documents(verdict)}), which is not judged."


def format_too_few_seeds(verdict: Verdict, baseline_scores: Sequence[float], variant_scores: Sequence[float]) -> str:
    """Return a sentence with the scores, for too few seeds to compute an interval."""
    needed = f"An interval needs at least {MIN_SEEDS} seeds."
    seeds = f"{verdict.seeds} seed{'' if verdict.seeds == 1 else 's'}"
    if not variant_scores or not baseline_scores:
        return f"{verdict.variant}: no score to compare with the baseline. {needed}"
    metric = METRICS[verdict.metric]
    ours, theirs = (
        ", ".join(_format_score(metric, score) for score in side) for side in (variant_scores, baseline_scores)
    )
    change = _format_change(metric, verdict.effect, 1 if _is_shown_as_percentage(metric) else 3)
    return f"{verdict.variant}: {metric.name} {ours}; baseline {theirs} ({seeds}; on average {change}). {needed}"


def _format_score(metric: Metric, score: float) -> str:
    return f"{100 * score:.1f} %" if metric.name == "accuracy" else f"{score:.4g}"


def explain_lost_runs(verdict: Verdict) -> str:
    """Return how many runs were lost on each side."""
    left = f", which leaves {verdict.seeds} of at least {MIN_SEEDS} pairs" if verdict.seeds < MIN_SEEDS else ""
    return (
        f"{verdict.lost_runs} of {verdict.runs} runs were lost (baseline: {verdict.baseline_lost_runs} of "
        f"{verdict.baseline_runs}){left}"
    )


def _format_failure_rate(verdict: Verdict) -> str:
    """Return how many runs were lost, and the failure rate that this number of runs cannot exclude."""
    bound = _format_failure_bound(verdict)
    if not verdict.lost_runs and not verdict.baseline_lost_runs:
        return f"No run failed; with {verdict.runs} runs, {bound}."
    p_value = compute_failure_rate_p_value(
        verdict.lost_runs, verdict.runs, verdict.baseline_lost_runs, verdict.baseline_runs
    )
    return (
        f"{verdict.lost_runs} of {verdict.runs} runs were lost (baseline: {verdict.baseline_lost_runs} of "
        f"{verdict.baseline_runs}; p = {p_value:.2g}); {bound}."
    )


def _format_failure_bound(verdict: Verdict) -> str:
    return f"failure rates up to {100 * verdict.max_failure_rate:.0f} % cannot be excluded"


def format_remedy(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Return how to settle an open verdict."""
    seeds = f"run {format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    noun = _get_document_noun(verdict)
    documents = f"score {format_more(additional_data.documents, noun)}" if additional_data.documents else ""
    return (" or " if additional_data.is_either_sufficient else " and ").join(filter(None, [seeds, documents]))


def format_not_comparable(variant_name: str, reason: str) -> str:
    return f"{variant_name} is not comparable: {reason}."


def format_rank_test(verdict: Verdict, p_value: float, min_seeds: int) -> str:
    """Return the outcome of the rank test in which lost runs rank worst.

    `min_seeds` is the smallest number of seeds with which the test can reach a decision.
    """
    is_open = verdict.outcome == CANNOT_TELL
    outcome = f"{verdict.variant}: cannot tell" if is_open else f"{verdict.variant} {verdict.outcome}"
    test = f"rank test with lost runs ranked worst: p = {p_value:.2g}, required {1 - verdict.adjusted_confidence:.2g}"
    needed = (
        f" A verdict on lost runs needs at least {min_seeds} seeds." if is_open and verdict.runs < min_seeds else ""
    )
    return (
        f"{outcome}{', because' if is_open else ':'} {explain_lost_runs(verdict)} "
        f"({test}{_format_comparisons(verdict)}).{needed} {_capitalize_first(_format_failure_bound(verdict))}."
    )


def _format_additional_data(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Return a sentence on the data that would settle an open verdict, or an empty string for settled verdicts."""
    if verdict.outcome != CANNOT_TELL:
        return ""
    seeds = f"about {format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    noun = _get_document_noun(verdict)
    documents = f"about {format_more(additional_data.documents, noun)}" if additional_data.documents else ""
    would_settle = f"would settle it with a probability of {100 * TARGET_PROBABILITY:.0f} %."
    if seeds and documents:
        is_either = additional_data.is_either_sufficient
        both = f"{seeds}, or {documents}," if is_either else f"{seeds} together with {documents}"
        return f"{_capitalize_first(both)} {would_settle}"
    if seeds:
        return f"{_capitalize_first(seeds)} {would_settle}"
    if documents and verdict.dominant_noise_source == "documents":
        return f"Most noise is from the {noun}s, so more seeds would not help; {documents} {would_settle}"
    if documents:
        return f"More seeds alone would not help; {documents} {would_settle}"
    return f"Not even {MAX_SEEDS:,} seeds would settle it with that probability."


def format_more(count: int, noun: str) -> str:
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_caveats(verdict: Verdict, unused_seeds: Sequence[int]) -> str:
    """Return sentences on missing documents and on unmatched seeds, or an empty string if there are none."""
    caveats = []
    if verdict.examples == 1:
        caveats.append("Only one score per seed is known, so this holds for this test set, not for new text like it.")
    elif verdict.documents == 1:
        caveats.append("All examples are from one document, so this holds for this document, not for new text.")
    if not verdict.is_paired:
        caveats.append("Baseline and variant were run with different seeds, so they are compared without pairing.")
    if unused_seeds:
        seeds = f"Seed{'s' if len(unused_seeds) > 1 else ''} {', '.join(map(str, unused_seeds))}"
        caveats.append(f"{seeds} {'are' if len(unused_seeds) > 1 else 'is'} not scored for both and not used.")
    return " ".join(caveats)


def _choose_decimals(metric: Metric, interval: Interval) -> int:
    """Return the number of decimals needed to show the interval's half-width with two significant digits."""
    half_width = (interval[1] - interval[0]) / 2 * (100 if _is_shown_as_percentage(metric) else 1)
    if not math.isfinite(half_width):
        return 1 if _is_shown_as_percentage(metric) else 3
    if half_width <= 0:
        return MAX_DECIMALS
    return min(max(1 - math.floor(math.log10(half_width)), 0), MAX_DECIMALS)


def _is_shown_as_percentage(metric: Metric) -> bool:
    return metric.name in ("perplexity", "accuracy")


def _format_interval(metric: Metric, interval: Interval, decimals: int) -> str:
    """Return the interval in words, as in "1.2 to 3.4 % lower"."""
    low, high = interval
    if metric.is_relative and low >= MAX_SHOWN_CHANGE:
        return "also beyond that"
    if (low < 0) == (high < 0) and max(abs(low), abs(high)) < MAX_SHOWN_CHANGE:
        smaller, larger = sorted((abs(low), abs(high)))
        bounds = f"{_format_number(metric, smaller, decimals)} to {_format_with_unit(metric, larger, decimals)}"
        return f"{bounds} {_format_direction(high)}"
    return f"runs from {_format_change(metric, low, decimals)} to {_format_change(metric, high, decimals)}"


def _format_change(metric: Metric, effect: float, decimals: int) -> str:
    """Return a change in words, as in "3.1 % lower"."""
    if effect == 0:
        return "the same"
    if metric.is_relative and effect >= MAX_SHOWN_CHANGE:
        return "more than 1,000 % higher"
    if metric.is_relative and effect < -MAX_SHOWN_REDUCTION:
        return "more than 99.9 % lower"
    return f"{_format_with_unit(metric, abs(effect), decimals)} {_format_direction(effect)}"


def _format_direction(effect: float) -> str:
    return "lower" if effect < 0 else "higher"


def _format_number(metric: Metric, magnitude: float, decimals: int) -> str:
    number = magnitude * (100 if _is_shown_as_percentage(metric) else 1)
    if decimals == MAX_DECIMALS and 0 < number < 0.5 * 10**-MAX_DECIMALS:
        return f"{number:.2g}"
    return f"{number:,.{decimals}f}"


def _format_with_unit(metric: Metric, magnitude: float, decimals: int | None = None) -> str:
    """Return a magnitude with its unit for use in a sentence, with all significant digits if `decimals` is None."""
    if decimals is None:
        number = f"{round(magnitude * (100 if _is_shown_as_percentage(metric) else 1), 9):g}"
    else:
        number = _format_number(metric, magnitude, decimals)
    if metric.name == "perplexity":
        return f"{number} %"
    if metric.name == "accuracy":
        return f"{number} point{'' if number == '1' else 's'}"
    return number
