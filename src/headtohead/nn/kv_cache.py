"""A decoder's KV cache. The decoding loop owns it; the model reads and extends it.

It contains the keys and values of each layer, and the decoding state that parts store with
`ForwardContext.set_state`.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

StateKey = tuple[int, str]
"""Layer index and name of a decoding state."""


@runtime_checkable
class DecodingCache(Protocol):
    """The cache interface used by generation, for any model."""

    @property
    def length(self) -> int:
        """Number of cached tokens per sequence, padding included."""

    def select_rows(self, sequence_indices: Int[Tensor, " selected"]) -> None:
        """Keep these sequences of the batch, in this order. Indices may repeat, as in beam search."""


class LayerKVCache:
    """The keys and values of one layer."""

    def __init__(self) -> None:
        self.length = 0
        self.buffer: Float[Tensor, "2 batch heads capacity head_dim"] | None = None
        """Keys and values, with unused capacity at the end."""

    def reserve(self, num_new_tokens: int, reference: Float[Tensor, "batch heads new head_dim"]) -> Tensor:
        """Return a layer's cache with capacity for more tokens. Capacity doubles, so that most steps copy nothing.

        `reference` gives the shape, dtype and device of a new buffer.
        """
        end = self.length + num_new_tokens
        if self.buffer is None or end > self.buffer.shape[3]:
            batch, heads, _, head_dim = reference.shape
            grown_buffer = reference.new_empty(2, batch, heads, max(64, 2 * end), head_dim)
            if self.buffer is not None:
                grown_buffer[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]
            self.buffer = grown_buffer
        return self.buffer

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values to a layer's cache; return all of them, (batch, heads, length, head_dim) each."""
        buffer, end = self.reserve(keys.shape[2], keys), self.length + keys.shape[2]
        buffer[0, :, :, self.length : end] = keys
        buffer[1, :, :, self.length : end] = values
        self.length = end
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def select_rows(self, sequence_indices: Int[Tensor, " selected"]) -> None:
        """Keep these sequences of the batch, in this order. Indices may repeat, as in beam search."""
        if self.buffer is not None:
            self.buffer = self.buffer[:, sequence_indices]


class KVCache:
    """Keys and values of every layer, with the position ids and the padding mask of the cached tokens.

    Without padding, position ids are 0, 1, 2, ... and are not stored.
    """

    def __init__(self, num_layers: int) -> None:
        self.layer_caches = [LayerKVCache() for _ in range(num_layers)]
        self.states: dict[StateKey, Float[Tensor, "batch ..."]] = {}
        """Decoding state of parts. The first axis of every tensor is the batch."""
        self.length = 0
        self._position_ids: Int[Tensor, "batch capacity"] | None = None
        self._attention_mask: Bool[Tensor, "batch capacity"] | None = None

    @property
    def position_ids(self) -> Int[Tensor, "*b key"] | None:
        """Return the position ids of the cached tokens; None if the cache is empty.

        The shape is (batch, length) with padding, (length,) without.
        """
        if self._position_ids is not None:
            return self._position_ids[:, : self.length]
        return torch.arange(self.length) if self.length else None

    @property
    def attention_mask(self) -> Bool[Tensor, "batch key"] | None:
        """Return the mask of the cached tokens, False on padding; None without padding."""
        return None if self._attention_mask is None else self._attention_mask[:, : self.length]

    def append_positions(
        self, position_ids: Int[Tensor, "*b query"], attention_mask: Bool[Tensor, "batch query"] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Store the position ids and padding of new tokens in the cache; return those of all tokens."""
        num_new_tokens, start = position_ids.shape[-1], self.length
        if attention_mask is None and self._attention_mask is None:
            self.length += num_new_tokens
            return torch.arange(self.length, device=position_ids.device), None
        batch_size = len(attention_mask) if attention_mask is not None else len(self._attention_mask)  # type: ignore[arg-type]
        self._reserve_positions(batch_size, num_new_tokens, position_ids.device)
        assert self._position_ids is not None and self._attention_mask is not None
        self.length += num_new_tokens
        self._position_ids[:, start : self.length] = position_ids
        self._attention_mask[:, start : self.length] = True if attention_mask is None else attention_mask
        return self._position_ids[:, : self.length], self._attention_mask[:, : self.length]

    def _reserve_positions(self, batch_size: int, num_new_tokens: int, device: torch.device) -> None:
        """Allocate position ids and padding mask of the cache for more tokens, doubling the capacity if exhausted."""
        length, old_ids, old_mask = self.length, self._position_ids, self._attention_mask
        if old_ids is not None and length + num_new_tokens <= old_ids.shape[1]:
            return
        capacity = max(64, 2 * (length + num_new_tokens))
        self._position_ids = torch.arange(capacity, device=device).repeat(batch_size, 1)
        self._attention_mask = torch.ones(batch_size, capacity, dtype=torch.bool, device=device)
        if old_ids is not None and old_mask is not None:
            self._position_ids[:, :length] = old_ids[:, :length]
            self._attention_mask[:, :length] = old_mask[:, :length]

    def select_rows(self, sequence_indices: Int[Tensor, " selected"]) -> None:
        """Keep these sequences of the batch in the cache, in this order. Indices may repeat, as in beam search."""
        for layer_cache in self.layer_caches:
            layer_cache.select_rows(sequence_indices)
        self.states = {key: state[sequence_indices] for key, state in self.states.items()}
        if self._position_ids is not None and self._attention_mask is not None:
            self._position_ids = self._position_ids[sequence_indices]
            self._attention_mask = self._attention_mask[sequence_indices]
