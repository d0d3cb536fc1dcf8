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
    DifferenceMeasurement,
    PartFixture,
    build_padding_mask,
    compute_input_gradient,
    compute_logits,
    draw_input_ids,
    max_relative_difference,
    replace_tokens,
    select_worst,
)
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.parts.base import Invariant
from headtohead.nn.transformer import Transformer

LabelledDifferences = Iterator[tuple[float, str]]


def check_causality(fixture: PartFixture, model: Transformer) -> DifferenceMeasurement:
    """By value, by cutting the text off, and by gradient."""

    def measured() -> LabelledDifferences:
        for length in fixture.lengths:
            ids, half = draw_input_ids(harness.NUM_ROWS, length), length // 2
            whole = compute_logits(model, ids)
            for cut in (half, length - 1):
                changed = torch.cat((ids[:, :cut], replace_tokens(ids[:, cut:])), dim=1)
                seen = compute_logits(model, changed)[:, :cut]
                yield max_relative_difference(seen, whole[:, :cut]), f"length {length}, tokens from {cut} on changed"
            yield (
                max_relative_difference(compute_logits(model, ids[:, :half]), whole[:, :half]),
                f"length {length}, cut off at {half}",
            )
            yield _measure_future_gradient(model, ids), f"length {length}, gradient of the first half by the second"

    return select_worst("later tokens changed, later tokens cut off, gradients by later tokens", measured())


def _measure_future_gradient(model: Transformer, ids: Tensor) -> float:
    half = ids.shape[1] // 2
    keep = torch.zeros(ids.shape, dtype=torch.bool)
    keep[:, :half] = True
    _, gradient = compute_input_gradient(model, ids, None, keep)
    future = gradient[:, half:]
    return max_relative_difference(future, torch.zeros_like(future)) / max(1e-6, float(gradient.abs().max()))


def check_kv_cache(fixture: PartFixture, model: Transformer) -> DifferenceMeasurement:
    """One token at a time, in chunks, after a long prompt, and with rows of different length padded."""
    return select_worst(
        "decoding with a cache against one full pass: token by token, in chunks, after a long text, with padding",
        _compare_cached_with_full(fixture, model),
    )


def _compare_cached_with_full(fixture: PartFixture, model: Transformer) -> LabelledDifferences:
    for length in fixture.lengths:
        ids, valid = draw_input_ids(harness.NUM_ROWS, length), build_padding_mask(length)
        is_long = length > harness.SHORT_LENGTH
        chunks = [length - 4, 1, 1, 2] if is_long else [1] * length
        yield (
            max_relative_difference(compute_logits_in_chunks(model, ids, chunks), compute_logits(model, ids)),
            f"chunks of {_format_chunk_sizes(chunks)}",
        )
        chunks = [5, length - 5] if is_long else [2, 1, length - 3]
        mixed = compute_logits_in_chunks(model, ids, chunks, valid)[valid]
        yield (
            max_relative_difference(mixed, compute_logits(model, ids, valid)[valid]),
            f"with padding, chunks of {_format_chunk_sizes(chunks)}",
        )


def compute_logits_in_chunks(
    model: Transformer, input_ids: Tensor, chunk_sizes: Sequence[int], attention_mask: Tensor | None = None
) -> Tensor:
    """The logits, computed chunk by chunk with a cache."""
    assert sum(chunk_sizes) == input_ids.shape[1]
    store, start, pieces = KVCache(model.sizes.layers), 0, []
    for size in chunk_sizes:
        part = slice(start, start + size)
        pieces.append(
            compute_logits(
                model, input_ids[:, part], None if attention_mask is None else attention_mask[:, part], cache=store
            )
        )
        start += size
    return torch.cat(pieces, dim=1)


def _format_chunk_sizes(chunk_sizes: Sequence[int]) -> str:
    return "1 token" if set(chunk_sizes) == {1} else ", ".join(map(str, chunk_sizes))


def check_batch_independence(fixture: PartFixture, model: Transformer) -> DifferenceMeasurement:
    """A row among other neighbours, and (outside training, where shapes may decide what is drawn) alone."""

    def measured() -> LabelledDifferences:
        for length in fixture.lengths:
            ids = draw_input_ids(harness.NUM_ROWS, length)
            whole = compute_logits(model, ids)
            changed = torch.cat((ids[:1], replace_tokens(ids[1:])))
            yield (
                max_relative_difference(compute_logits(model, changed)[:1], whole[:1]),
                f"neighbours changed, length {length}",
            )
            if not model.training:
                yield max_relative_difference(compute_logits(model, ids[1:2]), whole[1:2]), f"alone, length {length}"

    return select_worst("a row with other neighbours, and alone", measured())


def check_determinism(fixture: PartFixture, model: Transformer) -> DifferenceMeasurement:
    """The same again, from the same and from other random states."""

    def measured() -> LabelledDifferences:
        ids = draw_input_ids(harness.NUM_ROWS, harness.SHORT_LENGTH)
        first = compute_logits(model, ids)
        yield max_relative_difference(compute_logits(model, ids), first), "a second time"
        for draw in range(1, 4):
            yield (
                max_relative_difference(compute_logits(model, ids, draw_index=draw), first),
                f"from random state {draw}",
            )

    return select_worst("the same pass again, from the same and from other random states", measured())


INVARIANT_CHECKS: dict[Invariant, Callable[[PartFixture, Transformer], DifferenceMeasurement]] = {
    "causality": check_causality,
    "kv-cache": check_kv_cache,
    "batch-independence": check_batch_independence,
    "determinism": check_determinism,
}

__all__ = [
    "INVARIANT_CHECKS",
    "check_batch_independence",
    "check_causality",
    "check_determinism",
    "check_kv_cache",
    "compute_logits_in_chunks",
]
