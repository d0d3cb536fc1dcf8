"""Padding: outputs must depend neither on the tokens under the padding nor on the amount of padding.

Visible padding is a flaw that does not withhold the verdict: all rows are padded to the context length. Fine-tuned
models are scored on batches padded to their longest row, so their scores would depend on other rows as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.audited_model import AuditedModel, InputIds, PaddingMask, UnsupportedInputError
from headtohead.audit.model_checks.attention_weights import check_attention_rules
from headtohead.audit.model_checks.base import FailureWording, Measurement, ModelCheck, SuccessWording, select_positions
from headtohead.audit.tolerance import Difference, max_abs_finite, measure_tensor_difference, measure_zero_gradient
from headtohead.nn.transformer import Transformer


class PaddingCheck(ModelCheck):
    """Different padding tokens, more padding and no padding give the same outputs.

    Transformers are padded on the left, on the right and in the middle; other models only on the right, as in batches.
    """

    name = "padding"
    success = SuccessWording("no output changes", "Padding is ignored.")
    failure = FailureWording(
        "outputs change with the padding",
        "Padding is read like text: the same text gets a different output if it is padded differently. Rows that are "
        "all padded to the context are scored alike, so the verdict stands; padding should be masked.",
        "sees padding",
    )

    def find_inapplicable_reason(self, audited_model: AuditedModel) -> str:
        """Return the reason to skip the check if the model cannot pad, or an empty string."""
        if "attention_mask" not in audited_model.supported_arguments and audited_model.pad_id is None:
            return "the model takes no attention_mask, and no padding token is given"
        return (
            f"a sequence of {audited_model.input_length} tokens leaves no room for padding"
            if audited_model.input_length < 4
            else ""
        )

    def describe_procedure(self, audited_model: AuditedModel) -> str:
        """Describe how the padding is changed, and on which sides of the text."""
        has_mask = "attention_mask" in audited_model.supported_arguments
        mask_description = "other tokens under the padding, gradients by padding, " if has_mask else ""
        sides = (
            "on the left, on the right and in the middle"
            if isinstance(audited_model.model, Transformer)
            else "on the right"
        )
        return f"{mask_description}more padding, and no padding, {sides}"

    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        """Compare the logits at content tokens after the padding is changed, extended or removed."""
        padded_length = audited_model.input_length - max(1, audited_model.input_length // 4)
        ids, mask = _build_padded_batch(audited_model, padded_length)
        try:
            padded_logits = audited_model.compute_logits(ids, mask)
        except UnsupportedInputError:
            padded_length = audited_model.input_length
            ids, mask = _build_padded_batch(audited_model, padded_length)
            padded_logits = audited_model.compute_logits(ids, mask)
        expected = select_positions(padded_logits, mask if audited_model.predicts_tokens else None)
        if "attention_mask" in audited_model.supported_arguments:
            yield from _compare_masked(audited_model, ids, mask, expected)
        if padded_length == audited_model.input_length:
            yield "sequences of several lengths"
        elif audited_model.can_compare_shapes():
            yield _compare_more_padding(audited_model, ids, mask, expected)
            yield from _compare_with_unpadded(audited_model, padded_length)


def _compare_masked(audited_model: AuditedModel, ids: Tensor, mask: Tensor, expected: Tensor) -> Iterator[Difference]:
    """Yield the effect of the tokens under the padding mask, measured by replacing them and by their gradients."""
    selection = mask if audited_model.predicts_tokens else None
    replaced_ids = torch.where(mask, ids, audited_model.replace_tokens(ids))
    logits = select_positions(audited_model.compute_logits(replaced_ids, mask), selection)
    scale = max_abs_finite(expected)
    yield measure_tensor_difference(
        logits, expected, "other tokens under the padding", audited_model.exact_tolerance, scale=scale
    )
    gradient = audited_model.compute_input_gradient(ids, mask, selection)
    if gradient is not None:
        scale = max_abs_finite(gradient)
        yield measure_zero_gradient(gradient[~mask], "gradient by padding", audited_model.exact_tolerance, scale=scale)
    if audited_model.is_strict:
        with torch.no_grad():
            attentions = audited_model.run_forward(ids, mask, output_attentions=True).attentions or ()
        for attention_weights in attentions:
            rules = check_attention_rules(attention_weights, mask, (None, None))
            weight = max(rule.max_deviation for rule in rules if rule.name == "padding")
            yield Difference(weight, 1.0, "attention weight on padding", audited_model.exact_tolerance)


def _compare_more_padding(audited_model: AuditedModel, ids: Tensor, mask: Tensor, expected: Tensor) -> Difference:
    """Compare the logits for the same sequences with more padding."""
    num_added = audited_model.input_length - ids.shape[1]
    num_left = num_added // 2 if isinstance(audited_model.model, Transformer) else 0
    wide_ids = torch.nn.functional.pad(ids, (num_left, num_added - num_left), value=audited_model.padding_id)
    wide_mask = torch.nn.functional.pad(mask, (num_left, num_added - num_left), value=False)
    logits = select_positions(
        audited_model.compute_logits(wide_ids, wide_mask), wide_mask if audited_model.predicts_tokens else None
    )
    label, scale = f"{num_added} more positions of padding", max_abs_finite(expected)
    return measure_tensor_difference(logits, expected, label, audited_model.rounding_tolerance, scale=scale)


def _compare_with_unpadded(audited_model: AuditedModel, padded_length: int) -> Iterator[Difference]:
    """Compare sequences with and without padding.

    All sequences of a batch are padded equally, so that interactions between them do not matter.
    """
    length = padded_length - max(
        1, padded_length // 2 if isinstance(audited_model.model, Transformer) else padded_length // 4
    )
    content_ids = audited_model.input_ids[:, :length]
    unpadded_logits = audited_model.compute_logits(content_ids)
    num_padding = padded_length - length
    # For each place of the padding: the position before which it is inserted, and by how much later tokens shift.
    insertions = {"right": (length, num_padding), "left": (0, num_padding), "middle": (length // 2, num_padding)}
    for side in ("right", "left", "middle") if isinstance(audited_model.model, Transformer) else ("right",):
        insertion_position, shift = insertions[side]
        positions = torch.arange(length, device=content_ids.device)
        positions = torch.where(positions < insertion_position, positions, positions + shift)
        ids = content_ids.new_full((len(content_ids), padded_length), audited_model.padding_id)
        mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
        ids[:, positions], mask[:, positions] = content_ids, True
        logits = audited_model.compute_logits(ids, mask)
        logits = logits[:, positions] if audited_model.predicts_tokens else logits
        yield measure_tensor_difference(
            logits, unpadded_logits, f"padding on the {side} or none", audited_model.rounding_tolerance
        )


def _build_padded_batch(audited_model: AuditedModel, padded_length: int) -> tuple[Tensor, Tensor]:
    """Return sequences of different lengths and their padding mask, both of shape (batch, padded_length)."""
    ids = audited_model.input_ids[:, :padded_length].clone()
    if isinstance(audited_model.model, Transformer):
        mask = build_mixed_padding_mask(ids)
    else:
        lengths = torch.linspace(max(1, padded_length // 2), padded_length - 1, len(ids)).long().to(ids.device)
        mask = torch.arange(padded_length, device=ids.device) < lengths[:, None]
    return ids.masked_fill(~mask, audited_model.padding_id), mask


def build_mixed_padding_mask(input_ids: InputIds) -> PaddingMask:
    """Return a padding mask in which the rows of a batch cycle through no, left, right and middle padding.

    Both have the shape (batch, length); the mask is False at padding.
    """
    length = input_ids.shape[1]
    mask = torch.ones_like(input_ids, dtype=torch.bool)
    mask[1::4, : (length + 1) // 3] = False
    mask[2::4, -min(length - 1, length // 2 + 1) :] = False
    mask[3::4, length // 4 : length // 4 + length // 2] = False
    return mask
