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

from headtohead.nn.kv_cache import DecodingCache
from headtohead.nn.protocol import Decoder

WINDOW_SHIFT_DIVISOR = 4
"""a full context forgets one part in so many"""


def left_pad(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "rows length"], Tensor | None]:
    """Texts side by side, ending together; and a mask that is False on padding, or None where there is none."""
    length = max(map(len, sequences))
    ids = torch.tensor([[0] * (length - len(row)) + list(row) for row in sequences], device=device)
    if all(len(row) == length for row in sequences):
        return ids, None
    starts = torch.tensor([length - len(row) for row in sequences], device=device)
    return ids, torch.arange(length, device=device)[None] >= starts[:, None]


@torch.inference_mode()
def prefill(
    model: Decoder, sequences: Sequence[Sequence[int]], cache: DecodingCache | None
) -> Float[Tensor, "rows vocab"]:
    """Read whole texts; the logits of what comes next. A text that occurs more than once is read once."""
    device = get_device(model)
    places = {tuple(row): None for row in sequences}
    once = {row: place for place, row in enumerate(places)}
    ids, mask = left_pad(list(once), device)
    logits = model.next_token_logits(ids, mask, cache=cache)
    if len(once) == len(sequences):
        return logits
    which = torch.tensor([once[tuple(row)] for row in sequences], device=device)
    if cache is not None:
        cache.select_rows(which)
    return logits[which]


@torch.inference_mode()
def decode_one_token(
    decode_step: Callable[[Tensor], Tensor], token_ids: Sequence[int], device: torch.device | None = None
) -> Float[Tensor, "rows vocab"]:
    """Read one more token of each row, with what the model's `stepper` gave; the logits of what comes next."""
    return decode_step(torch.tensor([[token] for token in token_ids], device=device))


def get_device(model: Decoder) -> torch.device:
    assert isinstance(model, torch.nn.Module)
    found = next(model.parameters(), None)
    return torch.device("cpu") if found is None else found.device


class DecodingSession:
    """Texts that grow token by token, and the logits of what comes next in each."""

    def __init__(self, model: Decoder, sequences: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.rows = [list(row) for row in sequences]
        self._window_starts = [max(0, len(row) - model.context) for row in sequences]
        self.cache: DecodingCache | None = None
        self._step: Callable[[Tensor], Tensor] | None = None
        self.logits = self._read()

    @property
    def has_overflowed(self) -> bool:
        """Whether some row has outgrown the model's context."""
        return any(self._window_starts)

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        """One more token for each row."""
        for row, token in zip(self.rows, token_ids, strict=True):
            row.append(token)
        if self._shift_windows() or self.cache is None:
            self.logits = self._read()
        else:
            if self._step is None:
                self._step = self.model.build_decode_step(self.cache)
            self.logits = decode_one_token(self._step, token_ids, self.logits.device)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be taken more than once."""
        self.rows = [list(self.rows[i]) for i in rows]
        self._window_starts = [self._window_starts[i] for i in rows]
        which = torch.tensor(rows, device=self.logits.device)
        self.logits = self.logits[which]
        if self.cache is not None:
            self.cache.select_rows(which)

    def _read(self) -> Float[Tensor, "rows vocab"]:
        self.cache, self._step = self.model.create_cache(), None
        windows = [row[begin:] for row, begin in zip(self.rows, self._window_starts, strict=True)]
        return prefill(self.model, windows, self.cache)

    def _shift_windows(self) -> bool:
        context = self.model.context
        late = [i for i, row in enumerate(self.rows) if len(row) - self._window_starts[i] > context]
        for index in late:
            self._window_starts[index] += max(1, context // WINDOW_SHIFT_DIVISOR)
        return bool(late)
