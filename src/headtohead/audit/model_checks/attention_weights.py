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

from headtohead.audit.audited_model import AuditedModel, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.transformer import Transformer

CHECK_NAME = "attention-weights"
SUM_TOLERANCE = 1e-5
ZERO_WEIGHT_TOLERANCE = 1e-9
MAX_LISTED_ERRORS = 3
AttentionReach = tuple[int | None, int | None]
"""how many positions (behind, ahead) of a query may be attended to; None for any"""


def check_attention_weights(audited_model: AuditedModel) -> CheckResult:
    """Check the attention weights of padded and unpadded sequences: every layer, head and query."""
    if "output_attentions" not in audited_model.supported_arguments:
        return build_inapplicable_result(CHECK_NAME, "the model does not return attention weights")
    ids, mask = audited_model.input_ids, torch.ones_like(audited_model.input_ids, dtype=torch.bool)
    for batch_index in range(1, len(ids)):
        content_length = audited_model.input_length - batch_index * audited_model.input_length // 5
        mask[batch_index, max(1, content_length) :] = False
    try:
        with torch.no_grad():
            attentions = audited_model.run_forward(ids, mask, output_attentions=True).attentions
    except UnsupportedInputError as error:
        return build_inapplicable_result(CHECK_NAME, f"the model does not return attention weights ({error})")
    if not attentions:
        return build_inapplicable_result(CHECK_NAME, "the model's attention has no weights")
    has_softmax = _has_softmax(audited_model.model)
    errors = [
        f"layer {layer_index + 1}: {rule.error}"
        for layer_index, weights in enumerate(attentions)
        for rule in check_attention_rules(
            weights,
            mask,
            find_allowed_attention_reach(audited_model.model, layer_index, is_decoder=audited_model.is_causal),
        )
        if rule.error and (rule.name != "sums" or has_softmax)
    ]
    causal_rule = "later positions, " if audited_model.is_causal else ""
    size = f"{len(attentions)} layers x {attentions[0].shape[1]} heads"
    procedure = f"sums, padding, {causal_rule}reach of {size} on padded sequences; {audited_model.setup_description}"
    if not errors:
        observation = "no weight on excluded positions"
        if has_softmax:
            observation = f"every row sums to 1, with {observation}"
        return CheckResult(CHECK_NAME, True, procedure, observation, "The attention weights are valid distributions.")
    omitted = f"; and {len(errors) - MAX_LISTED_ERRORS} more" if len(errors) > MAX_LISTED_ERRORS else ""
    return CheckResult(
        CHECK_NAME,
        False,
        procedure,
        "; ".join(errors[:MAX_LISTED_ERRORS]) + omitted,
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
    is_content_query, is_content_key = attention_mask[:, None, :, None], attention_mask[:, None, None, :]
    is_content_pair = is_content_query & is_content_key
    sums = attentions.sum(-1)[attention_mask[:, None].expand(-1, attentions.shape[1], -1)]
    deviation = float((sums - 1).abs().nan_to_num(torch.inf).max())
    error = f"a row sums to {float(sums[(sums - 1).abs().argmax()]):.4f}" if deviation > SUM_TOLERANCE else ""
    yield AttentionRuleResult("sums", deviation, error)
    positions = torch.arange(attentions.shape[-1], device=attentions.device)
    distance = positions[:, None] - positions[None, :]
    behind, ahead = reach
    excluded_regions: list[tuple[Literal["padding", "ahead", "behind"], str, Tensor]] = [
        ("padding", "padding", is_content_query & ~is_content_key)
    ]
    if ahead is not None:
        label = "later positions" if ahead == 0 else f"positions more than {ahead} ahead"
        excluded_regions.append(("ahead", label, is_content_pair & (-distance > ahead)))
    if behind is not None:
        label = f"positions more than {behind} behind"
        excluded_regions.append(("behind", label, is_content_pair & (distance > behind)))
    for name, label, region in excluded_regions:
        weight = float((attentions.abs() * region).nan_to_num(torch.inf).max())
        error = f"a weight of {weight:.2g} on {label}" if weight > ZERO_WEIGHT_TOLERANCE else ""
        yield AttentionRuleResult(name, weight, error)


def _has_softmax(model: nn.Module) -> bool:
    """Return whether attention weights are a softmax, so that they sum to 1. Parts may compute others."""
    return not isinstance(model, Transformer) or all(
        isinstance(layer.attention, MultiHeadAttention) and type(layer.attention).weights is MultiHeadAttention.weights
        for layer in model.layers
    )


def find_allowed_attention_reach(model: nn.Module, layer_index: int, *, is_decoder: bool) -> AttentionReach:
    """Return how far (behind, ahead) the attention weights of a layer may reach.

    The layer's pattern limits the reach, and a decoder never attends ahead.
    """
    runs_in_order = isinstance(model, Transformer) and model.stack.depth == len(model.layers)
    layers: Sequence[nn.Module] = list(model.layers) if runs_in_order else ()  # type: ignore[arg-type]
    patterns = (
        [module for module in layers[layer_index].modules() if isinstance(module, Pattern)]
        if layer_index < len(layers)
        else []
    )
    behind, ahead = patterns[0].window_size if patterns else (None, None)  # the outermost pattern comes first
    return behind, 0 if is_decoder else ahead
