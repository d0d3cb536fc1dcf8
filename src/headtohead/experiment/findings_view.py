"""Read findings.json, and look up values in it that several presentations of the results need.

Any section may be empty: findings on scores from external sources contain little more than verdicts.
"""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import JsonValue

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.errors import RunFolderError
from headtohead.experiment.schemas import Findings, validate_record
from headtohead.experiment.schemas.base import check_schema_version
from headtohead.json_files import has_valid_json_checksum, read_json_object

TRAINING_LOSS_SPLIT = "batches"
"""pseudo-split that contains the running mean of the training loss"""
DEFAULT_EQUIVALENCE_MARGIN = 0.01
"""relative difference, for findings without verdicts and without an experiment"""


def read_findings(experiment_folder: Path) -> Findings:
    """Read findings.json from an experiment's folder and validate it."""
    path = experiment_folder / "findings.json"
    if not path.is_file():
        raise RunFolderError(f"{experiment_folder} has no findings.json, so there is nothing to report")
    findings_json = read_json_object(path)
    check_schema_version(findings_json, path)
    if not has_valid_json_checksum(findings_json):
        raise RunFolderError(
            f"{path} is corrupted: checksum mismatch; `h2h report {experiment_folder}` recomputes it from the runs"
        )
    return validate_record(findings_json, Findings, path)


def get_metric(findings: Findings) -> str:
    return findings.metric or (findings.verdicts[0].metric if findings.verdicts else "perplexity")


def get_equivalence_margin(findings: Findings) -> float:
    if findings.verdicts and math.isfinite(findings.verdicts[0].equivalence_margin):
        return findings.verdicts[0].equivalence_margin
    return findings.experiment.equivalence_margin if findings.experiment else DEFAULT_EQUIVALENCE_MARGIN


def get_question(findings: Findings) -> str:
    origin = findings.experiment or findings.versus
    return (origin.question if origin else "") or "Did it help?"


def list_variant_names(findings: Findings) -> list[str]:
    """Return the names under which views of the findings show variants: the baseline, then the others in order."""
    names = [verdict.variant for verdict in findings.verdicts]
    for section in (findings.scores, findings.curves, findings.audits, findings.samples):
        names += section
    return [BASELINE, *(name for name in dict.fromkeys(names) if name != BASELINE)]


def list_score_splits(findings: Findings) -> list[str]:
    """Return the splits that have final scores, in order."""
    return list(dict.fromkeys(split for variant_scores in findings.scores.values() for split in variant_scores))


def list_curve_splits(findings: Findings) -> list[str]:
    """Return the splits that have learning curves, in order, excluding the training loss."""
    splits = dict.fromkeys(split for variant_curves in findings.curves.values() for split in variant_curves)
    return [split for split in splits if split != TRAINING_LOSS_SPLIT]


def get_unknown_token_rates(findings: Findings) -> dict[str, float]:
    """Look up the fraction of out-of-vocabulary tokens in each split, for tables of perplexities.

    A model that predicts the unknown token often has a low perplexity. The result is empty if the vocabulary contains
    all tokens, or if the metric is not perplexity.
    """
    splits = findings.corpus.splits if findings.corpus else {}
    rates = {name: split.unknown for name, split in splits.items()}
    return rates if get_metric(findings) == "perplexity" and any(rates.values()) else {}


def describe_evaluation_set(findings: Findings) -> str:
    """Return the primary split and its rows, such as "test, unseen rows"."""
    return findings.split + (f", {findings.rows} rows" if findings.rows != "all" else "")


def get_baseline_setting(experiment: Experiment | None, dotted_name: str) -> JsonValue:
    """Return the baseline's value of a setting, for views of findings that list changes; None if it has none."""
    value: JsonValue = experiment.model_dump(mode="json") if experiment else None
    for key in dotted_name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def compute_effect(metric: str, baseline_score: float, variant_score: float) -> float:
    """Return a variant's effect on one pair of scores, as in verdicts: relative for perplexity, absolute otherwise."""
    return variant_score / baseline_score - 1 if metric == "perplexity" else variant_score - baseline_score
