"""Reading with a model: the lowest rungs of the ladder, prefill and step, and a reader that climbs them for a batch.

The cache belongs to the reader, which is the caller's. Texts of different length stand side by side with padding on the
left. A text that outgrows the model's context slides: its oldest tokens are forgotten, a quarter of the context at a
time, and the rest is read anew, because positions start again; each row slides when its own length says so, whatever
else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtohead.nn.kv_cache import Store
from headtohead.nn.protocol import Decoder

SLIDE = 4
"""a full context forgets one part in so many"""


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "rows length"], Tensor | None]:
    """Texts side by side, ending together; and a mask that is False on padding, or None where there is none."""
    length = max(map(len, rows))
    ids = torch.tensor([[0] * (length - len(row)) + list(row) for row in rows], device=device)
    if all(len(row) == length for row in rows):
        return ids, None
    starts = torch.tensor([length - len(row) for row in rows], device=device)
    return ids, torch.arange(length, device=device)[None] >= starts[:, None]


@torch.inference_mode()
def prefill(model: Decoder, rows: Sequence[Sequence[int]], cache: Store | None) -> Float[Tensor, "rows vocab"]:
    """Read whole texts; the logits of what comes next. A text that occurs more than once is read once."""
    device = device_of(model)
    places = {tuple(row): None for row in rows}
    once = {row: place for place, row in enumerate(places)}
    ids, mask = padded(list(once), device)
    logits = model.next_logits(ids, mask, cache=cache)
    if len(once) == len(rows):
        return logits
    which = torch.tensor([once[tuple(row)] for row in rows], device=device)
    if cache is not None:
        cache.select(which)
    return logits[which]


@torch.inference_mode()
def step(
    read: Callable[[Tensor], Tensor], tokens: Sequence[int], device: torch.device | None = None
) -> Float[Tensor, "rows vocab"]:
    """Read one more token of each row, with what the model's `stepper` gave; the logits of what comes next."""
    return read(torch.tensor([[token] for token in tokens], device=device))


def device_of(model: Decoder) -> torch.device:
    assert isinstance(model, torch.nn.Module)
    found = next(model.parameters(), None)
    return torch.device("cpu") if found is None else found.device


class Reader:
    """Texts that grow token by token, and the logits of what comes next in each."""

    def __init__(self, model: Decoder, rows: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.rows = [list(row) for row in rows]
        self._begins = [max(0, len(row) - model.context) for row in rows]
        self.cache: Store | None = None
        self._step: Callable[[Tensor], Tensor] | None = None
        self.logits = self._read()

    @property
    def slid(self) -> bool:
        """Whether some row has outgrown the model's context."""
        return any(self._begins)

    def push(self, tokens: Sequence[int]) -> None:
        """One more token for each row."""
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        if self._slide() or self.cache is None:
            self.logits = self._read()
        else:
            if self._step is None:
                self._step = self.model.stepper(self.cache)
            self.logits = step(self._step, tokens, self.logits.device)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be taken more than once."""
        self.rows = [list(self.rows[i]) for i in rows]
        self._begins = [self._begins[i] for i in rows]
        which = torch.tensor(rows, device=self.logits.device)
        self.logits = self.logits[which]
        if self.cache is not None:
            self.cache.select(which)

    def _read(self) -> Float[Tensor, "rows vocab"]:
        self.cache, self._step = self.model.new_cache(), None
        windows = [row[begin:] for row, begin in zip(self.rows, self._begins, strict=True)]
        return prefill(self.model, windows, self.cache)

    def _slide(self) -> bool:
        context = self.model.context
        late = [i for i, row in enumerate(self.rows) if len(row) - self._begins[i] > context]
        for index in late:
            self._begins[index] += max(1, context // SLIDE)
        return bool(late)
