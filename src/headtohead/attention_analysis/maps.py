"""A model's attention maps for a text, as arrays: every layer and head, with the tokens, padding and truncation.

The model computes the maps itself with `output_attentions=True`. A model that returns none raises an error. Maps are
checked with the same rules as in the audit of trained models (`audit.model_checks.attention_weights`): rows sum to 1,
no weight on padding, causal triangle, attention window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import nn

from headtohead.audit.model_checks.attention_weights import (
    SUM_TOLERANCE,
    AttentionReach,
    AttentionRuleResult,
    check_attention_rules,
    find_layer_reach,
)
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import ModelError
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.transformer import Transformer

HeadWeights = Float[np.ndarray, "heads query key"]
CHECK_TITLES = {"sums": "rows sum to 1", "padding": "nothing on padding", "ahead": "triangle", "behind": "band"}
PAD_LABEL = "<pad>"
WHITESPACE_SYMBOLS = str.maketrans({"Ġ": "␣", "Ċ": "⏎", "▁": "␣", "\n": "⏎", "\t": "⇥"})
"""the whitespace symbols that tokenizers use, and how they are shown"""


@dataclass(frozen=True)
class EncodedText:
    """A text as encoded for the model."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """warnings: the text was truncated, or contains out-of-vocabulary words"""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention on one text. Layers and heads are counted from 1."""

    name: str
    text: str
    tokens: tuple[str, ...]
    """padding included"""
    real: Bool[np.ndarray, " length"]
    """False on padding"""
    layers: tuple[HeadWeights, ...]
    is_causal: bool
    ids: tuple[int, ...] = ()
    """token ids without padding"""
    window_sizes: tuple[AttentionReach, ...] = ()
    """(behind, ahead) distance that each layer may attend to; None means any"""
    notes: tuple[str, ...] = ()
    layer_numbers: tuple[int, ...] = ()
    head_numbers: tuple[int, ...] = ()
    is_difference: bool = False
    """whether the values are differences of two maps"""

    @property
    def shape(self) -> str:
        """Return "4 layers x 2 heads"."""
        layers, heads = len(self.layers), len(self.head_numbers)
        return f"{layers} layer{'s' * (layers > 1)} x {heads} head{'s' * (heads > 1)}"


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
    kept_ids = text_ids[:max_text_tokens]
    unknown = sum(token_id == tokenizer.unk_id for token_id in kept_ids)
    if unknown == len(kept_ids):
        raise ModelError(f"{text!r}: every word of this text is unknown to the model")
    notes = []
    if len(text_ids) > max_text_tokens:
        notes.append(
            f"The text is truncated to the first {max_text_tokens:,} of its {len(text_ids):,} tokens: "
            f"the model's context is {context_length:,}."
        )
    if unknown:
        notes.append(f"{'1 word is' if unknown == 1 else f'{unknown:,} words are'} unknown to the model.")
    ids = (*prefix_ids, *kept_ids, *suffix_ids)
    return EncodedText(
        text, ids, tuple(format_token(tokenizer.id_to_token(token_id)) for token_id in ids), tuple(notes)
    )


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
    length = len(encoded_text.ids)
    num_padding = max(0, (pad_to or 0) - length)
    input_ids = torch.tensor([[*encoded_text.ids, *([pad_id or 0] * num_padding)]])
    real = torch.arange(length + num_padding)[None] < length
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    layers = _compute_layer_weights(model, input_ids.to(device), real.to(device) if num_padding else None)
    if is_causal is None:
        is_causal = isinstance(model, Transformer) and model.sizes.is_causal
    return AttentionMaps(
        name=name,
        text=encoded_text.text,
        tokens=(*encoded_text.tokens, *([PAD_LABEL] * num_padding)),
        real=real[0].numpy(),
        layers=layers,
        is_causal=is_causal,
        ids=encoded_text.ids,
        window_sizes=tuple(_get_window_size(model, layer, is_causal) for layer in range(len(layers))),
        notes=(
            *encoded_text.notes,
            *([f"{length:,} tokens are followed by {num_padding:,} padding positions."] if num_padding else []),
        ),
        layer_numbers=tuple(range(1, len(layers) + 1)),
        head_numbers=tuple(range(1, len(layers[0]) + 1)),
    )


def _compute_layer_weights(
    model: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[HeadWeights, ...]:
    """Return each layer's attention weights, (heads, query, key); raise ModelError if a layer returns none."""
    was_training = model.training
    model.eval()  # dropout would zero some weights
    try:
        with torch.no_grad():
            output: ModelOutput = model(input_ids, attention_mask, output_attentions=True)
    finally:
        model.train(was_training)
    attentions = output.attentions or ()
    expected = len(model.layers) if isinstance(model, Transformer) else max(1, len(attentions))
    if len(attentions) < expected:
        kind = f" (attention = {model.model_config.attention.kind!r})" if isinstance(model, Transformer) else ""
        raise ModelError(
            f"the model returns no attention maps{kind}: {len(attentions)} of {expected} layers returned weights"
        )
    return tuple(weights[0].to(torch.float32).cpu().numpy() for weights in attentions)


def _get_window_size(model: nn.Module, layer: int, is_causal: bool) -> AttentionReach:
    """Return how far a layer may attend. Hugging Face transformers models declare it in their config."""
    config = getattr(model, "config", None)
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if is_causal and window and (layer_types is None or layer_types[layer] == "sliding_attention"):
        return int(window) - 1, 0
    return find_layer_reach(model, layer, is_decoder=is_causal)


def select_heads(maps: AttentionMaps, layer: int | None = None, head: int | None = None) -> AttentionMaps:
    """Return one layer, one head, or one head in one layer; counted from 1."""
    _check_in_range("layer", layer, maps.layer_numbers)
    _check_in_range("head", head, maps.head_numbers)
    rows = [i for i, number in enumerate(maps.layer_numbers) if layer in (None, number)]
    columns = [i for i, number in enumerate(maps.head_numbers) if head in (None, number)]
    return replace(
        maps,
        layers=tuple(maps.layers[i][columns] for i in rows),
        window_sizes=tuple(maps.window_sizes[i] for i in rows),
        layer_numbers=tuple(maps.layer_numbers[i] for i in rows),
        head_numbers=tuple(maps.head_numbers[i] for i in columns),
    )


def _check_in_range(name: str, number: int | None, allowed_numbers: Sequence[int]) -> None:
    """Raise ModelError if the requested layer or head does not exist."""
    if number is not None and number not in allowed_numbers:
        allowed = (
            f"{allowed_numbers[0]} to {allowed_numbers[-1]}"
            if len(allowed_numbers) > 1
            else f"only {allowed_numbers[0]}"
        )
        raise ModelError(f"no {name} {number}; allowed: {allowed}")


def subtract_maps(maps_a: AttentionMaps, maps_b: AttentionMaps) -> AttentionMaps:
    """Return the second maps minus the first; both must have the same tokens."""
    if maps_a.tokens != maps_b.tokens:
        pairs = enumerate(zip(maps_a.tokens, maps_b.tokens, strict=False))
        index = next(
            (token_index for token_index, (a, b) in pairs if a != b), min(len(maps_a.tokens), len(maps_b.tokens))
        )
        raise ModelError(
            f"{maps_a.name} and {maps_b.name} tokenize the text differently ({len(maps_a.tokens)} and "
            f"{len(maps_b.tokens)} tokens, first difference at token {index + 1}): maps cannot be subtracted"
        )
    shapes = [[layer.shape for layer in maps.layers] for maps in (maps_a, maps_b)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            f"{maps_a.name} has {maps_a.shape}, {maps_b.name} has {maps_b.shape}: maps cannot be subtracted; "
            "show them one at a time"
        )
    return replace(
        maps_b,
        name=f"{maps_b.name} − {maps_a.name}",
        layers=tuple(b - a for a, b in zip(maps_a.layers, maps_b.layers, strict=True)),
        is_difference=True,
    )


# ---- checks


@dataclass(frozen=True)
class AttentionCheck:
    """A rule and its outcome."""

    name: str
    passed: bool | None
    """None if the rule does not apply"""
    observation: str


def check_attention_maps(maps: AttentionMaps) -> list[AttentionCheck]:
    """Apply the four rules to all maps."""
    real = torch.from_numpy(maps.real)[None]
    results: dict[str, list[tuple[int, AttentionRuleResult]]] = {name: [] for name in CHECK_TITLES}
    for number, weights, reach in zip(maps.layer_numbers, maps.layers, maps.window_sizes, strict=True):
        for rule in check_attention_rules(torch.from_numpy(weights)[None], real, reach):
            results[rule.name].append((number, rule))
    if not maps.is_causal:  # an encoder's window extends in both directions
        results["behind"] += results.pop("ahead")
    deviations = {
        name: max((rule.max_deviation for _, rule in layers), default=0.0) for name, layers in results.items()
    }
    errors = f"largest error {deviations['sums']:.1g}, tolerance {SUM_TOLERANCE:g}"
    num_padding = int((~maps.real).sum())
    checks = [
        _build_check("sums", results["sums"], f"Every row of {maps.shape} sums to 1: {errors}."),
        AttentionCheck(CHECK_TITLES["padding"], None, "The text has no padding."),
        AttentionCheck(CHECK_TITLES["ahead"], None, "Encoders attend to later tokens."),
        AttentionCheck(CHECK_TITLES["behind"], None, "No layer has an attention window."),
    ]
    if num_padding:
        outcome = f"The total weight on {num_padding:,} padding positions is {deviations['padding']:g}."
        checks[1] = _build_check("padding", results["padding"], outcome)
    if maps.is_causal:
        outcome = f"No token attends to later ones: the weight above the diagonal is {deviations['ahead']:g}."
        checks[2] = _build_check("ahead", results["ahead"], outcome)
    if results["behind"]:
        numbers = sorted({number for number, _ in results["behind"]})
        layers = "every layer" if len(numbers) == len(maps.layers) else f"layer {', '.join(map(str, numbers))}"
        reaches = sorted({distance for reach in maps.window_sizes for distance in reach if distance})
        distances = " or ".join(map(str, reaches)) or "0"
        outcome = f"In {layers} no token attends farther than {distances} positions: the weight there is "
        checks[3] = _build_check("behind", results["behind"], f"{outcome}{deviations['behind']:g}.")
    return checks


def _build_check(rule_name: str, results: Sequence[tuple[int, AttentionRuleResult]], outcome: str) -> AttentionCheck:
    """Return a rule's outcome over all layers: `outcome` if it holds, else the first three layers' errors."""
    errors = [f"layer {number}: {rule.error}" for number, rule in results if rule.error]
    if not errors:
        return AttentionCheck(CHECK_TITLES[rule_name], True, outcome)
    more = f"; and {len(errors) - 3} more layers" if len(errors) > 3 else ""
    return AttentionCheck(CHECK_TITLES[rule_name], False, "; ".join(errors[:3]) + more + ".")
