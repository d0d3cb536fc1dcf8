"""Fused against explicit: does the fast road that trains and scores compute what the slow one, in plain sight, defines?

If not, the numbers belong to another model than the one that is described and whose maps are shown: no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.probe import AuditedModel
from headtohead.audit.result import CheckResult, build_inconclusive, build_not_applicable
from headtohead.audit.tolerance import Difference, max_abs_finite, measure_difference, select_worst
from headtohead.nn.parts.base import AttentionImplementation
from headtohead.nn.transformer import Transformer

CHECK_NAME = "attention-implementations"


def audit_attention_implementations(audited_model: AuditedModel) -> CheckResult:
    """Outputs and the gradients of all weights, with and without padding."""
    model = audited_model.model
    if not isinstance(model, Transformer):
        return build_not_applicable(CHECK_NAME, "the model has one road only")
    if model.attn_implementations != {"eager", "sdpa"}:
        return build_not_applicable(
            CHECK_NAME, f"the model's parts allow one road only: {', '.join(model.attn_implementations)}"
        )
    if audited_model.noise == "hidden":
        return build_inconclusive(CHECK_NAME)
    tried = (
        f"both roads on whole and padded texts of {audited_model.length}: outputs and gradients; {audited_model.how}"
    )
    found = select_worst(_compare_implementations(audited_model))
    if found.equal:
        meaning = "What is trained and scored is what the maps show."
        return CheckResult(CHECK_NAME, True, tried, f"the same: {found}", meaning, is_blocking=True)
    if audited_model.noise == "drawn":
        return build_inconclusive(CHECK_NAME)
    return CheckResult(
        CHECK_NAME,
        False,
        tried,
        f"the fused road differs from the explicit one: {found}",
        "What is trained and scored is not what the model's definition and its maps say.",
        is_blocking=True,
        failure_reason="its roads differ",
    )


def _compare_implementations(audited_model: AuditedModel) -> Iterator[Difference]:
    for padded in (False, True):
        ids, mask = audited_model.ids[:2], None
        if padded:
            mask = torch.ones_like(ids, dtype=torch.bool)
            mask[1, -max(1, audited_model.length // 3) :] = False
        place = "padded texts" if padded else "whole texts"
        slow, slow_gradients = _compute_logits_and_gradients(audited_model, ids, mask, "eager")
        fast, fast_gradients = _compute_logits_and_gradients(audited_model, ids, mask, "sdpa")
        yield measure_difference(fast, slow, f"outputs, {place}", audited_model.rounding_tolerance)
        # Against the largest gradient of all: that of a bias which the softmax swallows is rounding and nothing else.
        scale = max(map(max_abs_finite, slow_gradients.values()), default=0.0)
        for name, gradient in slow_gradients.items():
            other = fast_gradients.get(name, torch.zeros_like(gradient))
            yield measure_difference(
                other, gradient, f"gradient of {name}, {place}", audited_model.rounding_tolerance, scale=scale
            )


def _compute_logits_and_gradients(
    audited_model: AuditedModel,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    attn_implementation: AttentionImplementation,
) -> tuple[Tensor, dict[str, Tensor]]:
    """What is said about the text, not about padding, and how each weight moves it."""
    logits = audited_model.run(input_ids, attention_mask, attn_implementation=attn_implementation).logits
    kept = logits[attention_mask] if attention_mask is not None and audited_model.predicts_tokens else logits
    return kept.detach(), audited_model.compute_weight_gradients(kept)
