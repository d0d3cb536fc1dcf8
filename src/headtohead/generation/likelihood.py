"""Compute the loss of a continuation given its prompt, under the generating model or a different model.

The generating model is evaluated on the tokens that it sampled. A different model has its own tokenizer, so it receives
text: prompt and continuation are encoded together, and all tokens after those shared with the encoded prompt belong to
the continuation. Per-token losses of different tokenizers are not comparable, so the number of bytes is returned as
well. Sequences of equal length form unpadded batches. In sequences longer than the context, each token is predicted
from at least half a context.

`score_truncated_continuations` follows the convention of lm-evaluation-harness instead: each token is predicted from as
many tokens as fit into the context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headtohead.errors import ModelError
from headtohead.generation.prompt_encoding import encode_prompt_and_continuation
from headtohead.generation.session import get_device
from headtohead.nn.kv_cache import DecodingCache
from headtohead.nn.token_losses import compute_token_losses
from headtohead.nn.transformer import Transformer

BATCH_SIZE = 16
"""sequences per batch; the logits of more sequences would not fit into the processor cache"""
TokenIds = Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """The loss of a text in nats, with its number of tokens and bytes."""

    loss: float
    tokens: int
    bytes: int
    unknown: int = 0
    """number of out-of-vocabulary tokens, whose loss is too low"""


def compute_continuation_losses(
    model: Any, contexts: Sequence[TokenIds], continuations: Sequence[TokenIds]
) -> list[float]:
    """Return the negative log-likelihood of each continuation given its context, in nats.

    Equal contexts are processed once.
    """
    losses = [0.0] * len(continuations)
    lengths = [(len(a), len(b)) for a, b in zip(contexts, continuations, strict=True)]
    for indices in _iter_batches_of_equal_length(lengths):
        if not continuations[indices[0]]:
            continue
        if not contexts[indices[0]]:
            raise ModelError("the prompt is empty and the model has no start token: give at least one word")
        batch_losses = _compute_batch_losses(
            model, [contexts[index] for index in indices], [continuations[index] for index in indices]
        )
        for index, loss in zip(indices, batch_losses.tolist(), strict=True):
            losses[index] = loss
    return losses


def _iter_batches_of_equal_length(lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield batches of continuations, as indices, with equal lengths, whose likelihoods are computed together."""
    indices_by_length: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, pair in enumerate(lengths):
        indices_by_length[pair].append(index)
    for indices in indices_by_length.values():
        for start in range(0, len(indices), BATCH_SIZE):
            yield indices[start : start + BATCH_SIZE]


@torch.inference_mode()
def _compute_batch_losses(
    model: Any, contexts: Sequence[TokenIds], continuations: Sequence[TokenIds]
) -> Float[Tensor, " batch"]:
    """Return the negative log-likelihoods of a batch, (batch,), of contexts and continuations of equal lengths."""
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
    model: Any, input_ids: Int[Tensor, "batch length"], continuation_start: int
) -> Float[Tensor, " batch"]:
    """Return the negative log-likelihood of the tokens from `continuation_start` on, (batch,). The reference."""
    losses = torch.zeros(len(input_ids), dtype=torch.float64)
    for window_start, start, end in iter_sliding_windows(input_ids.shape[1], continuation_start, int(model.context)):
        logits = model(input_ids[:, window_start : end - 1]).logits[:, start - window_start - 1 :]
        losses += _sum_cross_entropy(logits, input_ids[:, start:end])
    return losses


def compute_losses_cached(
    model: Any, cache: DecodingCache, contexts: Sequence[tuple[int, ...]], continuations: Int[Tensor, "batch new"]
) -> Float[Tensor, " batch"]:
    """Return the same negative log-likelihoods as `compute_losses_uncached`, (batch,), with a KV cache of contexts.

    Continuations start from the KV cache of their context.
    """
    unique_indices = {ids: index for index, ids in enumerate(dict.fromkeys(contexts))}
    logits = model.next_token_logits(torch.tensor([list(ids) for ids in unique_indices]), cache=cache)
    batch_indices = torch.tensor([unique_indices[ids] for ids in contexts])
    losses = _sum_cross_entropy(logits[batch_indices][:, None], continuations[:, :1])
    if continuations.shape[1] > 1:
        cache.select_rows(batch_indices)
        losses += _sum_cross_entropy(model(continuations[:, :-1], cache=cache).logits, continuations[:, 1:])
    return losses


def _sum_cross_entropy(
    logits: Float[Tensor, "batch new vocab"], labels: Int[Tensor, "batch new"]
) -> Float[Tensor, " batch"]:
    """Return the total loss of each continuation in a batch in nats, (batch,)."""
    return compute_token_losses(logits, labels).sum(-1)


def iter_sliding_windows(
    length: int, continuation_start: int, context: int, stride: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Split a long sequence into overlapping windows, to compute its likelihood.

    Args:
        length: Number of tokens.
        continuation_start: Index of the first token to predict.
        context: Maximum number of tokens per window.
        stride: Number of tokens predicted per window; by default half a context.

    Yields:
        (window_start, start, end): tokens start to end are predicted from the tokens since window_start.
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
    """Return the likelihood of each continuation given its prompt, with the tokenizer of this model.

    Duplicates are scored once.
    """
    pairs = list(zip(prompts, continuations, strict=True))
    unique_pairs = list(dict.fromkeys(pairs))
    encoded = [encode_prompt_and_continuation(tokenizer, *pair) for pair in unique_pairs]
    losses = compute_continuation_losses(model, [context for context, _ in encoded], [ids for _, ids in encoded])
    likelihoods = {
        pair: Likelihood(loss, len(ids), len(pair[1].encode()), sum(i == tokenizer.unk_id for i in ids))
        for pair, (_, ids), loss in zip(unique_pairs, encoded, losses, strict=True)
    }
    return [likelihoods[pair] for pair in pairs]


# ---- contexts truncated on the left, as in lm-evaluation-harness


class ContinuationScore(NamedTuple):
    """The score of a continuation."""

    log_likelihood: float
    """in nats"""
    is_greedy: bool
    """whether each of its tokens is the most likely one"""


class _ScoringWindow(NamedTuple):
    """Token ids, of which the last `num_scored` are scored."""

    token_ids: TokenIds
    num_scored: int


def score_truncated_continuations(
    model: Any, pairs: Sequence[tuple[TokenIds, TokenIds]], batch_size: int
) -> Iterator[ContinuationScore]:
    """Yield the likelihood of each continuation, given (context, continuation), with contexts truncated on the left.

    Without a context, the first token is not scored.
    """
    windows_by_pair = [
        list(_iter_scoring_windows([*context, *continuation], max(1, len(context)), model.context))
        for context, continuation in pairs
    ]
    scores = iter(_score_windows(model, [window for windows in windows_by_pair for window in windows], batch_size))
    for windows in windows_by_pair:
        window_scores = [next(scores) for _ in windows]
        yield ContinuationScore(
            sum(score.log_likelihood for score in window_scores), all(score.is_greedy for score in window_scores)
        )


def _iter_scoring_windows(token_ids: TokenIds, continuation_start: int, context: int) -> Iterator[_ScoringWindow]:
    """Yield windows of a sequence whose likelihood is computed: every token from `continuation_start` on, once.

    A window has at most `context` + 1 tokens, the last of which is only predicted. Each is as long as possible: of
    several, the last one overlaps with the one before.
    """
    for start in range(continuation_start, len(token_ids), context):
        end = min(start + context, len(token_ids))
        yield _ScoringWindow(token_ids[max(0, end - context - 1) : end], end - start)


@torch.inference_mode()
def _score_windows(model: Any, windows: Sequence[_ScoringWindow], batch_size: int) -> list[ContinuationScore]:
    """Return the likelihood of each window of a truncated continuation.

    Windows of similar length share a batch. They are padded on the right, which has no effect on the tokens before,
    unless the model violates causality.
    """
    if isinstance(model, Transformer) and model.violates & {"batch-independence", "causality"}:
        batch_size = 1
    order = sorted(range(len(windows)), key=lambda index: len(windows[index].token_ids))
    scores = [ContinuationScore(0.0, True)] * len(windows)
    for start in range(0, len(order), batch_size):
        window_indices = order[start : start + batch_size]
        token_ids = pad_sequence([torch.tensor(windows[index].token_ids) for index in window_indices], batch_first=True)
        token_ids = token_ids.to(get_device(model))
        logits, labels = model(token_ids[:, :-1]).logits, token_ids[:, 1:]
        losses, is_most_likely = compute_token_losses(logits, labels), logits.argmax(-1) == labels
        for batch_index, window_index in enumerate(window_indices):
            window = windows[window_index]
            num_labels = len(window.token_ids) - 1
            scored = slice(num_labels - window.num_scored, num_labels)
            scores[window_index] = ContinuationScore(
                -float(losses[batch_index, scored].sum()), bool(is_most_likely[batch_index, scored].all())
            )
    return scores
