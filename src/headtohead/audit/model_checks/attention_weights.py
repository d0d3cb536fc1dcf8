"""Attention weights: rows sum to 1, with no weight on padding, on later positions in a decoder, or outside a window.

A failure does not withhold the verdict: causality is judged from the logits, not from the attention weights, and some
kinds of attention (such as the difference of two softmaxes) may legitimately break these rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headtohead.audit.probe import ModelProbe, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.transformer import Transformer

CHECK_NAME = "attention-weights"
SUM_TOLERANCE, ZERO_WEIGHT_TOLERANCE = 1e-5, 1e-9
MAX_LISTED_ERRORS = 3
AttentionReach = tuple[int | None, int | None]
"""how many positions (behind, ahead) may be attended to; None for any"""


def check_attention_weights(probe: ModelProbe) -> CheckResult:
    """Check the attention weights for padded and unpadded texts: every layer, head and row."""
    if "output_attentions" not in probe.supported_arguments:
        return build_not_applicable(CHECK_NAME, "the model does not return attention weights")
    ids, mask = probe.input_ids, torch.ones_like(probe.input_ids, dtype=torch.bool)
    for row in range(1, len(ids)):
        mask[row, max(1, probe.length - row * probe.length // 5) :] = False
    try:
        with torch.no_grad():
            attentions = probe.run_forward(ids, mask, output_attentions=True).attentions
    except UnsupportedInputError as error:
        return build_not_applicable(CHECK_NAME, f"the model does not return attention weights ({error})")
    if not attentions:
        return build_not_applicable(CHECK_NAME, "the model's attention has no weights")
    errors = [
        f"layer {layer_index}: {rule.error}"
        for layer_index, weights in enumerate(attentions)
        for rule in check_attention_rules(
            weights, mask, find_layer_reach(probe.model, layer_index, is_decoder=probe.is_causal)
        )
        if rule.error
    ]
    causal = "later positions, " if probe.is_causal else ""
    size = f"{len(attentions)} layers x {attentions[0].shape[1]} heads"
    procedure = f"sums, padding, {causal}reach of {size} on padded texts; {probe.setup_description}"
    if not errors:
        observation = "every row sums to 1, with no weight on excluded positions"
        return CheckResult(CHECK_NAME, True, procedure, observation, "The attention weights are valid distributions.")
    more = f"; and {len(errors) - MAX_LISTED_ERRORS} more" if len(errors) > MAX_LISTED_ERRORS else ""
    return CheckResult(
        CHECK_NAME,
        False,
        procedure,
        "; ".join(errors[:MAX_LISTED_ERRORS]) + more,
        "The attention weights cannot be read as shares of attention over visible positions.",
        failure_reason="attention weights are not distributions",
    )


@dataclass(frozen=True)
class AttentionRuleResult:
    """The result of applying one rule to one layer's attention weights."""

    name: Literal["sums", "padding", "ahead", "behind"]
    max_deviation: float
    """largest distance of a sum from 1, or largest weight on an excluded position"""
    error: str
    """empty if the rule holds"""


def check_attention_rules(
    attentions: Tensor, attention_mask: Tensor, reach: AttentionReach
) -> Iterator[AttentionRuleResult]:
    """Yield the result of each rule for one layer's attention weights (batch, heads, query, key).

    `attention_mask` (batch, length) is False on padding. If `reach` is limited, padding must be on the right.
    """
    query, key = attention_mask[:, None, :, None], attention_mask[:, None, None, :]
    sums = attentions.sum(-1)[attention_mask[:, None].expand(-1, attentions.shape[1], -1)]
    deviation = float((sums - 1).abs().nan_to_num(torch.inf).max())
    error = f"a row sums to {float(sums[(sums - 1).abs().argmax()]):.4f}" if deviation > SUM_TOLERANCE else ""
    yield AttentionRuleResult("sums", deviation, error)
    positions = torch.arange(attentions.shape[-1], device=attentions.device)
    distance = positions[:, None] - positions[None, :]
    behind, ahead = reach
    excluded: list[tuple[Literal["padding", "ahead", "behind"], str, Tensor]] = [("padding", "padding", query & ~key)]
    if ahead is not None:
        label = "later positions" if ahead == 0 else f"positions more than {ahead} ahead"
        excluded.append(("ahead", label, query & key & (-distance > ahead)))
    if behind is not None:
        excluded.append(("behind", f"positions more than {behind} behind", query & key & (distance > behind)))
    for name, label, region in excluded:
        weight = float((attentions.abs() * region).nan_to_num(torch.inf).max())
        error = f"a weight of {weight:.2g} on {label}" if weight > ZERO_WEIGHT_TOLERANCE else ""
        yield AttentionRuleResult(name, weight, error)


def find_layer_reach(model: nn.Module, layer_index: int, *, is_decoder: bool) -> AttentionReach:
    """Return how far (behind, ahead) a layer may attend: its pattern's reach, and never ahead in a decoder."""
    layers: Sequence[nn.Module] = list(model.layers) if isinstance(model, Transformer) else ()
    patterns = (
        [module for module in layers[layer_index].modules() if isinstance(module, Pattern)]
        if layer_index < len(layers)
        else []
    )
    behind, ahead = patterns[0].window_size if patterns else (None, None)  # the outermost pattern comes first
    return behind, 0 if is_decoder else ahead
