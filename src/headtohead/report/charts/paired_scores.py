"""A chart of scores by seed, with a line from the baseline's score to the variant's for each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from headtohead.config.experiment import BASELINE
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.experiment.schemas.base import SeedScore
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_score_axis_labels,
)

MAX_PANELS = 24
OUTCOME_STYLES = {
    "better": (style.VERDICT_COLORS["helped"], [1, 0]),
    "worse": (style.VERDICT_COLORS["hurt"], [5, 3]),
    "equal": (style.MUTED_TEXT_COLOR, [2, 2]),
}


@dataclass(frozen=True)
class PairedScore:
    """The baseline's and a variant's scores for the same seed."""

    variant: str
    evaluation_set: str
    seed: int
    baseline: float
    value: float
    effect: float


def pair_scores_by_seed(findings: Findings) -> list[PairedScore]:
    """Return each variant's score paired with the baseline's score for the same seed.

    The scores are those on the primary evaluation set if known, and otherwise those on each held-out split.
    """
    metric, pairs = findings_view.get_metric(findings), []
    for evaluation_set, scores in _collect_scores_by_seed(findings).items():
        baseline = scores.get(BASELINE, {})
        for name in findings_view.list_variant_names(findings)[1:]:
            for seed, value in scores.get(name, {}).items():
                if seed in baseline:
                    effect = findings_view.compute_effect(metric, baseline[seed], value)
                    pairs.append(PairedScore(name, evaluation_set, seed, baseline[seed], value, effect))
    return pairs


def _collect_scores_by_seed(findings: Findings) -> dict[str, dict[str, dict[int, float]]]:
    """Return the scores that the paired chart shows as {evaluation set: {variant: {seed: score}}}."""
    if findings.primary_scores:
        scores = {name: _keep_finite_scores(pairs) for name, pairs in findings.primary_scores.items()}
        return {findings_view.describe_evaluation_set(findings): scores}
    corpus_splits = findings.corpus.splits if findings.corpus else {}
    splits = [name for name, split in corpus_splits.items() if split.role == "test"]
    if any(findings.split in variant_scores for variant_scores in findings.scores.values()):
        splits = [findings.split]
    # These scores cover entire splits; say so if the verdict is based on unseen rows only.
    suffix = ", all rows" if findings.rows == "unseen" else ""
    return {
        split + suffix: {
            name: _keep_finite_scores(variant_scores[split])
            for name, variant_scores in findings.scores.items()
            if split in variant_scores
        }
        for split in splits
    }


def _keep_finite_scores(seed_scores: Sequence[SeedScore]) -> dict[int, float]:
    """Return {seed: score} without non-finite scores."""
    return {seed: score for seed, score in seed_scores if number_format.is_finite_number(score)}


def build_paired_score_chart(pairs: Sequence[PairedScore], metric: str) -> Chart | None:
    """Return one panel per variant and evaluation set, or None if there are no pairs."""
    panels: dict[tuple[str, str], list[PairedScore]] = {}
    for pair in pairs:
        panels.setdefault((pair.variant, pair.evaluation_set), []).append(pair)
    panels = dict(list(panels.items())[:MAX_PANELS])
    if not panels:
        return None
    summaries = []
    for (variant, evaluation_set), panel_pairs in panels.items():
        num_better = sum(number_format.is_improvement(metric, pair.effect) for pair in panel_pairs)
        summaries.append(
            f"{variant} on {evaluation_set}: better than the baseline with {num_better} of {len(panel_pairs)} seeds"
        )
    alt_text = f"The score of each seed, from the baseline to the variant. {'; '.join(summaries)}."

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _draw_paired_panels(panels, metric, datasets)

    title = f"{metric.capitalize()} by seed, from the baseline to the variant"
    return Chart("pairs", title, alt_text, build, _size_paired_panels(len(panels)))


def _size_paired_panels(num_panels: int) -> Mapping[Layout, PanelGrid]:
    """Return the paired chart's panel sizes and columns for the wide and the narrow layout."""
    wide, narrow = min(num_panels, 4), min(num_panels, 2)
    return {
        "wide": PanelGrid({1: 300, 2: 280, 3: 210}.get(wide, 150), 170, wide, 3),
        "narrow": PanelGrid({1: 260}.get(narrow, 112), 170, narrow, 3),
    }


def _draw_paired_panels(
    panels: Mapping[tuple[str, str], Sequence[PairedScore]], metric: str, datasets: ChartDatasets
) -> AltairChart:
    """Draw a line per seed from the baseline's score to the variant's, one panel per variant and evaluation set."""
    present_outcomes = {_classify_paired_score(pair, metric) for panel_pairs in panels.values() for pair in panel_pairs}
    outcomes = [outcome for outcome in OUTCOME_STYLES if outcome in present_outcomes]
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    colors = alt.Scale(domain=outcomes, range=[OUTCOME_STYLES[outcome][0] for outcome in outcomes])
    dashes = alt.Scale(domain=outcomes, range=[OUTCOME_STYLES[outcome][1] for outcome in outcomes])
    color = alt.Color("outcome:N", scale=colors, legend=legend)
    dash = alt.StrokeDash("outcome:N", scale=dashes, legend=legend)
    x_axis = alt.Axis(labelAngle=0, grid=False)
    x = alt.X("side:N", sort=None, title=None, scale=alt.Scale(padding=0.35), axis=x_axis)
    y_axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(metric))
    y = alt.Y("value:Q", scale=alt.Scale(zero=False, padding=10, nice=False), axis=y_axis)
    panel_charts = []
    for (variant, evaluation_set), panel_pairs in panels.items():
        data = datasets.chart([row for pair in panel_pairs for row in _make_line_ends(pair, metric)])
        lines = data.mark_line(aria=False, strokeWidth=2).encode(
            x=x, y=y, detail="seed:N", color=color, strokeDash=dash
        )
        points = data.mark_point(size=42, filled=True, opacity=1).encode(x=x, y=y, color=color, description="tip:N")
        panel_charts.append(
            alt.layer(lines, points).properties(title=alt.TitleParams(variant, subtitle=evaluation_set))
        )
    return arrange_panels(panel_charts)


def _classify_paired_score(pair: PairedScore, metric: str) -> str:
    """Return whether the variant is better than the baseline, worse, or equal."""
    if pair.effect == 0:
        return "equal"
    return "better" if number_format.is_improvement(metric, pair.effect) else "worse"


def _make_line_ends(pair: PairedScore, metric: str) -> list[dict[str, Any]]:
    """Return the two data rows of a line in the paired chart: the baseline's score and the variant's."""
    baseline, variant = (number_format.format_score(metric, score) for score in (pair.baseline, pair.value))
    effect = number_format.format_effect(metric, pair.effect)
    tip = f"seed {pair.seed}: baseline {baseline}, {pair.variant} {variant} ({effect})"
    shared_fields = {"seed": pair.seed, "outcome": _classify_paired_score(pair, metric), "tip": tip}
    return [
        {**shared_fields, "side": "baseline", "value": pair.baseline},
        {**shared_fields, "side": "variant", "value": pair.value},
    ]
