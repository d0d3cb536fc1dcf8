"""Run a decoder over a batch: prefill, single decoding steps, and a session that owns the KV cache.

Sequences of different lengths are padded on the left. A sequence that exceeds the model's context loses its oldest
tokens, a quarter of the context at a time, and the rest is prefilled again because positions restart. Each row is
shifted by its own length, regardless of the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtohead.nn.kv_cache import DecodingCache
from headtohead.nn.protocol import Decoder

WINDOW_SHIFT_DIVISOR = 4
"""a full context drops the oldest 1/n of its tokens"""


def left_pad(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "rows length"], Tensor | None]:
    """Pad the sequences of a decoding session on the left.

    Return ids and mask, both (rows, length); the mask is None without padding.
    """
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
    """Process whole sequences and return the next-token logits. Duplicates are processed once."""
    device = get_device(model)
    unique_rows = {ids: row for row, ids in enumerate(dict.fromkeys(tuple(row) for row in sequences))}
    ids, mask = left_pad(list(unique_rows), device)
    logits = model.next_token_logits(ids, mask, cache=cache)
    if len(unique_rows) == len(sequences):
        return logits
    row_indices = torch.tensor([unique_rows[tuple(row)] for row in sequences], device=device)
    if cache is not None:
        cache.select_rows(row_indices)
    return logits[row_indices]


@torch.inference_mode()
def decode_one_token(
    decode_step: Callable[[Tensor], Tensor], token_ids: Sequence[int], device: torch.device | None = None
) -> Float[Tensor, "rows vocab"]:
    """Process one token per row with the model's decode step; return the next-token logits."""
    return decode_step(torch.tensor([[token] for token in token_ids], device=device))


def get_device(model: Decoder) -> torch.device:
    """Return the device that holds the model's parameters."""
    assert isinstance(model, torch.nn.Module)
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


class DecodingSession:
    """A batch of growing sequences with their next-token logits, (rows, vocab), and their KV cache."""

    def __init__(self, model: Decoder, sequences: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.rows = [list(row) for row in sequences]
        self._window_starts = [max(0, len(row) - model.context) for row in sequences]
        self.cache: DecodingCache | None = None
        self._decode_step: Callable[[Tensor], Tensor] | None = None
        self.logits = self._prefill()

    @property
    def has_overflowed(self) -> bool:
        """Whether a row has exceeded the model's context."""
        return any(self._window_starts)

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        """Append one token to each row and update the logits."""
        for row, token in zip(self.rows, token_ids, strict=True):
            row.append(token)
        if self._shift_windows() or self.cache is None:
            self.logits = self._prefill()
        else:
            if self._decode_step is None:
                self._decode_step = self.model.build_decode_step(self.cache)
            self.logits = decode_one_token(self._decode_step, token_ids, self.logits.device)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order. A row may occur more than once."""
        self.rows = [list(self.rows[i]) for i in rows]
        self._window_starts = [self._window_starts[i] for i in rows]
        row_indices = torch.tensor(rows, device=self.logits.device)
        self.logits = self.logits[row_indices]
        if self.cache is not None:
            self.cache.select_rows(row_indices)

    def _prefill(self) -> Float[Tensor, "rows vocab"]:
        """Process the window of every row with a new cache; return next-token logits, (rows, vocab)."""
        self.cache, self._decode_step = self.model.create_cache(), None
        windows = [row[start:] for row, start in zip(self.rows, self._window_starts, strict=True)]
        return prefill(self.model, windows, self.cache)

    def _shift_windows(self) -> bool:
        """Drop the oldest tokens from rows that exceed the context; return whether there were any."""
        context = self.model.context
        overflowing = [i for i, row in enumerate(self.rows) if len(row) - self._window_starts[i] > context]
        for index in overflowing:
            self._window_starts[index] += max(1, context // WINDOW_SHIFT_DIVISOR)
        return bool(overflowing)
