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
from headtohead.generation.detokenizer import prompt_ids
from headtohead.nn.kv_cache import Store

ROWS = 16
"""texts read at once: logits of more do not stay in the cache of a processor"""
Ids = Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """How likely a model finds a text: its loss in nats, over so many of the model's tokens and so many bytes."""

    loss: float
    tokens: int
    bytes: int
    unknown: int = 0
    """tokens that are not in the model's vocabulary, which it guesses too easily"""


def of_tokens(model: Any, begun: Sequence[Ids], written: Sequence[Ids]) -> list[float]:
    """The loss of each row's tokens after those that it begins with, in nats. Rows that begin alike are read once."""
    losses = [0.0] * len(written)
    for rows in _alike([(len(a), len(b)) for a, b in zip(begun, written, strict=True)]):
        if not written[rows[0]]:
            continue
        if not begun[rows[0]]:
            raise ModelError("an empty prompt: this model has no start token to begin from, so give it some text")
        found = _losses(model, [begun[row] for row in rows], [written[row] for row in rows])
        for row, loss in zip(rows, found.tolist(), strict=True):
            losses[row] = loss
    return losses


def _alike(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The rows with the same sizes, a handful at a time."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, size in enumerate(sizes):
        groups[size].append(row)
    for rows in groups.values():
        for at in range(0, len(rows), ROWS):
            yield rows[at : at + ROWS]


@torch.inference_mode()
def _losses(model: Any, begun: Sequence[Ids], written: Sequence[Ids]) -> Float[Tensor, " rows"]:
    first, length = len(begun[0]), len(begun[0]) + len(written[0])
    cache = model.new_cache() if length - 1 <= model.context else None
    if cache is None:
        return whole(model, torch.tensor([[*a, *b] for a, b in zip(begun, written, strict=True)]), first)
    return shared(model, cache, [tuple(one) for one in begun], torch.tensor([list(one) for one in written]))


def whole(model: Any, ids: Int[Tensor, "rows length"], first: int) -> Float[Tensor, " rows"]:
    """The plain road: the loss from token `first` on, each row read from its beginning."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for begin, start, end in windows(ids.shape[1], first, int(model.context)):
        logits = model(ids[:, begin : end - 1]).logits[:, start - begin - 1 :]
        total += _summed(logits, ids[:, start:end])
    return total


def shared(
    model: Any, cache: Store, begun: Sequence[tuple[int, ...]], written: Int[Tensor, "rows new"]
) -> Float[Tensor, " rows"]:
    """The quick road: a beginning is read once, and all that was written after it goes on from the cache."""
    different = {one: at for at, one in enumerate(dict.fromkeys(begun))}
    logits = model.next_logits(torch.tensor([list(one) for one in different]), cache=cache)
    rows = torch.tensor([different[one] for one in begun])
    total = _summed(logits[rows][:, None], written[:, :1])
    if written.shape[1] > 1:
        cache.select(rows)
        total += _summed(model(written[:, :-1], cache=cache).logits, written[:, 1:])
    return total


def _summed(logits: Float[Tensor, "rows new vocab"], ids: Int[Tensor, "rows new"]) -> Float[Tensor, " rows"]:
    return F.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none").double().sum(-1)


def windows(length: int, first: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(begin, start, end): tokens from start to end are predicted from those since begin, at most a context of them."""
    start = first
    while start < length:
        begin = 0 if length - 1 <= context else max(0, start - max(1, context // 2))
        end = min(length, begin + context + 1)
        yield begin, start, end
        start = end


def of_texts(model: Any, tokenizer: Any, prompts: Sequence[str], texts: Sequence[str]) -> list[Likelihood]:
    """The loss of each text after its prompt, cut by this model's tokenizer. A text that comes twice is read once."""
    rows = list(zip(prompts, texts, strict=True))
    different = list(dict.fromkeys(rows))
    cut = [split(tokenizer, *row) for row in different]
    losses = of_tokens(model, [begun for begun, _ in cut], [written for _, written in cut])
    found = {
        row: Likelihood(loss, len(written), len(row[1].encode()), sum(one == tokenizer.unknown_id for one in written))
        for row, (_, written), loss in zip(different, cut, losses, strict=True)
    }
    return [found[row] for row in rows]


def split(tokenizer: Any, prompt: str, text: str) -> tuple[list[int], list[int]]:
    """The tokens of both together, parted where those of the prompt alone end. A token that reaches from one into the
    other is the continuation's."""
    alone, both = prompt_ids(tokenizer, prompt), prompt_ids(tokenizer, prompt + text)
    if len(alone) == 1 and alone[0] == tokenizer.start_id and both[:1] != alone:
        both = [*alone, *both]  # an empty prompt: the text follows the start
    shared = next((i for i, (a, b) in enumerate(zip(alone, both, strict=False)) if a != b), min(len(alone), len(both)))
    return both[:shared], both[shared:]
