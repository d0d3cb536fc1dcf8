"""The context of a forward pass, which every method of a part receives as its last argument, and that of training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.nn.kv_cache import KVCache, LayerKVCache
from headtohead.nn.parts.base import AttentionImplementation
from headtohead.nn.parts.token_packing import TokenPacking, pack_tokens


@dataclass
class ForwardContext:
    """What a part may know about the forward pass besides its input.

    Query positions are those of the tokens in this pass; keys are all tokens that attention may read. The two differ
    only in decoding, where keys include the cached tokens.
    """

    input_ids: Int[Tensor, "batch query"]
    """Token ids of this pass."""
    query_positions: Int[Tensor, "*b query"]
    """Position of each token: the number of tokens before it, without padding."""
    key_positions: Int[Tensor, "*b key"]
    """Position of each token that attention may read, including cached ones."""
    attention_mask: Bool[Tensor, "batch query"] | None = None
    """False on padding; None if there is no padding."""
    key_mask: Bool[Tensor, "batch key"] | None = None
    """False on padding, for all tokens that attention may read; None if there is no padding."""
    num_layers: int = 1
    """Number of layer runs in one pass."""
    layer_index: int = -1
    """Index of the running layer, in the order of execution; -1 before the first layer, `num_layers` after the last."""
    is_training: bool = False
    shared: dict[str, Any] = field(default_factory=dict)
    """Values that layers share within one pass, such as the values of the first layer. Empty at the start of a pass."""
    losses: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    """Auxiliary losses of this pass by name, each summed over layers."""
    attn_implementation: AttentionImplementation = "sdpa"
    output_attentions: bool = False
    attentions: list[Float[Tensor, "batch heads query key"]] = field(default_factory=list)
    """Attention weights of the layers that have run, if `output_attentions` is set."""
    attention_input: Float[Tensor, "batch query width"] | None = None
    """Input of the attention part that is running."""
    cache: KVCache | None = None
    """KV cache in decoding; None in a pass over whole sequences."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """Masks and biases that attention has computed in this pass."""
    packing: TokenPacking | None = None
    """Set if this pass runs on all tokens of the batch as one row, without padding."""
    padded_context: ForwardContext | None = None
    """The context of the padded batch, if `packing` is set."""
    _num_shifts: int = 0
    """Calls of `shift` in the running layer, which number its decoding states."""
    _states_set: set[tuple[int, str]] = field(default_factory=set)

    @classmethod
    def create(
        cls,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Bool[Tensor, "batch length"] | None = None,
        *,
        positions: Int[Tensor, "*b length"] | None = None,
        layer_index: int = 0,
        is_training: bool = False,
    ) -> ForwardContext:
        """Return the context of a pass over whole sequences without a cache, for calling a part on its own."""
        if positions is None:
            positions = (
                torch.arange(input_ids.shape[1], device=input_ids.device)
                if attention_mask is None
                else compute_positions(attention_mask)
            )
        return cls(
            input_ids,
            positions,
            positions,
            attention_mask,
            attention_mask,
            layer_index=layer_index,
            is_training=is_training,
        )

    def pack_tokens(self) -> ForwardContext:
        """Return the context of a pass over all tokens as one row, without padding; this one if there is too little
        padding.
        """
        packing = None if self.attention_mask is None else pack_tokens(self.attention_mask)
        if packing is None:
            return self
        positions = packing.pack(self.query_positions)
        return replace(
            self,
            input_ids=packing.pack(self.input_ids),
            query_positions=positions,
            key_positions=positions,
            attention_mask=None,
            key_mask=None,
            memo={},
            packing=packing,
            padded_context=self,
        )

    def enter_layer(self, layer_index: int) -> None:
        """Set the running layer. Called by each layer at its start, and once after the last layer.

        Raise ModelError if gradient checkpointing recomputes a layer of a model whose layers share values: they are no
        longer the values of the first computation.
        """
        if layer_index <= self.layer_index and self.shared:
            raise ModelError(
                "training.gradient_checkpointing recomputes single layers, but layers of this model share values "
                f"({', '.join(map(repr, list(self.shared)[:3]))}); train it without"
            )
        self.layer_index = layer_index
        self._num_shifts = 0

    @property
    def layer_cache(self) -> LayerKVCache | None:
        """Return the keys and values of the running layer, or None without a cache."""
        return None if self.cache is None else self.cache.layer_caches[self.layer_index]

    def get_attention_mask(self) -> Bool[Tensor, "batch query"]:
        """Return `attention_mask`, or a mask of ones if there is no padding."""
        return torch.ones_like(self.input_ids, dtype=torch.bool) if self.attention_mask is None else self.attention_mask

    def add_loss(self, name: str, value: Float[Tensor, ""]) -> None:
        """Add an auxiliary loss to the training loss; equal names are summed. No effect outside training."""
        if self.is_training:
            self.losses[name] = self.losses[name] + value if name in self.losses else value

    def get_state(self, key: str) -> Float[Tensor, "batch ..."] | None:
        """Return what `set_state` stored in the running layer at the previous decoding step; None at the start of a
        sequence and without a cache.
        """
        return None if self.cache is None else self.cache.states.get((self.layer_index, key))

    def set_state(self, key: str, value: Float[Tensor, "batch ..."]) -> None:
        """Store a tensor for the next decoding step of this layer. The KV cache contains it, and selects its sequences
        together with those of the batch. No effect without a cache.

        Raise ModelError if the key was already set in this layer and pass, because two parts would share one state.
        """
        if self.cache is None:
            return
        if value.dim() == 0 or len(value) != len(self.input_ids):
            raise ModelError(f"state {key!r}: the first axis must be the batch, but the shape is {tuple(value.shape)}")
        if (self.layer_index, key) in self._states_set:
            raise ModelError(f"state {key!r} is set twice in layer {self.layer_index}; give each state its own key")
        self._states_set.add((self.layer_index, key))
        self.cache.states[self.layer_index, key] = value

    def append_state(self, key: str, value: Float[Tensor, "batch query *rest"]) -> Float[Tensor, "batch key *rest"]:
        """Return the values of all tokens that attention may read: those of earlier decoding steps, then `value`.

        Without a cache, return `value`.
        """
        past_values = self.get_state(key)
        all_values = value if past_values is None else torch.cat((past_values, value), dim=1)
        self.set_state(key, all_values)
        return all_values

    def zero_padding(self, x: Float[Tensor, "batch query *rest"]) -> Float[Tensor, "batch query *rest"]:
        """Return `x` with zeros at padding."""
        if self.attention_mask is None:
            return x
        return x * self.attention_mask.view(*self.attention_mask.shape, *[1] * (x.dim() - 2))

    def shift(self, x: Float[Tensor, "batch *heads query dim"], by: int = 1) -> Float[Tensor, "batch *heads query dim"]:
        """Return `x` moved by `by` tokens: the value at a token is that of the token `by` places before it, or 0.

        Padding is skipped, and while decoding, the previous tokens are remembered. A negative `by` reads later tokens,
        which violates causality in a decoder.
        """
        if by < 0:
            return self._shift_to_start(x, -by)
        key = f"shift {self._num_shifts}"
        self._num_shifts += 1
        length = x.shape[-2]
        if self.cache is None and self.attention_mask is None:
            return F.pad(x, (0, 0, by, 0))[..., :length, :]
        past_tokens = self.get_state(key)
        if past_tokens is None:
            past_tokens = x.new_zeros(*x.shape[:-2], by, x.shape[-1])
        extended = torch.cat((past_tokens, x), dim=-2)
        if self.attention_mask is None:
            self.set_state(key, extended[..., length:, :].clone())
            return extended[..., :length, :]
        # Number the tokens of each sequence, past ones included; padding has the number of the token before it.
        token_mask = F.pad(self.attention_mask, (by, 0), value=True)
        token_ranks = token_mask.long().cumsum(1) - 1
        index_by_rank = _find_token_indices(token_mask, token_ranks)
        source_indices = index_by_rank.gather(1, (token_ranks[:, by:] - by).clamp_min(0))
        last_ranks = token_ranks[:, -1:] + torch.arange(1 - by, 1, device=x.device)
        self.set_state(key, _gather_tokens(extended, index_by_rank.gather(1, last_ranks)))
        return _gather_tokens(extended, source_indices)

    def _shift_to_start(self, x: Tensor, by: int) -> Tensor:
        """Return `x` moved to the start: the value at a token is that of the token `by` places after it, or 0."""
        if self.cache is not None:
            raise ModelError(f"shift by {-by} reads later tokens, which decoding with a cache does not know")
        extended = F.pad(x, (0, 0, 0, by))
        if self.attention_mask is None:
            return extended[..., by:, :]
        token_mask = F.pad(self.attention_mask, (0, by), value=True)
        token_ranks = token_mask.long().cumsum(1) - 1
        index_by_rank = _find_token_indices(token_mask, token_ranks)
        source_ranks = (token_ranks[:, : x.shape[-2]].clamp_min(0) + by).clamp_max(token_ranks[:, -1:])
        return _gather_tokens(extended, index_by_rank.gather(1, source_ranks))


def compute_positions(attention_mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Return the position of each token: the number of tokens before it that are not padding."""
    return (attention_mask.long().cumsum(1) - 1).clamp_min(0)


def _find_token_indices(
    token_mask: Bool[Tensor, "batch length"], token_ranks: Int[Tensor, "batch length"]
) -> Int[Tensor, "batch length"]:
    """Return the index of the token of each rank in its sequence. Entries after the last token have no meaning."""
    length = token_mask.shape[1]
    indices = torch.arange(length, device=token_mask.device).expand_as(token_ranks)
    places = token_ranks.masked_fill(~token_mask, length)  # padding is written to the end, which is cut off
    return token_ranks.new_zeros(token_ranks.shape[0], length + 1).scatter(1, places, indices)[:, :length]


def _gather_tokens(x: Float[Tensor, "batch *heads length dim"], indices: Int[Tensor, "batch selected"]) -> Tensor:
    """Return the tokens of each sequence at these indices, (batch, *heads, selected, dim)."""
    shape = (*x.shape[:-2], indices.shape[1], x.shape[-1])
    return x.gather(-2, indices.view(x.shape[0], *[1] * (x.dim() - 3), -1, 1).expand(shape))


@dataclass(frozen=True)
class TrainingContext:
    """What a part of training (optimizer, schedule, average) may know about the running step."""

    step: int
    """Number of optimizer steps before this one."""
    total_steps: int

    @property
    def progress(self) -> float:
        """Return the fraction of all steps that are done."""
        return self.step / max(1, self.total_steps)
