"""Attention maps of a model on a text, as arrays: every layer and head, with the tokens, the padding and what was cut.

The maps come from the model itself, on the road that computes them in plain sight (`maps=True` of the protocol). A
model that gives none is an error and never an empty picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import nn

from headtohead.audit.model_checks.attention_weights import Reach, reach_of
from headtohead.errors import ModelError
from headtohead.nn.protocol import Output
from headtohead.nn.transformer import Transformer

Heads = Float[np.ndarray, "heads query key"]
PADDING = "<pad>"
MARKS = str.maketrans({"Ġ": "␣", "Ċ": "⏎", "▁": "␣", "\n": "⏎", "\t": "⇥"})
"""how tokenizers write a space or the end of a line, and how it is shown"""


@runtime_checkable
class Tokens(Protocol):
    """What is asked of a tokenizer."""

    unknown_id: int | None

    def encode(self, text: str) -> list[int]: ...

    def token(self, id: int) -> str: ...


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """what a reader must know: that the text was cut, that words are unknown"""


@dataclass(frozen=True, eq=False)
class Maps:
    """Attention on one text. Layers and heads are counted from 1, as people read them."""

    name: str
    text: str
    tokens: tuple[str, ...]
    """padding included"""
    real: Bool[np.ndarray, " length"]
    """False on padding"""
    layers: tuple[Heads, ...]
    causal: bool
    ids: tuple[int, ...] = ()
    """of the tokens, without padding"""
    reaches: tuple[Reach, ...] = ()
    """how far (behind, ahead) each layer may look; None: any distance"""
    notes: tuple[str, ...] = ()
    layer_numbers: tuple[int, ...] = ()
    head_numbers: tuple[int, ...] = ()
    signed: bool = False
    """a difference of two maps, not weights"""

    @property
    def shape(self) -> str:
        """4 layers x 2 heads."""
        layers, heads = len(self.layers), len(self.head_numbers)
        return f"{layers} layer{'s' * (layers > 1)} x {heads} head{'s' * (heads > 1)}"


def read(
    tokenizer: Tokens, text: str, context: int, *, before: Sequence[int] = (), after: Sequence[int] = ()
) -> Reading:
    """The text as tokens, cut at the context; `before` and `after` are what the model expects around every text."""
    if not text.strip():
        raise ModelError("the text is empty: there is nothing to look at")
    words = tokenizer.encode(text)
    if not words:
        raise ModelError(f"{text!r}: the tokenizer makes nothing of this text")
    room = max(1, context - len(before) - len(after))
    kept = words[:room]
    unknown = sum(one == tokenizer.unknown_id for one in kept)
    if unknown == len(kept):
        raise ModelError(f"{text!r}: every word of this text is unknown to the model")
    notes = []
    if len(words) > room:
        notes.append(
            f"The text is cut: the first {room:,} of its {len(words):,} tokens are shown, "
            f"since the model's context is {context:,}."
        )
    if unknown:
        notes.append(f"{'1 word is' if unknown == 1 else f'{unknown:,} words are'} unknown to the model.")
    ids = (*before, *kept, *after)
    return Reading(text, ids, tuple(shown(tokenizer.token(one)) for one in ids), tuple(notes))


def shown(token: str) -> str:
    """A token as people can see it: a space is ␣, the end of a line ⏎."""
    return token.translate(MARKS) or "∅"


def collect(
    model: nn.Module,
    reading: Reading,
    *,
    name: str = "",
    causal: bool | None = None,
    pad_to: int | None = None,
    pad_id: int | None = None,
) -> Maps:
    """The maps of a model on a text; with `pad_to`, padded on the right as rows of a batch are.

    `causal` says whether the model may look ahead; a Transformer of ours knows by itself.
    """
    length = len(reading.ids)
    pads = max(0, (pad_to or 0) - length)
    ids = torch.tensor([[*reading.ids, *([pad_id or 0] * pads)]])
    real = torch.arange(length + pads)[None] < length
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    layers = _layers(model, ids.to(device), real.to(device) if pads else None)
    if causal is None:
        causal = isinstance(model, Transformer) and model.sizes.causal
    return Maps(
        name=name,
        text=reading.text,
        tokens=(*reading.tokens, *([PADDING] * pads)),
        real=real[0].numpy(),
        layers=layers,
        causal=causal,
        ids=reading.ids,
        reaches=tuple(_reach(model, layer, causal) for layer in range(len(layers))),
        notes=(*reading.notes, *([f"{pads:,} places of padding are shown after {length:,} tokens."] if pads else [])),
        layer_numbers=tuple(range(1, len(layers) + 1)),
        head_numbers=tuple(range(1, len(layers[0]) + 1)),
    )


def _layers(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[Heads, ...]:
    was_training = model.training
    model.eval()  # dropout would leave holes in the maps
    try:
        with torch.no_grad():
            output: Output = model(ids, mask, maps=True)
    finally:
        model.train(was_training)
    maps = output.maps or ()
    expected = len(model.layers) if isinstance(model, Transformer) else max(1, len(maps))
    if len(maps) < expected:
        kind = f" (attention = {model.spec.attention.kind!r})" if isinstance(model, Transformer) else ""
        raise ModelError(f"the model shows no attention maps{kind}: {len(maps)} of {expected} layers gave some")
    return tuple(one[0].to(torch.float32).cpu().numpy() for one in maps)


def _reach(model: nn.Module, layer: int, causal: bool) -> Reach:
    """How far a layer may look; a model of transformers says so in its settings."""
    settings = getattr(model, "config", None)
    window = getattr(settings, "sliding_window", None)
    kinds = getattr(settings, "layer_types", None)
    if causal and window and (kinds is None or kinds[layer] == "sliding_attention"):
        return int(window) - 1, 0
    return reach_of(model, layer, decoder=causal)


def chosen(maps: Maps, layer: int | None = None, head: int | None = None) -> Maps:
    """One layer, one head, or one of each; counted from 1."""
    _in_range("layer", layer, maps.layer_numbers)
    _in_range("head", head, maps.head_numbers)
    rows = [i for i, number in enumerate(maps.layer_numbers) if layer in (None, number)]
    columns = [i for i, number in enumerate(maps.head_numbers) if head in (None, number)]
    return replace(
        maps,
        layers=tuple(maps.layers[i][columns] for i in rows),
        reaches=tuple(maps.reaches[i] for i in rows),
        layer_numbers=tuple(maps.layer_numbers[i] for i in rows),
        head_numbers=tuple(maps.head_numbers[i] for i in columns),
    )


def _in_range(what: str, number: int | None, known: Sequence[int]) -> None:
    if number is not None and number not in known:
        allowed = f"{known[0]} to {known[-1]}" if len(known) > 1 else f"only {known[0]}"
        raise ModelError(f"{what} {number}: there is none; allowed: {allowed}")


def difference(one: Maps, other: Maps) -> Maps:
    """The second minus the first, on the same text cut in the same way."""
    if one.tokens != other.tokens:
        pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(one.tokens), len(other.tokens)))
        raise ModelError(
            f"{one.name} and {other.name} cut the text into different tokens ({len(one.tokens)} and "
            f"{len(other.tokens)}, apart from token {at + 1} on): there is no difference to take"
        )
    shapes = [[layer.shape for layer in maps.layers] for maps in (one, other)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            f"{one.name} has {one.shape}, {other.name} {other.shape}: there is no difference to take; "
            "look at them one by one"
        )
    return replace(
        other,
        name=f"{other.name} − {one.name}",
        layers=tuple(b - a for a, b in zip(one.layers, other.layers, strict=True)),
        signed=True,
    )
