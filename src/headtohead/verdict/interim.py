"""Adding seeds until the verdict is settled, with error rates that stay valid under that peeking.

The method is alpha spending over planned looks (Lan and DeMets, Biometrika 70, 1983) with the power family of Kim and
DeMets (Biometrika 74, 1987), exponent 2: by the look at k of K seeds, (k/K)^2 of the error rate has been spent. What a
look may spend is the increase since the look before, and the interval of a look is a t interval at that level, so by
the union bound the intervals of all looks hold together with the stated confidence, whatever the correlation between
looks, the number of seeds or the moment of stopping. Nothing rests on large numbers. The 90 % interval of the test of
equivalence is spent in the same way, so "no practical difference" stays valid too.

The price is small: with looks at 3, 5, 8 and 12 seeds the union bound spends 4.2 % where 5 % are allowed, and the last
look has an interval of 97.2 % instead of 95 %. Little is spent early, since with 3 seeds only a very large effect can
be seen at any level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headtohead.errors import ScoresError
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import UNSURE

FIRST = 3
GROWTH = 1.6
EXPONENT = 2


def schedule(limit: int) -> tuple[int, ...]:
    """The numbers of seeds at which to look, up to the limit: each about 1.6 times the one before."""
    if limit < 2:
        raise ScoresError(f"a limit of {limit} seeds; two are the least from which noise can be estimated")
    looks = [limit]
    while (before := round(looks[0] / GROWTH)) >= FIRST:
        looks.insert(0, before)
    return tuple(looks)


def confidence_at(look: int, looks: Sequence[int], confidence: float = 0.95) -> float:
    """The confidence of the interval at one look, such that all looks together keep `confidence`."""
    looks = tuple(looks)
    if sorted(set(looks)) != list(looks) or not looks or looks[0] < 2:
        raise ScoresError(f"looks must rise from 2 seeds or more, but are {', '.join(map(str, looks)) or 'empty'}")
    if look not in looks:
        raise ScoresError(f"no look at {look} seeds is planned; planned are {', '.join(map(str, looks))}")
    at = looks.index(look)
    spent_before = (looks[at - 1] / looks[-1]) ** EXPONENT if at else 0.0
    share = (look / looks[-1]) ** EXPONENT - spent_before
    return 1 - (1 - confidence) * share


def settled(verdicts: Iterable[Verdict]) -> bool:
    """Whether no verdict is left open, so that no further seed is needed."""
    return all(verdict.word != UNSURE for verdict in verdicts)
