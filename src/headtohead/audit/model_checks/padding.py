"""Padding: outputs must depend neither on the tokens under the padding nor on the amount of padding.

Visible padding is a flaw that does not withhold the verdict: rows padded to the context are all scored alike.
Fine-tuned models are scored on batches padded to their longest row, so their scores would depend on other rows as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.model_checks.attention_weights import check_attention_rules
from headtohead.audit.model_checks.base import (
    Failure,
    Measurement,
    ModelCheck,
    build_mixed_padding_mask,
    select_positions,
)
from headtohead.audit.probe import ModelProbe, UnsupportedInputError
from headtohead.audit.tolerance import Difference, max_abs_finite, measure_difference, measure_zero_gradient
from headtohead.nn.transformer import Transformer


class PaddingCheck(ModelCheck):
    """Different padding tokens, more padding and no padding give the same outputs.

    Transformers are padded on the left, on the right and in the middle; other models only on the right, as in batches.
    """

    name = "padding"
    success = ("no output changes", "Padding is ignored.")
    failure = Failure(
        "outputs change with the padding",
        "Padding is read like text: the same text gets a different output if it is padded differently. Rows that are "
        "all padded to the context are scored alike, so the verdict stands; padding should be masked.",
        "sees padding",
    )

    def find_inapplicable_reason(self, probe: ModelProbe) -> str:
        if "attention_mask" not in probe.supported_arguments and probe.pad_id is None:
            return "the model takes no attention_mask, and no padding token is given"
        return f"a text of {probe.length} tokens leaves no room for padding" if probe.length < 4 else ""

    def describe_procedure(self, probe: ModelProbe) -> str:
        """Describe how the padding is changed, and on which sides of the text."""
        has_mask = "attention_mask" in probe.supported_arguments
        masked = "other tokens under the padding, gradients by padding, " if has_mask else ""
        sides = (
            "on the left, on the right and in the middle" if isinstance(probe.model, Transformer) else "on the right"
        )
        return f"{masked}more padding, and no padding, {sides}"

    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        """Compare the logits at content tokens after the padding is changed, extended or removed."""
        width = probe.length - max(1, probe.length // 4)
        ids, mask = _build_padded_batch(probe, width)
        try:
            padded = probe.compute_logits(ids, mask)
        except UnsupportedInputError:
            width = probe.length
            ids, mask = _build_padded_batch(probe, width)
            padded = probe.compute_logits(ids, mask)
        expected = select_positions(padded, mask if probe.predicts_tokens else None)
        if "attention_mask" in probe.supported_arguments:
            yield from _compare_masked(probe, ids, mask, expected)
        if width == probe.length:
            yield "texts of several lengths"
        elif probe.can_compare_shapes():
            yield _compare_more_padding(probe, ids, mask, expected)
            yield from _compare_with_unpadded(probe, width)


def _compare_masked(probe: ModelProbe, ids: Tensor, mask: Tensor, expected: Tensor) -> Iterator[Difference]:
    """Yield the effect of the tokens under the padding mask, measured by replacing them and by their gradients."""
    selection = mask if probe.predicts_tokens else None
    replaced = torch.where(mask, ids, probe.replace_tokens(ids))
    logits = select_positions(probe.compute_logits(replaced, mask), selection)
    scale = max_abs_finite(expected)
    yield measure_difference(logits, expected, "other tokens under the padding", probe.exact_tolerance, scale=scale)
    gradient = probe.compute_input_gradient(ids, mask, selection)
    if gradient is not None:
        scale = max_abs_finite(gradient)
        yield measure_zero_gradient(gradient[~mask], "gradient by padding", probe.exact_tolerance, scale=scale)
    if probe.is_strict:
        with torch.no_grad():
            attentions = probe.run_forward(ids, mask, output_attentions=True).attentions or ()
        for layer in attentions:
            rules = check_attention_rules(layer, mask, (None, None))
            weight = max(rule.max_deviation for rule in rules if rule.name == "padding")
            yield Difference(weight, 1.0, "attention weight on padding", probe.exact_tolerance)


def _compare_more_padding(probe: ModelProbe, ids: Tensor, mask: Tensor, expected: Tensor) -> Difference:
    """Compare the logits for the same texts with more padding."""
    num_added = probe.length - ids.shape[1]
    num_left = num_added // 2 if isinstance(probe.model, Transformer) else 0
    wide_ids = torch.nn.functional.pad(ids, (num_left, num_added - num_left), value=probe.fill_token)
    wide_mask = torch.nn.functional.pad(mask, (num_left, num_added - num_left), value=False)
    logits = select_positions(probe.compute_logits(wide_ids, wide_mask), wide_mask if probe.predicts_tokens else None)
    label = f"{num_added} more positions of padding"
    return measure_difference(logits, expected, label, probe.rounding_tolerance, scale=max_abs_finite(expected))


def _compare_with_unpadded(probe: ModelProbe, width: int) -> Iterator[Difference]:
    """Compare texts with and without padding. All rows are padded equally, so that row interactions do not matter."""
    length = width - max(1, width // 2 if isinstance(probe.model, Transformer) else width // 4)
    text_ids = probe.input_ids[:, :length]
    unpadded = probe.compute_logits(text_ids)
    starts = {"right": (0, 0), "left": (0, width - length), "middle": (length // 2, width - length)}
    for side in ("right", "left", "middle") if isinstance(probe.model, Transformer) else ("right",):
        split_position, shift = starts[side]
        positions = torch.arange(length, device=text_ids.device)
        positions = torch.where(positions < split_position, positions, positions + shift)
        ids, mask = (
            text_ids.new_full((len(text_ids), width), probe.fill_token),
            torch.zeros(len(text_ids), width, dtype=torch.bool),
        )
        mask = mask.to(text_ids.device)
        ids[:, positions], mask[:, positions] = text_ids, True
        logits = probe.compute_logits(ids, mask)
        logits = logits[:, positions] if probe.predicts_tokens else logits
        yield measure_difference(logits, unpadded, f"padding on the {side} or none", probe.rounding_tolerance)


def _build_padded_batch(probe: ModelProbe, width: int) -> tuple[Tensor, Tensor]:
    """Return texts of different lengths and their mask, both of shape (batch, width)."""
    ids = probe.input_ids[:, :width].clone()
    if isinstance(probe.model, Transformer):
        mask = build_mixed_padding_mask(ids)
    else:
        lengths = torch.linspace(max(1, width // 2), width - 1, len(ids)).long().to(ids.device)
        mask = torch.arange(width, device=ids.device) < lengths[:, None]
    return ids.masked_fill(~mask, probe.fill_token), mask
