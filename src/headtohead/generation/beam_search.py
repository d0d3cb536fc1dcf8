"""Beam search: keep the most likely continuations of a prompt at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.errors import StrategyError
from headtohead.generation.logits_processors import GenerationState, LogitsProcessor
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import Strategy
from headtohead.nn.protocol import Decoder


@dataclass(frozen=True)
class BeamHypothesis:
    """A finished beam search hypothesis."""

    token_ids: tuple[int, ...]
    """new tokens, without the stop token"""
    score: float
    """log-likelihood divided by length to the power of the length penalty"""
    has_stop_token: bool
    """whether it ended at a stop token rather than at the maximum length"""


def beam_search(
    model: Decoder, prompt_ids: Sequence[int], strategy: Strategy, stop_token_ids: tuple[int, ...], max_new_tokens: int
) -> list[BeamHypothesis]:
    """Generate from a prompt with beam search, following `generate` of transformers and Wu et al. 2016,
    arXiv:1609.08144.

    At each step, the most likely continuations of all beams are kept. A continuation that ends only counts if it ranks
    among the first `beams`. The search stops when no beam can beat the worst finished hypothesis.

    Args:
        model: A decoder.
        prompt_ids: Token ids of the prompt.
        strategy: Strategy with the number of beams and the length penalty.
        stop_token_ids: Tokens that end a hypothesis.
        max_new_tokens: Maximum number of generated tokens.

    Returns:
        The finished hypotheses, best first.
    """
    num_beams, length_penalty = strategy.get_option("beams"), float(strategy.get_option("length_penalty"))
    session = DecodingSession(model, [prompt_ids] * num_beams)
    beam_log_probs = torch.full((num_beams,), -1e9)
    beam_log_probs[0] = 0.0  # all beams are equal at first, so only one may branch
    finished_hypotheses: list[BeamHypothesis] = []
    num_candidates = max(2, 1 + len(stop_token_ids)) * num_beams
    for length in range(1, max_new_tokens + 1):
        token_log_probs = _compute_log_probs(session, strategy.logits_processors, len(prompt_ids), stop_token_ids)
        candidate_log_probs = beam_log_probs[:, None] + token_log_probs.cpu()
        best = candidate_log_probs.flatten().topk(min(num_candidates, candidate_log_probs.numel()))
        beams: list[tuple[int, int, float]] = []
        is_last_step = length == max_new_tokens
        for rank, (log_prob, flat_index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            beam_index, token_id = divmod(flat_index, candidate_log_probs.shape[-1])
            is_stop = token_id in stop_token_ids
            if is_stop or is_last_step:
                if rank < num_beams:
                    new_ids = (*session.sequences[beam_index][len(prompt_ids) :], *(() if is_stop else (token_id,)))
                    finished_hypotheses.append(BeamHypothesis(new_ids, log_prob / length**length_penalty, is_stop))
            elif len(beams) < num_beams:
                beams.append((beam_index, token_id, log_prob))
        finished_hypotheses = sorted(finished_hypotheses, key=lambda hypothesis: -hypothesis.score)[:num_beams]
        if (
            is_last_step
            or not beams
            or _is_search_done(finished_hypotheses, beams[0][2], length, max_new_tokens, strategy)
        ):
            break
        session.select_sequences([beam_index for beam_index, _, _ in beams])
        session.append_tokens([token_id for _, token_id, _ in beams])
        beam_log_probs = torch.tensor([log_prob for _, _, log_prob in beams])
    return finished_hypotheses


def _compute_log_probs(
    session: DecodingSession, processors: Sequence[LogitsProcessor], prompt_length: int, stop_token_ids: tuple[int, ...]
) -> Float[Tensor, "batch vocab"]:
    """Return the log-probabilities of the next token of all beams after the logits processors, (batch, vocab)."""
    log_probs = session.logits.float().log_softmax(-1)
    state = GenerationState(session.sequences, [prompt_length] * len(session.sequences), stop_token_ids)
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


def check_num_beam_samples(strategy: Strategy, num_samples: int) -> None:
    """Raise `StrategyError` if more samples are requested than beam search has beams."""
    if strategy.mode == "beam" and num_samples > (num_beams := strategy.get_option("beams")):
        raise StrategyError(f"{strategy}: {num_samples} samples require at least as many beams, got {num_beams}")
