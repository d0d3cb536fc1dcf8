"""Attention implementations: sdpa and blocked must give the same outputs and gradients as eager, the reference.

Otherwise the scores belong to a different model than the one described by its parts and attention weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.model_checks.base import FailureWording, Measurement, ModelCheck, SuccessWording, select_positions
from headtohead.audit.model_checks.padding import build_mixed_padding_mask
from headtohead.audit.tolerance import max_abs_finite, measure_tensor_difference
from headtohead.nn.parts.base import AttentionImplementation
from headtohead.nn.transformer import Transformer


class AttentionImplementationCheck(ModelCheck):
    """Eager and sdpa attention (and blocked, where applicable) give the same outputs and weight gradients."""

    name = "attention-implementations"
    is_blocking = True
    requires_determinism = True
    success = SuccessWording(
        "eager and sdpa agree", "The attention weights shown are those of the model that is trained and scored."
    )
    failure = FailureWording(
        "sdpa differs from eager",
        "The model that is trained and scored is not the one that its parts and attention weights describe.",
        "attention implementations differ",
    )

    def find_inapplicable_reason(self, audited_model: AuditedModel) -> str:
        """Return the reason to skip the check if the model has only one attention implementation."""
        if not isinstance(audited_model.model, Transformer):
            return "the model has one attention implementation only"
        implementations = audited_model.model.attn_implementations
        if implementations != {"eager", "sdpa"}:
            return f"the parts of the model support one implementation only: {', '.join(sorted(implementations))}"
        return ""

    def describe_procedure(self, audited_model: AuditedModel) -> str:
        length = audited_model.input_length
        return f"outputs and gradients of eager and sdpa on unpadded and padded sequences of {length} tokens"

    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        """Compare `sdpa`'s logits and weight gradients with those of `eager`, with and without padding."""
        for padding in ("no", "with"):
            ids = audited_model.input_ids if padding == "with" else audited_model.input_ids[:2]
            mask = build_mixed_padding_mask(ids) if padding == "with" else None
            expected, expected_gradients = _compute_logits_and_gradients(audited_model, ids, mask, "eager")
            logits, gradients = _compute_logits_and_gradients(audited_model, ids, mask, "sdpa")
            yield measure_tensor_difference(
                logits, expected, f"outputs, {padding} padding", audited_model.rounding_tolerance
            )
            # Relative to the largest of all gradients: a key bias's gradient is pure rounding error, since softmax
            # cancels it.
            scale = max(map(max_abs_finite, expected_gradients.values()), default=0.0)
            for name, expected_gradient in expected_gradients.items():
                gradient = gradients.get(name, torch.zeros_like(expected_gradient))
                label, tolerance = f"gradient of {name}, {padding} padding", audited_model.rounding_tolerance
                yield measure_tensor_difference(gradient, expected_gradient, label, tolerance, scale=scale)


def _compute_logits_and_gradients(
    audited_model: AuditedModel,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    attn_implementation: AttentionImplementation,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits, excluding those at padding, and their gradient with respect to each weight."""
    logits = audited_model.run_forward(input_ids, attention_mask, attn_implementation=attn_implementation).logits
    selected_logits = select_positions(logits, attention_mask if audited_model.predicts_tokens else None)
    return selected_logits.detach(), audited_model.compute_weight_gradients(selected_logits)
