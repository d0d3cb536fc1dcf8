"""Verdicts: did a variant help? It judges scores from anywhere, by one rule, and knows nothing of torch.

The rule and the formulas stand in docs/judging.md.
"""

from headtohead.verdict.compare import compare
from headtohead.verdict.interim import confidence_at, schedule, settled
from headtohead.verdict.record import Verdict
from headtohead.verdict.score_csv import judge, read_csv
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import mean_interval

__all__ = ["Scores", "Verdict", "compare", "confidence_at", "judge", "mean_interval", "read_csv", "schedule", "settled"]
