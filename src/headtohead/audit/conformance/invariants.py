"""The laws that a part may break only if it declares so: causal, cache, batch, repeatable. Each is tried by experiment.

causal       no output depends on what comes after it
cache        decoding with a cache equals a full pass
batch        a row does not depend on its neighbours
repeatable   the same input gives the same output
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headtohead.audit.conformance import harness
from headtohead.audit.conformance.harness import (
    Evidence,
    Subject,
    apart,
    input_gradient,
    logits,
    others,
    padded,
    tokens,
    worst,
)
from headtohead.nn.kv_cache import Cache
from headtohead.nn.parts.base import Law
from headtohead.nn.transformer import Transformer

Measured = Iterator[tuple[float, str]]


def causal(subject: Subject, model: Transformer) -> Evidence:
    """By value, by cutting the text off, and by gradient."""

    def measured() -> Measured:
        for length in subject.lengths:
            ids, half = tokens(harness.ROWS, length), length // 2
            whole = logits(model, ids)
            for cut in (half, length - 1):
                changed = torch.cat((ids[:, :cut], others(ids[:, cut:])), dim=1)
                seen = logits(model, changed)[:, :cut]
                yield apart(seen, whole[:, :cut]), f"length {length}, tokens from {cut} on changed"
            yield apart(logits(model, ids[:, :half]), whole[:, :half]), f"length {length}, cut off at {half}"
            yield _future_gradient(model, ids), f"length {length}, gradient of the first half by the second"

    return worst("later tokens changed, later tokens cut off, gradients by later tokens", measured())


def _future_gradient(model: Transformer, ids: Tensor) -> float:
    half = ids.shape[1] // 2
    keep = torch.zeros(ids.shape, dtype=torch.bool)
    keep[:, :half] = True
    _, gradient = input_gradient(model, ids, None, keep)
    future = gradient[:, half:]
    return apart(future, torch.zeros_like(future)) / max(1e-6, float(gradient.abs().max()))


def cache(subject: Subject, model: Transformer) -> Evidence:
    """One token at a time, in chunks, after a long prompt, and with rows of different length padded."""
    return worst(
        "decoding with a cache against one full pass: token by token, in chunks, after a long text, with padding",
        _cached(subject, model),
    )


def _cached(subject: Subject, model: Transformer) -> Measured:
    for length in subject.lengths:
        ids, valid = tokens(harness.ROWS, length), padded(length)
        is_long = length > harness.SHORT
        chunks = [length - 4, 1, 1, 2] if is_long else [1] * length
        yield apart(in_chunks(model, ids, chunks), logits(model, ids)), f"chunks of {_said(chunks)}"
        chunks = [5, length - 5] if is_long else [2, 1, length - 3]
        mixed = in_chunks(model, ids, chunks, valid)[valid]
        yield apart(mixed, logits(model, ids, valid)[valid]), f"with padding, chunks of {_said(chunks)}"


def in_chunks(model: Transformer, ids: Tensor, chunks: Sequence[int], valid: Tensor | None = None) -> Tensor:
    """The logits, computed chunk by chunk with a cache."""
    assert sum(chunks) == ids.shape[1]
    store, start, pieces = Cache(model.sizes.layers), 0, []
    for size in chunks:
        part = slice(start, start + size)
        pieces.append(logits(model, ids[:, part], None if valid is None else valid[:, part], cache=store))
        start += size
    return torch.cat(pieces, dim=1)


def _said(chunks: Sequence[int]) -> str:
    return "1 token" if set(chunks) == {1} else ", ".join(map(str, chunks))


def batch(subject: Subject, model: Transformer) -> Evidence:
    """A row among other neighbours, and (outside training, where shapes may decide what is drawn) alone."""

    def measured() -> Measured:
        for length in subject.lengths:
            ids = tokens(harness.ROWS, length)
            whole = logits(model, ids)
            changed = torch.cat((ids[:1], others(ids[1:])))
            yield apart(logits(model, changed)[:1], whole[:1]), f"neighbours changed, length {length}"
            if not model.training:
                yield apart(logits(model, ids[1:2]), whole[1:2]), f"alone, length {length}"

    return worst("a row with other neighbours, and alone", measured())


def repeatable(subject: Subject, model: Transformer) -> Evidence:
    """The same again, from the same and from other random states."""

    def measured() -> Measured:
        ids = tokens(harness.ROWS, harness.SHORT)
        first = logits(model, ids)
        yield apart(logits(model, ids), first), "a second time"
        for draw in range(1, 4):
            yield apart(logits(model, ids, draw=draw), first), f"from random state {draw}"

    return worst("the same pass again, from the same and from other random states", measured())


LAWS: dict[Law, Callable[[Subject, Transformer], Evidence]] = {
    "causal": causal,
    "cache": cache,
    "batch": batch,
    "repeatable": repeatable,
}

__all__ = ["LAWS", "batch", "cache", "causal", "in_chunks", "repeatable"]
