"""When a cell of a search gets no more seeds: only when it is behind by more than noise explains.

Let m be the mean of a cell's n seeds so far, and M the mean of another cell that is over, with N seeds. The noise is
the seed-to-seed spread s, pooled over the cells (a sum of squares inside cells with f degrees of freedom). The cell is
given up when for one of the others

    M - m  >  t(1 - risk / (K L), f)  s  sqrt(1/n + 1/N)

with K others that it is held against and L moments at which it is looked at. The truly best cell is then given up with
a chance of no more than `risk` (Bonferroni over others and looks), if seeds scatter alike in all cells; docs/search.md
shows by simulation what happens where they do not.

The bound is wide on purpose. It is meant to save the seeds of cells that are hopeless, not to split hairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

from headtohead.config.search import PruningConfig
from headtohead.experiment.schemas import PruningDecision

MIN_DEGREES_OF_FREEDOM = 4
"""below this the spread is a guess, and nothing is given up"""
SeedScores = Sequence[float]
"""a cell's scores, one for each seed; the higher the better"""


def compute_pooled_std(scores_by_point: Sequence[SeedScores]) -> tuple[float, int]:
    """The standard deviation of one seed inside a cell, over all cells with two or more, and its degrees of freedom."""
    freedom, squares = 0, 0.0
    for cell in scores_by_point:
        mean = _compute_mean(cell) if cell else 0.0
        squares += sum((score - mean) ** 2 for score in cell)
        freedom += max(0, len(cell) - 1)
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def _compute_mean(scores: SeedScores) -> float:
    return sum(scores) / len(scores)


def decide_pruning(
    scores: SeedScores, other_scores: Sequence[SeedScores], rule: PruningConfig, num_seeds: int
) -> PruningDecision | None:
    """Is the cell so far behind one of the others, which are over, that it need not be followed? None: go on."""
    looks = num_seeds - rule.after
    if not scores or len(scores) < rule.after or len(scores) >= num_seeds or not other_scores:
        return None
    spread, freedom = compute_pooled_std([*other_scores, scores])
    if freedom < MIN_DEGREES_OF_FREEDOM:
        return None
    reach = float(special.stdtrit(freedom, 1 - rule.risk / (len(other_scores) * looks)))
    mean = _compute_mean(scores)
    for other in other_scores:
        behind = _compute_mean(other) - mean
        bound = reach * spread * math.sqrt(1 / len(scores) + 1 / len(other))
        if behind > bound:
            return PruningDecision(deficit=behind, threshold=bound, seeds=len(scores))
    return None
