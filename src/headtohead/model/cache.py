"""The cache of a decoder. It belongs to whoever decodes; the model only reads and extends it."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..parts import Memory


class Cache:
    """Keys and values of every layer, and the positions and padding of what was seen."""

    def __init__(self, layers: int) -> None:
        self.memories = [Memory() for _ in range(layers)]
        self.at: Int[Tensor, "*b key"] | None = None
        self.valid: Bool[Tensor, "batch key"] | None = None

    @property
    def length(self) -> int:
        return 0 if self.at is None else self.at.shape[-1]

    def extend(
        self, at: Int[Tensor, "*b query"], valid: Bool[Tensor, "batch query"] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Note the positions and padding of new tokens; gives those of all."""
        if valid is not None or self.valid is not None:
            batch = (valid if valid is not None else self.valid).shape[0]  # type: ignore[union-attr]
            new = torch.ones(batch, at.shape[-1], dtype=torch.bool, device=at.device) if valid is None else valid
            old = new.new_ones(batch, self.length) if self.valid is None else self.valid
            self.valid = torch.cat((old, new), dim=1)
        if self.at is None:
            self.at = at
        else:
            rows = torch.broadcast_shapes(self.at.shape[:-1], at.shape[:-1])
            self.at = torch.cat((self.at.expand(*rows, -1), at.expand(*rows, -1)), dim=-1)
        return self.at, self.valid
