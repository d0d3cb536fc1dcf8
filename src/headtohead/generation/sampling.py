"""One token for each row, by the race that `chance` describes: the slow, obvious road, and a fast one that gives the
same tokens.

The slow road sorts the vocabulary to know the nucleus, renormalises, and lets what is left race. The fast road lets
everybody race, and asks of the winner alone whether it is inside: for top-p, whether the mass of all likelier tokens is
below p. This is exact. Arrival times of the tokens are independent and do not know of the cut; the first to arrive of
those inside is the first of all arrivals that is inside, and of exponential times with rates p_i the first within a set
S is i with probability p_i / sum of p over S: the renormalised distribution. A winner that is outside is struck off
with every token that is no likelier, which cannot be inside either, and the next arrival is looked at; so it ends soon,
and no sort is ever needed. The likeliest token is always inside.

Nor is a logarithm needed for each token. An exponential time -log(1 - u) is never below its uniform number u, so that
p / u bounds a token's speed from above; the logarithm is taken of the token with the largest bound, and of the few
whose bounds are above its true speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headtohead.errors import ModelError
from headtohead.generation.counter_rng import Luck, time, times
from headtohead.generation.logits_processors import Cut, Logits, Seen, Step, distribution
from headtohead.generation.token_ranks import Row, struck


def likeliest(logits: Logits, steps: Sequence[Step], seen: Seen) -> list[int]:
    """The place of the maximum."""
    for step in steps:
        logits = step(logits, seen)
    found: list[int] = logits.argmax(-1).tolist()
    return found


def draw_slowly(logits: Logits, steps: Sequence[Step], seen: Seen, luck: Luck) -> list[int]:
    """The definition: the distribution that the steps leave, and a race."""
    probabilities = distribution(logits, steps, seen)
    speed = probabilities / torch.from_numpy(times(luck)).to(probabilities.device)
    found = speed.argmax(-1)
    if not bool((speed.gather(-1, found[:, None]) > 0).all()):  # also when it is not a number
        raise _nothing_left()
    tokens: list[int] = found.tolist()
    return tokens


def draw(logits: Logits, steps: Sequence[Step], seen: Seen, luck: Luck) -> list[int]:
    """The same tokens, without a sort where the last step is a cut."""
    if logits.device.type != "cpu":
        return draw_slowly(logits, steps, seen, luck)
    cut = steps[-1] if steps and isinstance(steps[-1], Cut) else None
    probabilities = distribution(logits, steps if cut is None else steps[:-1], seen).numpy()
    return [_race(row, fortune, cut) for row, fortune in zip(probabilities, luck, strict=True)]


def _race(row: Row, luck: Row, cut: Cut | None) -> int:
    """The first to arrive among those that the cut keeps."""
    bound = row / luck
    while True:
        found = _fastest(row, bound, luck)
        at = float(row[found])
        if not at > 0:  # also when it is not a number
            raise _nothing_left()
        if cut is None or cut.keeps(row, at):
            return found
        bound = struck(bound, row, at)


def _fastest(row: Row, bound: Row, luck: Row) -> int:
    """The place of the largest probability / time. Leaves the bounds as they are."""
    found = int(bound.argmax())
    speed, top = _speed(row, luck, found), bound[found]
    bound[found] = 0
    if bound.max() > speed:  # somebody may still be faster than the one with the largest bound
        for place in np.flatnonzero(bound > speed).tolist():
            if (other := _speed(row, luck, place)) > speed:
                bound[found], found, speed, top = top, place, other, bound[place]
                bound[found] = 0
    bound[found] = top
    return found


def _speed(row: Row, luck: Row, place: int) -> float:
    return float(row[place]) / time(float(luck[place]))


def _nothing_left() -> ModelError:
    return ModelError("no token is left to draw: everything is banned, or the model's logits are not numbers")
