"""Texts that lose their end because the model reads no more of them: how many, in each split."""

from __future__ import annotations

from collections.abc import Mapping

from headtohead.audit.result import Finding
from headtohead.data.batches import Encoded, Rows

NAME = "length of texts"
FEW = 0.05
"""a share of cut texts that moves a score by little"""


def audit_length(encoded: Mapping[str, Encoded]) -> Finding:
    """How many rows of each split were cut."""
    rows = {name: one for name, one in encoded.items() if isinstance(one, Rows)}
    longest = max(int(one.lengths.max()) for one in rows.values())
    tried = f"rows that are longer than the model reads; the longest that is left has {longest} tokens"
    found = ", ".join(f"{name} {one.cut_before} of {len(one)}" for name, one in rows.items())
    if not any(one.cut_before for one in rows.values()):
        return Finding(NAME, True, tried, "no text is cut", "Every text is read to its end.")
    if all(one.cut_before <= FEW * len(one) for one in rows.values()):
        return Finding(NAME, True, tried, f"cut: {found}", "Too few to move a score by much.")
    meaning = "Part of the scores is on texts without their end. Set model.max_length higher."
    return Finding(NAME, False, tried, f"cut: {found}", meaning, reason="texts are cut")
