"""Strategies that look at more than one next token: beam search and contrastive search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from headtohead.errors import ModelError, StrategyError
from headtohead.generation.logits_processors import Seen, Step
from headtohead.generation.session import SLIDE, Reader, device_of
from headtohead.generation.strategies import Strategy
from headtohead.nn.protocol import Decoder


@dataclass(frozen=True)
class Found:
    """A text that beam search ended with."""

    ids: tuple[int, ...]
    score: float
    """log-likelihood divided by length to the power of the length penalty"""
    stopped: bool
    """at a stop token, and not at the longest length"""


def beam(
    model: Decoder, prompt: Sequence[int], strategy: Strategy, stop_ids: tuple[int, ...], max_new_tokens: int
) -> list[Found]:
    """The best texts, best first. As transformers' generate does it, after Wu et al. 2016, arXiv:1609.08144: of the
    continuations of all beams the likeliest are kept; one that ends counts only if it is among the first `beams`; the
    search ends when no beam can become better than the worst text found."""
    beams, penalty = strategy.option("beams"), float(strategy.option("length_penalty"))
    reader, scores = Reader(model, [prompt] * beams), torch.full((beams,), -1e9)
    scores[0] = 0.0  # all beams are equal at first: only one of them may branch
    ended: list[Found] = []
    wide = max(2, 1 + len(stop_ids)) * beams
    for length in range(1, max_new_tokens + 1):
        total = scores[:, None] + _log_likelihood(reader, strategy.steps, len(prompt), stop_ids).cpu()
        vocab = total.shape[-1]
        best = total.flatten().topk(min(wide, total.numel()))
        going: list[tuple[int, int, float]] = []
        last = length == max_new_tokens
        for rank, (score, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            row, token = divmod(place, vocab)
            if token in stop_ids or last:
                if rank < beams:
                    text = (*reader.rows[row][len(prompt) :], token)
                    ended.append(Found(text, score / length**penalty, token in stop_ids))
            elif len(going) < beams:
                going.append((row, token, score))
        ended = sorted(ended, key=lambda one: -one.score)[:beams]
        if last or not going or _over(ended, going[0][2], length, max_new_tokens, strategy):
            break
        reader.select([row for row, _, _ in going])
        reader.push([token for _, token, _ in going])
        scores = torch.tensor([score for _, _, score in going])
    return [Found(one.ids[:-1] if one.stopped else one.ids, one.score, one.stopped) for one in ended]


def _log_likelihood(
    reader: Reader, steps: Sequence[Step], prompt: int, stop_ids: tuple[int, ...]
) -> Float[Tensor, "rows vocab"]:
    found = reader.logits.float().log_softmax(-1)
    seen = Seen(reader.rows, [prompt] * len(reader.rows), stop_ids)
    for step in steps:
        found = step(found, seen)
    return found


def _over(ended: Sequence[Found], best: float, length: int, longest: int, strategy: Strategy) -> bool:
    """Whether no beam can become better than the worst text found."""
    if len(ended) < strategy.option("beams"):
        return False
    early, penalty = strategy.option("early_stopping"), float(strategy.option("length_penalty"))
    if early is True:
        return True
    # A text only gets less likely as it grows; what a length penalty may yet give is guessed from the length so far.
    reach = longest if early == "never" and penalty > 0 else length
    return bool(best / reach**penalty <= ended[-1].score)


class _Contrast:
    """A text with the vectors of its tokens, and candidates for the next one."""

    def __init__(self, model: Decoder, row: Sequence[int]) -> None:
        self.model, self.row = model, list(row)
        self.begin = max(0, len(self.row) - model.context)
        self._read()

    @torch.inference_mode()
    def _read(self) -> None:
        self.cache = self.model.new_cache()
        self.vectors, self.logits = self._pass([self.row[self.begin :]])
        self.vectors = self.vectors[0]

    def _pass(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Vectors, (rows, length, width), and the logits of what comes next, (rows, vocab)."""
        ids = torch.tensor([list(row) for row in rows], device=device_of(self.model))
        known = {} if self.cache is None else {"cache": self.cache}
        out = self.model(ids, **known)  # type: ignore[operator]
        if out.hidden is None:
            raise ModelError("contrastive search compares the vectors of tokens, and this network does not show them")
        return out.hidden.float(), out.logits[:, -1].float()

    @torch.inference_mode()
    def go_on(self, strategy: Strategy, prompt: int, stop_ids: tuple[int, ...]) -> int:
        """The next token, which is read as well."""
        k, alpha = strategy.option("k"), float(strategy.option("alpha"))
        logits, seen = self.logits, Seen([self.row], [prompt], stop_ids)
        for step in strategy.steps:
            logits = step(logits, seen)
        best = logits.softmax(-1)[0].topk(min(k, logits.shape[-1]))
        if len(self.row) + 1 - self.begin > self.model.context:
            self.begin += max(1, self.model.context // SLIDE)
            self._read()
        tried, after = self._try(best.indices.tolist())
        likeness = F.cosine_similarity(tried[:, None], self.vectors[None], dim=-1).amax(-1)
        chosen = int(((1 - alpha) * best.values - alpha * likeness).argmax())
        if self.cache is not None:
            self.cache.select(torch.tensor([chosen], device=likeness.device))
        self.vectors = torch.cat((self.vectors, tried[chosen : chosen + 1]))
        self.logits = after[chosen : chosen + 1]
        token = int(best.indices[chosen])
        self.row.append(token)
        return token

    def _try(self, tokens: Sequence[int]) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows vocab"]]:
        """The vector of each candidate, and the logits after it."""
        if self.cache is None:
            vectors, logits = self._pass([[*self.row[self.begin :], token] for token in tokens])
        else:
            self.cache.select(torch.zeros(len(tokens), dtype=torch.long, device=self.logits.device))
            vectors, logits = self._pass([[token] for token in tokens])
        return vectors[:, -1], logits


def contrast(
    model: Decoder, prompt: Sequence[int], strategy: Strategy, stop_ids: tuple[int, ...]
) -> Iterator[tuple[int, bool]]:
    """Tokens one after the other, and whether the text has outgrown the context. Of the k likeliest, the one with the
    best (1 - alpha) * probability - alpha * likeness, where likeness is the largest cosine between its vector and those
    of the text so far. Su et al. 2022, arXiv:2202.06417."""
    text = _Contrast(model, prompt)
    while True:
        yield text.go_on(strategy, len(prompt), stop_ids), text.begin > 0


def check_samples(strategy: Strategy, samples: int) -> None:
    """Beam search has no more texts to give than it has beams."""
    if strategy.way == "beam" and samples > strategy.option("beams"):
        raise StrategyError(
            f"{strategy}: gives {strategy.option('beams')} texts at most, not {samples}; ask for more beams"
        )
