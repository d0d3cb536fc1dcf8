"""An experiment's evaluation sets: a split, the rows of it that count, and their per-example scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headtohead.config.experiment import Experiment
from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import CorpusFile
from headtohead.verdict.scores import Scores


@dataclass(frozen=True)
class ScoreUnit:
    """The unit that is paired when two variants are compared (see `findings.comparability`)."""

    by_document: bool = False
    """pair the totals of documents instead of examples; the first row of a stream is excluded"""
    per_byte: bool = False
    """weight by bytes instead of predictions"""


@dataclass(frozen=True)
class EvaluationSet:
    """A split, or "test" for all held-out splits, with either all rows or only those that do not occur in train."""

    split: str
    rows: Literal["all", "unseen"] = "all"

    def __str__(self) -> str:
        return f"{self.split}, {self.rows} rows" if self.rows != "all" or self.split == "test" else self.split


def select_evaluation_sets(experiment: Experiment, corpus: CorpusFile) -> list[EvaluationSet]:
    """Return the primary evaluation set, followed by the informative ones.

    The informative sets are each held-out split and, where the verdict is based on unseen rows only, all rows.
    """
    primary = experiment.primary.split
    held_out = resolve_split(corpus, "test")
    leaking = [name for name in held_out if has_leaked_rows(corpus, name)]
    primary_rows: Literal["all", "unseen"] = (
        "unseen" if any(name in leaking for name in resolve_split(corpus, primary)) else "all"
    )
    sets = [EvaluationSet(primary, primary_rows)]
    if primary_rows == "unseen":
        sets.append(EvaluationSet(primary, "all"))
    if len(held_out) > 1 or primary not in ("test", *held_out):
        sets += [EvaluationSet(name, "unseen" if name in leaking else "all") for name in held_out if name != primary]
    return sets


def resolve_split(corpus: CorpusFile, split: str) -> list[str]:
    """Return the splits that a name refers to; "test" refers to all held-out splits."""
    return [name for name, row in corpus.splits.items() if row.role == "test"] if split == "test" else [split]


def has_leaked_rows(corpus: CorpusFile, split: str) -> bool:
    """Return whether some but not all rows of a split also occur in train, and scores are known per row."""
    unseen = corpus.unseen.get(split)
    return unseen is not None and 0 < len(unseen) < corpus.splits[split].rows


def has_finite_scores(runs_by_seed: Mapping[int, Run], corpus: CorpusFile, split: str, metric: str) -> bool:
    """Return whether every score of a split is finite for every seed."""
    column = "correct" if metric == "accuracy" else "losses"
    names = resolve_split(corpus, split)
    return all(np.isfinite(run.scores[f"{name}.{column}"]).all() for run in runs_by_seed.values() for name in names)


def stack_scores(
    runs_by_seed: Mapping[int, Run],
    corpus: CorpusFile,
    evaluation_set: EvaluationSet,
    metric: str,
    unit: ScoreUnit = ScoreUnit(),  # noqa: B008  # immutable
) -> Scores:
    """Return each seed's scores per example or document: losses, or correct predictions if the metric is accuracy."""
    column = "correct" if metric == "accuracy" else "losses"
    names = resolve_split(corpus, evaluation_set.split)
    if unit.by_document:
        return _stack_documents(runs_by_seed, corpus, names, unit)

    def concatenate(run: Run, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return one score column over all splits, restricted to unseen rows if requested."""
        columns = []
        for name in names:
            values = run.scores[f"{name}.{column}"]
            unseen = corpus.unseen.get(name) if evaluation_set.rows == "unseen" else None
            columns.append(values if unseen is None else values[np.asarray(unseen, dtype=int)])
        return np.concatenate(columns)

    runs = list(runs_by_seed.values())
    totals = np.stack([concatenate(run, column) for run in runs])
    weights = concatenate(runs[0], "bytes" if unit.per_byte else "counts")
    documents = _name_documents(runs[0], corpus, evaluation_set)
    if not any(name in corpus.groups for name in names):
        return Scores(tuple(runs_by_seed), totals, weights, documents=documents)
    # Repeated rows count as one example: their totals and weights are added.
    examples = _number_examples(corpus, names, evaluation_set)
    merged_totals = np.stack([np.bincount(examples, row) for row in totals])
    first_rows = np.unique(examples, return_index=True)[1]
    return Scores(
        tuple(runs_by_seed),
        merged_totals,
        np.bincount(examples, weights),
        documents=tuple(documents[row] for row in first_rows),
    )


def _stack_documents(
    runs_by_seed: Mapping[int, Run], corpus: CorpusFile, names: Sequence[str], unit: ScoreUnit
) -> Scores:
    """Return each document's total loss, weighted by its number of bytes or predictions."""
    runs = list(runs_by_seed.values())
    totals = np.stack([np.concatenate([sum_by_document(run.scores, name, "losses") for name in names]) for run in runs])
    first = runs[0].scores
    weights = np.concatenate(
        [first[f"{name}.document_bytes"] if unit.per_byte else sum_by_document(first, name, "counts") for name in names]
    )
    documents = np.array(
        [label for name in names for label in _label_documents(corpus, name, np.unique(first[f"{name}.documents"]))]
    )
    is_scored = weights > 0  # a document may consist of the first row of a stream
    return Scores(tuple(runs_by_seed), totals[:, is_scored], weights[is_scored], documents=tuple(documents[is_scored]))


def sum_by_document(
    columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]], split: str, column: str
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a score column summed per document, excluding the first row of a stream."""
    documents = np.unique(columns[f"{split}.documents"], return_inverse=True)[1]
    values = columns[f"{split}.{column}"] * (1 - columns[f"{split}.first_row"])
    return np.bincount(documents, values).astype(np.float64)


def _name_documents(run: Run, corpus: CorpusFile, evaluation_set: EvaluationSet) -> tuple[str, ...]:
    """Return each example's document as "SPLIT: NAME", or as "SPLIT: ROW" if the document has no name."""
    documents: list[str] = []
    for name in resolve_split(corpus, evaluation_set.split):
        ids = run.scores[f"{name}.documents"]
        unseen = corpus.unseen.get(name) if evaluation_set.rows == "unseen" else None
        documents += _label_documents(corpus, name, ids if unseen is None else ids[np.asarray(unseen, dtype=int)])
    return tuple(documents)


def _label_documents(corpus: CorpusFile, split: str, ids: np.ndarray[Any, np.dtype[Any]]) -> list[str]:
    names = corpus.splits[split].documents
    return [f"{split}: {names[i] if names else i + 1}" for i in ids.tolist()]


def _number_examples(
    corpus: CorpusFile, names: Sequence[str], evaluation_set: EvaluationSet
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the example index of each scored row. Repeated rows share an index."""
    rows, offset = [], 0
    for name in names:
        num_rows = corpus.splits[name].rows
        groups = np.asarray(corpus.groups.get(name, range(num_rows)), dtype=int) + offset
        unseen = corpus.unseen.get(name) if evaluation_set.rows == "unseen" else None
        rows.append(groups if unseen is None else groups[np.asarray(unseen, dtype=int)])
        offset += num_rows
    return np.unique(np.concatenate(rows), return_inverse=True)[1]
