"""Read findings.json, and derive the views that charts and tables share.

Any section may be empty: findings on scores from external sources contain verdicts and little else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from headtohead.atomic_io import has_valid_checksum, read_json_object
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.errors import RunFolderError
from headtohead.experiment.schemas import Findings, validate_record
from headtohead.experiment.schemas.base import SeedScore, check_schema_version
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation.number_format import is_finite_number

TRAINING_LOSS_SPLIT = "batches"
"""pseudo-split that holds the running mean of the training loss"""
DEFAULT_EQUIVALENCE_MARGIN = 0.01


@dataclass(frozen=True)
class CurvePoint:
    """A point on a learning curve: the mean, minimum and maximum over seeds."""

    variant: str
    step: int
    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class PairedScore:
    """The baseline's and a variant's scores for the same seed."""

    variant: str
    evaluation_set: str
    seed: int
    baseline: float
    value: float
    effect: float


def read_findings(experiment_folder: Path) -> Findings:
    """Read and validate findings.json from an experiment's folder."""
    path = experiment_folder / "findings.json"
    if not path.is_file():
        raise RunFolderError(f"{experiment_folder} has no findings.json, so there is nothing to report")
    raw = read_json_object(path)
    check_schema_version(raw, path)
    if not has_valid_checksum(raw):
        raise RunFolderError(
            f"{path} is corrupted: checksum mismatch; `h2h report {experiment_folder}` recomputes it from the runs"
        )
    return validate_record(raw, Findings, path)


def get_metric(findings: Findings) -> str:
    return findings.metric or (findings.verdicts[0].metric if findings.verdicts else "perplexity")


def get_equivalence_margin(findings: Findings) -> float:
    if findings.verdicts and math.isfinite(findings.verdicts[0].equivalence_margin):
        return findings.verdicts[0].equivalence_margin
    return findings.experiment.equivalence_margin if findings.experiment else DEFAULT_EQUIVALENCE_MARGIN


def get_question(findings: Findings) -> str:
    source = findings.experiment or findings.versus
    return (source.question if source else "") or "Did it help?"


def list_variant_names(findings: Findings) -> list[str]:
    """Return the baseline, followed by the variants in the order of the experiment file."""
    names = [verdict.variant for verdict in findings.verdicts]
    for section in (findings.scores, findings.curves, findings.audits, findings.samples):
        names += section
    return [BASELINE, *(name for name in dict.fromkeys(names) if name != BASELINE)]


def list_score_splits(findings: Findings) -> list[str]:
    """Return the splits that have final scores, in order."""
    return list(dict.fromkeys(split for by_split in findings.scores.values() for split in by_split))


def list_curve_splits(findings: Findings) -> list[str]:
    """Return the splits that have learning curves, in order, excluding the training loss."""
    splits = dict.fromkeys(split for by_split in findings.curves.values() for split in by_split)
    return [split for split in splits if split != TRAINING_LOSS_SPLIT]


def get_unknown_token_rates(findings: Findings) -> dict[str, float]:
    """Return the fraction of out-of-vocabulary tokens in each split, which limits how perplexities can be compared.

    The result is empty if the vocabulary contains all tokens, or if the metric is not perplexity.
    """
    splits = findings.corpus.splits if findings.corpus else {}
    rates = {name: split.unknown for name, split in splits.items()}
    return rates if get_metric(findings) == "perplexity" and any(rates.values()) else {}


def compute_learning_curves(findings: Findings, split: str) -> list[CurvePoint]:
    """Return the mean and range over seeds at each step, for each variant."""
    metric = get_metric(findings)
    points = []
    for name in list_variant_names(findings):
        for step, scores_by_seed in sorted(_group_scores_by_step(findings, name, split).items()):
            scores = list(scores_by_seed.values())
            mean = average_over_seeds(metric, scores)
            points.append(CurvePoint(name, step, mean, min(scores), max(scores), len(scores)))
    return points


def compute_difference_curves(findings: Findings, split: str) -> list[CurvePoint]:
    """Return the difference from the baseline at each step, paired by seed."""
    metric = get_metric(findings)
    baseline = _group_scores_by_step(findings, BASELINE, split)
    points = []
    for name in list_variant_names(findings)[1:]:
        for step, scores in sorted(_group_scores_by_step(findings, name, split).items()):
            reference = baseline.get(step, {})
            pairs = [(reference[seed], score) for seed, score in scores.items() if seed in reference]
            if pairs:
                effects = [compute_effect(metric, *pair) for pair in pairs]
                mean = _average_effect(metric, pairs)
                points.append(CurvePoint(name, step, mean, min(effects), max(effects), len(pairs)))
    return points


def pair_scores_by_seed(findings: Findings) -> list[PairedScore]:
    """Return each variant's score paired with the baseline's score for the same seed.

    The scores are those on the primary evaluation set if known, and otherwise those on each held-out split.
    """
    metric, pairs = get_metric(findings), []
    for evaluation_set, scores in _collect_scores_by_seed(findings).items():
        baseline = scores.get(BASELINE, {})
        for name in list_variant_names(findings)[1:]:
            for seed, value in scores.get(name, {}).items():
                if seed in baseline:
                    effect = compute_effect(metric, baseline[seed], value)
                    pairs.append(PairedScore(name, evaluation_set, seed, baseline[seed], value, effect))
    return pairs


def _collect_scores_by_seed(findings: Findings) -> dict[str, dict[str, dict[int, float]]]:
    """Return the score of every seed as {evaluation set: {variant: {seed: score}}}."""
    if findings.primary_scores:
        scores = {name: _keep_finite_scores(pairs) for name, pairs in findings.primary_scores.items()}
        return {describe_evaluation_set(findings): scores}
    corpus_splits = findings.corpus.splits if findings.corpus else {}
    splits = [name for name, split in corpus_splits.items() if split.role == "test"]
    if any(findings.split in by_split for by_split in findings.scores.values()):
        splits = [findings.split]
    # These scores cover entire splits; say so if the verdict is based on unseen rows only.
    suffix = ", all rows" if findings.rows == "unseen" else ""
    return {
        split + suffix: {
            name: _keep_finite_scores(by_split[split])
            for name, by_split in findings.scores.items()
            if split in by_split
        }
        for split in splits
    }


def _keep_finite_scores(seed_scores: Sequence[SeedScore]) -> dict[int, float]:
    """Return {seed: score} without non-finite scores."""
    return {seed: score for seed, score in seed_scores if is_finite_number(score)}


def describe_evaluation_set(findings: Findings) -> str:
    """Return the primary split and its rows, such as "test, unseen rows"."""
    return findings.split + (f", {findings.rows} rows" if findings.rows != "all" else "")


def get_baseline_setting(experiment: Experiment | None, dotted_name: str) -> JsonValue:
    """Return the baseline's value for a setting."""
    value: JsonValue = experiment.model_dump(mode="json") if experiment else None
    for key in dotted_name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def compute_effect(metric: str, baseline_score: float, variant_score: float) -> float:
    """Return the difference in the form used by verdicts: relative for perplexity, absolute otherwise."""
    return variant_score / baseline_score - 1 if metric == "perplexity" else variant_score - baseline_score


def _average_effect(metric: str, pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean effect over (baseline score, variant score) pairs, using the geometric mean for perplexity."""
    if metric == "perplexity":
        return math.expm1(
            statistics.fmean(math.log(variant_score / baseline_score) for baseline_score, variant_score in pairs)
        )
    return statistics.fmean(variant_score - baseline_score for baseline_score, variant_score in pairs)


def _group_scores_by_step(findings: Findings, variant: str, split: str) -> dict[int, dict[str, float]]:
    """Return a variant's finite scores as {step: {seed: score}}."""
    scores: dict[int, dict[str, float]] = {}
    for seed, curve in findings.curves.get(variant, {}).get(split, {}).items():
        for step, score in curve:
            if score is not None:
                scores.setdefault(step, {})[seed] = score
    return scores
