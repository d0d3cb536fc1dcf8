"""Decoding strategies by name, as immutable values.

    build_strategy("top-p", p=0.7, temperature=0.9)
    parse_strategy("top-p(p=0.7, temperature=0.9)")

A strategy is a list of logits processors and one of four modes: greedy, sample, beam or contrastive search.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headtohead.errors import StrategyError, format_suggestion, suggest
from headtohead.generation import logits_processors
from headtohead.generation.logits_processors import LogitsProcessor, is_finite_number, is_integer_at_least

GenerationMode = Literal["greedy", "sample", "beam", "contrastive"]
StrategyOptions = tuple[tuple[str, Any], ...]
ProcessorSpec = tuple[Callable[..., LogitsProcessor], tuple[Any, ...], bool]


@dataclass(frozen=True)
class Strategy:
    """A decoding strategy."""

    name: str
    options: StrategyOptions = ()
    """the options that were set, in a fixed order"""
    mode: GenerationMode = field(default="sample", compare=False)
    logits_processors: tuple[LogitsProcessor, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.name}({options})" if options else self.name

    def get_option(self, name: str) -> Any:
        """Return an option's value, whether set or default."""
        return {**_get_default_options(self.name), **dict(self.options)}[name]

    def with_options(self, **options: Any) -> Strategy:
        """Return the strategy with these options changed."""
        return build_strategy(self.name, **{**dict(self.options), **options})

    def to_dict(self) -> dict[str, Any]:
        return {"strategy": self.name, **dict(self.options)}

    def encode_bad_words(self, encode: Callable[[str], Sequence[int]]) -> Strategy:
        """Return the strategy with banned texts converted to token ids."""
        processors = tuple(
            processor.encode_texts(encode)
            if isinstance(processor, logits_processors.NoBadWordsLogitsProcessor) and processor.texts
            else processor
            for processor in self.logits_processors
        )
        return replace(self, logits_processors=processors)


TRUNCATION_STRATEGIES: dict[str, tuple[str, Callable[[Any], LogitsProcessor], Any]] = {
    "top-k": ("k", logits_processors.TopKLogitsProcessor, 50),
    "top-p": ("p", logits_processors.TopPLogitsProcessor, 0.9),
    "min-p": ("p", logits_processors.MinPLogitsProcessor, 0.05),
    "typical": ("p", logits_processors.TypicalLogitsProcessor, 0.95),
}
STRATEGY_OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"temperature": 1.0},
    "temperature": {"temperature": 0.7},
    **{name: {option: value, "temperature": 1.0} for name, (option, _, value) in TRUNCATION_STRATEGIES.items()},
    "beam": {"beams": 4, "length_penalty": 1.0, "early_stopping": False},
    "contrastive": {"k": 4, "alpha": 0.6},
}
# Options that every strategy has; None disables an option.
COMMON_OPTIONS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "no_repeat_ngram": None,
    "ban": (),
    "min_new_tokens": 0,
    "force_stop": None,
}
# Names used by other libraries.
STRATEGY_ALIASES = {
    "plain": "sample",
    "sampling": "sample",
    "nucleus": "top-p",
    "beam-search": "beam",
    "contrastive-search": "contrastive",
}
OPTION_ALIASES = {
    "top_k": "k",
    "top_p": "p",
    "min_p": "p",
    "typical_p": "p",
    "num_beams": "beams",
    "penalty_alpha": "alpha",
    "no_repeat_ngram_size": "no_repeat_ngram",
}


def _get_default_options(name: str) -> dict[str, Any]:
    """Return all of a strategy's options with their default values."""
    return {**STRATEGY_OPTIONS.get(name, {}), **COMMON_OPTIONS}


def build_strategy(name: str, **options: Any) -> Strategy:
    """Return a strategy by name. Raise `StrategyError` with all errors in the options."""
    name = _resolve_strategy_name(name)
    resolved, errors = _resolve_option_names(name, options)
    values = {**_get_default_options(name), **resolved}
    processors: list[LogitsProcessor] = []
    for processor_class, arguments, is_no_op in _list_processor_specs(name, values):
        try:
            processor = processor_class(*arguments)  # also validates values that change nothing
        except StrategyError as error:
            errors.append(str(error))
        else:
            processors += [] if is_no_op else [processor]
    errors += _check_search_options(name, values)
    if errors:
        raise StrategyError("; ".join(f"{name}: {error}" for error in errors))
    set_options = tuple((key, _lists_to_tuples(resolved[key])) for key in _get_default_options(name) if key in resolved)
    return Strategy(name, set_options, _select_generation_mode(name, values), tuple(processors))


def build_custom_strategy(processors: Sequence[LogitsProcessor]) -> Strategy:
    """Return a strategy that samples after applying these logits processors in order."""
    options = (("logits_processors", tuple(map(repr, processors))),)
    return Strategy("custom", options, "sample", tuple(processors))


def resolve_strategy(strategy: str | Strategy | Sequence[LogitsProcessor]) -> Strategy:
    """Return a strategy from its name, its text form, or a list of logits processors."""
    if isinstance(strategy, Strategy):
        return strategy
    return parse_strategy(strategy) if isinstance(strategy, str) else build_custom_strategy(strategy)


def parse_strategy(text: str) -> Strategy:
    """Parse `top-p`, `top-p(p=0.7, temperature=0.9)` or `top-p:p=0.7,temperature=0.9`."""
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\)|:(.*))?\s*", text, re.DOTALL)
    if match is None:
        raise StrategyError(f"{text!r}: expected name(option=value, ...), as in top-p(p=0.7)")
    inside = match[2] or match[3] or ""
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("options need names")
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError) as error:
        raise StrategyError(
            f"{text!r}: invalid options ({error}); expected a form like top-p(p=0.7, temperature=0.9)"
        ) from None
    return build_strategy(match[1], **options)


def _resolve_strategy_name(name: str) -> str:
    """Return the canonical name of a strategy. Raise `StrategyError` if there is none."""
    name = STRATEGY_ALIASES.get(name.replace("_", "-"), name.replace("_", "-"))
    if name in STRATEGY_OPTIONS:
        return name
    suggestion = suggest(name, [*STRATEGY_OPTIONS, *STRATEGY_ALIASES])
    hint = f"; did you mean {STRATEGY_ALIASES.get(suggestion, suggestion)!r}?" if suggestion else ""
    raise StrategyError(f"no strategy named {name!r}{hint} (available: {', '.join(STRATEGY_OPTIONS)})")


def _resolve_option_names(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options with aliases resolved, and the errors in their names."""
    default_options = _get_default_options(name)
    resolved: dict[str, Any] = {}
    errors: list[str] = []
    for option, value in options.items():
        key = option if option in default_options else OPTION_ALIASES.get(option, option)
        if key not in default_options:
            hint = format_suggestion(option, default_options)
            errors.append(f"no option {option!r}{hint} (available: {', '.join(default_options)})")
        elif key in resolved:
            errors.append(f"option {key!r} is given twice")
        else:
            resolved[key] = value
    return resolved, errors


def _list_processor_specs(name: str, values: Mapping[str, Any]) -> Iterator[ProcessorSpec]:
    """Yield each processor's constructor, its arguments and whether they change nothing, in transformers' order."""
    repetition, frequency, presence, ngram_size, bad_words, min_new_tokens, force_stop = (
        values[option] for option in COMMON_OPTIONS
    )
    yield logits_processors.RepetitionPenaltyLogitsProcessor, (repetition,), repetition == 1
    yield logits_processors.FrequencyPenaltyLogitsProcessor, (frequency, presence), frequency == 0 == presence
    if ngram_size is not None:
        yield logits_processors.NoRepeatNGramLogitsProcessor, (ngram_size,), False
    yield _build_bad_words_processor, (bad_words,), bad_words in ((), [])
    yield logits_processors.MinNewTokensLogitsProcessor, (min_new_tokens,), min_new_tokens == 0
    if force_stop is not None:
        yield logits_processors.ForcedEOSTokenLogitsProcessor, (force_stop,), False
    if "temperature" in STRATEGY_OPTIONS[name]:
        yield logits_processors.TemperatureLogitsProcessor, (values["temperature"],), values["temperature"] in (0, 1)
    if name in TRUNCATION_STRATEGIES:
        option, processor_class, _ = TRUNCATION_STRATEGIES[name]
        yield processor_class, (values[option],), False


def _select_generation_mode(name: str, values: Mapping[str, Any]) -> GenerationMode:
    """Return a strategy's mode; a temperature of 0 is greedy."""
    if name in ("beam", "contrastive"):
        return "beam" if name == "beam" else "contrastive"
    return "greedy" if name == "greedy" or values["temperature"] == 0 else "sample"


def _check_search_options(name: str, values: Mapping[str, Any]) -> list[str]:
    """Return the errors in the options for beam and contrastive search."""
    rules: dict[str, list[tuple[str, bool, str]]] = {
        "beam": [
            ("beams", is_integer_at_least(values.get("beams")), "an integer of at least 1"),
            ("length_penalty", is_finite_number(values.get("length_penalty")), "a number"),
            ("early_stopping", values.get("early_stopping") in (True, False, "never"), "True, False or 'never'"),
        ],
        "contrastive": [
            ("k", is_integer_at_least(values.get("k")), "an integer of at least 1"),
            ("alpha", is_finite_number(values.get("alpha")) and 0 <= values["alpha"] <= 1, "in [0, 1]"),
        ],
    }
    return [
        f"{option} must be {allowed}, got {values[option]!r}"
        for option, is_valid, allowed in rules.get(name, [])
        if not is_valid
    ]


def _build_bad_words_processor(bad_words: Any) -> LogitsProcessor:
    """Return the processor that bans these texts, token ids and sequences."""
    entries = [bad_words] if isinstance(bad_words, str | int) else list(bad_words)
    texts = tuple(entry for entry in entries if isinstance(entry, str))
    sequences = tuple(
        tuple(entry) if isinstance(entry, list | tuple) else (entry,) for entry in entries if not isinstance(entry, str)
    )
    return logits_processors.NoBadWordsLogitsProcessor(sequences, texts=texts)


def _lists_to_tuples(value: Any) -> Any:
    """Convert nested lists to tuples, which are hashable."""
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, list) else value
