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

from headtohead.errors import StrategyError, nearest
from headtohead.generation import logits_processors
from headtohead.generation.logits_processors import Step, is_count, is_number

Way = Literal["likeliest", "draw", "beam", "contrast"]
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Strategy:
    """How a text is continued."""

    name: str
    options: Options = ()
    """what was asked for, in a fixed order"""
    way: Way = field(default="draw", compare=False)
    steps: tuple[Step, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.name}({said})" if said else self.name

    def option(self, name: str) -> Any:
        """An option that this strategy has, given or by default."""
        return {**_defaults(self.name), **dict(self.options)}[name]

    def with_options(self, **options: Any) -> Strategy:
        """The same with some options changed: for sweeps."""
        return strategy(self.name, **{**dict(self.options), **options})

    def as_dict(self) -> dict[str, Any]:
        return {"strategy": self.name, **dict(self.options)}

    def bound(self, encode: Callable[[str], Sequence[int]]) -> Strategy:
        """With banned texts as tokens."""
        found = tuple(s.bound(encode) if isinstance(s, logits_processors.Ban) and s.texts else s for s in self.steps)
        return replace(self, steps=found)


# ---- what there is

DRAWS: dict[str, tuple[str, Callable[[Any], Step], Any]] = {
    "top-k": ("k", logits_processors.TopK, 50),
    "top-p": ("p", logits_processors.TopP, 0.9),
    "min-p": ("p", logits_processors.MinP, 0.05),
    "typical": ("p", logits_processors.Typical, 0.95),
}
OWN: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"temperature": 1.0},
    "temperature": {"temperature": 0.7},
    **{name: {option: value, "temperature": 1.0} for name, (option, _, value) in DRAWS.items()},
    "beam": {"beams": 4, "length_penalty": 1.0, "early_stopping": False},
    "contrastive": {"k": 4, "alpha": 0.6},
}
ABOUT = {
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
COMMON: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "no_repeat_ngram": None,
    "ban": (),
    "min_new_tokens": 0,
    "force_stop": None,
}
# Names that users of other libraries know.
ALIASES = {
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


def _defaults(name: str) -> dict[str, Any]:
    return {**OWN.get(name, {}), **COMMON}


def strategy(name: str, **options: Any) -> Strategy:
    """A strategy by name. Everything that is wrong with the options is said at once."""
    name = _known(name)
    given, faults = _named(name, options)
    values = {**_defaults(name), **given}
    found: list[Step] = []
    for make in (*_before(values), *_shape(name, values)):
        try:
            if (step := make()) is not None:
                found.append(step)
        except StrategyError as error:
            faults.append(str(error))
    faults += _search_faults(name, values)
    if faults:
        raise StrategyError("; ".join(f"{name}: {fault}" for fault in faults))
    way = _way(name, values)
    kept = tuple((key, _frozen(given[key])) for key in _defaults(name) if key in given)
    return Strategy(name, kept, way, tuple(found))


def of_steps(found: Sequence[Step]) -> Strategy:
    """A strategy of one's own: a draw from what these steps leave, in this order."""
    return Strategy("steps", (("steps", tuple(map(repr, found))),), "draw", tuple(found))


def as_strategy(given: str | Strategy | Sequence[Step]) -> Strategy:
    """A strategy, however it is given."""
    if isinstance(given, Strategy):
        return given
    return parse(given) if isinstance(given, str) else of_steps(given)


def parse(text: str) -> Strategy:
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
    return strategy(match[1], **options)


# ---- from options to steps


def _known(name: str) -> str:
    name = ALIASES.get(name.replace("_", "-"), name.replace("_", "-"))
    if name in OWN:
        return name
    hint = nearest(name, [*OWN, *ALIASES])
    said = f", did you mean {ALIASES.get(hint, hint)!r}?" if hint else ""
    raise StrategyError(f"no strategy {name!r}{said} (there are: {', '.join(OWN)})")


def _named(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options under our names, and what is wrong with the names."""
    known, given, faults = _defaults(name), {}, []
    for option, value in options.items():
        ours = option if option in known else OPTION_ALIASES.get(option, option)
        if ours not in known:
            hint = nearest(option, known)
            said = f", did you mean {hint!r}?" if hint else ""
            faults.append(f"has no option {option!r}{said} (it has: {', '.join(known)})")
        elif ours in given:
            faults.append(f"the option {ours!r} is given twice")
        else:
            given[ours] = value
    return given, faults


def _before(values: Mapping[str, Any]) -> list[Callable[[], Step | None]]:
    """Steps that look at what was said, in the order that transformers has them."""
    return [
        lambda: _unless(
            logits_processors.RepetitionPenalty(values["repetition_penalty"]), values["repetition_penalty"] == 1
        ),
        lambda: _unless(
            logits_processors.FrequencyPenalty(values["frequency_penalty"], values["presence_penalty"]),
            values["frequency_penalty"] == 0 == values["presence_penalty"],
        ),
        lambda: None if values["no_repeat_ngram"] is None else logits_processors.NoRepeat(values["no_repeat_ngram"]),
        lambda: _ban(values["ban"]),
        lambda: _unless(logits_processors.MinNewTokens(values["min_new_tokens"]), values["min_new_tokens"] == 0),
        lambda: None if values["force_stop"] is None else logits_processors.ForceStop(values["force_stop"]),
    ]


def _shape(name: str, values: Mapping[str, Any]) -> list[Callable[[], Step | None]]:
    """Temperature, then the cut. At temperature 0 there is nothing to cut."""
    made: list[Callable[[], Step | None]] = []
    if "temperature" in OWN[name]:
        made.append(
            lambda: _unless(logits_processors.Temperature(values["temperature"]), values["temperature"] in (0, 1))
        )
    if name in DRAWS:
        option, cut, _ = DRAWS[name]
        made.append(lambda: cut(values[option]))
    return made


def _way(name: str, values: Mapping[str, Any]) -> Way:
    if name in ("beam", "contrastive"):
        return "beam" if name == "beam" else "contrast"
    return "likeliest" if name == "greedy" or values["temperature"] == 0 else "draw"


def _search_faults(name: str, values: Mapping[str, Any]) -> list[str]:
    wanted: dict[str, list[tuple[str, bool, str]]] = {
        "beam": [
            ("beams", is_count(values.get("beams")), "a whole number, at least 1"),
            ("length_penalty", is_number(values.get("length_penalty")), "a number"),
            ("early_stopping", values.get("early_stopping") in (True, False, "never"), "True, False or 'never'"),
        ],
        "contrastive": [
            ("k", is_count(values.get("k")), "a whole number of candidates, at least 1"),
            ("alpha", is_number(values.get("alpha")) and 0 <= values["alpha"] <= 1, "a share, in [0, 1]"),
        ],
    }
    found = wanted.get(name, [])
    return [f"{option} is {allowed}, not {values[option]!r}" for option, fine, allowed in found if not fine]


def _unless(step: Step, idle: bool) -> Step | None:
    """The step, once its value was checked, unless it would change nothing."""
    return None if idle else step


def _ban(given: Any) -> Step | None:
    entries = [given] if isinstance(given, str | int) else list(given)
    texts = tuple(entry for entry in entries if isinstance(entry, str))
    runs = tuple(
        tuple(entry) if isinstance(entry, list | tuple) else (entry,) for entry in entries if not isinstance(entry, str)
    )
    return logits_processors.Ban(runs, texts=texts) if entries else None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
