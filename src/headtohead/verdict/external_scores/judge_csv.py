"""Judge the scores in a CSV file: read it, check that the scores can be compared, and compare the variants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from headtohead.errors import ScoresError, suggest
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.external_scores.copied_examples import format_copied_examples_warning, group_copied_examples
from headtohead.verdict.external_scores.csv_reader import read_csv
from headtohead.verdict.external_scores.score_checks import run_score_checks
from headtohead.verdict.external_scores.score_issues import ScoreWarning, format_blocking_issues
from headtohead.verdict.interim import AlphaBudget, InterimAnalysis
from headtohead.verdict.record import Verdict

DEFAULT_EQUIVALENCE_MARGINS: Mapping[str, float] = {"perplexity": 0.01, "accuracy": 0.01}


def judge_csv(
    path: str | Path,
    *,
    baseline_name: str | None = None,
    metric: str | None = None,
    equivalence_margin: float | None = None,
    confidence: float = 0.95,
    earlier_analyses: Sequence[InterimAnalysis] = (),
    num_comparisons: int = 0,
) -> list[Verdict]:
    """Return the verdict on each variant in a score file.

    Scores that may not be those of independent runs on the same examples cause a ScoreWarning; if they cannot be, the
    verdict is withheld.

    Args:
        path: CSV file with the columns variant, seed, score and, optionally, example, document and weight.
        baseline_name: Name of the baseline in the file; defaults to "baseline", or else the first variant in the file.
        metric: Metric of a column named `score`.
        equivalence_margin: Largest difference without practical relevance; defaults to the metric's own margin.
        confidence: Joint confidence level of all intervals.
        earlier_analyses: Interim analyses of these variants so far.
        num_comparisons: Number of variants ever compared; the file may hold fewer.
    """
    score_table = read_csv(path, metric=metric)
    if score_table.metric is None:
        raise ScoresError(
            f"{path}: the file does not say what the score is; set metric to perplexity, accuracy, loss (lower is "
            "better) or score (higher is better)"
        )
    if equivalence_margin is None:
        equivalence_margin = DEFAULT_EQUIVALENCE_MARGINS.get(score_table.metric)
    if equivalence_margin is None:
        raise ScoresError(
            f"{path}: metric {score_table.metric} has no default equivalence margin; set the difference below which "
            "two variants count as equivalent"
        )
    if baseline_name is None:
        baseline_name = score_table.baseline
    if baseline_name not in score_table.scores:
        suggestion = suggest(baseline_name, score_table.scores)
        hint = f"; did you mean {suggestion!r}?" if suggestion else ""
        raise ScoresError(f"{path}: no variant {baseline_name!r}; variants: {', '.join(score_table.scores)}{hint}")
    baseline = score_table.scores[baseline_name]
    variants = {name: scores for name, scores in score_table.scores.items() if name != baseline_name}
    if not variants:
        raise ScoresError(f"{path}: only {baseline_name!r} has scores; a comparison needs two variants")
    issues = run_score_checks(baseline_name, baseline, variants, score_table.metric)
    baseline, variants, num_copies = group_copied_examples(baseline, variants)
    if num_copies:
        warnings.warn(format_copied_examples_warning(num_copies), ScoreWarning, stacklevel=2)
    for issue in issues:
        if not issue.is_blocking:
            warnings.warn(f"{issue.message} {issue.advice}", ScoreWarning, stacklevel=2)
    analyses = tuple(sorted(set(earlier_analyses), key=lambda analysis: (analysis.num_seeds, analysis.num_documents)))
    reasons = {variant: format_blocking_issues(issues, baseline_name, variant) for variant in variants}
    return compare_scores(
        baseline,
        variants,
        metric=score_table.metric,
        equivalence_margin=equivalence_margin,
        withheld={variant: blocking for variant, blocking in reasons.items() if blocking},
        confidence=confidence,
        budget=AlphaBudget(dict.fromkeys(variants, analyses), num_comparisons=num_comparisons),
    )
