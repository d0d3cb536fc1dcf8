"""Temporary: typed records that modules not yet converted may still read by key. Remove with the last such module."""

from __future__ import annotations

import math
from typing import Any

RENAMED = {
    "others": ["other_verdicts"],
    "results": ["scores"],
    "by_seed": ["primary_scores"],
    "losses": ["loss_curves"],
    "chosen": ["chosen_steps"],
    "looks": ["interim_analyses"],
    "lengths": ["length_generalization"],
    "distilled": ["summarization"],
    "seals": ["checksums"],
    "flag": ["changes_multiple_settings"],
    "unpaired": ["unpaired_reason"],
    "shared": ["shared_tensors"],
    "equal": ["equal_tensors"],
    "schedule": ["same_batches"],
    "trained": ["training"],
    "cells": ["points"],
    "cell": ["point"],
    "values": ["scores"],
    "luck": ["selection_bias", "bias"],
    "grid": ["grid_size"],
    "spread": ["seed_std"],
    "vocabulary": ["vocab_size"],
    "simple": ["count_baselines"],
    "whose": ["lines_by_label"],
    "figures": ["scores"],
    "documents": ["num_documents"],
    "reported": ["published"],
    "side_by_side": ["examples"],
    "cut": ["num_truncated"],
    "who": ["system"],
    "people": ["references"],
    "written": ["summaries"],
    "tried": ["procedure"],
    "found": ["observation"],
    "meaning": ["interpretation"],
    "serious": ["is_blocking"],
    "reason": ["failure_reason"],
}


class DictAccess:
    """Read fields by key."""

    def _names(self) -> list[str]:
        fields = getattr(type(self), "model_fields", None) or getattr(type(self), "__dataclass_fields__", {})
        return list(fields)

    def get(self, key: str, default: Any = None) -> Any:
        names = self._names()
        name = next((name for name in (key, *RENAMED.get(key, ())) if name in names), None)
        if name is None and "measures" in names:
            return getattr(self, "measures").get(key, default)  # noqa: B009
        value = default if name is None else getattr(self, name)
        if isinstance(value, float) and math.isnan(value):
            return None
        if isinstance(value, tuple) and any(isinstance(end, float) and math.isnan(end) for end in value):
            return [None if isinstance(end, float) and math.isnan(end) else end for end in value]
        return value

    def __getitem__(self, key: str) -> Any:
        names = [*self._names(), *getattr(self, "measures", ())]
        if not any(name in names for name in (key, *RENAMED.get(key, ()))):
            raise KeyError(key)
        return self.get(key)

    def keys(self) -> list[str]:
        return self._names()

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self.get(name)) for name in self._names()]

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None
