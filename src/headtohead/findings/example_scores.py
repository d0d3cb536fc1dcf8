"""Stack the scores of an evaluation set's examples over seeds: the arrays that variants are compared on.

The scores of a run are read from scores.safetensors, whose columns are named SPLIT.COLUMN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import CorpusFile
from headtohead.findings.evaluation_sets import EvaluationSet, resolve_split
from headtohead.verdict.scores import Scores

FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ScoreUnit:
    """The unit that is paired when two variants are compared: examples or documents, weighted by tokens or bytes."""

    by_document: bool = False
    """pair the totals of documents instead of examples; the first row of a stream is excluded"""
    per_byte: bool = False
    """weight by bytes instead of predictions"""


def has_finite_example_scores(runs_by_seed: Mapping[int, Run], corpus: CorpusFile, split: str, metric: str) -> bool:
    """Return whether the scores of all examples of a split are finite for every seed."""
    column = _get_score_column(metric)
    splits = resolve_split(corpus, split)
    return all(np.isfinite(run.scores[f"{name}.{column}"]).all() for run in runs_by_seed.values() for name in splits)


def stack_example_scores(
    runs_by_seed: Mapping[int, Run],
    corpus: CorpusFile,
    evaluation_set: EvaluationSet,
    metric: str,
    unit: ScoreUnit = ScoreUnit(),  # noqa: B008  # immutable
) -> Scores:
    """Return the scores of an evaluation set, one row per seed and one column per example or document.

    Scores are losses, or correct predictions if the metric is accuracy.
    """
    splits = resolve_split(corpus, evaluation_set.split)
    if unit.by_document:
        return _stack_document_scores(runs_by_seed, corpus, splits, unit)

    def concatenate_splits(run: Run, column: str) -> FloatArray:
        """Return one score column over all splits, restricted to unseen rows if requested."""
        return np.concatenate(
            [_select_evaluated_rows(run.scores[f"{name}.{column}"], corpus, name, evaluation_set) for name in splits]
        )

    runs = list(runs_by_seed.values())
    totals = np.stack([concatenate_splits(run, _get_score_column(metric)) for run in runs])
    weights = concatenate_splits(runs[0], "bytes" if unit.per_byte else "counts")
    document_names = _list_document_of_each_example(runs[0], corpus, evaluation_set)
    if not any(name in corpus.groups for name in splits):
        return Scores(tuple(runs_by_seed), totals, weights, documents=document_names)
    # Repeated rows count as one example: their totals and weights are added.
    example_indices = _index_distinct_examples(corpus, splits, evaluation_set)
    merged_totals = np.stack([np.bincount(example_indices, seed_totals) for seed_totals in totals])
    first_rows = np.unique(example_indices, return_index=True)[1]
    return Scores(
        tuple(runs_by_seed),
        merged_totals,
        np.bincount(example_indices, weights),
        documents=tuple(document_names[row] for row in first_rows),
    )


def _get_score_column(metric: str) -> str:
    return "correct" if metric == "accuracy" else "losses"


def _select_evaluated_rows(
    values: np.ndarray[Any, np.dtype[Any]], corpus: CorpusFile, split: str, evaluation_set: EvaluationSet
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a score column without the rows that also occur in train, if the evaluation set excludes these."""
    unseen_rows = corpus.unseen.get(split) if evaluation_set.rows == "unseen" else None
    return values if unseen_rows is None else values[np.asarray(unseen_rows, dtype=int)]


def _stack_document_scores(
    runs_by_seed: Mapping[int, Run], corpus: CorpusFile, splits: Sequence[str], unit: ScoreUnit
) -> Scores:
    """Return each document's total loss, one row per seed, weighted by its number of bytes or predictions."""
    runs = list(runs_by_seed.values())
    totals = np.stack(
        [np.concatenate([sum_scores_by_document(run.scores, name, "losses") for name in splits]) for run in runs]
    )
    columns = runs[0].scores
    weights = np.concatenate(
        [
            columns[f"{name}.document_bytes"] if unit.per_byte else sum_scores_by_document(columns, name, "counts")
            for name in splits
        ]
    )
    document_names = np.array(
        [
            document_name
            for name in splits
            for document_name in _format_document_names(corpus, name, np.unique(columns[f"{name}.documents"]))
        ]
    )
    is_scored = weights > 0  # a document may consist of the first row of a stream
    return Scores(
        tuple(runs_by_seed), totals[:, is_scored], weights[is_scored], documents=tuple(document_names[is_scored])
    )


def sum_scores_by_document(
    columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]], split: str, column: str
) -> FloatArray:
    """Return a column of a run's example scores summed per document, excluding the first row of a stream."""
    document_indices = np.unique(columns[f"{split}.documents"], return_inverse=True)[1]
    values = columns[f"{split}.{column}"] * (1 - columns[f"{split}.first_row"])
    return np.bincount(document_indices, values).astype(np.float64)


def _list_document_of_each_example(run: Run, corpus: CorpusFile, evaluation_set: EvaluationSet) -> tuple[str, ...]:
    """Return the name of the document that each scored example belongs to."""
    document_names: list[str] = []
    for name in resolve_split(corpus, evaluation_set.split):
        document_ids = _select_evaluated_rows(run.scores[f"{name}.documents"], corpus, name, evaluation_set)
        document_names += _format_document_names(corpus, name, document_ids)
    return tuple(document_names)


def _format_document_names(corpus: CorpusFile, split: str, document_ids: np.ndarray[Any, np.dtype[Any]]) -> list[str]:
    """Return the documents of scored examples as "SPLIT: NAME", or as "SPLIT: NUMBER" if they have no name."""
    names = corpus.splits[split].documents
    return [f"{split}: {names[index] if names else index + 1}" for index in document_ids.tolist()]


def _index_distinct_examples(
    corpus: CorpusFile, splits: Sequence[str], evaluation_set: EvaluationSet
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the example index of each scored row. Repeated rows share an index, so that they count once."""
    group_ids, offset = [], 0
    for name in splits:
        num_rows = corpus.splits[name].rows
        split_groups = np.asarray(corpus.groups.get(name, range(num_rows)), dtype=int) + offset
        group_ids.append(_select_evaluated_rows(split_groups, corpus, name, evaluation_set))
        offset += num_rows
    return np.unique(np.concatenate(group_ids), return_inverse=True)[1]
