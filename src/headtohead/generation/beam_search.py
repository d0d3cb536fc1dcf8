"""Beam search and contrastive search."""

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
    """A finished beam search hypothesis."""

    ids: tuple[int, ...]
    """new tokens, without the stop token"""
    score: float
    """log-likelihood divided by length to the power of the length penalty"""
    has_stop_token: bool
    """whether it ended at a stop token rather than at the maximum length"""


def beam_search(
    model: Decoder, prompt_ids: Sequence[int], strategy: Strategy, stop_token_ids: tuple[int, ...], max_new_tokens: int
) -> list[BeamHypothesis]:
    """Return the best finished hypotheses for a prompt, best first.

    At each step the most likely continuations of all beams are kept. A continuation that ends counts only if it ranks
    among the first `beams`. The search stops when no beam can beat the worst finished hypothesis. Follows transformers'
    `generate` and Wu et al. 2016, arXiv:1609.08144.
    """
    num_beams, length_penalty = strategy.get_option("beams"), float(strategy.get_option("length_penalty"))
    session, scores = DecodingSession(model, [prompt_ids] * num_beams), torch.full((num_beams,), -1e9)
    scores[0] = 0.0  # all beams are equal at first, so only one may branch
    finished: list[BeamHypothesis] = []
    num_candidates = max(2, 1 + len(stop_token_ids)) * num_beams
    for length in range(1, max_new_tokens + 1):
        log_probs = _compute_log_probs(session, strategy.logits_processors, len(prompt_ids), stop_token_ids)
        total = scores[:, None] + log_probs.cpu()
        best = total.flatten().topk(min(num_candidates, total.numel()))
        beams: list[tuple[int, int, float]] = []
        is_last_step = length == max_new_tokens
        for rank, (score, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            row, token = divmod(index, total.shape[-1])
            is_stop = token in stop_token_ids
            if is_stop or is_last_step:
                if rank < num_beams:
                    ids = (*session.rows[row][len(prompt_ids) :], *(() if is_stop else (token,)))
                    finished.append(BeamHypothesis(ids, score / length**length_penalty, is_stop))
            elif len(beams) < num_beams:
                beams.append((row, token, score))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis.score)[:num_beams]
        if is_last_step or not beams or _is_search_done(finished, beams[0][2], length, max_new_tokens, strategy):
            break
        session.select_rows([row for row, _, _ in beams])
        session.append_tokens([token for _, token, _ in beams])
        scores = torch.tensor([score for _, _, score in beams])
    return finished


def _compute_log_probs(
    session: DecodingSession, processors: Sequence[LogitsProcessor], prompt_length: int, stop_token_ids: tuple[int, ...]
) -> Float[Tensor, "rows vocab"]:
    """Return the log-probabilities of the next token after the logits processors, (rows, vocab)."""
    log_probs = session.logits.float().log_softmax(-1)
    state = GenerationState(session.rows, [prompt_length] * len(session.rows), stop_token_ids)
    for processor in processors:
        log_probs = processor(log_probs, state)
    return log_probs


def _is_search_done(
    hypotheses: Sequence[BeamHypothesis], best_log_prob: float, length: int, max_new_tokens: int, strategy: Strategy
) -> bool:
    """Return whether no beam can beat the worst finished hypothesis.

    `best_log_prob` is the log-likelihood of the best unfinished beam, which has `length` new tokens.
    """
    if len(hypotheses) < strategy.get_option("beams"):
        return False
    early_stopping, penalty = strategy.get_option("early_stopping"), float(strategy.get_option("length_penalty"))
    if early_stopping is True:
        return True
    # The log-likelihood only decreases with length; the effect of the penalty is estimated from the current length.
    assumed_length = max_new_tokens if early_stopping == "never" and penalty > 0 else length
    return bool(best_log_prob / assumed_length**penalty <= hypotheses[-1].score)


class _ContrastiveSearchState:
    """A sequence with its tokens' hidden states, (length, width), and its next-token logits, (1, vocab)."""

    def __init__(self, model: Decoder, prompt_ids: Sequence[int]) -> None:
        self.model, self.token_ids = model, list(prompt_ids)
        self.window_start = max(0, len(self.token_ids) - model.context)
        self._prefill()

    @torch.inference_mode()
    def _prefill(self) -> None:
        """Process the tokens of the window with an empty cache."""
        self.cache = self.model.create_cache()
        self.hidden_states, self.logits = self._forward([self.token_ids[self.window_start :]])
        self.hidden_states = self.hidden_states[0]

    def _forward(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return hidden states, (rows, length, width), and next-token logits, (rows, vocab)."""
        input_ids = torch.tensor([list(sequence) for sequence in sequences], device=get_device(self.model))
        options = {} if self.cache is None else {"cache": self.cache}
        output = self.model(input_ids, **options)  # type: ignore[operator]
        if output.last_hidden_state is None:
            raise ModelError("contrastive search requires hidden states, which this model does not return")
        return output.last_hidden_state.float(), output.logits[:, -1].float()

    @torch.inference_mode()
    def select_next_token(self, strategy: Strategy, prompt_length: int, stop_token_ids: tuple[int, ...]) -> int:
        """Select the next token, append it and update the state."""
        k, alpha = strategy.get_option("k"), float(strategy.get_option("alpha"))
        logits, state = self.logits, GenerationState([self.token_ids], [prompt_length], stop_token_ids)
        for processor in strategy.logits_processors:
            logits = processor(logits, state)
        candidates = logits.softmax(-1)[0].topk(min(k, logits.shape[-1]))
        if len(self.token_ids) + 1 - self.window_start > self.model.context:
            self.window_start += max(1, self.model.context // WINDOW_SHIFT_DIVISOR)
            self._prefill()
        hidden_states, next_logits = self._evaluate_candidates(candidates.indices.tolist())
        similarity = F.cosine_similarity(hidden_states[:, None], self.hidden_states[None], dim=-1).amax(-1)
        selected = int(((1 - alpha) * candidates.values - alpha * similarity).argmax())
        if self.cache is not None:
            self.cache.select_rows(torch.tensor([selected], device=similarity.device))
        self.hidden_states = torch.cat((self.hidden_states, hidden_states[selected : selected + 1]))
        self.logits = next_logits[selected : selected + 1]
        token = int(candidates.indices[selected])
        self.token_ids.append(token)
        return token

    def _evaluate_candidates(
        self, candidate_ids: Sequence[int]
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows vocab"]]:
        """Return each candidate's hidden state and the next-token logits after it."""
        if self.cache is None:
            prefix = self.token_ids[self.window_start :]
            hidden_states, logits = self._forward([[*prefix, token] for token in candidate_ids])
        else:
            self.cache.select_rows(torch.zeros(len(candidate_ids), dtype=torch.long, device=self.logits.device))
            hidden_states, logits = self._forward([[token] for token in candidate_ids])
        return hidden_states[:, -1], logits


def contrastive_search(
    model: Decoder, prompt_ids: Sequence[int], strategy: Strategy, stop_token_ids: tuple[int, ...]
) -> Iterator[tuple[int, bool]]:
    """Yield tokens indefinitely, each with a flag that is true once the sequence has exceeded the context.

    Selects, among the k most likely tokens, the one with the largest (1 - alpha) * probability - alpha * similarity,
    where similarity is the largest cosine similarity between its hidden state and those of the sequence so far. Su et
    al. 2022, arXiv:2202.06417.
    """
    state = _ContrastiveSearchState(model, prompt_ids)
    while True:
        yield state.select_next_token(strategy, len(prompt_ids), stop_token_ids), state.window_start > 0


def check_num_samples(strategy: Strategy, num_samples: int) -> None:
    """Raise `StrategyError` if more samples are requested than beam search has beams."""
    if strategy.mode == "beam" and num_samples > (num_beams := strategy.get_option("beams")):
        raise StrategyError(f"{strategy}: {num_samples} samples require at least as many beams, got {num_beams}")
