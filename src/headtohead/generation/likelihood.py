"""Compute a continuation's loss given its prompt, under the model that generated it or a different one.

The generating model is evaluated on the tokens it sampled. A different model has its own tokenizer, so it receives
text: the prompt and continuation are encoded together, and the tokens after those shared with the prompt belong to the
continuation. Two models' per-token losses are not comparable, so the number of bytes is returned too. Sequences of
equal length form unpadded batches; in a sequence longer than the context, each token is predicted from at least half a
context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.generation.detokenizer import encode_prompt
from headtohead.nn.kv_cache import DecodingCache
from headtohead.nn.token_losses import compute_token_losses

BATCH_SIZE = 16
"""sequences per batch; logits for more would not fit into the processor cache"""
TokenIds = Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """A text's loss in nats, with its number of tokens and bytes."""

    loss: float
    tokens: int
    bytes: int
    unknown: int = 0
    """number of out-of-vocabulary tokens, whose loss is too low"""


def compute_continuation_losses(
    model: Any, contexts: Sequence[TokenIds], continuations: Sequence[TokenIds]
) -> list[float]:
    """Return the loss of each continuation given its context, in nats. Equal contexts are processed once."""
    losses = [0.0] * len(continuations)
    for rows in _group_rows_by_length([(len(a), len(b)) for a, b in zip(contexts, continuations, strict=True)]):
        if not continuations[rows[0]]:
            continue
        if not contexts[rows[0]]:
            raise ModelError("the prompt is empty and the model has no start token: give at least one word")
        batch = _compute_batch_losses(model, [contexts[row] for row in rows], [continuations[row] for row in rows])
        for row, loss in zip(rows, batch.tolist(), strict=True):
            losses[row] = loss
    return losses


def _group_rows_by_length(lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield batches of rows with equal context and continuation lengths, whose likelihoods are computed together."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, pair in enumerate(lengths):
        groups[pair].append(row)
    for rows in groups.values():
        for start in range(0, len(rows), BATCH_SIZE):
            yield rows[start : start + BATCH_SIZE]


@torch.inference_mode()
def _compute_batch_losses(
    model: Any, contexts: Sequence[TokenIds], continuations: Sequence[TokenIds]
) -> Float[Tensor, " rows"]:
    """Return the losses for a batch, (rows,), in which all contexts and all continuations have equal lengths."""
    continuation_start, length = len(contexts[0]), len(contexts[0]) + len(continuations[0])
    cache = model.create_cache() if length - 1 <= model.context else None
    if cache is None:
        return compute_losses_uncached(
            model, torch.tensor([[*a, *b] for a, b in zip(contexts, continuations, strict=True)]), continuation_start
        )
    return compute_losses_cached(
        model, cache, [tuple(ids) for ids in contexts], torch.tensor([list(ids) for ids in continuations])
    )


def compute_losses_uncached(
    model: Any, input_ids: Int[Tensor, "rows length"], continuation_start: int
) -> Float[Tensor, " rows"]:
    """Return the loss on the tokens from `continuation_start` on, (rows,). The reference implementation."""
    total = torch.zeros(len(input_ids), dtype=torch.float64)
    for window_start, start, end in iter_sliding_windows(input_ids.shape[1], continuation_start, int(model.context)):
        logits = model(input_ids[:, window_start : end - 1]).logits[:, start - window_start - 1 :]
        total += _sum_cross_entropy(logits, input_ids[:, start:end])
    return total


def compute_losses_cached(
    model: Any, cache: DecodingCache, contexts: Sequence[tuple[int, ...]], continuations: Int[Tensor, "rows new"]
) -> Float[Tensor, " rows"]:
    """Return the same losses as `compute_losses_uncached`, (rows,), processing each distinct context once.

    Continuations start from their context's KV cache.
    """
    unique_rows = {ids: row for row, ids in enumerate(dict.fromkeys(contexts))}
    logits = model.next_token_logits(torch.tensor([list(ids) for ids in unique_rows]), cache=cache)
    rows = torch.tensor([unique_rows[ids] for ids in contexts])
    total = _sum_cross_entropy(logits[rows][:, None], continuations[:, :1])
    if continuations.shape[1] > 1:
        cache.select_rows(rows)
        total += _sum_cross_entropy(model(continuations[:, :-1], cache=cache).logits, continuations[:, 1:])
    return total


def _sum_cross_entropy(
    logits: Float[Tensor, "rows new vocab"], labels: Int[Tensor, "rows new"]
) -> Float[Tensor, " rows"]:
    """Return each row's total loss in nats, (rows,)."""
    return compute_token_losses(logits, labels).sum(-1)


def iter_sliding_windows(
    length: int, continuation_start: int, context: int, stride: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield (window_start, start, end): tokens from start to end are predicted from those since window_start.

    `stride` is the number of tokens that each window predicts; by default, half a context precedes each of them.
    """
    start, overlap = continuation_start, context // 2 if stride is None else context + 1 - stride
    while start < length:
        window_start = 0 if length - 1 <= context else max(0, start - max(1, overlap))
        end = min(length, window_start + context + 1)
        yield window_start, start, end
        start = end


def compute_text_likelihoods(
    model: Any, tokenizer: Any, prompts: Sequence[str], continuations: Sequence[str]
) -> list[Likelihood]:
    """Return each text's likelihood given its prompt, with this model's tokenizer. Duplicates are scored once."""
    rows = list(zip(prompts, continuations, strict=True))
    unique_rows = list(dict.fromkeys(rows))
    encoded = [encode_pair(tokenizer, *row) for row in unique_rows]
    losses = compute_continuation_losses(model, [context for context, _ in encoded], [ids for _, ids in encoded])
    likelihoods = {
        row: Likelihood(loss, len(ids), len(row[1].encode()), sum(i == tokenizer.unk_id for i in ids))
        for row, (_, ids), loss in zip(unique_rows, encoded, losses, strict=True)
    }
    return [likelihoods[row] for row in rows]


def encode_pair(tokenizer: Any, prompt: str, continuation: str) -> tuple[list[int], list[int]]:
    """Encode prompt and text together; return the tokens shared with the prompt alone, and the rest.

    A token that spans the boundary belongs to the continuation.
    """
    prompt_ids, ids = encode_prompt(tokenizer, prompt), encode_prompt(tokenizer, prompt + continuation)
    if len(prompt_ids) == 1 and prompt_ids[0] == tokenizer.bos_id and ids[:1] != prompt_ids:
        ids = [*prompt_ids, *ids]  # an empty prompt: the text follows the start token
    pairs = enumerate(zip(prompt_ids, ids, strict=False))
    num_shared = next((i for i, (a, b) in pairs if a != b), min(len(prompt_ids), len(ids)))
    return ids[:num_shared], ids[num_shared:]
