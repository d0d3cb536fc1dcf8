"""How likely a model finds a text: the loss of a continuation after its prompt, under the model that wrote it or under
any other.

The model that wrote it is asked about the very tokens that it drew. Another model cuts text differently, so it is given
the text: prompt and continuation are encoded together, and the tokens after those that the prompt alone begins with are
the continuation's. Losses per token of two models cannot be compared, so they are given with the bytes of the text.
Texts of the same length are read together, without padding; of a text longer than the model's context each token is
predicted from at least half a context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.generation.detokenizer import encode_prompt
from headtohead.nn.kv_cache import DecodingCache

BATCH_SIZE = 16
"""texts read at once: logits of more do not stay in the cache of a processor"""
TokenIds = Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """How likely a model finds a text: its loss in nats, over so many of the model's tokens and so many bytes."""

    loss: float
    tokens: int
    bytes: int
    unknown: int = 0
    """tokens that are not in the model's vocabulary, which it guesses too easily"""


def compute_continuation_losses(
    model: Any, contexts: Sequence[TokenIds], continuations: Sequence[TokenIds]
) -> list[float]:
    """The loss of each row's tokens after those that it begins with, in nats. Rows that begin alike are read once."""
    losses = [0.0] * len(continuations)
    for rows in _group_rows_by_length([(len(a), len(b)) for a, b in zip(contexts, continuations, strict=True)]):
        if not continuations[rows[0]]:
            continue
        if not contexts[rows[0]]:
            raise ModelError("an empty prompt: this model has no start token to begin from, so give it some text")
        found = _compute_batch_losses(model, [contexts[row] for row in rows], [continuations[row] for row in rows])
        for row, loss in zip(rows, found.tolist(), strict=True):
            losses[row] = loss
    return losses


def _group_rows_by_length(lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The rows with the same sizes, a handful at a time."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, size in enumerate(lengths):
        groups[size].append(row)
    for rows in groups.values():
        for at in range(0, len(rows), BATCH_SIZE):
            yield rows[at : at + BATCH_SIZE]


@torch.inference_mode()
def _compute_batch_losses(
    model: Any, contexts: Sequence[TokenIds], continuations: Sequence[TokenIds]
) -> Float[Tensor, " rows"]:
    first, length = len(contexts[0]), len(contexts[0]) + len(continuations[0])
    cache = model.create_cache() if length - 1 <= model.context else None
    if cache is None:
        return compute_losses_uncached(
            model, torch.tensor([[*a, *b] for a, b in zip(contexts, continuations, strict=True)]), first
        )
    return compute_losses_cached(
        model, cache, [tuple(one) for one in contexts], torch.tensor([list(one) for one in continuations])
    )


def compute_losses_uncached(
    model: Any, input_ids: Int[Tensor, "rows length"], continuation_start: int
) -> Float[Tensor, " rows"]:
    """The plain road: the loss from token `first` on, each row read from its beginning."""
    total = torch.zeros(len(input_ids), dtype=torch.float64)
    for begin, start, end in iter_sliding_windows(input_ids.shape[1], continuation_start, int(model.context)):
        logits = model(input_ids[:, begin : end - 1]).logits[:, start - begin - 1 :]
        total += _sum_cross_entropy(logits, input_ids[:, start:end])
    return total


def compute_losses_cached(
    model: Any, cache: DecodingCache, contexts: Sequence[tuple[int, ...]], continuations: Int[Tensor, "rows new"]
) -> Float[Tensor, " rows"]:
    """The quick road: a beginning is read once, and all that was written after it goes on from the cache."""
    different = {one: at for at, one in enumerate(dict.fromkeys(contexts))}
    logits = model.next_token_logits(torch.tensor([list(one) for one in different]), cache=cache)
    rows = torch.tensor([different[one] for one in contexts])
    total = _sum_cross_entropy(logits[rows][:, None], continuations[:, :1])
    if continuations.shape[1] > 1:
        cache.select_rows(rows)
        total += _sum_cross_entropy(model(continuations[:, :-1], cache=cache).logits, continuations[:, 1:])
    return total


def _sum_cross_entropy(
    logits: Float[Tensor, "rows new vocab"], labels: Int[Tensor, "rows new"]
) -> Float[Tensor, " rows"]:
    return F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none").double().sum(-1)


def iter_sliding_windows(length: int, continuation_start: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(begin, start, end): tokens from start to end are predicted from those since begin, at most a context of them."""
    start = continuation_start
    while start < length:
        begin = 0 if length - 1 <= context else max(0, start - max(1, context // 2))
        end = min(length, begin + context + 1)
        yield begin, start, end
        start = end


def compute_text_likelihoods(
    model: Any, tokenizer: Any, prompts: Sequence[str], continuations: Sequence[str]
) -> list[Likelihood]:
    """The loss of each text after its prompt, cut by this model's tokenizer. A text that comes twice is read once."""
    rows = list(zip(prompts, continuations, strict=True))
    different = list(dict.fromkeys(rows))
    cut = [encode_pair(tokenizer, *row) for row in different]
    losses = compute_continuation_losses(model, [begun for begun, _ in cut], [written for _, written in cut])
    found = {
        row: Likelihood(loss, len(written), len(row[1].encode()), sum(one == tokenizer.unk_id for one in written))
        for row, (_, written), loss in zip(different, cut, losses, strict=True)
    }
    return [found[row] for row in rows]


def encode_pair(tokenizer: Any, prompt: str, continuation: str) -> tuple[list[int], list[int]]:
    """The tokens of both together, parted where those of the prompt alone end. A token that reaches from one into the
    other is the continuation's."""
    alone, both = encode_prompt(tokenizer, prompt), encode_prompt(tokenizer, prompt + continuation)
    if len(alone) == 1 and alone[0] == tokenizer.bos_id and both[:1] != alone:
        both = [*alone, *both]  # an empty prompt: the text follows the start
    shared = next((i for i, (a, b) in enumerate(zip(alone, both, strict=False)) if a != b), min(len(alone), len(both)))
    return both[:shared], both[shared:]
