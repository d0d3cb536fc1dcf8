"""Attention rows: weights that sum to 1, none on padding, a triangle for decoders, a band for windows.

What the maps show is also what a leak looks like, but causality decides about that, from the logits. An attention of
another kind (one that subtracts two maps, say) may break these rules and still be honest: no verdict is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headtohead.audit.probe import AuditedModel, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.transformer import Transformer

CHECK_NAME = "attention-weights"
SUM_TOLERANCE, ZERO_WEIGHT_TOLERANCE = 1e-5, 1e-9
"""how far a sum may be from 1, and how much weight is none"""
AttentionReach = tuple[int | None, int | None]


def audit_attentions(audited_model: AuditedModel) -> CheckResult:
    """The maps of whole and of padded texts, every layer, head and row."""
    if "output_attentions" not in audited_model.takes:
        return build_not_applicable(CHECK_NAME, "the model shows no attention maps")
    ids, mask = audited_model.ids, torch.ones_like(audited_model.ids, dtype=torch.bool)
    for row in range(1, len(ids)):
        mask[row, max(1, audited_model.length - row * audited_model.length // 5) :] = False
    try:
        with torch.no_grad():
            maps = audited_model.run(ids, mask, output_attentions=True).attentions
    except UnsupportedInputError as refusal:
        return build_not_applicable(CHECK_NAME, f"the model shows no attention maps ({refusal})")
    if not maps:
        return build_not_applicable(CHECK_NAME, "the model's attention shows no maps")
    faults = [
        f"layer {layer}: {rule.error}"
        for layer, one in enumerate(maps)
        for rule in check_attention_rules(
            one, mask, find_layer_reach(audited_model.model, layer, is_decoder=audited_model.is_causal)
        )
        if rule.error
    ]
    shape = "triangle, " if audited_model.is_causal else ""
    tried = f"sums, padding, {shape}reach of {len(maps)} layers x {maps[0].shape[1]} heads, padded texts; {audited_model.how}"  # noqa: E501
    if not faults:
        found = "every row sums to 1, and no weight lies where none may be"
        return CheckResult(CHECK_NAME, True, tried, found, "The maps are what they seem.")
    more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    return CheckResult(
        CHECK_NAME,
        False,
        tried,
        "; ".join(faults[:3]) + more,
        "The maps cannot be read as shares of attention over what a place may see.",
        failure_reason="its attention rows are off",
    )


@dataclass(frozen=True)
class AttentionRuleResult:
    """One rule that a layer's maps must keep, and how far they are from keeping it."""

    name: Literal["sums", "padding", "ahead", "behind"]
    off: float
    """how far a sum is from 1, or the largest weight where none may be"""
    error: str
    """what is wrong, in words; empty when the rule is kept"""


def check_attention_rules(
    attentions: Tensor, attention_mask: Tensor, reach: AttentionReach
) -> Iterator[AttentionRuleResult]:
    """The rules for one layer's maps (batch, heads, query, key) of texts that are padded on the right, if at all.

    `real` (batch, length) is False on padding; `reach` is how far (behind, ahead) a place may look.
    """
    query, key = attention_mask[:, None, :, None], attention_mask[:, None, None, :]
    sums = attentions.sum(-1)[attention_mask[:, None].expand(-1, attentions.shape[1], -1)]
    off = float((sums - 1).abs().nan_to_num(torch.inf).max())
    yield AttentionRuleResult(
        "sums", off, f"a row sums to {float(sums[(sums - 1).abs().argmax()]):.4f}" if off > SUM_TOLERANCE else ""
    )
    # Padding stands on the right: a place's index is its position.
    at = torch.arange(attentions.shape[-1], device=attentions.device)
    behind = at[:, None] - at[None, :]
    back, ahead = reach
    forbidden: list[tuple[Literal["padding", "ahead", "behind"], str, Tensor]] = [("padding", "padding", query & ~key)]
    if ahead is not None:
        words = "later places" if ahead == 0 else f"places more than {ahead} ahead"
        forbidden.append(("ahead", words, query & key & (-behind > ahead)))
    if back is not None:
        forbidden.append(("behind", f"places more than {back} behind", query & key & (behind > back)))
    for name, words, where in forbidden:
        weight = float((attentions.abs() * where).nan_to_num(torch.inf).max())
        yield AttentionRuleResult(
            name, weight, f"a weight of {weight:.2g} on {words}" if weight > ZERO_WEIGHT_TOLERANCE else ""
        )


def find_layer_reach(model: nn.Module, layer_index: int, *, is_decoder: bool) -> AttentionReach:
    """How far (behind, ahead) a layer may look: what its pattern says, and never ahead in a decoder."""
    layers: Sequence[nn.Module] = list(model.layers) if isinstance(model, Transformer) else ()
    patterns = [m for m in layers[layer_index].modules() if isinstance(m, Pattern)] if layer_index < len(layers) else []
    back, ahead = patterns[0].window_size if patterns else (None, None)  # the outermost comes first
    return back, 0 if is_decoder else ahead
