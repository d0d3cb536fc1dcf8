"""Attention: the mechanism of a layer that composes a projection, position parts, a pattern and merges.

It is a slot of its own for mechanisms that cannot be composed from smaller parts. The computations of the default
(`project`, `scores`, `weights`, `attend`) are public methods, so that a part that changes one of them overrides one
method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.nn.parts import attention_functions, attention_masks
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import HeadTensors, Projection, ProjectionStep
from headtohead.nn.parts.registry import build_step_modules, register_part

HiddenStates = Float[Tensor, "batch length width"]
HeadOutputs = Float[Tensor, "batch heads query head_dim"]
Keys = Float[Tensor, "batch heads key head_dim"]
AttentionScores = Float[Tensor, "batch heads query key"]
AttentionWeights = Float[Tensor, "batch heads query key"]


@dataclass(frozen=True)
class AttentionParts:
    """The parts that an attention layer is composed of."""

    projection: Projection
    projection_steps: Sequence[ProjectionStep]
    pattern: Pattern
    merges: Sequence[Merge]
    positions: Sequence[Position]


class Attention(Part):
    """Base class of attention parts."""

    unused_slots: ClassVar[frozenset[Literal["pattern", "merge", "position"]]] = frozenset()
    """Slots whose parts this attention ignores by design."""

    def __init__(self, sizes: ModelSizes, parts: AttentionParts) -> None:
        super().__init__(sizes)

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        """Return the attention output, (batch, length, width).

        If `context.output_attentions` is set, append the attention weights to `context.attentions`.
        """
        raise NotImplementedError


@register_part("attention", "composed")
class MultiHeadAttention(Attention):
    """Projection, position parts, pattern and merges in sequence, then an output matrix.

    The fast implementations compute `scores` and `weights` as defined here. A subclass that overrides one of them runs
    on the reference implementation."""

    is_tokenwise = True

    residual_layers = ("output",)

    def __init__(self, sizes: ModelSizes, parts: AttentionParts, *, output_bias: bool = True) -> None:
        """Compose attention from its parts and create the output matrix."""
        super().__init__(sizes, parts)
        self.projection, self.projection_steps = parts.projection, build_step_modules(parts.projection_steps)
        self.pattern, self.positions = parts.pattern, tuple(parts.positions)
        self.merge, self.merge_steps = parts.merges[0], build_step_modules(parts.merges[1:])
        self.output = nn.Linear(sizes.heads * sizes.head_dim, sizes.width, bias=output_bias)
        self.bias_parts = attention_masks.find_bias_parts(parts.positions)
        own_class = type(self)
        if own_class.scores is not MultiHeadAttention.scores or own_class.weights is not MultiHeadAttention.weights:
            self.attn_implementations = frozenset[AttentionImplementation]({"eager"})

    @property
    def violates(self) -> frozenset[Invariant]:
        """The invariants that any part of this attention layer violates."""
        parts = [self.projection, self.pattern, self.merge, *self.projection_steps.values(), *self.merge_steps.values()]
        return frozenset().union(*(part.violates for part in parts if isinstance(part, Part)))

    def forward(self, x: HiddenStates, context: ForwardContext) -> HiddenStates:
        """Project, rotate, attend and merge heads; return the output, (batch, length, width)."""
        context.attention_input = x
        q, k, v = self.project(x, context)
        for part in self.positions:
            q, k = part.rotate(q, k, context)
        cache = context.layer_cache
        if cache is not None:
            k, v = cache.update(k, v)
        if k.shape[1] < q.shape[1]:  # grouped-query attention: several query heads share a key head
            queries_per_key = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(queries_per_key, dim=1), v.repeat_interleave(queries_per_key, dim=1)
        head_outputs, weights = self._attend_within_rows(q, k, v, context)
        if weights is not None:
            context.attentions.append(weights)
        head_outputs = self.merge(head_outputs, x, context)
        for merge_step in self.merge_steps.values():
            head_outputs = merge_step(head_outputs, x, context)
        out: Tensor = self.output(head_outputs.transpose(1, 2).flatten(2))
        return out

    def _attend_within_rows(
        self, q: HeadOutputs, k: Keys, v: Keys, context: ForwardContext
    ) -> tuple[HeadOutputs, AttentionWeights | None]:
        """Return the result of `attend`. Tokens that share one row (`context.packing`) are padded for it."""
        if context.packing is None or context.padded_context is None:
            return self.attend(q, k, v, context)
        q, k, v = context.packing.pad_heads(q, k, v)
        head_outputs, weights = self.attend(q, k, v, context.padded_context)
        return context.packing.pack_heads(head_outputs), weights

    def project(self, x: HiddenStates, context: ForwardContext) -> HeadTensors:
        """Return the queries, keys and values of the tokens in this pass, before rotary embeddings are applied."""
        q, k, v = self.projection(x, context)
        for step in self.projection_steps.values():
            q, k, v = step(q, k, v, x, context)
        return q, k, v

    def scores(self, q: HeadOutputs, k: Keys, context: ForwardContext) -> AttentionScores:
        """Return the scaled attention scores, before biases are added. Keys include cached ones, one head per query
        head.
        """
        scores: Tensor = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return scores

    def weights(
        self, scores: AttentionScores, allowed: Bool[Tensor, "*b 1 query key"], context: ForwardContext
    ) -> AttentionWeights:
        """Return the attention weights, 0 where `allowed` is False. If a query may attend to no key, all are 0."""
        # Masked again after the softmax, so that a query without any key gets 0 instead of 0 / 0.
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1).masked_fill(~allowed, 0.0)

    def attend(
        self, q: HeadOutputs, k: Keys, v: Keys, context: ForwardContext
    ) -> tuple[HeadOutputs, AttentionWeights | None]:
        """Return the head outputs, and the attention weights if they are requested, using the fastest implementation
        that supports this pass. Keys and values include cached ones, one head per query head.
        """
        dropout, pattern, bias_parts = self.sizes.dropout if self.training else 0.0, self.pattern, self.bias_parts
        if context.attn_implementation == "eager" or context.output_attentions:
            mask, bias = attention_masks.get_mask_and_bias(pattern, bias_parts, context)
            scores = self.scores(q, k, context)
            weights = self.weights(scores if bias is None else scores + bias, mask, context)
            return F.dropout(weights, dropout) @ v, weights if context.output_attentions else None
        if attention_masks.is_plain_causal(pattern, bias_parts, context):
            return attention_functions.causal_sdpa_attention(q, k, v, dropout), None
        if window_size := attention_masks.get_blocked_window(pattern, context):
            return attention_functions.blocked_attention(
                q,
                k,
                v,
                context.query_positions,
                window_size,
                partial(attention_masks.compute_mask_and_bias, pattern, bias_parts, context),
                context.key_mask,
                dropout,
                is_shift_invariant=attention_masks.is_shift_invariant(pattern, bias_parts, context),
            ), None
        mask, bias = attention_masks.get_mask_and_bias(pattern, bias_parts, context)
        return attention_functions.sdpa_attention(q, k, v, mask, bias, dropout), None


@register_part("attention", "softcap")
class SoftCappedAttention(MultiHeadAttention):
    """Scores are kept between -cap and cap with a tanh. After Gemma 2, 2024, arXiv:2408.00118."""

    def __init__(
        self, sizes: ModelSizes, parts: AttentionParts, *, cap: float = 50.0, output_bias: bool = True
    ) -> None:
        """Scores are limited to (-cap, cap) by cap * tanh(scores / cap)."""
        super().__init__(sizes, parts, output_bias=output_bias)
        if cap <= 0:
            raise ModelError(f"softcap: cap must be above 0, got {cap}")
        self.cap = cap

    def scores(self, q: HeadOutputs, k: Keys, context: ForwardContext) -> AttentionScores:
        return self.cap * (super().scores(q, k, context) / self.cap).tanh()


@register_part("attention", "sinks")
class SinkAttention(MultiHeadAttention):
    """A learned score per head for attending to nothing. As in gpt-oss, OpenAI 2025, arXiv:2508.10925."""

    def __init__(self, sizes: ModelSizes, parts: AttentionParts, *, output_bias: bool = True) -> None:
        super().__init__(sizes, parts, output_bias=output_bias)
        self.sink = nn.Parameter(torch.zeros(sizes.heads, 1, 1))

    def weights(
        self, scores: AttentionScores, allowed: Bool[Tensor, "*b 1 query key"], context: ForwardContext
    ) -> AttentionWeights:
        scores = scores.masked_fill(~allowed, -torch.inf)
        sink = self.sink.expand(*scores.shape[:-1], 1)
        weights: Tensor = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
        return weights


@register_part("attention", "differential")
class DifferentialAttention(MultiHeadAttention):
    """Weights of the first half of the heads, minus lambda times those of the second half. After Ye et al. 2024,
    arXiv:2410.05258."""

    def __init__(
        self, sizes: ModelSizes, parts: AttentionParts, *, output_bias: bool = True, eps: float = 1e-5
    ) -> None:
        super().__init__(sizes, parts, output_bias=output_bias)
        if sizes.heads % 2:
            raise ModelError(f"differential: the number of heads must be even, got {sizes.heads}")
        assert sizes.layer_index is not None
        self.lambda_init, self.eps = 0.8 - 0.6 * math.exp(-0.3 * sizes.layer_index), eps
        self.vectors = nn.Parameter(0.1 * torch.randn(4, sizes.head_dim))

    def weights(
        self, scores: AttentionScores, allowed: Bool[Tensor, "*b 1 query key"], context: ForwardContext
    ) -> AttentionWeights:
        first, second = super().weights(scores, allowed, context).chunk(2, dim=1)
        query1, key1, query2, key2 = self.vectors
        lambda_value = (query1 @ key1).exp() - (query2 @ key2).exp() + self.lambda_init
        weights: Tensor = (first - lambda_value * second).repeat(1, 2, 1, 1)
        return weights

    def attend(
        self, q: HeadOutputs, k: Keys, v: Keys, context: ForwardContext
    ) -> tuple[HeadOutputs, AttentionWeights | None]:
        """Return the head outputs, normalized in pairs, and the attention weights if they are requested."""
        head_outputs, weights = super().attend(q, k, v, context)
        head_pairs = torch.cat(head_outputs.chunk(2, dim=1), dim=-1)  # (batch, heads / 2, query, 2 head_dim)
        head_pairs = (1 - self.lambda_init) * F.rms_norm(head_pairs, head_pairs.shape[-1:], eps=self.eps)
        return torch.cat(head_pairs.chunk(2, dim=-1), dim=1), weights
