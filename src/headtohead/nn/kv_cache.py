"""The cache of a decoder. It belongs to whoever decodes; the model only reads and extends it."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.nn.parts.attention import Memory


@runtime_checkable
class Store(Protocol):
    """What whoever decodes knows of a cache, ours or a pretrained model's."""

    @property
    def length(self) -> int: ...

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken more than once."""


class Cache:
    """Keys and values of every layer, and the positions and padding of what was seen.

    Without padding, positions are simply 0, 1, 2 and so on, and nothing is kept of them."""

    def __init__(self, layers: int) -> None:
        self.memories = [Memory() for _ in range(layers)]
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
    def valid(self) -> Bool[Tensor, "batch key"] | None:
        """False on padding; None where there is none."""
        return None if self._valid is None else self._valid[:, : self.length]

    def extend(
        self, at: Int[Tensor, "*b query"], valid: Bool[Tensor, "batch query"] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Note the positions and padding of new tokens; gives those of all."""
        new, begin = at.shape[-1], self.length
        if valid is None and self._valid is None:
            self.length += new
            return torch.arange(self.length, device=at.device), None
        batch = len(valid) if valid is not None else len(self._valid)  # type: ignore[arg-type]
        self._grow(batch, new, at.device)
        assert self._at is not None and self._valid is not None
        self.length += new
        self._at[:, begin : self.length] = at
        self._valid[:, begin : self.length] = True if valid is None else valid
        return self._at[:, : self.length], self._valid[:, : self.length]

    def _grow(self, batch: int, new: int, device: torch.device) -> None:
        """Room for so many more positions, doubled when it runs out."""
        if self._at is not None and self.length + new <= self._at.shape[1]:
            return
        room = max(64, 2 * (self.length + new))
        at = torch.arange(room, device=device).repeat(batch, 1)
        valid = torch.ones(batch, room, dtype=torch.bool, device=device)
        if self._at is not None and self._valid is not None:
            at[:, : self.length], valid[:, : self.length] = self._at[:, : self.length], self._valid[:, : self.length]
        self._at, self._valid = at, valid

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken more than once."""
        for memory in self.memories:
            memory.select(rows)
        if self._at is not None and self._valid is not None:
            self._at, self._valid = self._at[rows], self._valid[rows]
