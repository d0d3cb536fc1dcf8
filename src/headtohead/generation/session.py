"""Run a decoder on a batch: prefill, single decoding steps, and a session that owns the KV cache.

Sequences of different lengths are padded on the left. If a sequence exceeds the context of the model, its oldest tokens
are dropped, a quarter of the context at a time, and the rest is prefilled again because positions restart. Each
sequence is shifted by its own length, independently of the rest of the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtohead.nn.kv_cache import DecodingCache
from headtohead.nn.protocol import Decoder

WINDOW_SHIFT_DIVISOR = 4
"""a full context drops the oldest 1/n of its tokens"""


class ContextOverflowWarning(UserWarning):
    """A sequence is longer than the model's context, so its oldest tokens are dropped."""


def warn_context_overflow(model: Decoder) -> None:
    """Warn the caller of `generate` that a session drops the oldest tokens of a sequence."""
    num_dropped = max(1, model.context // WINDOW_SHIFT_DIVISOR)
    warnings.warn(
        f"the text is longer than the model's context of {model.context} tokens: its oldest tokens are dropped, "
        f"{num_dropped} at a time",
        ContextOverflowWarning,
        stacklevel=4,
    )


@contextmanager
def evaluation_mode(model: Decoder) -> Iterator[None]:
    """Run a decoding session with the model in evaluation mode, and restore its mode afterwards."""
    assert isinstance(model, torch.nn.Module)
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def get_device(model: Decoder) -> torch.device:
    """Return the device that contains the model's parameters."""
    assert isinstance(model, torch.nn.Module)
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def left_pad(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch length"], Tensor | None]:
    """Pad the sequences of a session on the left.

    Returns:
        Token ids and attention mask, both (batch, length). The mask is None without padding.
    """
    length = max(map(len, sequences))
    padded = [[0] * (length - len(sequence)) + list(sequence) for sequence in sequences]
    input_ids = torch.tensor(padded, device=device)
    if all(len(sequence) == length for sequence in sequences):
        return input_ids, None
    num_padding = torch.tensor([length - len(sequence) for sequence in sequences], device=device)
    return input_ids, torch.arange(length, device=device)[None] >= num_padding[:, None]


@torch.inference_mode()
def prefill(
    model: Decoder, sequences: Sequence[Sequence[int]], cache: DecodingCache | None
) -> Float[Tensor, "batch vocab"]:
    """Process whole sequences at the start of a session and return the next-token logits. Duplicates run once."""
    device = get_device(model)
    unique_indices = {ids: index for index, ids in enumerate(dict.fromkeys(tuple(ids) for ids in sequences))}
    input_ids, attention_mask = left_pad(list(unique_indices), device)
    logits = model.next_token_logits(input_ids, attention_mask, cache=cache)
    if len(unique_indices) == len(sequences):
        return logits
    batch_indices = torch.tensor([unique_indices[tuple(ids)] for ids in sequences], device=device)
    if cache is not None:
        cache.select_rows(batch_indices)
    return logits[batch_indices]


@torch.inference_mode()
def decode_one_token(
    decode_step: Callable[[Tensor], Tensor], token_ids: Sequence[int], device: torch.device | None = None
) -> Float[Tensor, "batch vocab"]:
    """Process one token per sequence with the model's decode step; return the next-token logits."""
    return decode_step(torch.tensor([[token_id] for token_id in token_ids], device=device))


class DecodingSession:
    """A batch of growing sequences with their next-token logits, (batch, vocab), and their KV cache."""

    def __init__(self, model: Decoder, sequences: Sequence[Sequence[int]]) -> None:
        """Prefill the sequences and keep their KV cache and next-token logits."""
        self.model = model
        self.sequences = [list(sequence) for sequence in sequences]
        """token ids of each sequence, including those that no longer fit into the context"""
        self._window_starts = [max(0, len(sequence) - model.context) for sequence in sequences]
        self.cache: DecodingCache | None = None
        self._decode_step: Callable[[Tensor], Tensor] | None = None
        self.logits = self._prefill_windows()

    @property
    def has_overflowed(self) -> bool:
        """Whether any sequence has exceeded the context of the model."""
        return any(self._window_starts)

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        """Append one token to each sequence and update the logits."""
        for sequence, token_id in zip(self.sequences, token_ids, strict=True):
            sequence.append(token_id)
        if self._shift_windows() or self.cache is None:
            self.logits = self._prefill_windows()
        else:
            if self._decode_step is None:
                self._decode_step = self.model.build_decode_step(self.cache)
            self.logits = decode_one_token(self._decode_step, token_ids, self.logits.device)

    def select_sequences(self, batch_indices: Sequence[int]) -> None:
        """Reorder the batch to the sequences with the given indices, as for beam search. Indices may repeat."""
        self.sequences = [list(self.sequences[index]) for index in batch_indices]
        self._window_starts = [self._window_starts[index] for index in batch_indices]
        index_tensor = torch.tensor(batch_indices, device=self.logits.device)
        self.logits = self.logits[index_tensor]
        if self.cache is not None:
            self.cache.select_rows(index_tensor)

    def _prefill_windows(self) -> Float[Tensor, "batch vocab"]:
        """Process the window of every sequence with a new cache; return next-token logits, (batch, vocab)."""
        self.cache, self._decode_step = self.model.create_cache(), None
        windows = [sequence[start:] for sequence, start in zip(self.sequences, self._window_starts, strict=True)]
        return prefill(self.model, windows, self.cache)

    def _shift_windows(self) -> bool:
        """Drop the oldest tokens from sequences that exceed the context; return whether any of them was shifted."""
        context = self.model.context
        overflowing = [
            index
            for index, sequence in enumerate(self.sequences)
            if len(sequence) - self._window_starts[index] > context
        ]
        for index in overflowing:
            self._window_starts[index] += max(1, context // WINDOW_SHIFT_DIVISOR)
        return bool(overflowing)
