"""Evaluation sets of an experiment: a split, the rows of it that count, and their per-example scores."""

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
class EvaluationSet:
    """A split, or "test" for all held-out splits; all rows, or those that do not occur in train."""

    split: str
    rows: Literal["all", "unseen"] = "all"

    def __str__(self) -> str:
        return f"{self.split}, {self.rows} rows" if self.rows != "all" or self.split == "test" else self.split


def select_evaluation_sets(experiment: Experiment, corpus: CorpusFile) -> list[EvaluationSet]:
    """Return the primary evaluation set, then informative ones: each held-out split, and all rows where the verdict is
    based on unseen rows."""
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
    """Return the splits that a name stands for: "test" stands for all held-out splits."""
    return [name for name, row in corpus.splits.items() if row.role == "test"] if split == "test" else [split]


def has_leaked_rows(corpus: CorpusFile, split: str) -> bool:
    """Return whether some but not all rows of a split also occur in train, and scores are known by row."""
    unseen = corpus.unseen.get(split)
    return unseen is not None and 0 < len(unseen) < corpus.splits[split].rows


def stack_scores(
    runs_by_seed: Mapping[int, Run], corpus: CorpusFile, evaluation_set: EvaluationSet, metric: str
) -> Scores:
    """Return the per-example scores of each seed: losses for perplexity, correct predictions for accuracy."""
    column = "correct" if metric == "accuracy" else "losses"
    names = resolve_split(corpus, evaluation_set.split)

    def concatenate(run: Run, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        pieces = []
        for name in names:
            values = run.scores[f"{name}.{column}"]
            unseen = corpus.unseen.get(name) if evaluation_set.rows == "unseen" else None
            pieces.append(values if unseen is None else values[np.asarray(unseen, dtype=int)])
        return np.concatenate(pieces)

    runs = list(runs_by_seed.values())
    totals = np.stack([concatenate(run, column) for run in runs])
    weights = concatenate(runs[0], "counts")
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


def _name_documents(run: Run, corpus: CorpusFile, evaluation_set: EvaluationSet) -> tuple[str, ...]:
    """Return the name of each example's document: its split, and its name or the number of its row."""
    documents: list[str] = []
    for name in resolve_split(corpus, evaluation_set.split):
        ids, names = run.scores[f"{name}.documents"], corpus.splits[name].documents
        unseen = corpus.unseen.get(name) if evaluation_set.rows == "unseen" else None
        ids = ids if unseen is None else ids[np.asarray(unseen, dtype=int)]
        documents += [f"{name}: {names[i] if names else i + 1}" for i in ids.tolist()]
    return tuple(documents)


def _number_examples(
    corpus: CorpusFile, names: Sequence[str], evaluation_set: EvaluationSet
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the number of each scored row's example, from 0 in order of first rows."""
    rows, offset = [], 0
    for name in names:
        num_rows = corpus.splits[name].rows
        groups = np.asarray(corpus.groups.get(name, range(num_rows)), dtype=int) + offset
        unseen = corpus.unseen.get(name) if evaluation_set.rows == "unseen" else None
        rows.append(groups if unseen is None else groups[np.asarray(unseen, dtype=int)])
        offset += num_rows
    return np.unique(np.concatenate(rows), return_inverse=True)[1]
