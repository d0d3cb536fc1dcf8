"""Texts that lose their end because the model reads no more of them: how many, in each split."""

from __future__ import annotations

from collections.abc import Mapping

from headtohead.audit.result import CheckResult
from headtohead.data.batches import EncodedSplit, TokenRows

CHECK_NAME = "truncation"
MAX_TRUNCATED_SHARE = 0.05
"""a share of cut texts that moves a score by little"""


def audit_truncation(encoded_splits: Mapping[str, EncodedSplit]) -> CheckResult:
    """How many rows of each split were cut."""
    rows = {name: one for name, one in encoded_splits.items() if isinstance(one, TokenRows)}
    longest = max(int(one.lengths.max()) for one in rows.values())
    tried = f"rows that are longer than the model reads; the longest that is left has {longest} tokens"
    found = ", ".join(f"{name} {one.num_pretruncated} of {len(one)}" for name, one in rows.items())
    if not any(one.num_pretruncated for one in rows.values()):
        return CheckResult(CHECK_NAME, True, tried, "no text is cut", "Every text is read to its end.")
    if all(one.num_pretruncated <= MAX_TRUNCATED_SHARE * len(one) for one in rows.values()):
        return CheckResult(CHECK_NAME, True, tried, f"cut: {found}", "Too few to move a score by much.")
    meaning = "Part of the scores is on texts without their end. Set model.max_length higher."
    return CheckResult(CHECK_NAME, False, tried, f"cut: {found}", meaning, failure_reason="texts are cut")
