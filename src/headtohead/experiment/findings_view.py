"""What the findings say, in the shapes that charts and tables want. docs/run-folder.md describes findings.json.

Every key may be missing: scores that people bring from elsewhere come with verdicts and little else, and each part of
the report is shown when there is something to show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.atomic_io import has_valid_checksum, read_json
from headtohead.errors import RunFolderError
from headtohead.presentation.number_format import is_finite_number

DEFAULT_BASELINE_NAME = "baseline"
TRAINING_LOSS_SPLIT = "batches"
"""the running mean of the training loss; it has no metric of its own"""
SCHEMA_VERSION = 1
Findings = dict[str, Any]


@dataclass(frozen=True)
class CurvePoint:
    """A place on a curve: the mean over seeds, the lowest and the highest seed."""

    variant: str
    at: int
    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class PairedScore:
    """One seed of a variant beside the same seed of the baseline."""

    variant: str
    text: str
    seed: int
    baseline: float
    value: float
    effect: float


def read_findings(experiment_folder: Path) -> Findings:
    """The findings of an experiment's folder."""
    path = experiment_folder / "findings.json"
    if not path.is_file():
        raise RunFolderError(f"{experiment_folder}: has no findings.json, so there is nothing to report")
    found = read_json(path)
    if isinstance(found, dict) and not has_valid_checksum(found):
        raise RunFolderError(
            f"{path}: is damaged (its checksum does not agree); `h2h report {experiment_folder}` makes it anew"
        )
    if not isinstance(found, dict) or found.get("schema") != SCHEMA_VERSION:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise RunFolderError(f"{path}: written with schema {schema}, this reads {SCHEMA_VERSION}")
    return found


def get_metric(findings: Findings) -> str:
    rows = get_verdicts(findings)
    return str(findings.get("metric") or (rows[0]["metric"] if rows else "perplexity"))


def get_equivalence_margin(findings: Findings) -> float:
    rows = get_verdicts(findings)
    given = (rows[0].get("equivalence_margin") if rows else None) or get_experiment(findings).get("matters")
    return float(given) if isinstance(given, int | float) else 0.01


def get_verdicts(findings: Findings) -> list[dict[str, Any]]:
    return list(findings.get("verdicts") or [])


def get_experiment(findings: Findings) -> dict[str, Any]:
    return findings.get("experiment") or {}


def get_question(findings: Findings) -> str:
    return str(get_experiment(findings).get("question") or findings.get("question") or "Did it help?")


def get_baseline_name(findings: Findings) -> str:
    return str(findings.get("baseline") or DEFAULT_BASELINE_NAME)


def list_variant_names(findings: Findings) -> list[str]:
    """The baseline, then the variants in the file's order."""
    first = get_baseline_name(findings)
    known = [row["variant"] for row in get_verdicts(findings)]
    known += [name for key in ("results", "curves", "audits", "samples") for name in findings.get(key) or {}]
    return [first, *(name for name in dict.fromkeys(known) if name != first)]


def list_splits(findings: Findings, section: str) -> list[str]:
    """The splits that `results` or `curves` speak of, in their order."""
    named = dict.fromkeys(split for by_split in (findings.get(section) or {}).values() for split in by_split)
    return [split for split in named if split != TRAINING_LOSS_SPLIT]


def get_unknown_token_rates(findings: Findings) -> dict[str, float]:
    """The share of each split's tokens that the vocabulary does not know, which a perplexity means little without;
    empty where all are known."""
    splits = (findings.get("corpus") or {}).get("splits") or {}
    shares = {split: float(one.get("unknown") or 0) for split, one in splits.items()}
    return shares if get_metric(findings) == "perplexity" and any(shares.values()) else {}


def compute_learning_curves(findings: Findings, split: str) -> list[CurvePoint]:
    """The learning curves of a split: for each variant and step the mean over seeds and the range of them."""
    pooled = _select_mean_function(get_metric(findings))
    found = []
    for name in list_variant_names(findings):
        for at, values in sorted(_group_scores_by_step(findings, name, split).items()):
            figures = list(values.values())
            found.append(CurvePoint(name, at, pooled(figures), min(figures), max(figures), len(figures)))
    return found


def compute_difference_curves(findings: Findings, split: str) -> list[CurvePoint]:
    """The same as the difference to the baseline, seed by seed."""
    name_of_metric = get_metric(findings)
    original = _group_scores_by_step(findings, get_baseline_name(findings), split)
    found = []
    for name in list_variant_names(findings)[1:]:
        for at, values in sorted(_group_scores_by_step(findings, name, split).items()):
            pairs = [(original.get(at, {})[s], v) for s, v in values.items() if s in original.get(at, {})]
            if pairs:
                effects = [compute_effect(name_of_metric, *pair) for pair in pairs]
                found.append(
                    CurvePoint(name, at, _average_effect(name_of_metric, pairs), min(effects), max(effects), len(pairs))
                )
    return found


def pair_scores_by_seed(findings: Findings) -> list[PairedScore]:
    """Each seed's score of each variant beside the baseline, on what decides; else on each held-out text by itself."""
    name_of_metric, found = get_metric(findings), []
    for text, scores in _collect_scores_by_seed(findings).items():
        original = scores.get(get_baseline_name(findings), {})
        for name in list_variant_names(findings)[1:]:
            for seed, value in scores.get(name, {}).items():
                if seed in original:
                    effect = compute_effect(name_of_metric, original[seed], value)
                    found.append(PairedScore(name, text, seed, original[seed], value, effect))
    return found


def _collect_scores_by_seed(findings: Findings) -> dict[str, dict[str, dict[int, float]]]:
    """text: variant: seed: value."""
    decides = str(findings.get("split") or "")
    if by_seed := findings.get("by_seed"):
        return {
            describe_evaluation_set(findings): {name: _keep_finite_scores(pairs) for name, pairs in by_seed.items()}
        }
    results = findings.get("results") or {}
    about = (findings.get("corpus") or {}).get("splits") or {}
    held_out = [name for name, one in about.items() if one.get("role") == "test"]
    texts = [decides] if any(decides in by_split for by_split in results.values()) else held_out
    # The figures of whole splits: where only unseen rows decide, that has to be said.
    rows = ", all rows" if findings.get("rows") == "unseen" else ""
    return {
        text + rows: {
            name: _keep_finite_scores(by_split[text]) for name, by_split in results.items() if text in by_split
        }
        for text in texts
    }


def _keep_finite_scores(seed_scores: Sequence[Sequence[Any]]) -> dict[int, float]:
    return {int(seed): value for seed, value in seed_scores if is_finite_number(value)}


def describe_evaluation_set(findings: Findings) -> str:
    """test, unseen rows."""
    rows = findings.get("rows")
    return str(findings.get("split") or "") + (f", {rows} rows" if rows and rows != "all" else "")


def get_baseline_setting(findings: Findings, dotted_name: str) -> Any:
    """The baseline's value of a setting with a dotted name."""
    found: Any = get_experiment(findings)
    for key in dotted_name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def compute_effect(metric: str, baseline_score: float, variant_score: float) -> float:
    """As a verdict gives it: relative for perplexity, plain otherwise."""
    return variant_score / baseline_score - 1 if metric == "perplexity" else variant_score - baseline_score


def average_over_seeds(metric: str, values: Sequence[float]) -> float:
    return _select_mean_function(metric)(values)


def _select_mean_function(metric: str) -> Callable[[Sequence[float]], float]:
    # Perplexity is exp of a mean loss, so its mean over seeds is the geometric one.
    return statistics.geometric_mean if metric == "perplexity" else statistics.fmean


def _average_effect(metric: str, pairs: Sequence[tuple[float, float]]) -> float:
    if metric == "perplexity":
        return math.expm1(statistics.fmean(math.log(second / first) for first, second in pairs))
    return statistics.fmean(second - first for first, second in pairs)


def _group_scores_by_step(findings: Findings, variant: str, split: str) -> dict[int, dict[str, float]]:
    """step: seed: value."""
    found: dict[int, dict[str, float]] = {}
    for seed, line in (findings.get("curves") or {}).get(variant, {}).get(split, {}).items():
        for at, value in line:
            if is_finite_number(value):
                found.setdefault(int(at), {})[str(seed)] = value
    return found
