"""Check whether two variants predicted the same text, and choose the unit in which their scores are compared.

Two variants are compared on the same bytes or not at all. Every run records digests of the text that it predicted
(`headtohead.data.scored_text`). If the digests match, scores are paired example by example. If different tokenizers or
context lengths split the same stream into different blocks, scores are paired document by document. If the token counts
differ, scores are per byte. A tokenizer does not predict the words that it maps to its unknown token, so a text with
out-of-vocabulary words does not count as the same text.

A reason is a predicate about a variant, such as "is scored on a different text named test".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headtohead.experiment.run_folder import Run
from headtohead.findings.example_scores import ScoreUnit, sum_scores_by_document

ScoreColumns = Mapping[str, NDArray[np.generic]]
"""arrays of scores.safetensors by name, SPLIT.COLUMN"""
SETTINGS_CHANGING_TEXT = ("data.", "model.context", "model.max_length")
"""settings that can change the scored text"""


def choose_score_unit(
    reference_runs: Mapping[int, Run], variant_runs: Mapping[int, Run], splits: Sequence[str], *, by_example: bool
) -> ScoreUnit | str:
    """Return the unit in which the runs of two variants are comparable, or the reason why they are not.

    Set `by_example` to require scores for the same examples, for metrics or subsets that are not defined per document.
    """
    if reason := _explain_inconsistent_runs(variant_runs, splits):
        return reason
    if reason := _explain_inconsistent_runs(reference_runs, splits):
        return f"is compared with runs of which one {reason}"
    first_reference, *_ = reference_runs.values()
    first_variant, *_ = variant_runs.values()
    return compare_scored_texts(first_reference.scores, first_variant.scores, splits, by_example=by_example)


def _explain_inconsistent_runs(runs_by_seed: Mapping[int, Run], splits: Sequence[str]) -> str:
    """Return why a variant is not comparable if its runs did not all predict the same text, otherwise ""."""
    first_seed, first_run = next(iter(runs_by_seed.items()))
    for seed, run in runs_by_seed.items():
        if missing_splits := [name for name in splits if f"{name}.digests" not in run.scores]:
            return _explain_missing_text(run.scores, missing_splits, splits)
        for name in splits:
            if not np.array_equal(run.scores[f"{name}.digests"], first_run.scores[f"{name}.digests"]):
                return (
                    f"predicted a different text of {name} with seed {seed} than with seed {first_seed}; train it again"
                )
    return ""


def compare_scored_texts(
    reference: ScoreColumns, variant: ScoreColumns, splits: Sequence[str], *, by_example: bool
) -> ScoreUnit | str:
    """Return the unit in which the scores of two runs are comparable, or the reason why their texts differ."""
    if missing_splits := [name for name in splits if f"{name}.digests" not in variant]:
        return _explain_missing_text(variant, missing_splits, splits)

    def is_equal(column: str) -> bool:
        return all(np.array_equal(reference[f"{name}.{column}"], variant[f"{name}.{column}"]) for name in splits)

    if is_equal("digests"):
        return ScoreUnit(by_document=False, per_byte=not is_equal("counts"))
    if is_equal("document_digests") and is_equal("document_bytes") and not by_example:
        has_equal_counts = all(
            np.array_equal(
                sum_scores_by_document(reference, name, "counts"), sum_scores_by_document(variant, name, "counts")
            )
            for name in splits
        )
        return ScoreUnit(by_document=True, per_byte=not has_equal_counts)
    return next(
        _explain_text_difference(reference, variant, name)
        for name in splits
        if not np.array_equal(reference[f"{name}.digests"], variant[f"{name}.digests"])
    )


def _explain_missing_text(columns: ScoreColumns, missing_splits: Sequence[str], splits: Sequence[str]) -> str:
    """Return why a variant is not comparable: it was not scored on the same texts as the baseline."""
    if any(f"{name}.losses" in columns for name in missing_splits):
        return "was scored by a version that did not record the predicted text; train it again"
    splits_with_text = {name.rpartition(".")[0] for name in columns if name.endswith(".digests")}
    scored_splits = sorted(splits_with_text - {"validation"})
    return (
        f"is scored on {_join_split_names(scored_splits)} instead of {_join_split_names(splits)}; give all variants "
        "the same test splits, with the same names"
    )


def _explain_text_difference(reference: ScoreColumns, variant: ScoreColumns, split: str) -> str:
    """Return why scores on a split are not comparable: how the predicted text differs, and how to fix it."""

    def sum_column(column: str) -> tuple[int, int]:
        """Return the sum of a column over the rows of the split, in the reference and in the variant."""
        expected_sum, actual_sum = (int(columns[f"{split}.{column}"].sum()) for columns in (reference, variant))
        return expected_sum, actual_sum

    expected_digest_sum, digest_sum = sum_column("text_digest")
    expected_num_rows, num_rows = sum_column("text_rows")
    expected_num_truncated, num_truncated = sum_column("truncated")
    expected_num_unknown, num_unknown = sum_column("unknown")
    if digest_sum != expected_digest_sum and num_rows != expected_num_rows:
        return (
            f"is scored on {num_rows:,} row{'s' if num_rows != 1 else ''} of {split} instead of "
            f"{expected_num_rows:,}; score all variants on the same rows"
        )
    if digest_sum != expected_digest_sum:
        return f"is scored on a different text named {split}; give all variants the same test text"
    if num_truncated != expected_num_truncated or (num_truncated and num_unknown == expected_num_unknown):
        return (
            f"predicts a different text of {split}: its context truncates {num_truncated:,} of {num_rows:,} rows "
            f"instead of {expected_num_truncated:,}; give all variants a context that holds the longest row"
        )
    if num_unknown != expected_num_unknown:
        return (
            f"predicts a different text of {split}: {num_unknown:,} words are unknown to its tokenizer instead of "
            f"{expected_num_unknown:,}; give all variants the same tokenizer, or tokenizers without unknown tokens "
            "(bpe, bytes)"
        )
    return f"predicts a different text of {split}; give all variants tokenizers that keep the same characters and case"


def add_settings_to_reason(reason: str, settings: Iterable[str]) -> str:
    """Return the reason, extended by the variant's settings that can change the scored text."""
    text_settings = [name for name in settings if name.startswith(SETTINGS_CHANGING_TEXT)]
    return reason.replace("; ", f" ({', '.join(text_settings)}); ", 1) if text_settings else reason


def _join_split_names(splits: Sequence[str]) -> str:
    return " and ".join([", ".join(splits[:-1]), splits[-1]] if len(splits) > 1 else splits) or "nothing"
