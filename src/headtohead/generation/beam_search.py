"""Strategies that look at more than one next token: beam search and contrastive search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from headtohead.errors import ModelError, StrategyError
from headtohead.generation.logits_processors import GenerationState, LogitsProcessor
from headtohead.generation.session import WINDOW_SHIFT_DIVISOR, DecodingSession, get_device
from headtohead.generation.strategies import Strategy
from headtohead.nn.protocol import Decoder


@dataclass(frozen=True)
class BeamHypothesis:
    """A text that beam search ended with."""

    ids: tuple[int, ...]
    score: float
    """log-likelihood divided by length to the power of the length penalty"""
    stopped: bool
    """at a stop token, and not at the longest length"""


def beam_search(
    model: Decoder, prompt_ids: Sequence[int], strategy: Strategy, stop_token_ids: tuple[int, ...], max_new_tokens: int
) -> list[BeamHypothesis]:
    """The best texts, best first. As transformers' generate does it, after Wu et al. 2016, arXiv:1609.08144: of the
    continuations of all beams the likeliest are kept; one that ends counts only if it is among the first `beams`; the
    search ends when no beam can become better than the worst text found."""
    beams, penalty = strategy.get_option("beams"), float(strategy.get_option("length_penalty"))
    reader, scores = DecodingSession(model, [prompt_ids] * beams), torch.full((beams,), -1e9)
    scores[0] = 0.0  # all beams are equal at first: only one of them may branch
    ended: list[BeamHypothesis] = []
    wide = max(2, 1 + len(stop_token_ids)) * beams
    for length in range(1, max_new_tokens + 1):
        total = scores[:, None] + _compute_log_probs(reader, strategy.steps, len(prompt_ids), stop_token_ids).cpu()
        vocab = total.shape[-1]
        best = total.flatten().topk(min(wide, total.numel()))
        going: list[tuple[int, int, float]] = []
        last = length == max_new_tokens
        for rank, (score, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            row, token = divmod(place, vocab)
            if token in stop_token_ids or last:
                if rank < beams:
                    text = (*reader.rows[row][len(prompt_ids) :], token)
                    ended.append(BeamHypothesis(text, score / length**penalty, token in stop_token_ids))
            elif len(going) < beams:
                going.append((row, token, score))
        ended = sorted(ended, key=lambda one: -one.score)[:beams]
        if last or not going or _is_search_done(ended, going[0][2], length, max_new_tokens, strategy):
            break
        reader.select([row for row, _, _ in going])
        reader.append_tokens([token for _, token, _ in going])
        scores = torch.tensor([score for _, _, score in going])
    return [BeamHypothesis(one.ids[:-1] if one.stopped else one.ids, one.score, one.stopped) for one in ended]


def _compute_log_probs(
    session: DecodingSession, processors: Sequence[LogitsProcessor], prompt_length: int, stop_token_ids: tuple[int, ...]
) -> Float[Tensor, "rows vocab"]:
    found = session.logits.float().log_softmax(-1)
    seen = GenerationState(session.rows, [prompt_length] * len(session.rows), stop_token_ids)
    for step in processors:
        found = step(found, seen)
    return found


def _is_search_done(
    hypotheses: Sequence[BeamHypothesis], best_log_prob: float, length: int, max_new_tokens: int, strategy: Strategy
) -> bool:
    """Whether no beam can become better than the worst text found."""
    if len(hypotheses) < strategy.get_option("beams"):
        return False
    early, penalty = strategy.get_option("early_stopping"), float(strategy.get_option("length_penalty"))
    if early is True:
        return True
    # A text only gets less likely as it grows; what a length penalty may yet give is guessed from the length so far.
    reach = max_new_tokens if early == "never" and penalty > 0 else length
    return bool(best_log_prob / reach**penalty <= hypotheses[-1].score)


class _ContrastiveSearchState:
    """A text with the vectors of its tokens, and candidates for the next one."""

    def __init__(self, model: Decoder, prompt_ids: Sequence[int]) -> None:
        self.model, self.token_ids = model, list(prompt_ids)
        self.begin = max(0, len(self.token_ids) - model.context)
        self._read()

    @torch.inference_mode()
    def _read(self) -> None:
        self.cache = self.model.create_cache()
        self.hidden_states, self.logits = self._pass([self.token_ids[self.begin :]])
        self.hidden_states = self.hidden_states[0]

    def _pass(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Vectors, (rows, length, width), and the logits of what comes next, (rows, vocab)."""
        ids = torch.tensor([list(row) for row in sequences], device=get_device(self.model))
        known = {} if self.cache is None else {"cache": self.cache}
        out = self.model(ids, **known)  # type: ignore[operator]
        if out.last_hidden_state is None:
            raise ModelError("contrastive search compares the vectors of tokens, and this network does not show them")
        return out.last_hidden_state.float(), out.logits[:, -1].float()

    @torch.inference_mode()
    def select_next_token(self, strategy: Strategy, prompt_length: int, stop_token_ids: tuple[int, ...]) -> int:
        """The next token, which is read as well."""
        k, alpha = strategy.get_option("k"), float(strategy.get_option("alpha"))
        logits, seen = self.logits, GenerationState([self.token_ids], [prompt_length], stop_token_ids)
        for step in strategy.steps:
            logits = step(logits, seen)
        best = logits.softmax(-1)[0].topk(min(k, logits.shape[-1]))
        if len(self.token_ids) + 1 - self.begin > self.model.context:
            self.begin += max(1, self.model.context // WINDOW_SHIFT_DIVISOR)
            self._read()
        tried, after = self._evaluate_candidates(best.indices.tolist())
        likeness = F.cosine_similarity(tried[:, None], self.hidden_states[None], dim=-1).amax(-1)
        chosen = int(((1 - alpha) * best.values - alpha * likeness).argmax())
        if self.cache is not None:
            self.cache.select_rows(torch.tensor([chosen], device=likeness.device))
        self.hidden_states = torch.cat((self.hidden_states, tried[chosen : chosen + 1]))
        self.logits = after[chosen : chosen + 1]
        token = int(best.indices[chosen])
        self.token_ids.append(token)
        return token

    def _evaluate_candidates(
        self, candidate_ids: Sequence[int]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows vocab"]]:
        """The vector of each candidate, and the logits after it."""
        if self.cache is None:
            vectors, logits = self._pass([[*self.token_ids[self.begin :], token] for token in candidate_ids])
        else:
            self.cache.select_rows(torch.zeros(len(candidate_ids), dtype=torch.long, device=self.logits.device))
            vectors, logits = self._pass([[token] for token in candidate_ids])
        return vectors[:, -1], logits


def contrastive_search(
    model: Decoder, prompt_ids: Sequence[int], strategy: Strategy, stop_token_ids: tuple[int, ...]
) -> Iterator[tuple[int, bool]]:
    """Tokens one after the other, and whether the text has outgrown the context. Of the k likeliest, the one with the
    best (1 - alpha) * probability - alpha * likeness, where likeness is the largest cosine between its vector and those
    of the text so far. Su et al. 2022, arXiv:2202.06417."""
    text = _ContrastiveSearchState(model, prompt_ids)
    while True:
        yield text.select_next_token(strategy, len(prompt_ids), stop_token_ids), text.begin > 0


def check_num_samples(strategy: Strategy, num_samples: int) -> None:
    """Beam search has no more texts to give than it has beams."""
    if strategy.way == "beam" and num_samples > strategy.get_option("beams"):
        raise StrategyError(
            f"{strategy}: gives {strategy.get_option('beams')} texts at most, not {num_samples}; ask for more beams"
        )
