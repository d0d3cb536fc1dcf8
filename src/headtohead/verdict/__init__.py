"""Verdicts on scores from any source: did a variant help? Does not import torch.

The rule and the formulas are documented in docs/judging.md.
"""

from headtohead.verdict.compare import compare_scores
from headtohead.verdict.external_scores.csv_reader import read_csv
from headtohead.verdict.external_scores.judge_csv import judge_csv
from headtohead.verdict.external_scores.score_issues import ScoreWarning
from headtohead.verdict.interim import AlphaBudget, InterimAnalysis, compute_interim_confidence, plan_interim_analyses
from headtohead.verdict.intervals import compute_mean_interval
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores

__all__ = [
    "AlphaBudget",
    "InterimAnalysis",
    "ScoreWarning",
    "Scores",
    "Verdict",
    "compare_scores",
    "compute_interim_confidence",
    "compute_mean_interval",
    "judge_csv",
    "plan_interim_analyses",
    "read_csv",
]
