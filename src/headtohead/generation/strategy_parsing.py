"""Parse strategy lists from the command line, format them for reports, and build a sweep's points.

greedy,sample,temperature=0.7,top-p(p=0.9, temperature=0.8)
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

from headtohead.errors import StrategyError
from headtohead.generation.strategies import STRATEGY_ALIASES, Strategy, build_strategy, parse_strategy

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
SWEEP_VALUES: dict[str, tuple[float, ...]] = {
    "temperature": (0.3, 0.5, 0.7, 0.85, 1.2),
    "top-k": (2, 5, 20, 100, 1000),
    "top-p": (0.1, 0.3, 0.5, 0.7, 0.9, 0.95),
}
SWEEP_SAMPLES_PER_PROMPT = 5
"""samples per prompt at each point of the sweep"""


def parse_strategies(text: str) -> dict[str, Strategy]:
    """Parse `greedy,temperature=0.7,top-p(p=0.9, temperature=0.8)`; return strategies by display name."""
    strategies: dict[str, Strategy] = {}
    for item in re.split(r",(?![^(]*\))", text):
        if not item.strip():
            continue
        strategy = _parse_strategy_or_shorthand(item.strip())
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


@dataclass(frozen=True)
class SweepPoint:
    """One setting of a sweep."""

    family: str
    label: str
    value: float
    endpoint: str
    """greedy or sample, where the families meet; otherwise empty"""
    strategy: Strategy

    @property
    def name(self) -> str:
        return format_strategy(self.strategy)


def build_sweep_points(vocab_size: int) -> list[SweepPoint]:
    """Return the points along temperature, k and p. Each family starts at greedy decoding and ends at sampling."""
    points = []
    for family, values in SWEEP_VALUES.items():
        untruncated = ("1", 1.0) if family == "temperature" else ("all", math.inf)
        points.append(SweepPoint(family, "greedy", 0.0, "greedy", build_strategy("greedy")))
        points.append(SweepPoint(family, *untruncated, "sample", build_strategy("sample")))
        points += [
            SweepPoint(family, f"{value:g}", value, "", build_strategy(family, **{SHORTHAND_OPTIONS[family]: value}))
            for value in values
            if family != "top-k" or value < vocab_size
        ]
    return sorted(points, key=lambda point: (list(SWEEP_VALUES).index(point.family), point.value))
