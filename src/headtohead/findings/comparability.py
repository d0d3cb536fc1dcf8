"""Check whether two variants predicted the same text, and choose the unit in which their scores are compared.

Two variants are compared on the same bytes or not at all. Every run records digests of the text that it predicted
(`headtohead.data.scored_text`). If the digests match, scores are paired example by example. If different tokenizers or
context lengths split the same stream into different blocks, scores are paired document by document. If the token counts
differ, scores are per byte. A tokenizer does not predict the words that it maps to its unknown token, so a text with
out-of-vocabulary words does not count as the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headtohead.experiment.run_folder import Run
from headtohead.findings.evaluation_sets import ScoreUnit, sum_by_document

TextColumns = Mapping[str, NDArray[np.generic]]
"""arrays of scores.safetensors by name, SPLIT.COLUMN"""
TEXT_SETTINGS = ("data.", "model.context", "model.max_length")
"""settings that can change the scored text"""


def compare_runs(
    reference: Mapping[int, Run], variant: Mapping[int, Run], splits: Sequence[str], *, by_example: bool
) -> ScoreUnit | str:
    """Return the unit in which the runs of two variants can be compared, or the reason why they cannot.

    Set `by_example` to require scores for the same examples, for metrics or subsets that are not defined per document.
    """
    if reason := _find_inconsistent_runs(variant, splits):
        return reason
    if reason := _find_inconsistent_runs(reference, splits):
        return f"is compared with runs of which one {reason}"
    first, *_ = reference.values()
    other, *_ = variant.values()
    return compare_texts(first.scores, other.scores, splits, by_example=by_example)


def _find_inconsistent_runs(runs: Mapping[int, Run], splits: Sequence[str]) -> str:
    """Return why a variant's runs did not all predict the same recorded text, or an empty string if they did."""
    first_seed, first_run = next(iter(runs.items()))
    for seed, run in runs.items():
        if missing := [name for name in splits if f"{name}.digests" not in run.scores]:
            return _explain_missing_text(run.scores, missing, splits)
        for name in splits:
            if not np.array_equal(run.scores[f"{name}.digests"], first_run.scores[f"{name}.digests"]):
                return f"predicted another text of {name} with seed {seed} than with seed {first_seed}; train it again"
    return ""


def compare_texts(
    reference: TextColumns, variant: TextColumns, splits: Sequence[str], *, by_example: bool
) -> ScoreUnit | str:
    """Return the unit in which the scores of two texts can be compared, or the reason why they cannot."""
    if missing := [name for name in splits if f"{name}.digests" not in variant]:
        return _explain_missing_text(variant, missing, splits)

    def is_equal(column: str) -> bool:
        return all(np.array_equal(reference[f"{name}.{column}"], variant[f"{name}.{column}"]) for name in splits)

    if is_equal("digests"):
        return ScoreUnit(by_document=False, per_byte=not is_equal("counts"))
    if is_equal("document_digests") and is_equal("document_bytes") and not by_example:
        counts = [[sum_by_document(columns, name, "counts") for name in splits] for columns in (reference, variant)]
        return ScoreUnit(by_document=True, per_byte=not all(map(np.array_equal, *counts)))
    return next(
        _explain_difference(reference, variant, name)
        for name in splits
        if not np.array_equal(reference[f"{name}.digests"], variant[f"{name}.digests"])
    )


def _explain_missing_text(columns: TextColumns, missing: Sequence[str], splits: Sequence[str]) -> str:
    """Return why a variant has no scores on the texts that the baseline was scored on."""
    if any(f"{name}.losses" in columns for name in missing):
        return "was scored by a version that did not record the predicted text; train it again"
    splits_with_text = {name.rpartition(".")[0] for name in columns if name.endswith(".digests")}
    scored_splits = sorted(splits_with_text - {"validation"})
    return (
        f"is scored on {_join(scored_splits)} instead of {_join(splits)}; give all variants the same test splits, with "
        "the same names"
    )


def _explain_difference(reference: TextColumns, variant: TextColumns, split: str) -> str:
    """Return how the predicted text of a split differs between the two variants, and how to fix it."""

    def count(column: str) -> tuple[int, int]:
        expected, actual = (int(columns[f"{split}.{column}"].sum()) for columns in (reference, variant))
        return expected, actual

    (expected_text, text), (expected_rows, rows) = count("text_digest"), count("text_rows")
    (expected_truncated, truncated), (expected_unknown, unknown) = count("truncated"), count("unknown")
    if text != expected_text and rows != expected_rows:
        return (
            f"is scored on {rows:,} row{'s' if rows != 1 else ''} of {split} instead of {expected_rows:,}; score all "
            "variants on the same rows"
        )
    if text != expected_text:
        return f"is scored on another text named {split}; give all variants the same test text"
    if truncated != expected_truncated or (truncated and unknown == expected_unknown):
        return (
            f"predicts another text of {split}: its context truncates {truncated:,} of {rows:,} rows instead of "
            f"{expected_truncated:,}; give all variants a context that holds the longest row"
        )
    if unknown != expected_unknown:
        return (
            f"predicts another text of {split}: {unknown:,} words are unknown to its tokenizer instead of "
            f"{expected_unknown:,}; give all variants the same tokenizer, or tokenizers without unknown tokens (bpe, "
            "bytes)"
        )
    return f"predicts another text of {split}; give all variants tokenizers that keep the same characters and case"


def add_settings(reason: str, settings: Iterable[str]) -> str:
    """Return the reason, extended by the variant's settings that can change the scored text."""
    names = [name for name in settings if name.startswith(TEXT_SETTINGS)]
    return reason.replace("; ", f" ({', '.join(names)}); ", 1) if names else reason


def _join(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "nothing"
