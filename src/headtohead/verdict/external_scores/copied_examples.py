"""Copies of test examples: they are no further evidence, so all copies of one example count as one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headtohead.verdict.scores import Scores

MIN_COPIED_SHARE = 0.1
"""share of copies among the examples below which equal scores may be a coincidence"""


def group_copied_examples(baseline: Scores, variants: Mapping[str, Scores]) -> tuple[Scores, dict[str, Scores], int]:
    """Treat examples with equal scores under every seed of every variant as one document.

    An example whose score is the same for all runs does not count as a copy: a constant score is no evidence of one.
    Return the scores, unchanged if they name documents or if few examples are copies, and the number of copies.
    """
    all_scores = [baseline, *variants.values()]
    if len(baseline.weights) == 1 or any(
        scores.documents or scores.values.shape[1] != len(baseline.weights) for scores in all_scores
    ):
        return baseline, dict(variants), 0
    run_scores = np.vstack([scores.values for scores in all_scores]) / baseline.weights  # (runs, examples)
    _, group_ids, group_sizes = np.unique(run_scores, axis=1, return_inverse=True, return_counts=True)
    group_ids = group_ids.reshape(-1)
    is_copy = (group_sizes[group_ids] > 1) & (np.ptp(run_scores, axis=0) > 0)
    num_copies = int(is_copy.sum()) - len(set(group_ids[is_copy].tolist()))
    has_continuous_scores = len(np.unique(run_scores)) > len(run_scores)
    if not has_continuous_scores or num_copies < MIN_COPIED_SHARE * len(group_ids):
        return baseline, dict(variants), 0
    documents = tuple(
        f"copies {group_id}" if copy else f"example {index}"
        for index, (group_id, copy) in enumerate(zip(group_ids.tolist(), is_copy.tolist(), strict=True))
    )
    return (
        replace(baseline, documents=documents),
        {name: replace(scores, documents=documents) for name, scores in variants.items()},
        num_copies,
    )


def format_copied_examples_warning(num_copies: int) -> str:
    """Return the warning about test examples that are copies of other test examples."""
    return (
        f"{num_copies} examples have the same scores as another example in every run. They count as one document each "
        "time, because copies of an example are no further evidence."
    )
