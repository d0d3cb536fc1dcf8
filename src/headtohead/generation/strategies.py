"""Decoding strategies by name, as immutable values.

    build_strategy("top-p", p=0.7, temperature=0.9)

A strategy is a list of logits processors and one of four modes: greedy, sample, beam or contrastive search.
`strategy_parsing` reads strategies from text.
"""

from __future__ import annotations

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
        """Return a copy of the strategy with the given options replaced."""
        return build_strategy(self.name, **{**dict(self.options), **options})

    def to_dict(self) -> dict[str, Any]:
        return {"strategy": self.name, **dict(self.options)}

    def encode_banned_texts(self, encode: Callable[[str], Sequence[int]]) -> Strategy:
        """Return the strategy with the texts of the option `ban` converted to token ids."""
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
"""strategies that keep the most likely tokens: the option, its logits processor and its default value"""
STRATEGY_OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"temperature": 1.0},
    "temperature": {"temperature": 0.7},
    **{name: {option: value, "temperature": 1.0} for name, (option, _, value) in TRUNCATION_STRATEGIES.items()},
    "beam": {"beams": 4, "length_penalty": 1.0, "early_stopping": False},
    "contrastive": {"k": 4, "alpha": 0.6},
}
"""the options of each strategy with their defaults"""
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
    set_options, errors = _resolve_option_names(name, options)
    all_options = {**_get_default_options(name), **set_options}
    processors: list[LogitsProcessor] = []
    for processor_class, arguments, is_no_op in _list_processor_specs(name, all_options):
        try:
            processor = processor_class(*arguments)  # also validates values that change nothing
        except StrategyError as error:
            errors.append(str(error))
        else:
            processors += [] if is_no_op else [processor]
    errors += _check_search_options(name, all_options)
    if errors:
        raise StrategyError("; ".join(f"{name}: {error}" for error in errors))
    ordered_options = tuple(
        (option, _convert_lists_to_tuples(set_options[option])) for option in all_options if option in set_options
    )
    return Strategy(name, ordered_options, _select_generation_mode(name, all_options), tuple(processors))


def build_custom_strategy(processors: Sequence[LogitsProcessor]) -> Strategy:
    """Return a sampling strategy that applies a user's logits processors in order."""
    options = (("logits_processors", tuple(map(repr, processors))),)
    return Strategy("custom", options, "sample", tuple(processors))


def _resolve_strategy_name(name: str) -> str:
    """Return the name of a strategy of which `name` may be an alias. Raise `StrategyError` if there is none."""
    name = STRATEGY_ALIASES.get(name.replace("_", "-"), name.replace("_", "-"))
    if name in STRATEGY_OPTIONS:
        return name
    suggestion = suggest(name, [*STRATEGY_OPTIONS, *STRATEGY_ALIASES])
    hint = f"; did you mean {STRATEGY_ALIASES.get(suggestion, suggestion)!r}?" if suggestion else ""
    raise StrategyError(f"no strategy named {name!r}{hint} (available: {', '.join(STRATEGY_OPTIONS)})")


def _resolve_option_names(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a strategy without aliases, and the errors in their names."""
    default_options = _get_default_options(name)
    resolved_options: dict[str, Any] = {}
    errors: list[str] = []
    for option, value in options.items():
        key = option if option in default_options else OPTION_ALIASES.get(option, option)
        if key not in default_options:
            hint = format_suggestion(option, default_options)
            errors.append(f"no option {option!r}{hint} (available: {', '.join(default_options)})")
        elif key in resolved_options:
            errors.append(f"option {key!r} is given twice")
        else:
            resolved_options[key] = value
    return resolved_options, errors


def _list_processor_specs(name: str, options: Mapping[str, Any]) -> Iterator[ProcessorSpec]:
    """Yield the logits processors of a strategy, in transformers' order: constructor, arguments, if without effect."""
    repetition_penalty = options["repetition_penalty"]
    penalties = options["frequency_penalty"], options["presence_penalty"]
    ngram_size, bad_words = options["no_repeat_ngram"], options["ban"]
    min_new_tokens, force_stop = options["min_new_tokens"], options["force_stop"]
    yield logits_processors.RepetitionPenaltyLogitsProcessor, (repetition_penalty,), repetition_penalty == 1
    yield logits_processors.FrequencyPenaltyLogitsProcessor, penalties, penalties == (0, 0)
    if ngram_size is not None:
        yield logits_processors.NoRepeatNGramLogitsProcessor, (ngram_size,), False
    yield _build_bad_words_processor, (bad_words,), bad_words in ((), [])
    yield logits_processors.MinNewTokensLogitsProcessor, (min_new_tokens,), min_new_tokens == 0
    if force_stop is not None:
        yield logits_processors.ForcedEOSTokenLogitsProcessor, (force_stop,), False
    if "temperature" in STRATEGY_OPTIONS[name]:
        yield logits_processors.TemperatureLogitsProcessor, (options["temperature"],), options["temperature"] in (0, 1)
    if name in TRUNCATION_STRATEGIES:
        option, processor_class, _ = TRUNCATION_STRATEGIES[name]
        yield processor_class, (options[option],), False


def _select_generation_mode(name: str, options: Mapping[str, Any]) -> GenerationMode:
    """Return a strategy's mode; a temperature of 0 is greedy."""
    if name in ("beam", "contrastive"):
        return "beam" if name == "beam" else "contrastive"
    return "greedy" if name == "greedy" or options["temperature"] == 0 else "sample"


def _check_search_options(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the errors in the options of the strategies beam search and contrastive search."""
    rules: dict[str, list[tuple[str, bool, str]]] = {
        "beam": [
            ("beams", is_integer_at_least(options.get("beams")), "an integer of at least 1"),
            ("length_penalty", is_finite_number(options.get("length_penalty")), "a number"),
            ("early_stopping", options.get("early_stopping") in (True, False, "never"), "True, False or 'never'"),
        ],
        "contrastive": [
            ("k", is_integer_at_least(options.get("k")), "an integer of at least 1"),
            ("alpha", is_finite_number(options.get("alpha")) and 0 <= options["alpha"] <= 1, "in [0, 1]"),
        ],
    }
    return [
        f"{option} must be {allowed}, got {options[option]!r}"
        for option, is_valid, allowed in rules.get(name, [])
        if not is_valid
    ]


def _build_bad_words_processor(bad_words: Any) -> LogitsProcessor:
    """Return the logits processor for a strategy's option `ban`: texts, token ids and sequences of token ids."""
    words = [bad_words] if isinstance(bad_words, str | int) else list(bad_words)
    texts = tuple(word for word in words if isinstance(word, str))
    sequences = tuple(
        tuple(word) if isinstance(word, list | tuple) else (word,) for word in words if not isinstance(word, str)
    )
    return logits_processors.NoBadWordsLogitsProcessor(sequences, texts=texts)


def _convert_lists_to_tuples(value: Any) -> Any:
    """Convert nested lists to tuples, which are hashable."""
    return tuple(map(_convert_lists_to_tuples, value)) if isinstance(value, list) else value
