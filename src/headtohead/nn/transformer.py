"""A transformer built from parts in named slots: a decoder language model or an encoder classifier."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.config import base, model
from headtohead.errors import ModelError
from headtohead.nn import fast_decode
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.layer import HiddenStates, TransformerLayer
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import AttentionContext
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.protocol import ModelOutput

InputIds = Int[Tensor, "batch length"]


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
            vocab_size=vocab_size,
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
            if model_config.tie_word_embeddings:
                self.output.weight = self.embedding.weight
        else:
            self.pool = registry.build_part("pool", model_config.pool, sizes)
            self.classifier = _build_classifier(model_config.width, model_config.classifier_hidden, num_classes)
        self._attn_implementations = frozenset[AttentionImplementation]({"eager", "sdpa"})
        for module in self.modules():  # collected once, because every forward pass needs it
            if isinstance(module, Part):
                self._attn_implementations &= module.attn_implementations

    def _build_norm(self) -> nn.Module:
        norm: nn.Module = registry.build_part("norm", self.model_config.norm, self.sizes)
        return norm

    def _build_layer(self, layer_index: int) -> TransformerLayer:
        """Build the attention, feed-forward and block parts of one layer."""
        model, sizes = self.model_config, self.sizes
        attention = registry.build_part(
            "attention",
            model.attention,
            sizes,
            registry.build_part("projection", model.projection, sizes),
            self.build_pattern(layer_index),
            registry.build_part("merge", model.merge, sizes),
            list(self.positions),
        )
        feedforward = registry.build_part("feedforward", model.feedforward, sizes)
        block = registry.build_part("block", model.block, sizes, self._build_norm, not feedforward.is_absent)
        return TransformerLayer(block, attention, feedforward)

    def build_pattern(self, layer_index: int) -> Pattern:
        """Return a layer's pattern. Layers with equal patterns share one module, so that its mask is computed once per
        pass, unless it has parameters or buffers.
        """
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
        absolute = [part.kind for part in self.position_parts if part.is_absolute]
        if len(absolute) > 1:
            raise ModelError(f"only one absolute position part is allowed, got {' and '.join(absolute)}")

    @property
    def is_causal(self) -> bool:
        return self.sizes.is_causal

    @property
    def position_parts(self) -> list[Position]:
        return list(self.positions)  # type: ignore[arg-type]

    @property
    def max_positions(self) -> int | None:
        """Return the longest input length that all position parts support; None means any length."""
        return min((part.max_positions for part in self.position_parts if part.max_positions is not None), default=None)

    @property
    def attn_implementations(self) -> frozenset[AttentionImplementation]:
        """Return the attention implementations that every part supports."""
        return self._attn_implementations

    @property
    def violates(self) -> frozenset[Invariant]:
        """Return the invariants that at least one part declares it violates."""
        return frozenset(
            invariant for module in self.modules() if isinstance(module, Part) for invariant in module.violates
        )

    def forward(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
        attn_implementation: AttentionImplementation | None = None,
    ) -> ModelOutput:
        """Return the logits, (batch, length, vocab) or (batch, classes), with hidden states and, if requested,
        attentions.
        """
        x, attentions = self.compute_hidden_states(
            input_ids,
            attention_mask,
            cache=cache,
            output_attentions=output_attentions,
            attn_implementation=attn_implementation,
        )
        if self.classes is None:
            return ModelOutput(self.output(x), attentions, x)
        mask = self._resolve_padding_mask(attention_mask)
        pooled = self.pool(x, torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask)
        return ModelOutput(self.classifier(pooled), attentions, x)

    def next_token_logits(
        self, input_ids: InputIds, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """Return next-token logits. Applies the output layer to the last position only."""
        x, _ = self.compute_hidden_states(input_ids, attention_mask, cache=cache)
        logits: Tensor = self.output(x[:, -1])
        return logits

    def create_cache(self) -> KVCache | None:
        """Return an empty cache, or None if a part violates the cache invariant."""
        return None if "kv-cache" in self.violates else KVCache(len(self.layers))

    def build_decode_step(self, cache: KVCache) -> Callable[[InputIds], Tensor]:
        """Return a function from each row's latest token to next-token logits, using this cache.

        It takes the fast path if every part supports it, and then keeps a copy of the current weights."""
        return fast_decode.build_fast_decoder(self, cache) or partial(self.next_token_logits, cache=cache)

    @property
    def can_pad(self) -> bool:
        """Return whether a batch may contain texts of different lengths.

        This requires masked padding and independent rows.
        """
        return self.model_config.mask_padding and "batch-independence" not in self.violates

    def compute_hidden_states(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
        attn_implementation: AttentionImplementation | None = None,
    ) -> tuple[HiddenStates, tuple[Tensor, ...] | None]:
        """Return the input to the output layer and, if requested, each layer's attention weights."""
        mask = self._resolve_padding_mask(attention_mask)
        context = self._build_attention_context(input_ids, mask, cache, output_attentions, attn_implementation)
        x = self.embedding(input_ids)
        for part in context.position_parts:
            x = part.add_positions(x, context.query_positions)
        x = self.drop(self.embedding_norm(x))
        attentions: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, weights = layer(x, context, index)
            if weights is not None:
                attentions.append(weights)
        return self.final_norm(x), tuple(attentions) if output_attentions else None

    def _resolve_padding_mask(self, attention_mask: Tensor | None) -> Bool[Tensor, "batch length"] | None:
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
        """Return the position ids, masks and caches that all layers share; append the new positions to the cache."""
        batch, length = input_ids.shape
        if attention_mask is None and (cache is None or cache.attention_mask is None):
            start = cache.length if cache is not None else 0
            position_ids = torch.arange(start, start + length, device=input_ids.device)
            num_positions = start + length
        else:
            # A token's position is the number of tokens before it that are not padding.
            mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask
            position_ids = mask.long().cumsum(1) - 1
            if cache is not None and cache.length:
                past_mask = cache.attention_mask
                num_past = position_ids.new_full((batch,), cache.length) if past_mask is None else past_mask.sum(1)
                position_ids = position_ids + num_past[:, None]
            position_ids = position_ids.clamp_min(0)
            num_positions = int(position_ids.max()) + 1 if self.max_positions is not None else 0
        self.check_length(num_positions)
        key_positions, key_mask = position_ids, attention_mask
        if cache is not None:
            key_positions, key_mask = cache.append_positions(position_ids, attention_mask)
        return AttentionContext(
            position_ids,
            key_positions,
            self.position_parts,
            key_mask,
            self._select_attn_implementation(output_attentions, attn_implementation),
            output_attentions,
            cache.layer_caches if cache is not None else None,
        )

    def check_length(self, num_positions: int) -> None:
        """Raise ModelError if a position part does not support this many positions."""
        if self.max_positions is not None and num_positions > self.max_positions:
            raise ModelError(
                f"the text needs {num_positions} positions, but the model supports {self.max_positions} "
                f"(position: {', '.join(part.kind for part in self.position_parts)}); "
                "use a shorter text, or a position part without a limit (none, sinusoidal, alibi, rope)"
            )

    def _select_attn_implementation(
        self, output_attentions: bool, attn_implementation: AttentionImplementation | None
    ) -> AttentionImplementation:
        """Return the implementation to use; raise ModelError if the model's parts do not support it."""
        if output_attentions or (attn_implementation is None and "sdpa" not in self.attn_implementations):
            attn_implementation = "eager"
        if (attn_implementation or "sdpa") not in self.attn_implementations:
            raise ModelError(
                f'attention implementation "{attn_implementation}" is not available: '
                f"the parts of this model support only {', '.join(sorted(self.attn_implementations)) or 'none'}"
            )
        return attn_implementation or "sdpa"


def _build_classifier(width: int, hidden_width: int | None, num_classes: int) -> nn.Module:
    if hidden_width is None:
        return nn.Linear(width, num_classes)
    return nn.Sequential(nn.Linear(width, hidden_width), nn.ReLU(), nn.Linear(hidden_width, num_classes))
