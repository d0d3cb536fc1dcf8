"""Run all checks of scores from other sources: copied runs, different units, different texts, unordered pairs.

The checks see only the scores. A finding that independent runs practically never produce (probability below
`score_issues.MAX_COINCIDENCE`) withholds the verdict; one that has honest explanations is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

from headtohead.verdict.external_scores.pair_checks import PAIR_CHECKS
from headtohead.verdict.external_scores.score_issues import ScoreIssue, summarize_variant
from headtohead.verdict.external_scores.variant_checks import VARIANT_CHECKS
from headtohead.verdict.metric import MetricName, get_metric
from headtohead.verdict.scores import Scores


def run_score_checks(
    baseline_name: str, baseline: Scores, variants: Mapping[str, Scores], metric_name: MetricName
) -> list[ScoreIssue]:
    """Run all checks on scores from other sources; return the issues of each variant and pair, the baseline's first."""
    metric = get_metric(metric_name)
    named_scores = ((baseline_name, baseline), *variants.items())
    summaries = {name: summarize_variant(name, scores) for name, scores in named_scores}
    issues: list[ScoreIssue | None] = []
    for summary in summaries.values():
        issues += [check(summary, metric) for check in VARIANT_CHECKS]
    for name in variants:
        issues += [check(summaries[baseline_name], summaries[name], metric) for check in PAIR_CHECKS]
    return [issue for issue in issues if issue is not None]
