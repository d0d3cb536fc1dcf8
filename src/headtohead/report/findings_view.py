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

from headtohead.atomic_io import is_as_written, read_json
from headtohead.errors import RunFolderError
from headtohead.presentation.number_format import is_number

BASELINE = "baseline"
BATCHES = "batches"
"""the running mean of the training loss; it has no metric of its own"""
SCHEMA = 1
Findings = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A place on a curve: the mean over seeds, the lowest and the highest seed."""

    variant: str
    at: int
    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Paired:
    """One seed of a variant beside the same seed of the baseline."""

    variant: str
    text: str
    seed: int
    baseline: float
    value: float
    effect: float


def read(folder: Path) -> Findings:
    """The findings of an experiment's folder."""
    path = folder / "findings.json"
    if not path.is_file():
        raise RunFolderError(f"{folder}: has no findings.json, so there is nothing to report")
    found = read_json(path)
    if isinstance(found, dict) and not is_as_written(found):
        raise RunFolderError(f"{path}: is damaged (its checksum does not agree); `h2h report {folder}` makes it anew")
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise RunFolderError(f"{path}: written with schema {schema}, this reads {SCHEMA}")
    return found


def metric(findings: Findings) -> str:
    rows = verdicts(findings)
    return str(findings.get("metric") or (rows[0]["metric"] if rows else "perplexity"))


def matters(findings: Findings) -> float:
    rows = verdicts(findings)
    given = (rows[0].get("matters") if rows else None) or experiment(findings).get("matters")
    return float(given) if isinstance(given, int | float) else 0.01


def verdicts(findings: Findings) -> list[dict[str, Any]]:
    return list(findings.get("verdicts") or [])


def experiment(findings: Findings) -> dict[str, Any]:
    return findings.get("experiment") or {}


def question(findings: Findings) -> str:
    return str(experiment(findings).get("question") or findings.get("question") or "Did it help?")


def baseline(findings: Findings) -> str:
    return str(findings.get("baseline") or BASELINE)


def names(findings: Findings) -> list[str]:
    """The baseline, then the variants in the file's order."""
    first = baseline(findings)
    known = [row["variant"] for row in verdicts(findings)]
    known += [name for key in ("results", "curves", "audits", "samples") for name in findings.get(key) or {}]
    return [first, *(name for name in dict.fromkeys(known) if name != first)]


def splits_of(findings: Findings, key: str) -> list[str]:
    """The splits that `results` or `curves` speak of, in their order."""
    named = dict.fromkeys(split for by_split in (findings.get(key) or {}).values() for split in by_split)
    return [split for split in named if split != BATCHES]


def unknown_words(findings: Findings) -> dict[str, float]:
    """The share of each split's tokens that the vocabulary does not know, which a perplexity means little without;
    empty where all are known."""
    splits = (findings.get("corpus") or {}).get("splits") or {}
    shares = {split: float(one.get("unknown") or 0) for split, one in splits.items()}
    return shares if metric(findings) == "perplexity" and any(shares.values()) else {}


def curves(findings: Findings, split: str) -> list[Point]:
    """The learning curves of a split: for each variant and step the mean over seeds and the range of them."""
    pooled = _pooling(metric(findings))
    found = []
    for name in names(findings):
        for at, values in sorted(_by_step(findings, name, split).items()):
            figures = list(values.values())
            found.append(Point(name, at, pooled(figures), min(figures), max(figures), len(figures)))
    return found


def differences(findings: Findings, split: str) -> list[Point]:
    """The same as the difference to the baseline, seed by seed."""
    name_of_metric = metric(findings)
    original = _by_step(findings, baseline(findings), split)
    found = []
    for name in names(findings)[1:]:
        for at, values in sorted(_by_step(findings, name, split).items()):
            pairs = [(original.get(at, {})[s], v) for s, v in values.items() if s in original.get(at, {})]
            if pairs:
                effects = [difference(name_of_metric, *pair) for pair in pairs]
                found.append(Point(name, at, _middle(name_of_metric, pairs), min(effects), max(effects), len(pairs)))
    return found


def paired(findings: Findings) -> list[Paired]:
    """Each seed's score of each variant beside the baseline, on what decides; else on each held-out text by itself."""
    name_of_metric, found = metric(findings), []
    for text, scores in _scores_by_seed(findings).items():
        original = scores.get(baseline(findings), {})
        for name in names(findings)[1:]:
            for seed, value in scores.get(name, {}).items():
                if seed in original:
                    effect = difference(name_of_metric, original[seed], value)
                    found.append(Paired(name, text, seed, original[seed], value, effect))
    return found


def _scores_by_seed(findings: Findings) -> dict[str, dict[str, dict[int, float]]]:
    """text: variant: seed: value."""
    decides = str(findings.get("split") or "")
    if by_seed := findings.get("by_seed"):
        return {where(findings): {name: _numbers(pairs) for name, pairs in by_seed.items()}}
    results = findings.get("results") or {}
    about = (findings.get("corpus") or {}).get("splits") or {}
    held_out = [name for name, one in about.items() if one.get("role") == "test"]
    texts = [decides] if any(decides in by_split for by_split in results.values()) else held_out
    # The figures of whole splits: where only unseen rows decide, that has to be said.
    rows = ", all rows" if findings.get("rows") == "unseen" else ""
    return {
        text + rows: {name: _numbers(by_split[text]) for name, by_split in results.items() if text in by_split}
        for text in texts
    }


def _numbers(pairs: Sequence[Sequence[Any]]) -> dict[int, float]:
    return {int(seed): value for seed, value in pairs if is_number(value)}


def where(findings: Findings) -> str:
    """test, unseen rows."""
    rows = findings.get("rows")
    return str(findings.get("split") or "") + (f", {rows} rows" if rows and rows != "all" else "")


def setting(findings: Findings, name: str) -> Any:
    """The baseline's value of a setting with a dotted name."""
    found: Any = experiment(findings)
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def difference(name_of_metric: str, first: float, second: float) -> float:
    """As a verdict gives it: relative for perplexity, plain otherwise."""
    return second / first - 1 if name_of_metric == "perplexity" else second - first


def mean(name_of_metric: str, values: Sequence[float]) -> float:
    return _pooling(name_of_metric)(values)


def _pooling(name_of_metric: str) -> Callable[[Sequence[float]], float]:
    # Perplexity is exp of a mean loss, so its mean over seeds is the geometric one.
    return statistics.geometric_mean if name_of_metric == "perplexity" else statistics.fmean


def _middle(name_of_metric: str, pairs: Sequence[tuple[float, float]]) -> float:
    if name_of_metric == "perplexity":
        return math.expm1(statistics.fmean(math.log(second / first) for first, second in pairs))
    return statistics.fmean(second - first for first, second in pairs)


def _by_step(findings: Findings, variant: str, split: str) -> dict[int, dict[str, float]]:
    """step: seed: value."""
    found: dict[int, dict[str, float]] = {}
    for seed, line in (findings.get("curves") or {}).get(variant, {}).get(split, {}).items():
        for at, value in line:
            if is_number(value):
                found.setdefault(int(at), {})[str(seed)] = value
    return found
