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
from headtohead.verdict.rule import CANNOT_TELL

MIN_FIRST_ANALYSIS = 3
GROWTH_FACTOR = 1.6
SPENDING_EXPONENT = 2


def plan_interim_analyses(max_seeds: int) -> tuple[int, ...]:
    """The numbers of seeds at which to look, up to the limit: each about 1.6 times the one before."""
    if max_seeds < 2:
        raise ScoresError(f"a limit of {max_seeds} seeds; two are the least from which noise can be estimated")
    looks = [max_seeds]
    while (before := round(looks[0] / GROWTH_FACTOR)) >= MIN_FIRST_ANALYSIS:
        looks.insert(0, before)
    return tuple(looks)


def compute_analysis_confidence(
    current_analysis: int, interim_analyses: Sequence[int], confidence: float = 0.95
) -> float:
    """The confidence of the interval at one look, such that all looks together keep `confidence`."""
    interim_analyses = tuple(interim_analyses)
    if sorted(set(interim_analyses)) != list(interim_analyses) or not interim_analyses or interim_analyses[0] < 2:
        raise ScoresError(
            f"looks must rise from 2 seeds or more, but are {', '.join(map(str, interim_analyses)) or 'empty'}"
        )
    if current_analysis not in interim_analyses:
        raise ScoresError(
            f"no look at {current_analysis} seeds is planned; planned are {', '.join(map(str, interim_analyses))}"
        )
    at = interim_analyses.index(current_analysis)
    spent_before = (interim_analyses[at - 1] / interim_analyses[-1]) ** SPENDING_EXPONENT if at else 0.0
    share = (current_analysis / interim_analyses[-1]) ** SPENDING_EXPONENT - spent_before
    return 1 - (1 - confidence) * share


def is_settled(verdicts: Iterable[Verdict]) -> bool:
    """Whether no verdict is left open, so that no further seed is needed."""
    return all(verdict.word != CANNOT_TELL for verdict in verdicts)
