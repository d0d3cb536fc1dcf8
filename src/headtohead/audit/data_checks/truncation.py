"""Truncation: texts that are longer than the model's maximum length."""

from __future__ import annotations

from collections.abc import Mapping

from headtohead.audit.result import CheckResult
from headtohead.data.encoding import EncodedSplit, TokenRows

CHECK_NAME = "truncation"
MAX_TRUNCATED_SHARE = 0.05
"""fraction of truncated texts below which scores hardly change"""


def audit_truncation(encoded_splits: Mapping[str, EncodedSplit]) -> CheckResult:
    """Count the truncated rows in each split."""
    splits = {name: split for name, split in encoded_splits.items() if isinstance(split, TokenRows)}
    longest = max(int(split.row_lengths.max()) for split in splits.values())
    procedure = f"rows longer than the maximum length; the longest after truncation has {longest} tokens"
    observation = ", ".join(f"{name} {split.num_pretruncated} of {len(split)}" for name, split in splits.items())
    if not any(split.num_pretruncated for split in splits.values()):
        return CheckResult(CHECK_NAME, True, procedure, "no text is truncated", "Every text is read completely.")
    if all(split.num_pretruncated <= MAX_TRUNCATED_SHARE * len(split) for split in splits.values()):
        return CheckResult(
            CHECK_NAME, True, procedure, f"truncated: {observation}", "Too few to change scores by much."
        )
    interpretation = "Part of the scores is on truncated texts. Increase model.max_length."
    return CheckResult(
        CHECK_NAME, False, procedure, f"truncated: {observation}", interpretation, failure_reason="truncated texts"
    )
