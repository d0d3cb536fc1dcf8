"""One token for each row, by the race that `chance` describes: the slow, obvious road, and a fast one that gives the
same tokens.

The slow road sorts the vocabulary to know the nucleus, renormalises, and lets what is left race. The fast road lets
everybody race, and asks of the winner alone whether it is inside: for top-p, whether the mass of all likelier tokens is
below p. This is exact. Arrival times of the tokens are independent and do not know of the cut; the first to arrive of
those inside is the first of all arrivals that is inside, and of exponential times with rates p_i the first within a set
S is i with probability p_i / sum of p over S: the renormalised distribution. A winner that is outside is struck off
with every token that is no likelier, which cannot be inside either, and the next arrival is looked at; so it ends soon,
and no sort is ever needed. The likeliest token is always inside.

Nor is a logarithm needed for each token. An exponential time -log(1 - u) is never below its uniform number u, so that
p / u bounds a token's speed from above; the logarithm is taken of the token with the largest bound, and of the few
whose bounds are above its true speed.
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
    """The place of the maximum."""
    for step in processors:
        logits = step(logits, state)
    found: list[int] = logits.argmax(-1).tolist()
    return found


def sample_tokens_reference(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState, uniforms: UniformNoise
) -> list[int]:
    """The definition: the distribution that the steps leave, and a race."""
    probabilities = logits_to_probs(logits, processors, state)
    speed = probabilities / torch.from_numpy(uniform_to_exponential(uniforms)).to(probabilities.device)
    found = speed.argmax(-1)
    if not bool((speed.gather(-1, found[:, None]) > 0).all()):  # also when it is not a number
        raise _build_no_token_error()
    tokens: list[int] = found.tolist()
    return tokens


def sample_tokens(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState, uniforms: UniformNoise
) -> list[int]:
    """The same tokens, without a sort where the last step is a cut."""
    if logits.device.type != "cpu":
        return sample_tokens_reference(logits, processors, state, uniforms)
    cut = processors[-1] if processors and isinstance(processors[-1], TruncationProcessor) else None
    probabilities = logits_to_probs(logits, processors if cut is None else processors[:-1], state).numpy()
    return [_sample_row(row, fortune, cut) for row, fortune in zip(probabilities, uniforms, strict=True)]


def _sample_row(probs: ProbabilityRow, uniforms: ProbabilityRow, truncation: TruncationProcessor | None) -> int:
    """The first to arrive among those that the cut keeps."""
    bound = probs / uniforms
    while True:
        found = _find_race_winner(probs, bound, uniforms)
        at = float(probs[found])
        if not at > 0:  # also when it is not a number
            raise _build_no_token_error()
        if truncation is None or truncation.is_kept(probs, at):
            return found
        bound = zero_bounds_not_above(bound, probs, at)


def _find_race_winner(probs: ProbabilityRow, score_bounds: ProbabilityRow, uniforms: ProbabilityRow) -> int:
    """The place of the largest probability / time. Leaves the bounds as they are."""
    found = int(score_bounds.argmax())
    speed, top = _compute_race_score(probs, uniforms, found), score_bounds[found]
    score_bounds[found] = 0
    if score_bounds.max() > speed:  # somebody may still be faster than the one with the largest bound
        for place in np.flatnonzero(score_bounds > speed).tolist():
            if (other := _compute_race_score(probs, uniforms, place)) > speed:
                score_bounds[found], found, speed, top = top, place, other, score_bounds[place]
                score_bounds[found] = 0
    score_bounds[found] = top
    return found


def _compute_race_score(probs: ProbabilityRow, uniforms: ProbabilityRow, token_id: int) -> float:
    return float(probs[token_id]) / scalar_uniform_to_exponential(float(uniforms[token_id]))


def _build_no_token_error() -> ModelError:
    return ModelError("no token is left to draw: everything is banned, or the model's logits are not numbers")
