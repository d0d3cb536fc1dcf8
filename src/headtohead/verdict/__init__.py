"""Verdicts on scores from any source: did a variant help? Does not import torch.

The rule and the formulas are documented in docs/judging.md.
"""

from headtohead.verdict.compare import ErrorBudget, compare_scores
from headtohead.verdict.interim import Analysis, compute_analysis_confidence, plan_interim_analyses
from headtohead.verdict.record import Verdict
from headtohead.verdict.score_csv import judge_csv, read_csv
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import compute_mean_interval

__all__ = [
    "Analysis",
    "ErrorBudget",
    "Scores",
    "Verdict",
    "compare_scores",
    "compute_analysis_confidence",
    "compute_mean_interval",
    "judge_csv",
    "plan_interim_analyses",
    "read_csv",
]
