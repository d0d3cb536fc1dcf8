"""Read decoding strategies from text, and write them as text.

parse_strategy("top-p(p=0.7, temperature=0.9)")
parse_strategies("greedy,sample,temperature=0.7,top-p(p=0.9, temperature=0.8)")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from headtohead.errors import StrategyError
from headtohead.generation.logits_processors import LogitsProcessor
from headtohead.generation.strategies import STRATEGY_ALIASES, Strategy, build_custom_strategy, build_strategy

DEFAULT_STRATEGIES = "greedy,sample,temperature=0.7,top-k=20,top-p=0.7"
SHORTHAND_OPTIONS = {
    "temperature": "temperature",
    "top-k": "k",
    "top-p": "p",
    "min-p": "p",
    "typical": "p",
    "beam": "beams",
    "contrastive": "k",
}
"""the option that the short form NAME=VALUE sets"""


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
    options_text = match[2] or match[3] or ""
    try:
        call = ast.parse(f"f({options_text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("options need names")
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError) as error:
        raise StrategyError(
            f"{text!r}: invalid options ({error}); expected a form like top-p(p=0.7, temperature=0.9)"
        ) from None
    return build_strategy(match[1], **options)


def parse_strategies(text: str) -> dict[str, Strategy]:
    """Parse a list such as `greedy,temperature=0.7,top-p(p=0.9)` from the command line; return strategies by name."""
    strategies: dict[str, Strategy] = {}
    for strategy_text in re.split(r",(?![^(]*\))", text):
        if not strategy_text.strip():
            continue
        strategy = _parse_strategy_or_shorthand(strategy_text.strip())
        name = format_strategy(strategy)
        if name in strategies:
            raise StrategyError(f"{name} is given twice")
        strategies[name] = strategy
    if not strategies:
        raise StrategyError(f"no strategy is given; the default is {DEFAULT_STRATEGIES}")
    return strategies


def _parse_strategy_or_shorthand(text: str) -> Strategy:
    """Parse one strategy, or its short form NAME=VALUE."""
    match = re.fullmatch(r"([\w-]+)\s*=\s*([^()=]+)", text)
    if match is None:
        return parse_strategy(text)
    name = STRATEGY_ALIASES.get(match[1].replace("_", "-"), match[1].replace("_", "-"))
    if name not in SHORTHAND_OPTIONS:
        build_strategy(name)  # raises if there is no such strategy
        raise StrategyError(f"{text!r}: {name} takes no value; write {name}, or {name}(option=value)")
    try:
        value = ast.literal_eval(match[2].strip())
    except (ValueError, SyntaxError):
        raise StrategyError(f"{text!r}: {match[2].strip()!r} is not a number") from None
    return build_strategy(name, **{SHORTHAND_OPTIONS[name]: value})


def format_strategy(strategy: Strategy) -> str:
    """Return a strategy as written on the command line: `top-p=0.7`."""
    if len(strategy.options) == 1 and strategy.options[0][0] == SHORTHAND_OPTIONS.get(strategy.name):
        return f"{strategy.name}={strategy.options[0][1]:g}"
    return str(strategy)
