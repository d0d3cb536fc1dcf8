"""Scores per example that a training script writes, which let a verdict generalize to new text."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headtohead.errors import RequestError
from headtohead.verdict.scores import Scores


class ExampleScores(NamedTuple):
    """Per-example scores of one run."""

    example_names: tuple[str, ...]
    totals: tuple[float, ...]
    """score times weight of each example"""
    weights: tuple[float, ...]
    documents: tuple[str, ...]


def read_example_scores(path: Path) -> ExampleScores:
    """Read per-example scores from the columns example and score and, optionally, weight (default 1) and document.

    A score is a mean per unit of weight, such as the loss per token for an example with `weight` tokens.
    """
    try:
        with path.open(newline="") as lines:
            rows = (
                list(csv.DictReader(lines))
                if path.suffix == ".csv"
                else [json.loads(line) for line in lines if line.strip()]
            )
        example_names = tuple(str(row.get("example", index)) for index, row in enumerate(rows))
        weights = tuple(float(row.get("weight") or 1.0) for row in rows)
        totals = tuple(float(row["score"]) * weight for row, weight in zip(rows, weights, strict=True))
        has_documents = bool(rows) and all(row.get("document") not in (None, "") for row in rows)
        documents = tuple(str(row["document"]) for row in rows) if has_documents else ()
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{path}: not a table of example, score, weight and document: {error}") from None
    if not rows:
        raise RequestError(f"{path}: no examples")
    return ExampleScores(example_names, totals, weights, documents)


def join_example_scores(scores_by_seed: Mapping[int, ExampleScores]) -> Scores:
    """Combine the per-example scores of a variant's runs, all of which must have the same examples."""
    first_seed, first = next(iter(scores_by_seed.items()))
    for seed, scores in scores_by_seed.items():
        if scores._replace(totals=()) != first._replace(totals=()):
            raise RequestError(
                f"the examples, weights or documents of seed {seed} differ from those of seed {first_seed}"
            )
    totals = np.array([scores.totals for scores in scores_by_seed.values()])
    return Scores(tuple(scores_by_seed), totals, np.array(first.weights), first.example_names, first.documents)
