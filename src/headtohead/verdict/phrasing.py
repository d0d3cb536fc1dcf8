"""Phrase verdicts: the summary sentences, the reason for an open verdict, and the effects and intervals in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headtohead.verdict.additional_data import MAX_SEEDS, TARGET_PROBABILITY, AdditionalData
from headtohead.verdict.decision_rule import CANNOT_TELL, NO_PRACTICAL_DIFFERENCE
from headtohead.verdict.interim import MIN_SEEDS
from headtohead.verdict.lost_runs import compute_failure_rate_p_value
from headtohead.verdict.metric import METRICS, Metric
from headtohead.verdict.record import Interval, Verdict

FEW_DOCUMENTS = 5
"""number of documents below which a verdict states the effect on the test documents first"""
MAX_SKEWED_DOCUMENTS = 10
"""number of documents up to which a settled verdict names the assumption that few of them do not dominate the effect:
the interval covers skewed effects of documents too rarely (docs/calibration.md)"""
MAX_SHOWN_CHANGE = 10.0
"""relative change above which only "more than 1,000 %" is displayed"""
MAX_SHOWN_REDUCTION = 0.999
"""relative reduction above which only "more than 99.9 %" is displayed"""
MAX_DECIMALS = 6


def format_summary(verdict: Verdict, additional_data: AdditionalData, unused_seeds: Sequence[int] = ()) -> str:
    """Phrase the verdict: outcome, effect, interval, amount of data and, if it is open, the data needed."""
    low, high = verdict.interval
    has_unequal_losses = verdict.lost_runs != verdict.baseline_lost_runs
    is_settled_by_interval = low > 0 or high < 0 or _is_equivalent(verdict)
    if verdict.outcome == CANNOT_TELL and has_unequal_losses and is_settled_by_interval:
        outcome_sentence, advice = _format_unequal_losses(verdict), ""
    else:
        has_few_documents = 1 < verdict.documents < FEW_DOCUMENTS
        outcome_sentence = (_format_outcome_on_few_documents if has_few_documents else _format_outcome)(verdict)
        advice = _format_additional_data(verdict, additional_data)
    sentences = [outcome_sentence, advice, _format_failure_rate(verdict), _format_caveats(verdict, unused_seeds)]
    return " ".join(filter(None, sentences))


def _is_equivalent(verdict: Verdict) -> bool:
    """Return whether the equivalence interval lies within the equivalence margin."""
    low, high = verdict.equivalence_interval
    return -verdict.equivalence_margin <= low and high <= verdict.equivalence_margin


def _format_outcome(verdict: Verdict) -> str:
    """Phrase the effect for new text, or for this test set if its documents are unknown."""
    metric, name = METRICS[verdict.metric], verdict.variant
    decimals = _choose_decimals(metric, verdict.interval)
    change = f"{metric.name} {_format_change(metric, verdict.effect, decimals)}"
    sample = f"{verdict.seeds} seeds" + (f", {_format_documents(verdict)}" if verdict.documents > 1 else "")
    sample += _format_comparisons(verdict)
    bounds = _format_interval(metric, verdict.interval, decimals)
    interval = f"{_format_confidence_level(verdict)} confidence interval {bounds}"
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE and verdict.interval == (0.0, 0.0):
        return f"{name} makes no practical difference: its scores are identical to those of the baseline ({sample})."
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE:
        return f"{name} makes no practical difference: {change} ({_format_equivalence(verdict)}; {sample})."
    if verdict.outcome == CANNOT_TELL:
        return f"{name}: cannot tell. {_capitalize_first(change)}, but the {interval} ({sample})."
    return f"{name} {verdict.outcome}: {change} ({interval}; {sample})."


def _format_equivalence(verdict: Verdict) -> str:
    """Phrase the interval that proves equivalence, and the margin that contains it."""
    metric = METRICS[verdict.metric]
    decimals = _choose_decimals(metric, verdict.equivalence_interval)
    bounds = _format_interval(metric, verdict.equivalence_interval, decimals)
    margin = _format_with_unit(metric, verdict.equivalence_margin)
    return f"{_format_confidence_level(verdict, is_equivalence=True)} equivalence interval {bounds}, inside ±{margin}"


def _format_outcome_on_few_documents(verdict: Verdict) -> str:
    """Phrase the effect on the test documents, followed by the interval for new text."""
    metric = METRICS[verdict.metric]
    decimals = _choose_decimals(metric, verdict.seed_interval)
    seed_interval = _format_interval(metric, verdict.seed_interval, decimals)
    new_text_interval = _format_interval(metric, verdict.interval, _choose_decimals(metric, verdict.interval))
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE:
        outcome, conclusion = " makes no practical difference", f"For new text: {_format_equivalence(verdict)}."
    elif verdict.outcome == CANNOT_TELL:
        outcome, conclusion = "", f"For new text the interval {new_text_interval}: cannot tell."
    else:
        outcome, conclusion = f" {verdict.outcome}", f"For new text the interval is {new_text_interval}."
    return (
        f"{verdict.variant}{outcome}: on these {_format_documents(verdict)}, {metric.name} "
        f"{_format_change(metric, verdict.effect, decimals)} ({_format_confidence_level(verdict)} confidence interval "
        f"{seed_interval}; {verdict.seeds} seeds{_format_comparisons(verdict)}). {conclusion}"
    )


def _format_unequal_losses(verdict: Verdict) -> str:
    """Phrase a difference between finished runs that the loss of runs may explain."""
    metric = METRICS[verdict.metric]
    decimals = _choose_decimals(metric, verdict.interval)
    bounds = _format_interval(metric, verdict.interval, decimals)
    return (
        f"{verdict.variant}: cannot tell. In the runs that finished, {metric.name} is "
        f"{_format_change(metric, verdict.effect, decimals)} ({_format_confidence_level(verdict)} confidence interval "
        f"{bounds}; {verdict.seeds} seeds{_format_comparisons(verdict)}), "
        "but the two sides lost different numbers of runs, which the interval does not count."
    )


def _format_comparisons(verdict: Verdict) -> str:
    """Return the note that several comparisons share the error rate, or an empty string."""
    if verdict.comparisons == 1:
        return ""
    return f", one of {verdict.comparisons} comparisons with {100 * verdict.confidence:g} % joint confidence"


def _format_confidence_level(verdict: Verdict, *, is_equivalence: bool = False) -> str:
    """Return the confidence level of the interval, or that of the equivalence interval: two one-sided tests."""
    return format_confidence(2 * verdict.adjusted_confidence - 1 if is_equivalence else verdict.adjusted_confidence)


def format_confidence(confidence: float) -> str:
    """Return a confidence level with two digits of its error rate, such as "99.75 %"."""
    error_percent = 100 * (1 - confidence)
    decimals = max(1 - math.floor(math.log10(error_percent)), 0) if error_percent > 0 else 0
    return f"{round(100 - error_percent, decimals):g} %"


def _format_documents(verdict: Verdict) -> str:
    """Return the number of test documents, or of examples if every example is its own document."""
    return f"{verdict.documents:,} {_get_document_noun(verdict)}{'' if verdict.documents == 1 else 's'}"


def _get_document_noun(verdict: Verdict) -> str:
    """Return "example" if every example is its own document."""
    return "example" if verdict.documents == verdict.examples else "document"


def format_quick_look(verdict: Verdict, occasion: str) -> str:
    """Phrase the effect and the amount of data of a quick look, without a judgment."""
    change = "no score in common with the baseline"
    if math.isfinite(verdict.effect):
        metric = METRICS[verdict.metric]
        change = f"{metric.name} {_format_change(metric, verdict.effect, 1 if _is_shown_as_percentage(metric) else 3)}"
    seeds = f"{verdict.seeds} seed{'' if verdict.seeds == 1 else 's'}"
    return f"{verdict.variant}: {change} {occasion} ({seeds}, {_format_documents(verdict)}), which is not judged."


def format_too_few_seeds(verdict: Verdict, baseline_scores: Sequence[float], variant_scores: Sequence[float]) -> str:
    """Phrase the scores, for too few seeds to compute an interval."""
    required_seeds = f"An interval needs at least {MIN_SEEDS} seeds."
    seeds = f"{verdict.seeds} seed{'' if verdict.seeds == 1 else 's'}"
    if not variant_scores or not baseline_scores:
        return f"{verdict.variant}: no score to compare with the baseline. {required_seeds}"
    metric = METRICS[verdict.metric]
    variant_list, baseline_list = (
        ", ".join(_format_score(metric, score) for score in scores) for scores in (variant_scores, baseline_scores)
    )
    change = _format_change(metric, verdict.effect, 1 if _is_shown_as_percentage(metric) else 3)
    return (
        f"{verdict.variant}: {metric.name} {variant_list}; baseline {baseline_list} ({seeds}; on average {change}). "
        f"{required_seeds}"
    )


def _format_score(metric: Metric, score: float) -> str:
    """Return the mean score of one run."""
    return f"{100 * score:.1f} %" if metric.name == "accuracy" else f"{score:.4g}"


def explain_lost_runs(verdict: Verdict) -> str:
    """Phrase the numbers of lost runs of variant and baseline, as the reason for an open verdict."""
    pairs = f"{verdict.seeds} pair{'' if verdict.seeds == 1 else 's'}"
    remaining = f", which leaves {pairs} where an interval needs {MIN_SEEDS}" if verdict.seeds < MIN_SEEDS else ""
    return (
        f"{verdict.lost_runs} of {verdict.runs} runs were lost (baseline: {verdict.baseline_lost_runs} of "
        f"{verdict.baseline_runs}){remaining}"
    )


def _format_failure_rate(verdict: Verdict) -> str:
    """Phrase the number of lost runs and an upper bound on the failure rate."""
    bound = _format_failure_bound(verdict)
    if not verdict.lost_runs and not verdict.baseline_lost_runs:
        return f"No run failed; with {verdict.runs} runs, {bound}."
    p_value = compute_failure_rate_p_value(
        verdict.lost_runs, verdict.runs, verdict.baseline_lost_runs, verdict.baseline_runs
    )
    return (
        f"{verdict.lost_runs} of {verdict.runs} runs of the variant and {verdict.baseline_lost_runs} of "
        f"{verdict.baseline_runs} of the baseline diverged or learned nothing (Fisher's exact test: "
        f"p = {p_value:.2g}); {bound}."
    )


def _format_failure_bound(verdict: Verdict) -> str:
    """Return a phrase on the failure rate that the runs of the variant do not exclude."""
    return f"failure rates up to {100 * verdict.max_failure_rate:.0f} % cannot be excluded"


def format_remedy(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Phrase advice on how to settle an open verdict."""
    seeds = f"run {format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    noun = _get_document_noun(verdict)
    documents = f"score {format_more(additional_data.documents, noun)}" if additional_data.documents else ""
    return (" or " if additional_data.is_either_sufficient else " and ").join(filter(None, [seeds, documents]))


def format_not_comparable(variant_name: str, reason: str) -> str:
    """Return the sentence of a verdict that is withheld."""
    return f"{variant_name} is not comparable: {reason}."


def format_rank_test(verdict: Verdict, p_value: float, min_seeds: int) -> str:
    """Phrase the outcome of the rank test in which lost runs rank worst.

    `min_seeds` is the smallest number of seeds with which the test can reach a decision.
    """
    is_open = verdict.outcome == CANNOT_TELL
    outcome = f"{verdict.variant}: cannot tell" if is_open else f"{verdict.variant} {verdict.outcome}"
    significance_level = f"significance level {1 - verdict.adjusted_confidence:.2g}"
    test = f"rank-sum test with lost runs ranked worst: p = {p_value:.2g}, {significance_level}"
    requirement = f" This test needs at least {min_seeds} seeds." if is_open and verdict.runs < min_seeds else ""
    return (
        f"{outcome}{', because' if is_open else ':'} {explain_lost_runs(verdict)} "
        f"({test}{_format_comparisons(verdict)}).{requirement} {_capitalize_first(_format_failure_bound(verdict))}."
    )


def _format_additional_data(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Phrase which data would settle an open verdict; an empty string for settled verdicts."""
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
        return (
            f"Most of the noise is from differences between {noun}s, so more seeds alone would not help; "
            f"{documents} {would_settle}"
        )
    if documents:
        return f"More seeds alone would not help; {documents} {would_settle}"
    return f"Not even {MAX_SEEDS:,} seeds {would_settle}"


def format_more(count: int, noun: str) -> str:
    """Return a number of additional seeds or documents, such as "1,200 more seeds"."""
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_caveats(verdict: Verdict, unused_seeds: Sequence[int]) -> str:
    """Phrase caveats on missing documents and on unmatched seeds; an empty string if there are none."""
    caveats = []
    if verdict.examples == 1:
        caveats.append("Only one score per seed is known, so this holds for this test set, not for new text like it.")
    elif verdict.documents == 1:
        caveats.append("All examples are from one document, so this holds for this document, not for new text.")
    elif FEW_DOCUMENTS <= verdict.documents <= MAX_SKEWED_DOCUMENTS and verdict.outcome != CANNOT_TELL:
        noun = _get_document_noun(verdict)
        caveats.append(
            f"With {verdict.documents} {noun}s, the interval is too narrow if the difference is far larger for a few "
            f"{noun}s than for the others."
        )
    if not verdict.is_paired:
        caveats.append("Baseline and variant were run with different seeds, so they are compared without pairing.")
    if unused_seeds:
        seeds = f"Seed{'s' if len(unused_seeds) > 1 else ''} {', '.join(map(str, unused_seeds))}"
        caveats.append(f"{seeds} {'are' if len(unused_seeds) > 1 else 'is'} not scored for both and not used.")
    return " ".join(caveats)


def _choose_decimals(metric: Metric, interval: Interval) -> int:
    """Return the decimals with which a verdict states an interval: two significant digits of its half-width.

    An end that rounds to 0 gets up to two more, since whether it is above or below 0 decides the verdict.
    """
    scale = 100 if _is_shown_as_percentage(metric) else 1
    half_width = (interval[1] - interval[0]) / 2 * scale
    if not math.isfinite(half_width):
        return 1 if _is_shown_as_percentage(metric) else 3
    if half_width <= 0:
        return MAX_DECIMALS
    fewest = min(max(1 - math.floor(math.log10(half_width)), 0), MAX_DECIMALS)
    for decimals in range(fewest, min(fewest + 3, MAX_DECIMALS + 1)):
        if all(end == 0 or round(scale * end, decimals) != 0 for end in interval):
            return decimals
    return fewest


def _is_shown_as_percentage(metric: Metric) -> bool:
    return metric.name in ("perplexity", "accuracy")


def _format_interval(metric: Metric, interval: Interval, decimals: int) -> str:
    """Phrase an interval in a verdict, as in "1.2 to 3.4 % lower"."""
    low, high = interval
    if metric.is_relative and low >= MAX_SHOWN_CHANGE:
        return "also beyond that"
    if (low < 0) == (high < 0) and max(abs(low), abs(high)) < MAX_SHOWN_CHANGE:
        smaller, larger = sorted((abs(low), abs(high)))
        bounds = f"{_format_number(metric, smaller, decimals)} to {_format_with_unit(metric, larger, decimals)}"
        return f"{bounds} {_format_direction(high)}"
    return f"runs from {_format_change(metric, low, decimals)} to {_format_change(metric, high, decimals)}"


def _format_change(metric: Metric, effect: float, decimals: int) -> str:
    """Phrase a change in a verdict, as in "3.1 % lower"."""
    if effect == 0:
        return "the same"
    if metric.is_relative and effect >= MAX_SHOWN_CHANGE:
        return "more than 1,000 % higher"
    if metric.is_relative and effect < -MAX_SHOWN_REDUCTION:
        return "more than 99.9 % lower"
    return f"{_format_with_unit(metric, abs(effect), decimals)} {_format_direction(effect)}"


def _format_direction(effect: float) -> str:
    """Return "lower" or "higher"."""
    return "lower" if effect < 0 else "higher"


def _format_number(metric: Metric, magnitude: float, decimals: int) -> str:
    """Phrase a magnitude in a verdict without its unit, in percent where the metric is shown as a percentage."""
    number = magnitude * (100 if _is_shown_as_percentage(metric) else 1)
    if decimals == MAX_DECIMALS and 0 < number < 0.5 * 10**-MAX_DECIMALS:
        return f"{number:.2g}"
    return f"{number:,.{decimals}f}"


def _format_with_unit(metric: Metric, magnitude: float, decimals: int | None = None) -> str:
    """Phrase a magnitude in a verdict with its unit, with all significant digits if `decimals` is None."""
    if decimals is None:
        number = f"{round(magnitude * (100 if _is_shown_as_percentage(metric) else 1), 9):g}"
    else:
        number = _format_number(metric, magnitude, decimals)
    if metric.name == "perplexity":
        return f"{number} %"
    if metric.name == "accuracy":
        return f"{number} point{'' if number == '1' else 's'}"
    return number
