"""Format verdicts as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headtohead.verdict.record import Interval, Verdict
from headtohead.verdict.rule import CANNOT_TELL, HELPED, HURT, METRICS, NO_PRACTICAL_DIFFERENCE, Metric

FEW_DOCUMENTS = 5
"""number of documents below which a verdict speaks of these documents first"""
MAX_SHOWN_CHANGE = 10.0
"""relative change above which only "more than 1,000 %" is displayed"""


@dataclass(frozen=True)
class AdditionalData:
    """The additional seeds or documents that would settle an open verdict, each alone or both together."""

    seeds: int | None = None
    documents: int | None = None
    is_either_sufficient: bool = True


def format_summary(verdict: Verdict, additional_data: AdditionalData, unpaired_seeds: Sequence[int] = ()) -> str:
    """Return the outcome, effect, deciding interval and amount of data, and what would settle an open verdict."""
    sentence = (_format_few_documents if 1 < verdict.documents < FEW_DOCUMENTS else _format_verdict)(verdict)
    needed = _format_additional_data(verdict, additional_data)
    return " ".join(filter(None, [sentence, needed, _format_caveats(verdict, unpaired_seeds)]))


def _format_verdict(verdict: Verdict) -> str:
    """Return the sentence about new text, or about this test set if its documents are not known."""
    metric, name = METRICS[verdict.metric], verdict.variant
    decimals = _choose_decimals(metric, verdict.interval)
    change = f"{metric.name} {_format_change(metric, verdict.effect, decimals)}"
    data = f"{verdict.seeds} seeds" + (f", {_format_documents(verdict)}" if verdict.documents > 1 else "")
    bounds = _format_interval(metric, verdict.interval, decimals)
    interval = f"{_format_percentage(verdict.confidence)} interval {bounds}"
    if verdict.outcome in (HELPED, HURT):
        return f"{name} {verdict.outcome}: {change} ({interval}; {data})."
    if verdict.outcome == NO_PRACTICAL_DIFFERENCE:
        bounds = _format_interval(metric, verdict.equivalence_interval, decimals)
        interval = f"{_format_percentage(2 * verdict.confidence - 1)} interval {bounds}"
        margin = f"inside ±{_format_with_unit(metric, verdict.equivalence_margin)}"
        return f"{name} makes no practical difference: {change} ({interval}, {margin}; {data})."
    return f"{name}: cannot tell. {_capitalize_first(change)}, but the {interval} ({data})."


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
        f"{_format_change(metric, verdict.effect, decimals)} ({_format_percentage(verdict.confidence)} interval "
        f"{here}; {verdict.seeds} seeds). For new text the interval "
        + (f"{new_text}: cannot tell." if verdict.outcome == CANNOT_TELL else f"is {new_text.removeprefix('runs ')}.")
    )


def _format_documents(verdict: Verdict) -> str:
    return f"{verdict.documents:,} {_get_document_noun(verdict)}s"


def _get_document_noun(verdict: Verdict) -> str:
    return "example" if verdict.documents == verdict.examples else "document"


def format_quick_look(verdict: Verdict) -> str:
    """Return the effect and the amount of data of a difference that is not judged."""
    change = "no score in common with the baseline"
    if math.isfinite(verdict.effect):
        metric = METRICS[verdict.metric]
        change = f"{metric.name} {_format_change(metric, verdict.effect, 1 if _is_shown_as_percentage(metric) else 3)}"
    seeds = f"{verdict.seeds} seed{'' if verdict.seeds == 1 else 's'}"
    return f"{verdict.variant}: {change} in a quick look ({seeds}, {_format_documents(verdict)}), which is not judged."


def explain_too_few_seeds(num_seeds: int) -> str:
    """Return why there is no interval."""
    shared = "no seed is" if num_seeds == 0 else "only one seed is"
    return f"{shared} shared with the baseline, and at least two are needed to estimate the noise"


def format_remedy(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Return how to settle an open verdict."""
    seeds = f"run {_format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    noun = _get_document_noun(verdict)
    documents = f"score {_format_more(additional_data.documents, noun)}" if additional_data.documents else ""
    return (" or " if additional_data.is_either_sufficient else " and ").join(filter(None, [seeds, documents]))


def format_not_comparable(variant_name: str, reason: str) -> str:
    return f"{variant_name} is not comparable: {reason}."


def format_cannot_tell(variant_name: str, reason: str) -> str:
    return f"{variant_name}: cannot tell, because {reason}."


def _format_additional_data(verdict: Verdict, additional_data: AdditionalData) -> str:
    """Return a sentence on the data that would settle an open verdict; empty for other verdicts."""
    if verdict.outcome != CANNOT_TELL:
        return ""
    seeds = f"about {_format_more(additional_data.seeds, 'seed')}" if additional_data.seeds else ""
    noun = _get_document_noun(verdict)
    documents = f"about {_format_more(additional_data.documents, noun)}" if additional_data.documents else ""
    if seeds and documents:
        is_either = additional_data.is_either_sufficient
        both = f"{seeds}, or {documents}," if is_either else f"{seeds} together with {documents}"
        return f"{_capitalize_first(both)} would settle it."
    if seeds:
        return f"{_capitalize_first(seeds)} would settle it."
    if documents and verdict.dominant_noise_source == "documents":
        return f"Most noise is from the {noun}s, so more seeds would not help; {documents} would settle it."
    if documents:
        return f"More seeds alone would not help; {documents} would settle it."
    return "No practical number of seeds would settle it at this effect."


def _format_more(count: int, noun: str) -> str:
    return f"{count:,} more {noun}{'' if count == 1 else 's'}"


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_caveats(verdict: Verdict, unpaired_seeds: Sequence[int]) -> str:
    """Return sentences on missing documents and on seeds that were not used; empty if there are none."""
    caveats = []
    if verdict.examples == 1:
        caveats.append("Only one score per seed is known, so this holds for this test set, not for new text like it.")
    elif verdict.documents == 1:
        caveats.append("All examples are from one document, so this holds for this document, not for new text.")
    if unpaired_seeds:
        seeds = f"Seed{'s' if len(unpaired_seeds) > 1 else ''} {', '.join(map(str, unpaired_seeds))}"
        caveats.append(f"{seeds} {'are' if len(unpaired_seeds) > 1 else 'is'} not scored for both and not used.")
    return " ".join(caveats)


def _choose_decimals(metric: Metric, interval: Interval) -> int:
    """Return enough decimals to display the half width of the interval with two digits."""
    half_width = (interval[1] - interval[0]) / 2 * (100 if _is_shown_as_percentage(metric) else 1)
    if not math.isfinite(half_width) or half_width <= 0:
        return 1 if _is_shown_as_percentage(metric) else 3
    return min(max(1 - math.floor(math.log10(half_width)), 0), 6)


def _is_shown_as_percentage(metric: Metric) -> bool:
    return metric.name in ("perplexity", "accuracy")


def _format_interval(metric: Metric, interval: Interval, decimals: int) -> str:
    """Return the interval in words, as in "1.2 to 3.4 % lower"."""
    low, high = interval
    if _is_rounded_to_zero(metric, low, decimals) and _is_rounded_to_zero(metric, high, decimals):
        return "has no width"
    if metric.is_relative and low >= MAX_SHOWN_CHANGE:
        return "also beyond that"
    if (low < 0) == (high < 0) and max(abs(low), abs(high)) < MAX_SHOWN_CHANGE:
        smaller, larger = sorted((abs(low), abs(high)))
        bounds = f"{_format_number(metric, smaller, decimals)} to {_format_with_unit(metric, larger, decimals)}"
        return f"{bounds} {_format_direction(high)}"
    return f"runs from {_format_change(metric, low, decimals)} to {_format_change(metric, high, decimals)}"


def _format_change(metric: Metric, effect: float, decimals: int) -> str:
    """Return a change in words, as in "3.1 % lower"."""
    if _is_rounded_to_zero(metric, effect, decimals):
        return "the same" if effect == 0 else f"{_format_with_unit(metric, 0.0, decimals)} {_format_direction(effect)}"
    if metric.is_relative and effect >= MAX_SHOWN_CHANGE:
        return "more than 1,000 % higher"
    return f"{_format_with_unit(metric, abs(effect), decimals)} {_format_direction(effect)}"


def _is_rounded_to_zero(metric: Metric, effect: float, decimals: int) -> bool:
    """Return whether the effect is displayed as 0 with this many decimals."""
    return float(_format_number(metric, abs(effect), decimals).replace(",", "")) == 0


def _format_direction(effect: float) -> str:
    return "lower" if effect < 0 else "higher"


def _format_number(metric: Metric, magnitude: float, decimals: int) -> str:
    return f"{magnitude * (100 if _is_shown_as_percentage(metric) else 1):,.{decimals}f}"


def _format_with_unit(metric: Metric, magnitude: float, decimals: int | None = None) -> str:
    """Return a magnitude with its unit; all significant digits if `decimals` is None."""
    if decimals is None:
        number = f"{round(magnitude * (100 if _is_shown_as_percentage(metric) else 1), 9):g}"
    else:
        number = _format_number(metric, magnitude, decimals)
    if metric.name == "perplexity":
        return f"{number} %"
    if metric.name == "accuracy":
        return f"{number} point{'' if number == '1' else 's'}"
    return number


def _format_percentage(fraction: float) -> str:
    return f"{round(100 * fraction, 6):g} %"
