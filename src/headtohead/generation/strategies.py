"""Strategies by name: how a text is continued, as frozen data.

    strategy("top-p", p=0.7, temperature=0.9)
    parse("top-p(p=0.7, temperature=0.9)")

Every strategy is a list of steps from logits to a distribution, and one of four ways to go on from there: take the
likeliest token, draw one, follow several beams, or contrast candidates with what was said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headtohead.errors import StrategyError, suggest
from headtohead.generation import logits_processors
from headtohead.generation.logits_processors import LogitsProcessor, is_finite_number, is_integer_at_least

GenerationMode = Literal["likeliest", "draw", "beam", "contrast"]
StrategyOptions = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Strategy:
    """How a text is continued."""

    name: str
    options: StrategyOptions = ()
    """what was asked for, in a fixed order"""
    way: GenerationMode = field(default="draw", compare=False)
    steps: tuple[LogitsProcessor, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.name}({said})" if said else self.name

    def get_option(self, name: str) -> Any:
        """An option that this strategy has, given or by default."""
        return {**_get_default_options(self.name), **dict(self.options)}[name]

    def with_options(self, **options: Any) -> Strategy:
        """The same with some options changed: for sweeps."""
        return build_strategy(self.name, **{**dict(self.options), **options})

    def to_dict(self) -> dict[str, Any]:
        return {"strategy": self.name, **dict(self.options)}

    def bound(self, encode: Callable[[str], Sequence[int]]) -> Strategy:
        """With banned texts as tokens."""
        found = tuple(
            s.bound(encode) if isinstance(s, logits_processors.NoBadWordsLogitsProcessor) and s.texts else s
            for s in self.steps
        )
        return replace(self, steps=found)


# ---- what there is

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
STRATEGY_DESCRIPTIONS = {
    "greedy": "the likeliest token",
    "sample": "a draw from the whole distribution",
    "temperature": "a draw from the sharpened (below 1) or flattened (above 1) distribution",
    "top-k": "a draw from the k likeliest tokens",
    "top-p": "a draw from the likeliest tokens that hold a share p",
    "min-p": "a draw from tokens at least p times as likely as the likeliest",
    "typical": "a draw from the tokens of expected surprise that hold a share p",
    "beam": "the likeliest of several texts followed at once",
    "contrastive": "a likely token that does not repeat what was said",
}
# For every strategy; None: not used.
COMMON_OPTIONS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "no_repeat_ngram": None,
    "ban": (),
    "min_new_tokens": 0,
    "force_stop": None,
}
# Names that users of other libraries know.
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
    return {**STRATEGY_OPTIONS.get(name, {}), **COMMON_OPTIONS}


def build_strategy(name: str, **options: Any) -> Strategy:
    """A strategy by name. Everything that is wrong with the options is said at once."""
    name = _resolve_strategy_name(name)
    given, faults = _resolve_option_names(name, options)
    values = {**_get_default_options(name), **given}
    found: list[LogitsProcessor] = []
    for make in (*_list_history_processor_factories(values), *_list_sampling_processor_factories(name, values)):
        try:
            if (step := make()) is not None:
                found.append(step)
        except StrategyError as error:
            faults.append(str(error))
    faults += _check_search_options(name, values)
    if faults:
        raise StrategyError("; ".join(f"{name}: {fault}" for fault in faults))
    way = _select_generation_mode(name, values)
    kept = tuple((key, _lists_to_tuples(given[key])) for key in _get_default_options(name) if key in given)
    return Strategy(name, kept, way, tuple(found))


def build_custom_strategy(processors: Sequence[LogitsProcessor]) -> Strategy:
    """A strategy of one's own: a draw from what these steps leave, in this order."""
    return Strategy("steps", (("steps", tuple(map(repr, processors))),), "draw", tuple(processors))


def resolve_strategy(strategy: str | Strategy | Sequence[LogitsProcessor]) -> Strategy:
    """A strategy, however it is given."""
    if isinstance(strategy, Strategy):
        return strategy
    return parse_strategy(strategy) if isinstance(strategy, str) else build_custom_strategy(strategy)


def parse_strategy(text: str) -> Strategy:
    """`top-p`, `top-p(p=0.7, temperature=0.9)` or `top-p:p=0.7,temperature=0.9`."""
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\)|:(.*))?\s*", text, re.DOTALL)
    if match is None:
        raise StrategyError(f"{text!r}: a strategy is written name(option=value, ...), as in top-p(p=0.7)")
    inside = match[2] or match[3] or ""
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(word.arg is None for word in call.keywords):
            raise ValueError("options have names")
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError) as error:
        raise StrategyError(
            f"{text!r}: its options cannot be read ({error}); write top-p(p=0.7, temperature=0.9)"
        ) from None
    return build_strategy(match[1], **options)


# ---- from options to steps


def _resolve_strategy_name(name: str) -> str:
    name = STRATEGY_ALIASES.get(name.replace("_", "-"), name.replace("_", "-"))
    if name in STRATEGY_OPTIONS:
        return name
    hint = suggest(name, [*STRATEGY_OPTIONS, *STRATEGY_ALIASES])
    said = f", did you mean {STRATEGY_ALIASES.get(hint, hint)!r}?" if hint else ""
    raise StrategyError(f"no strategy {name!r}{said} (there are: {', '.join(STRATEGY_OPTIONS)})")


def _resolve_option_names(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options under our names, and what is wrong with the names."""
    known, given, faults = _get_default_options(name), {}, []
    for option, value in options.items():
        ours = option if option in known else OPTION_ALIASES.get(option, option)
        if ours not in known:
            hint = suggest(option, known)
            said = f", did you mean {hint!r}?" if hint else ""
            faults.append(f"has no option {option!r}{said} (it has: {', '.join(known)})")
        elif ours in given:
            faults.append(f"the option {ours!r} is given twice")
        else:
            given[ours] = value
    return given, faults


def _list_history_processor_factories(values: Mapping[str, Any]) -> list[Callable[[], LogitsProcessor | None]]:
    """Steps that look at what was said, in the order that transformers has them."""
    return [
        lambda: _omit_if_no_op(
            logits_processors.RepetitionPenaltyLogitsProcessor(values["repetition_penalty"]),
            values["repetition_penalty"] == 1,
        ),
        lambda: _omit_if_no_op(
            logits_processors.FrequencyPenaltyLogitsProcessor(values["frequency_penalty"], values["presence_penalty"]),
            values["frequency_penalty"] == 0 == values["presence_penalty"],
        ),
        lambda: (
            None
            if values["no_repeat_ngram"] is None
            else logits_processors.NoRepeatNGramLogitsProcessor(values["no_repeat_ngram"])
        ),
        lambda: _build_bad_words_processor(values["ban"]),
        lambda: _omit_if_no_op(
            logits_processors.MinNewTokensLogitsProcessor(values["min_new_tokens"]), values["min_new_tokens"] == 0
        ),
        lambda: (
            None
            if values["force_stop"] is None
            else logits_processors.ForcedEOSTokenLogitsProcessor(values["force_stop"])
        ),
    ]


def _list_sampling_processor_factories(
    name: str, values: Mapping[str, Any]
) -> list[Callable[[], LogitsProcessor | None]]:
    """Temperature, then the cut. At temperature 0 there is nothing to cut."""
    made: list[Callable[[], LogitsProcessor | None]] = []
    if "temperature" in STRATEGY_OPTIONS[name]:
        made.append(
            lambda: _omit_if_no_op(
                logits_processors.TemperatureLogitsProcessor(values["temperature"]), values["temperature"] in (0, 1)
            )
        )
    if name in TRUNCATION_STRATEGIES:
        option, cut, _ = TRUNCATION_STRATEGIES[name]
        made.append(lambda: cut(values[option]))
    return made


def _select_generation_mode(name: str, values: Mapping[str, Any]) -> GenerationMode:
    if name in ("beam", "contrastive"):
        return "beam" if name == "beam" else "contrast"
    return "likeliest" if name == "greedy" or values["temperature"] == 0 else "draw"


def _check_search_options(name: str, values: Mapping[str, Any]) -> list[str]:
    wanted: dict[str, list[tuple[str, bool, str]]] = {
        "beam": [
            ("beams", is_integer_at_least(values.get("beams")), "a whole number, at least 1"),
            ("length_penalty", is_finite_number(values.get("length_penalty")), "a number"),
            ("early_stopping", values.get("early_stopping") in (True, False, "never"), "True, False or 'never'"),
        ],
        "contrastive": [
            ("k", is_integer_at_least(values.get("k")), "a whole number of candidates, at least 1"),
            ("alpha", is_finite_number(values.get("alpha")) and 0 <= values["alpha"] <= 1, "a share, in [0, 1]"),
        ],
    }
    found = wanted.get(name, [])
    return [f"{option} is {allowed}, not {values[option]!r}" for option, fine, allowed in found if not fine]


def _omit_if_no_op(processor: LogitsProcessor, is_no_op: bool) -> LogitsProcessor | None:
    """The step, once its value was checked, unless it would change nothing."""
    return None if is_no_op else processor


def _build_bad_words_processor(bad_words: Any) -> LogitsProcessor | None:
    entries = [bad_words] if isinstance(bad_words, str | int) else list(bad_words)
    texts = tuple(entry for entry in entries if isinstance(entry, str))
    runs = tuple(
        tuple(entry) if isinstance(entry, list | tuple) else (entry,) for entry in entries if not isinstance(entry, str)
    )
    return logits_processors.NoBadWordsLogitsProcessor(runs, texts=texts) if entries else None


def _lists_to_tuples(value: Any) -> Any:
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, list) else value
