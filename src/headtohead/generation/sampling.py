"""Select the next token of each sequence: the most likely one, or a sample by the exponential race of `counter_rng`.

There is a reference implementation of sampling and a fast one, which return the same tokens. The reference sorts the
vocabulary to find the nucleus, renormalizes, and runs the race on the kept tokens. The fast implementation runs the
race on all tokens and checks only the winner: for top-p, whether the probability mass of all more likely tokens is
below p. This is exact. Arrival times are independent of the truncation, so the first arrival among the kept tokens is
the first of all arrivals that is kept; and of exponential times with rates p_i, the first within a set S is i with
probability p_i / sum of p over S, the renormalized distribution. A rejected winner is removed together with every token
that is no more likely, since none of them can be kept, and the race is repeated. The most likely token is always kept,
so this ends after few repetitions and needs no sorting.

It also avoids computing a logarithm per token. The exponential time -log(1 - u) is never below its uniform number u, so
p / u is an upper bound on a token's score. Exact scores are computed only for the token with the largest bound and for
tokens whose bound exceeds its score.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.generation.counter_rng import (
    CounterRNG,
    UniformNoise,
    scalar_uniform_to_exponential,
    uniform_to_exponential,
)
from headtohead.generation.logits_processors import (
    GenerationState,
    Logits,
    LogitsProcessor,
    TruncationProcessor,
)
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import Strategy
from headtohead.generation.token_ranks import VocabVector


@torch.inference_mode()
def select_next_tokens(
    strategy: Strategy,
    session: DecodingSession,
    prompt_lengths: Sequence[int],
    stop_token_ids: tuple[int, ...],
    rng: CounterRNG,
    step: int,
) -> list[int]:
    """Return the next token of each sequence: the most likely token for greedy strategies, otherwise a sample."""
    state = GenerationState(session.sequences, prompt_lengths, stop_token_ids)
    if strategy.mode == "greedy":
        return select_greedy_tokens(session.logits, strategy.logits_processors, state)
    return sample_tokens(session.logits, strategy.logits_processors, state, rng.get_uniforms(step))


def compute_sampling_probs(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState | None = None
) -> Float[Tensor, "batch vocab"]:
    """Return the distribution that tokens are sampled from, (batch, vocab): the softmax of the processed logits."""
    state = state or GenerationState([[] for _ in range(len(logits))], [0] * len(logits))
    logits = logits.float()
    for processor in processors:
        logits = processor(logits, state)
    return logits.softmax(-1)


def select_greedy_tokens(logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState) -> list[int]:
    """Select the most likely token of each sequence after the logits processors, instead of sampling."""
    for processor in processors:
        logits = processor(logits, state)
    token_ids: list[int] = logits.argmax(-1).tolist()
    return token_ids


def sample_tokens_reference(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState, uniforms: UniformNoise
) -> list[int]:
    """Sample one token per sequence by definition: compute the processed distribution, then run the race."""
    probs = compute_sampling_probs(logits, processors, state)
    scores = probs / torch.from_numpy(uniform_to_exponential(uniforms)).to(probs.device)
    winners = scores.argmax(-1)
    if not bool((scores.gather(-1, winners[:, None]) > 0).all()):  # false for NaN too
        raise _build_no_token_error()
    token_ids: list[int] = winners.tolist()
    return token_ids


def sample_tokens(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState, uniforms: UniformNoise
) -> list[int]:
    """Sample one token per sequence. Returns the same tokens as `sample_tokens_reference`.

    On a CPU, avoids sorting if the last processor is a truncation.
    """
    if logits.device.type != "cpu":
        return sample_tokens_reference(logits, processors, state, uniforms)
    truncation = processors[-1] if processors and isinstance(processors[-1], TruncationProcessor) else None
    probs = compute_sampling_probs(logits, processors if truncation is None else processors[:-1], state).numpy()
    return [
        _sample_token(vocab_probs, vocab_uniforms, truncation)
        for vocab_probs, vocab_uniforms in zip(probs, uniforms, strict=True)
    ]


def _sample_token(probs: VocabVector, uniforms: VocabVector, truncation: TruncationProcessor | None) -> int:
    """Return the token that wins the exponential race among those that the truncation keeps."""
    score_bounds = probs / uniforms
    while True:
        winner = _find_race_winner(probs, score_bounds, uniforms)
        winner_prob = float(probs[winner])
        if not winner_prob > 0:  # true for NaN too
            raise _build_no_token_error()
        if truncation is None or truncation.keeps_token(probs, winner_prob):
            return winner
        score_bounds = _remove_unlikelier_tokens(score_bounds, probs, winner_prob)


def _find_race_winner(probs: VocabVector, score_bounds: VocabVector, uniforms: VocabVector) -> int:
    """Return the sampled token: the one with the largest probability / arrival time. The bounds are unchanged."""
    winner = int(score_bounds.argmax())
    best_score, winner_bound = _compute_race_score(probs, uniforms, winner), score_bounds[winner]
    score_bounds[winner] = 0
    if score_bounds.max() > best_score:
        for token_id in np.flatnonzero(score_bounds > best_score).tolist():
            if (score := _compute_race_score(probs, uniforms, token_id)) > best_score:
                score_bounds[winner] = winner_bound
                winner, best_score, winner_bound = token_id, score, score_bounds[token_id]
                score_bounds[winner] = 0
    score_bounds[winner] = winner_bound
    return winner


def _compute_race_score(probs: VocabVector, uniforms: VocabVector, token_id: int) -> float:
    """Return a token's probability divided by its arrival time; the largest score wins."""
    return float(probs[token_id]) / scalar_uniform_to_exponential(float(uniforms[token_id]))


def _remove_unlikelier_tokens(score_bounds: VocabVector, probs: VocabVector, rejected_prob: float) -> VocabVector:
    """Return the score bounds of tokens that can still be sampled after a rejected winner, and 0 for less likely ones.

    A bound is at most twice its probability, and two float32 probabilities that differ do so by at least 2**-24 of
    their size. A positive difference times 2**30 therefore exceeds any bound, so the minimum of the two is the result.
    """
    differences = probs - probs.dtype.type(rejected_prob)
    np.maximum(differences, 0, out=differences)
    differences *= probs.dtype.type(2**30)
    bounds: VocabVector = np.minimum(score_bounds, differences, out=differences)
    return bounds


def _build_no_token_error() -> ModelError:
    """Return the error for a distribution without a token that can be sampled."""
    return ModelError("no token can be sampled: all tokens are banned, or the model's logits are NaN")
