"""Fused against explicit: does the fast road that trains and scores compute what the slow one, in plain sight, defines?

If not, the numbers belong to another model than the one that is described and whose maps are shown: no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.probe import Subject
from headtohead.audit.result import Finding, cannot_be_told, does_not_apply
from headtohead.audit.tolerance import Difference, apart, largest, worst
from headtohead.nn.parts.base import Road
from headtohead.nn.transformer import Transformer

NAME = "roads"


def audit_roads(subject: Subject) -> Finding:
    """Outputs and the gradients of all weights, with and without padding."""
    model = subject.model
    if not isinstance(model, Transformer):
        return does_not_apply(NAME, "the model has one road only")
    if model.roads != {"explicit", "fused"}:
        return does_not_apply(NAME, f"the model's parts allow one road only: {', '.join(model.roads)}")
    if subject.noise == "hidden":
        return cannot_be_told(NAME)
    tried = f"both roads on whole and padded texts of {subject.length}: outputs and gradients; {subject.how}"
    found = worst(_measured(subject))
    if found.equal:
        meaning = "What is trained and scored is what the maps show."
        return Finding(NAME, True, tried, f"the same: {found}", meaning, serious=True)
    if subject.noise == "drawn":
        return cannot_be_told(NAME)
    return Finding(
        NAME,
        False,
        tried,
        f"the fused road differs from the explicit one: {found}",
        "What is trained and scored is not what the model's definition and its maps say.",
        serious=True,
        reason="its roads differ",
    )


def _measured(subject: Subject) -> Iterator[Difference]:
    for padded in (False, True):
        ids, mask = subject.ids[:2], None
        if padded:
            mask = torch.ones_like(ids, dtype=torch.bool)
            mask[1, -max(1, subject.length // 3) :] = False
        place = "padded texts" if padded else "whole texts"
        slow, slow_gradients = _taken(subject, ids, mask, "explicit")
        fast, fast_gradients = _taken(subject, ids, mask, "fused")
        yield apart(fast, slow, f"outputs, {place}", subject.alike)
        # Against the largest gradient of all: that of a bias which the softmax swallows is rounding and nothing else.
        scale = max(map(largest, slow_gradients.values()), default=0.0)
        for name, gradient in slow_gradients.items():
            other = fast_gradients.get(name, torch.zeros_like(gradient))
            yield apart(other, gradient, f"gradient of {name}, {place}", subject.alike, scale=scale)


def _taken(subject: Subject, ids: Tensor, mask: Tensor | None, road: Road) -> tuple[Tensor, dict[str, Tensor]]:
    """What is said about the text, not about padding, and how each weight moves it."""
    logits = subject.run(ids, mask, road=road).logits
    kept = logits[mask] if mask is not None and subject.decoder else logits
    return kept.detach(), subject.weight_gradients(kept)
