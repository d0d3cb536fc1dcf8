"""Attention rows: weights that sum to 1, none on padding, a triangle for decoders, a band for windows.

What the maps show is also what a leak looks like, but causality decides about that, from the logits. An attention of
another kind (one that subtracts two maps, say) may break these rules and still be honest: no verdict is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ..model import Transformer
from ..parts import Pattern
from .findings import Finding, does_not_apply
from .subject import Refused, Subject

NAME = "attention rows"
SUM, NOTHING = 1e-5, 1e-9
"""how far a sum may be from 1, and how much weight is none"""


def audit_maps(subject: Subject) -> Finding:
    """The maps of whole and of padded texts, every layer, head and row."""
    if "maps" not in subject.takes:
        return does_not_apply(NAME, "the model shows no attention maps")
    ids, mask = subject.ids, torch.ones_like(subject.ids, dtype=torch.bool)
    for row in range(1, len(ids)):
        mask[row, max(1, subject.length - row * subject.length // 5) :] = False
    try:
        with torch.no_grad():
            maps = subject.run(ids, mask, maps=True).maps
    except Refused as refusal:
        return does_not_apply(NAME, f"the model shows no attention maps ({refusal})")
    if not maps:
        return does_not_apply(NAME, "the model's attention shows no maps")
    faults = [fault for layer, one in enumerate(maps) for fault in _faults(subject, layer, one, mask)]
    shape = "triangle, " if subject.decoder else ""
    tried = f"sums, padding, {shape}reach of {len(maps)} layers x {maps[0].shape[1]} heads, padded texts; {subject.how}"
    if not faults:
        found = "every row sums to 1, and no weight lies where none may be"
        return Finding(NAME, True, tried, found, "The maps are what they seem.")
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return Finding(
        NAME,
        False,
        tried,
        "; ".join(faults[:3]) + more,
        "The maps cannot be read as shares of attention over what a place may see.",
        reason="its attention rows are off",
    )


def _faults(subject: Subject, layer: int, weights: Tensor, mask: Tensor) -> Iterator[str]:
    """What is wrong with one layer's maps: (batch, heads, query, key)."""
    query, key = mask[:, None, :, None], mask[:, None, None, :]
    sums = weights.sum(-1)[mask[:, None].expand(-1, weights.shape[1], -1)]
    off = float((sums - 1).abs().nan_to_num(torch.inf).max())
    if off > SUM:
        yield f"layer {layer}: a row sums to {float(sums[(sums - 1).abs().argmax()]):.4f}"
    # Padding stands on the right: a place's index is its position.
    at = torch.arange(subject.length, device=weights.device)
    behind = at[:, None] - at[None, :]
    back, ahead = _reach(subject, layer)
    forbidden = [("padding", query & ~key)]
    if ahead is not None:
        words = "later places" if ahead == 0 else f"places more than {ahead} ahead"
        forbidden.append((words, query & key & (-behind > ahead)))
    if back is not None:
        forbidden.append((f"places more than {back} behind", query & key & (behind > back)))
    for words, where in forbidden:
        weight = float((weights.abs() * where).nan_to_num(torch.inf).max())
        if weight > NOTHING:
            yield f"layer {layer}: a weight of {weight:.2g} on {words}"


def _reach(subject: Subject, layer: int) -> tuple[int | None, int | None]:
    """How far (behind, ahead) this layer may look: what its pattern says, and never ahead in a decoder."""
    layers: Sequence[nn.Module] = list(subject.model.layers) if isinstance(subject.model, Transformer) else ()
    patterns = [m for m in layers[layer].modules() if isinstance(m, Pattern)] if layer < len(layers) else []
    back, ahead = patterns[0].reach if patterns else (None, None)  # the outermost comes first
    return back, 0 if subject.decoder else ahead
