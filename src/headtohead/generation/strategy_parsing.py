"""Strategies as they are written on a command line and shown in a report, and the settings of a sweep.

greedy,sample,temperature=0.7,top-p(p=0.9, temperature=0.8)
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

from headtohead.errors import StrategyError
from headtohead.generation.strategies import ALIASES, Strategy, parse, strategy

STRATEGIES = "greedy,sample,temperature=0.7,top-k=20,top-p=0.7"
"""those of report D"""
SHORT = {
    "temperature": "temperature",
    "top-k": "k",
    "top-p": "p",
    "min-p": "p",
    "typical": "p",
    "beam": "beams",
    "contrastive": "k",
}
"""the option that NAME=VALUE sets"""
SWEEP: dict[str, tuple[float, ...]] = {
    "temperature": (0.3, 0.5, 0.7, 0.85, 1.2),
    "top-k": (2, 5, 20, 100, 1000),
    "top-p": (0.1, 0.3, 0.5, 0.7, 0.9, 0.95),
}
SWEPT = 5
"""samples of a prompt at each point of the sweep"""


def read_strategies(text: str) -> dict[str, Strategy]:
    """`greedy,temperature=0.7,top-p(p=0.9, temperature=0.8)`: strategies by the name that they are shown under."""
    made: dict[str, Strategy] = {}
    for one in re.split(r",(?![^(]*\))", text):
        if not one.strip():
            continue
        found = _strategy(one.strip())
        name = label(found)
        if name in made:
            raise StrategyError(f"{name} is given twice")
        made[name] = found
    if not made:
        raise StrategyError(f"no strategy is given; the five of the comparison are {STRATEGIES}")
    return made


def _strategy(text: str) -> Strategy:
    match = re.fullmatch(r"([\w-]+)\s*=\s*([^()=]+)", text)
    if match is None:
        return parse(text)
    name = ALIASES.get(match[1].replace("_", "-"), match[1].replace("_", "-"))
    if name not in SHORT:
        strategy(name)  # says so if there is none of this name
        raise StrategyError(f"{text!r}: {name} takes no value; write {name}, or {name}(option=value)")
    try:
        value = ast.literal_eval(match[2].strip())
    except (ValueError, SyntaxError):
        raise StrategyError(f"{text!r}: {match[2].strip()!r} is not a number") from None
    return strategy(name, **{SHORT[name]: value})


def label(one: Strategy) -> str:
    """`top-p=0.7`: as it is written on the command line."""
    if len(one.options) == 1 and one.options[0][0] == SHORT.get(one.name):
        return f"{one.name}={one.options[0][1]:g}"
    return str(one)


@dataclass(frozen=True)
class Point:
    """One setting of the sweep."""

    family: str
    label: str
    value: float
    end: str
    """greedy or sample, where the families meet"""
    strategy: Strategy

    @property
    def name(self) -> str:
        return label(self.strategy)


def points(vocab: int) -> list[Point]:
    """The sweep along temperature, k and p. All three begin at greedy decoding and come to plain sampling."""
    made = []
    for family, values in SWEEP.items():
        all_of_it = ("1", 1.0) if family == "temperature" else ("all", math.inf)
        made.append(Point(family, "greedy", 0.0, "greedy", strategy("greedy")))
        made.append(Point(family, *all_of_it, "sample", strategy("sample")))
        made += [
            Point(family, f"{value:g}", value, "", strategy(family, **{SHORT[family]: value}))
            for value in values
            if family != "top-k" or value < vocab
        ]
    return sorted(made, key=lambda point: (list(SWEEP).index(point.family), point.value))
