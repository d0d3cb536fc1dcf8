"""Strategies as they are written on a command line and shown in a report, and the settings of a sweep.

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
"""those of report D"""
SHORTHAND_OPTIONS = {
    "temperature": "temperature",
    "top-k": "k",
    "top-p": "p",
    "min-p": "p",
    "typical": "p",
    "beam": "beams",
    "contrastive": "k",
}
"""the option that NAME=VALUE sets"""
SWEEP_VALUES: dict[str, tuple[float, ...]] = {
    "temperature": (0.3, 0.5, 0.7, 0.85, 1.2),
    "top-k": (2, 5, 20, 100, 1000),
    "top-p": (0.1, 0.3, 0.5, 0.7, 0.9, 0.95),
}
SWEEP_SAMPLES_PER_PROMPT = 5
"""samples of a prompt at each point of the sweep"""


def parse_strategies(text: str) -> dict[str, Strategy]:
    """`greedy,temperature=0.7,top-p(p=0.9, temperature=0.8)`: strategies by the name that they are shown under."""
    made: dict[str, Strategy] = {}
    for one in re.split(r",(?![^(]*\))", text):
        if not one.strip():
            continue
        found = _parse_strategy_or_shorthand(one.strip())
        name = format_strategy(found)
        if name in made:
            raise StrategyError(f"{name} is given twice")
        made[name] = found
    if not made:
        raise StrategyError(f"no strategy is given; the five of the comparison are {DEFAULT_STRATEGIES}")
    return made


def _parse_strategy_or_shorthand(text: str) -> Strategy:
    match = re.fullmatch(r"([\w-]+)\s*=\s*([^()=]+)", text)
    if match is None:
        return parse_strategy(text)
    name = STRATEGY_ALIASES.get(match[1].replace("_", "-"), match[1].replace("_", "-"))
    if name not in SHORTHAND_OPTIONS:
        build_strategy(name)  # says so if there is none of this name
        raise StrategyError(f"{text!r}: {name} takes no value; write {name}, or {name}(option=value)")
    try:
        value = ast.literal_eval(match[2].strip())
    except (ValueError, SyntaxError):
        raise StrategyError(f"{text!r}: {match[2].strip()!r} is not a number") from None
    return build_strategy(name, **{SHORTHAND_OPTIONS[name]: value})


def format_strategy(strategy: Strategy) -> str:
    """`top-p=0.7`: as it is written on the command line."""
    if len(strategy.options) == 1 and strategy.options[0][0] == SHORTHAND_OPTIONS.get(strategy.name):
        return f"{strategy.name}={strategy.options[0][1]:g}"
    return str(strategy)


@dataclass(frozen=True)
class SweepPoint:
    """One setting of the sweep."""

    family: str
    label: str
    value: float
    end: str
    """greedy or sample, where the families meet"""
    strategy: Strategy

    @property
    def name(self) -> str:
        return format_strategy(self.strategy)


def build_sweep_points(vocab_size: int) -> list[SweepPoint]:
    """The sweep along temperature, k and p. All three begin at greedy decoding and come to plain sampling."""
    made = []
    for family, values in SWEEP_VALUES.items():
        all_of_it = ("1", 1.0) if family == "temperature" else ("all", math.inf)
        made.append(SweepPoint(family, "greedy", 0.0, "greedy", build_strategy("greedy")))
        made.append(SweepPoint(family, *all_of_it, "sample", build_strategy("sample")))
        made += [
            SweepPoint(family, f"{value:g}", value, "", build_strategy(family, **{SHORTHAND_OPTIONS[family]: value}))
            for value in values
            if family != "top-k" or value < vocab_size
        ]
    return sorted(made, key=lambda point: (list(SWEEP_VALUES).index(point.family), point.value))
