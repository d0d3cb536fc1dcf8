"""The cache of a decoder. It belongs to whoever decodes; the model only reads and extends it."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.nn.parts.attention import LayerKVCache


@runtime_checkable
class DecodingCache(Protocol):
    """What whoever decodes knows of a cache, ours or a pretrained model's."""

    @property
    def length(self) -> int: ...

    def select(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken more than once."""


class KVCache:
    """Keys and values of every layer, and the positions and padding of what was seen.

    Without padding, positions are simply 0, 1, 2 and so on, and nothing is kept of them."""

    def __init__(self, num_layers: int) -> None:
        self.layer_caches = [LayerKVCache() for _ in range(num_layers)]
        self.length = 0
        self._at: Int[Tensor, "batch room"] | None = None
        self._valid: Bool[Tensor, "batch room"] | None = None

    @property
    def at(self) -> Int[Tensor, "*b key"] | None:
        """Positions, a row for each text where there is padding."""
        if self._at is not None:
            return self._at[:, : self.length]
        return torch.arange(self.length) if self.length else None

    @property
    def attention_mask(self) -> Bool[Tensor, "batch key"] | None:
        """False on padding; None where there is none."""
        return None if self._valid is None else self._valid[:, : self.length]

    def extend(
        self, position_ids: Int[Tensor, "*b query"], attention_mask: Bool[Tensor, "batch query"] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Note the positions and padding of new tokens; gives those of all."""
        new, begin = position_ids.shape[-1], self.length
        if attention_mask is None and self._valid is None:
            self.length += new
            return torch.arange(self.length, device=position_ids.device), None
        batch = len(attention_mask) if attention_mask is not None else len(self._valid)  # type: ignore[arg-type]
        self._reserve(batch, new, position_ids.device)
        assert self._at is not None and self._valid is not None
        self.length += new
        self._at[:, begin : self.length] = position_ids
        self._valid[:, begin : self.length] = True if attention_mask is None else attention_mask
        return self._at[:, : self.length], self._valid[:, : self.length]

    def _reserve(self, batch: int, num_new_tokens: int, device: torch.device) -> None:
        """Room for so many more positions, doubled when it runs out."""
        if self._at is not None and self.length + num_new_tokens <= self._at.shape[1]:
            return
        room = max(64, 2 * (self.length + num_new_tokens))
        at = torch.arange(room, device=device).repeat(batch, 1)
        valid = torch.ones(batch, room, dtype=torch.bool, device=device)
        if self._at is not None and self._valid is not None:
            at[:, : self.length], valid[:, : self.length] = self._at[:, : self.length], self._valid[:, : self.length]
        self._at, self._valid = at, valid

    def select(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken more than once."""
        for memory in self.layer_caches:
            memory.select(row_indices)
        if self._at is not None and self._valid is not None:
            self._at, self._valid = self._at[row_indices], self._valid[row_indices]
