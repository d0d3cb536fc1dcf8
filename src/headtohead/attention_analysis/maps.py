"""Compute, select and subtract a model's attention maps for a text: every layer and head, with the text's tokens.

The model computes the maps itself with `output_attentions=True`. A model that returns none raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import nn

from headtohead.audit.model_checks.attention_weights import AttentionReach, find_allowed_attention_reach
from headtohead.data.tokenization.tokenizers import TokenizerProtocol
from headtohead.errors import ModelError
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.transformer import Transformer

HeadWeights = Float[np.ndarray, "heads query key"]
PAD_LABEL = "<pad>"
WHITESPACE_SYMBOLS = str.maketrans({"Ġ": "␣", "Ċ": "⏎", "▁": "␣", "\n": "⏎", "\t": "⇥"})
"""displayed symbols for the whitespace characters of tokenizers"""


@dataclass(frozen=True)
class EncodedText:
    """A text as encoded for the model."""

    text: str
    input_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """printable tokens, one per id"""
    notes: tuple[str, ...] = ()
    """warnings: the text was truncated, or contains out-of-vocabulary words"""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention weights of one model on one text. Layers and heads are counted from 1."""

    name: str
    """displayed name of the model"""
    text: str
    tokens: tuple[str, ...]
    """printable tokens, including padding"""
    attention_mask: Bool[np.ndarray, " length"]
    """False on padding"""
    weights_by_layer: tuple[HeadWeights, ...]
    is_causal: bool
    input_ids: tuple[int, ...] = ()
    """token ids without padding"""
    layer_reaches: tuple[AttentionReach, ...] = ()
    """largest distance (behind, ahead) to which each layer may attend; None means any"""
    notes: tuple[str, ...] = ()
    layer_numbers: tuple[int, ...] = ()
    head_numbers: tuple[int, ...] = ()
    is_difference: bool = False
    """whether the values are differences of two maps"""

    @property
    def shape(self) -> str:
        """Return "4 layers x 2 heads"."""
        num_layers, num_heads = len(self.weights_by_layer), len(self.head_numbers)
        return f"{num_layers} layer{'s' * (num_layers > 1)} x {num_heads} head{'s' * (num_heads > 1)}"


def encode_text(
    tokenizer: TokenizerProtocol,
    text: str,
    context_length: int,
    *,
    prefix_ids: Sequence[int] = (),
    suffix_ids: Sequence[int] = (),
) -> EncodedText:
    """Encode a text for attention maps: truncate it to the context length and add special tokens around it."""
    if not text.strip():
        raise ModelError("the text is empty")
    text_ids = tokenizer.encode(text)
    if not text_ids:
        raise ModelError(f"{text!r}: the tokenizer returns no tokens for this text")
    max_text_tokens = max(1, context_length - len(prefix_ids) - len(suffix_ids))
    truncated_ids = text_ids[:max_text_tokens]
    num_unknown = sum(token_id == tokenizer.unk_id for token_id in truncated_ids)
    if num_unknown == len(truncated_ids):
        raise ModelError(f"{text!r}: every word of this text is unknown to the model")
    notes = []
    if len(text_ids) > max_text_tokens:
        notes.append(
            f"The text is truncated to the first {max_text_tokens:,} of its {len(text_ids):,} tokens: "
            f"the model's context is {context_length:,}."
        )
    if num_unknown:
        notes.append(f"{'1 word is' if num_unknown == 1 else f'{num_unknown:,} words are'} unknown to the model.")
    input_ids = (*prefix_ids, *truncated_ids, *suffix_ids)
    tokens = tuple(format_token(tokenizer.id_to_token(token_id)) for token_id in input_ids)
    return EncodedText(text, input_ids, tokens, tuple(notes))


def format_token(token: str) -> str:
    """Return a printable token: ␣ for a space, ⏎ for a newline."""
    return token.translate(WHITESPACE_SYMBOLS) or "∅"


def compute_attention_maps(
    model: nn.Module,
    encoded_text: EncodedText,
    *,
    name: str = "",
    is_causal: bool | None = None,
    pad_to: int | None = None,
    pad_id: int | None = None,
) -> AttentionMaps:
    """Return a model's attention maps for a text.

    Args:
        model: A model that can return attention weights.
        encoded_text: The encoded text.
        name: The model's name, for titles and error messages.
        is_causal: Whether later tokens are masked; not needed for a `Transformer`, which defines it itself.
        pad_to: Length to which the text is padded on the right.
        pad_id: Padding token.
    """
    length = len(encoded_text.input_ids)
    num_padding = max(0, (pad_to or 0) - length)
    input_ids = torch.tensor([[*encoded_text.input_ids, *([pad_id or 0] * num_padding)]])
    attention_mask = torch.arange(length + num_padding)[None] < length
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    weights_by_layer = _compute_layer_weights(
        model, input_ids.to(device), attention_mask.to(device) if num_padding else None
    )
    num_layers = len(weights_by_layer)
    if is_causal is None:
        is_causal = isinstance(model, Transformer) and model.sizes.is_causal
    return AttentionMaps(
        name=name,
        text=encoded_text.text,
        tokens=(*encoded_text.tokens, *([PAD_LABEL] * num_padding)),
        attention_mask=attention_mask[0].numpy(),
        weights_by_layer=weights_by_layer,
        is_causal=is_causal,
        input_ids=encoded_text.input_ids,
        layer_reaches=tuple(_get_layer_reach(model, layer, is_causal) for layer in range(num_layers)),
        notes=(
            *encoded_text.notes,
            *([f"{length:,} tokens are followed by {num_padding:,} padding positions."] if num_padding else []),
        ),
        layer_numbers=tuple(range(1, num_layers + 1)),
        head_numbers=tuple(range(1, len(weights_by_layer[0]) + 1)),
    )


def _compute_layer_weights(
    model: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[HeadWeights, ...]:
    """Return each layer's attention map, (heads, query, key); raise ModelError if a layer returns none."""
    was_training = model.training
    model.eval()  # dropout would zero some weights
    try:
        with torch.no_grad():
            output: ModelOutput = model(input_ids, attention_mask, output_attentions=True)
    finally:
        model.train(was_training)
    attentions = output.attentions or ()
    num_expected = model.stack.depth if isinstance(model, Transformer) else max(1, len(attentions))
    if len(attentions) < num_expected:
        part = f" (attention = {str(model.model_config.attention)!r})" if isinstance(model, Transformer) else ""
        raise ModelError(
            f"the model returns no attention maps{part}: {len(attentions)} of {num_expected} layers returned weights"
        )
    return tuple(weights[0].to(torch.float32).cpu().numpy() for weights in attentions)


def _get_layer_reach(model: nn.Module, layer: int, is_causal: bool) -> AttentionReach:
    """Return the distance (behind, ahead) to which a layer may attend, against which its map is checked.

    It is read from the config of Hugging Face models, and from the parts of a `Transformer`.
    """
    config = getattr(model, "config", None)
    sliding_window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if is_causal and sliding_window and (layer_types is None or layer_types[layer] == "sliding_attention"):
        return int(sliding_window) - 1, 0
    return find_allowed_attention_reach(model, layer, is_decoder=is_causal)


def select_heads(maps: AttentionMaps, layer: int | None = None, head: int | None = None) -> AttentionMaps:
    """Return the maps of one layer, of one head in every layer, or of one head in one layer; counted from 1."""
    _check_layer_or_head_exists("layer", layer, maps.layer_numbers)
    _check_layer_or_head_exists("head", head, maps.head_numbers)
    layer_indices = [index for index, number in enumerate(maps.layer_numbers) if layer in (None, number)]
    head_indices = [index for index, number in enumerate(maps.head_numbers) if head in (None, number)]
    return replace(
        maps,
        weights_by_layer=tuple(maps.weights_by_layer[index][head_indices] for index in layer_indices),
        layer_reaches=tuple(maps.layer_reaches[index] for index in layer_indices),
        layer_numbers=tuple(maps.layer_numbers[index] for index in layer_indices),
        head_numbers=tuple(maps.head_numbers[index] for index in head_indices),
    )


def _check_layer_or_head_exists(axis: str, number: int | None, allowed_numbers: Sequence[int]) -> None:
    """Raise ModelError if the attention maps do not have the requested layer or head."""
    if number is not None and number not in allowed_numbers:
        allowed_range = (
            f"{allowed_numbers[0]} to {allowed_numbers[-1]}"
            if len(allowed_numbers) > 1
            else f"only {allowed_numbers[0]}"
        )
        raise ModelError(f"no {axis} {number}; allowed: {allowed_range}")


def subtract_maps(maps_a: AttentionMaps, maps_b: AttentionMaps) -> AttentionMaps:
    """Return the second maps minus the first; both must have the same tokens."""
    if maps_a.tokens != maps_b.tokens:
        token_pairs = enumerate(zip(maps_a.tokens, maps_b.tokens, strict=False))
        first_difference = next(
            (index for index, (token_a, token_b) in token_pairs if token_a != token_b),
            min(len(maps_a.tokens), len(maps_b.tokens)),
        )
        raise ModelError(
            f"{maps_a.name} and {maps_b.name} tokenize the text differently ({len(maps_a.tokens)} and "
            f"{len(maps_b.tokens)} tokens, first difference at token {first_difference + 1}): maps cannot be subtracted"
        )
    shapes_a, shapes_b = ([weights.shape for weights in maps.weights_by_layer] for maps in (maps_a, maps_b))
    if shapes_a != shapes_b:
        raise ModelError(
            f"{maps_a.name} has {maps_a.shape}, {maps_b.name} has {maps_b.shape}: maps cannot be subtracted; "
            "show them one at a time"
        )
    return replace(
        maps_b,
        name=f"{maps_b.name} − {maps_a.name}",
        weights_by_layer=tuple(
            weights_b - weights_a
            for weights_a, weights_b in zip(maps_a.weights_by_layer, maps_b.weights_by_layer, strict=True)
        ),
        is_difference=True,
    )
