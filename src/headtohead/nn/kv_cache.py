"""A decoder's KV cache. The decoding loop owns it; the model reads and extends it."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.nn.parts.attention import LayerKVCache


@runtime_checkable
class DecodingCache(Protocol):
    """The cache interface that generation uses, for any kind of model."""

    @property
    def length(self) -> int: ...

    def select_rows(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these batch rows, in this order. Indices may repeat."""


class KVCache:
    """Every layer's keys and values, with the position ids and the padding mask of the cached tokens.

    Without padding, position ids are 0, 1, 2, ... and are not stored."""

    def __init__(self, num_layers: int) -> None:
        self.layer_caches = [LayerKVCache() for _ in range(num_layers)]
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
        """Store the position ids and padding of new tokens; return those of all tokens."""
        num_new, start = position_ids.shape[-1], self.length
        if attention_mask is None and self._attention_mask is None:
            self.length += num_new
            return torch.arange(self.length, device=position_ids.device), None
        batch = len(attention_mask) if attention_mask is not None else len(self._attention_mask)  # type: ignore[arg-type]
        self._reserve(batch, num_new, position_ids.device)
        assert self._position_ids is not None and self._attention_mask is not None
        self.length += num_new
        self._position_ids[:, start : self.length] = position_ids
        self._attention_mask[:, start : self.length] = True if attention_mask is None else attention_mask
        return self._position_ids[:, : self.length], self._attention_mask[:, : self.length]

    def _reserve(self, batch: int, num_new_tokens: int, device: torch.device) -> None:
        """Allocate space for more tokens, doubling the capacity when it is exhausted."""
        length, old_ids, old_mask = self.length, self._position_ids, self._attention_mask
        if old_ids is not None and length + num_new_tokens <= old_ids.shape[1]:
            return
        capacity = max(64, 2 * (length + num_new_tokens))
        self._position_ids = torch.arange(capacity, device=device).repeat(batch, 1)
        self._attention_mask = torch.ones(batch, capacity, dtype=torch.bool, device=device)
        if old_ids is not None and old_mask is not None:
            self._position_ids[:, :length] = old_ids[:, :length]
            self._attention_mask[:, :length] = old_mask[:, :length]

    def select_rows(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these batch rows, in this order. Indices may repeat."""
        for layer_cache in self.layer_caches:
            layer_cache.select_rows(row_indices)
        if self._position_ids is not None and self._attention_mask is not None:
            self._position_ids = self._position_ids[row_indices]
            self._attention_mask = self._attention_mask[row_indices]
