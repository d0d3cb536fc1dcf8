"""One transformer for both: a decoder language model or an encoder classifier, from parts in named slots."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.config import base, model
from headtohead.errors import ModelError
from headtohead.nn import fast_decode
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import Attention, AttentionContext
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.protocol import ModelOutput

InputIds = Int[Tensor, "batch length"]
HiddenStates = Float[Tensor, "batch length width"]


class TransformerLayer(nn.Module):
    """One block with what it holds."""

    def __init__(self, block: Block, attention: Attention, feedforward: FeedForward) -> None:
        super().__init__()
        self.block, self.attention, self.feedforward = block, attention, feedforward

    def forward(
        self, x: HiddenStates, attention_context: AttentionContext, layer_index: int
    ) -> tuple[HiddenStates, Tensor | None]:
        maps: list[Tensor | None] = []
        attend = partial(self._attend, attention_context, layer_index, maps)
        out: Tensor = self.block(x, attend, None if self.feedforward.is_absent else self.feedforward)
        return out, maps[0] if maps else None

    def _attend(
        self,
        attention_context: AttentionContext,
        layer_index: int,
        attentions: list[Tensor | None],
        hidden_states: HiddenStates,
    ) -> HiddenStates:
        """Attention as the block knows it, a function of the stream; the maps are put aside."""
        out: Tensor
        out, seen = self.attention(hidden_states, attention_context, layer_index)
        attentions.append(seen)
        return out


class Transformer(nn.Module):
    """Embedding, layers and a head: a vocabulary layer, or pooling and a classifier if `num_classes` is given.

    `is_causal` selects the default attention pattern: causal for a decoder, full for an encoder. Unless given, a model
    with a vocabulary layer is causal and a classifier is not. A masked language model is an encoder with a vocabulary
    layer."""

    def __init__(
        self,
        model_config: model.TransformerConfig,
        vocab_size: int,
        num_classes: int | None = None,
        *,
        is_causal: bool | None = None,
    ) -> None:
        super().__init__()
        self.model_config = model_config
        self.context, self.classes = model_config.context, num_classes
        self.sizes = sizes = ModelSizes(
            width=model_config.width,
            heads=model_config.heads,
            head_dim=model_config.resolved_head_dim,
            layers=model_config.layers,
            context=model_config.context,
            vocab=vocab_size,
            is_causal=num_classes is None if is_causal is None else is_causal,
            dropout=model_config.dropout,
        )
        self.embedding = nn.Embedding(vocab_size, model_config.width)
        self.positions = nn.ModuleList(
            registry.build_part("position", choice, sizes) for choice in model_config.position
        )
        self._check_positions()
        self.embedding_norm = self._build_norm() if model_config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(model_config.dropout)
        self._shared_patterns: dict[tuple[base.ComponentConfig, ...], Pattern] = {}
        self.layers = nn.ModuleList(self._build_layer(i) for i in range(model_config.layers))
        self.final_norm = self._build_norm() if model_config.final_norm else nn.Identity()
        if num_classes is None:
            self.output = nn.Linear(model_config.width, vocab_size, bias=model_config.output_bias is not False)
            if model_config.tied:
                self.output.weight = self.embedding.weight
        else:
            self.pool = registry.build_part("pool", model_config.pool, sizes)
            self.classifier = _build_classifier(model_config.width, model_config.classifier_hidden, num_classes)
        self._attn_implementations = frozenset[AttentionImplementation]({"eager", "sdpa"})
        for module in self.modules():  # walked once: every pass asks
            if isinstance(module, Part):
                self._attn_implementations &= module.attn_implementations

    def _build_norm(self) -> nn.Module:
        norm: nn.Module = registry.build_part("norm", self.model_config.norm, self.sizes)
        return norm

    def _build_layer(self, layer_index: int) -> TransformerLayer:
        model, sizes = self.model_config, self.sizes
        attention = registry.build_part(
            "attention",
            model.attention,
            sizes,
            registry.build_part("projection", model.projection, sizes),
            self._build_pattern(layer_index),
            registry.build_part("merge", model.merge, sizes),
            list(self.positions),
        )
        feedforward = registry.build_part("feedforward", model.feedforward, sizes)
        block = registry.build_part("block", model.block, sizes, self._build_norm, not feedforward.is_absent)
        return TransformerLayer(block, attention, feedforward)

    def _build_pattern(self, layer_index: int) -> Pattern:
        """Layers that chose alike share a pattern, and with it the mask that is computed once a pass; one that learns
        something is each layer's own."""
        chosen = self.model_config.get_layer_pattern(layer_index, "causal" if self.sizes.is_causal else "full")
        if chosen in self._shared_patterns:
            return self._shared_patterns[chosen]
        patterns: list[Pattern] = [registry.build_part("pattern", choice, self.sizes) for choice in chosen]
        pattern = patterns[0]
        for other in patterns[1:]:
            pattern = pattern & other
        if not [*pattern.parameters(), *pattern.buffers()]:
            self._shared_patterns[chosen] = pattern
        return pattern

    def _check_positions(self) -> None:
        absolute = [p.kind for p in self._iterate_position_parts() if p.absolute]
        if len(absolute) > 1:
            raise ModelError(f"two absolute position signals in one model: {' and '.join(absolute)}")

    @property
    def is_causal(self) -> bool:
        return self.sizes.is_causal

    def _iterate_position_parts(self) -> Iterator[Position]:
        for position in self.positions:
            assert isinstance(position, Position)
            yield position

    @property
    def limit(self) -> int | None:
        """The longest input that the position parts can take; None: any."""
        return min((p.limit for p in self._iterate_position_parts() if p.limit is not None), default=None)

    @property
    def attn_implementations(self) -> frozenset[AttentionImplementation]:
        """The roads that every part allows."""
        return self._attn_implementations

    @property
    def violates(self) -> frozenset[Invariant]:
        """The laws that some part declares to break."""
        return frozenset(law for m in self.modules() if isinstance(m, Part) for law in m.violates)

    def forward(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
        attn_implementation: AttentionImplementation | None = None,
    ) -> ModelOutput:
        x, maps_of_layers = self.stream(
            input_ids,
            attention_mask,
            cache=cache,
            output_attentions=output_attentions,
            attn_implementation=attn_implementation,
        )
        if self.classes is None:
            return ModelOutput(self.output(x), maps_of_layers, x)
        valid = self._valid(input_ids, attention_mask)
        everything = torch.ones_like(input_ids, dtype=torch.bool)
        return ModelOutput(self.classifier(self.pool(x, everything if valid is None else valid)), maps_of_layers, x)

    def next_token_logits(
        self, input_ids: InputIds, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """What comes after the last token: the vocabulary layer is asked once a row and not once a token."""
        x, _ = self.stream(input_ids, attention_mask, cache=cache)
        logits: Tensor = self.output(x[:, -1])
        return logits

    def create_cache(self) -> KVCache | None:
        """An empty cache for whoever decodes; None when a part breaks the law of the cache."""
        return None if "kv-cache" in self.violates else KVCache(len(self.layers))

    def build_decode_step(self, cache: KVCache) -> Callable[[InputIds], Tensor]:
        """A function that reads one more token of each row, with this cache: the quick road where every part has one.
        It holds the weights as they are now."""
        return fast_decode.build_fast_decoder(self, cache) or partial(self.next_token_logits, cache=cache)

    @property
    def can_pad(self) -> bool:
        """Whether texts of different length may stand in one batch: padding is masked, and no row sees another."""
        return self.model_config.mask_padding and "batch-independence" not in self.violates

    def stream(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
        attn_implementation: AttentionImplementation | None = None,
    ) -> tuple[HiddenStates, tuple[Tensor, ...] | None]:
        """All but the output layer: what the loss and decoding start from."""
        valid = self._valid(input_ids, attention_mask)
        sight = self._build_attention_context(input_ids, valid, cache, output_attentions, attn_implementation)
        x = self.embedding(input_ids)
        for position in self._iterate_position_parts():
            x = position.embed(x, sight.query_positions)
        x = self.drop(self.embedding_norm(x))
        seen: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, layer_maps = layer(x, sight, index)
            if layer_maps is not None:
                seen.append(layer_maps)
        return self.final_norm(x), tuple(seen) if output_attentions else None

    def _valid(self, input_ids: InputIds, attention_mask: Tensor | None) -> Bool[Tensor, "batch length"] | None:
        if attention_mask is None or not self.model_config.mask_padding:
            return None
        return attention_mask.bool()

    def _build_attention_context(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None,
        cache: KVCache | None,
        output_attentions: bool,
        attn_implementation: AttentionImplementation | None,
    ) -> AttentionContext:
        batch, length = input_ids.shape
        if attention_mask is None and (cache is None or cache.attention_mask is None):
            start = cache.length if cache is not None else 0
            at = torch.arange(start, start + length, device=input_ids.device)
            end = start + length
        else:
            # A token's position is the number of tokens before it that are not padding.
            known = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask
            at = known.long().cumsum(1) - 1
            if cache is not None and cache.at is not None:
                past = (
                    cache.attention_mask.sum(1)
                    if cache.attention_mask is not None
                    else at.new_full((batch,), cache.length)
                )
                at = at + past[:, None]
            at = at.clamp_min(0)
            end = int(at.max()) + 1 if self.limit is not None else 0
        self.check_length(end)
        key_at, key_valid = (at, attention_mask) if cache is None else cache.extend(at, attention_mask)
        chosen = self._select_attn_implementation(output_attentions, attn_implementation)
        memories = cache.layer_caches if cache is not None else None
        return AttentionContext(
            at, key_at, list(self._iterate_position_parts()), key_valid, chosen, output_attentions, memories
        )

    def check_length(self, num_positions: int) -> None:
        """An error when a position part does not know so many positions."""
        if self.limit is not None and num_positions > self.limit:
            raise ModelError(
                f"{num_positions} positions are more than the {self.limit} that the model's position part knows "
                f"({', '.join(p.kind for p in self._iterate_position_parts())}); "
                "take a position that extends (none, sinusoidal, alibi, rope), or a shorter text"
            )

    def _select_attn_implementation(
        self, output_attentions: bool, attn_implementation: AttentionImplementation | None
    ) -> AttentionImplementation:
        if output_attentions or (attn_implementation is None and "sdpa" not in self.attn_implementations):
            attn_implementation = "eager"
        if (attn_implementation or "sdpa") not in self.attn_implementations:
            raise ModelError(
                f"the {attn_implementation} road is closed: a part of this model allows {', '.join(self.attn_implementations)} only"  # noqa: E501
            )
        return attn_implementation or "sdpa"


def _build_classifier(width: int, hidden_width: int | None, num_classes: int) -> nn.Module:
    if hidden_width is None:
        return nn.Linear(width, num_classes)
    return nn.Sequential(nn.Linear(width, hidden_width), nn.ReLU(), nn.Linear(hidden_width, num_classes))
