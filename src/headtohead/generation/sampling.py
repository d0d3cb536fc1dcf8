"""Sample one token per row by the exponential race of `counter_rng`.

There is a reference implementation, and a fast one that returns the same tokens. The reference sorts the vocabulary to
find the nucleus, renormalises, and runs the race on the kept tokens. The fast implementation runs the race on all
tokens and checks only the winner: for top-p, whether the probability mass of all more likely tokens is below p. This is
exact. Arrival times are independent of the truncation, so the first arrival among the kept tokens is the first of all
arrivals that is kept; and of exponential times with rates p_i, the first within a set S is i with probability p_i / sum
of p over S, the renormalised distribution. A rejected winner is removed together with every token that is no more
likely, since none of them can be kept, and the race is repeated. The most likely token is always kept, so this ends
soon and needs no sorting.

It also avoids a logarithm per token. The exponential time -log(1 - u) is never below its uniform number u, so p / u is
an upper bound on a token's score. Exact scores are computed only for the token with the largest bound and for those
whose bound exceeds its score.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headtohead.errors import ModelError
from headtohead.generation.counter_rng import UniformNoise, scalar_uniform_to_exponential, uniform_to_exponential
from headtohead.generation.logits_processors import (
    GenerationState,
    Logits,
    LogitsProcessor,
    TruncationProcessor,
    logits_to_probs,
)
from headtohead.generation.token_ranks import ProbabilityRow, zero_bounds_not_above


def select_greedy_tokens(logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState) -> list[int]:
    """Return each row's most likely token after the logits processors."""
    for processor in processors:
        logits = processor(logits, state)
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


def sample_tokens_reference(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState, uniforms: UniformNoise
) -> list[int]:
    """Sample one token per row by definition: compute the processed distribution, then run the race."""
    probs = logits_to_probs(logits, processors, state)
    scores = probs / torch.from_numpy(uniform_to_exponential(uniforms)).to(probs.device)
    winners = scores.argmax(-1)
    if not bool((scores.gather(-1, winners[:, None]) > 0).all()):  # false for NaN too
        raise _build_no_token_error()
    tokens: list[int] = winners.tolist()
    return tokens


def sample_tokens(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState, uniforms: UniformNoise
) -> list[int]:
    """Sample one token per row. Returns the same tokens as `sample_tokens_reference`.

    On a CPU, avoids sorting if the last processor is a truncation.
    """
    if logits.device.type != "cpu":
        return sample_tokens_reference(logits, processors, state, uniforms)
    truncation = processors[-1] if processors and isinstance(processors[-1], TruncationProcessor) else None
    probs = logits_to_probs(logits, processors if truncation is None else processors[:-1], state).numpy()
    return [_sample_row(row, row_uniforms, truncation) for row, row_uniforms in zip(probs, uniforms, strict=True)]


def _sample_row(probs: ProbabilityRow, uniforms: ProbabilityRow, truncation: TruncationProcessor | None) -> int:
    """Return the first arrival among the tokens that the truncation keeps."""
    score_bounds = probs / uniforms
    while True:
        winner = _find_race_winner(probs, score_bounds, uniforms)
        winner_prob = float(probs[winner])
        if not winner_prob > 0:  # true for NaN too
            raise _build_no_token_error()
        if truncation is None or truncation.is_kept(probs, winner_prob):
            return winner
        score_bounds = zero_bounds_not_above(score_bounds, probs, winner_prob)


def _find_race_winner(probs: ProbabilityRow, score_bounds: ProbabilityRow, uniforms: ProbabilityRow) -> int:
    """Return the token with the largest probability / time. The bounds are unchanged on return."""
    winner = int(score_bounds.argmax())
    best_score, winner_bound = _compute_race_score(probs, uniforms, winner), score_bounds[winner]
    score_bounds[winner] = 0
    if score_bounds.max() > best_score:
        for token in np.flatnonzero(score_bounds > best_score).tolist():
            if (score := _compute_race_score(probs, uniforms, token)) > best_score:
                score_bounds[winner], winner, best_score, winner_bound = winner_bound, token, score, score_bounds[token]
                score_bounds[winner] = 0
    score_bounds[winner] = winner_bound
    return winner


def _compute_race_score(probs: ProbabilityRow, uniforms: ProbabilityRow, token_id: int) -> float:
    """Return a token's probability divided by its arrival time; the largest score wins."""
    return float(probs[token_id]) / scalar_uniform_to_exponential(float(uniforms[token_id]))


def _build_no_token_error() -> ModelError:
    return ModelError("no token can be sampled: all tokens are banned, or the model's logits are NaN")
