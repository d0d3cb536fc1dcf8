"""Select an experiment's evaluation sets: the splits, and the rows of each split, that verdicts are based on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headtohead.config.experiment import Experiment
from headtohead.experiment.schemas import CorpusFile

EvaluatedRows = Literal["all", "unseen"]


@dataclass(frozen=True)
class EvaluationSet:
    """A split, or "test" for all held-out splits, with either all rows or only those that do not occur in train."""

    split: str
    rows: EvaluatedRows = "all"

    def __str__(self) -> str:
        return f"{self.split}, {self.rows} rows" if self.rows != "all" or self.split == "test" else self.split


def select_evaluation_sets(experiment: Experiment, corpus: CorpusFile) -> list[EvaluationSet]:
    """Return the primary evaluation set, which decides the verdicts, followed by the secondary ones.

    The secondary sets are each held-out split and, if the verdicts are based on unseen rows only, all rows of the
    primary split.
    """
    primary_split = experiment.primary.split
    held_out_splits = resolve_split(corpus, "test")
    leaking_splits = [name for name in held_out_splits if has_leaked_rows(corpus, name)]
    has_leak = any(name in leaking_splits for name in resolve_split(corpus, primary_split))
    primary_rows: EvaluatedRows = "unseen" if has_leak else "all"
    evaluation_sets = [EvaluationSet(primary_split, primary_rows)]
    if primary_rows == "unseen":
        evaluation_sets.append(EvaluationSet(primary_split, "all"))
    if len(held_out_splits) > 1 or primary_split not in ("test", *held_out_splits):
        evaluation_sets += [
            EvaluationSet(name, "unseen" if name in leaking_splits else "all")
            for name in held_out_splits
            if name != primary_split
        ]
    return evaluation_sets


def resolve_split(corpus: CorpusFile, split: str) -> list[str]:
    """Return the names of the splits that `split` refers to; "test" refers to all held-out splits."""
    return [name for name, row in corpus.splits.items() if row.role == "test"] if split == "test" else [split]


def has_leaked_rows(corpus: CorpusFile, split: str) -> bool:
    """Return whether some but not all rows of a split also occur in train, and scores are known per row."""
    unseen_rows = corpus.unseen.get(split)
    return unseen_rows is not None and 0 < len(unseen_rows) < corpus.splits[split].rows
