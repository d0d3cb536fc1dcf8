"""Logits processors: small functions that are applied in order, before the softmax gives the sampling distribution.

    [TemperatureLogitsProcessor(0.9), TopPLogitsProcessor(0.7)]

A processor takes the logits of a batch, (batch, vocab), and the `GenerationState`, and returns new logits. Removed
tokens have a logit of minus infinity; equally likely tokens are kept or removed together. Each processor returns the
same logits as its counterpart in transformers, if there is one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.errors import StrategyError
from headtohead.generation.token_ranks import VocabVector, count_likelier_tokens, sum_likelier_probs

Logits = Float[Tensor, "batch vocab"]
MASKED_LOGIT = -math.inf


@dataclass
class GenerationState:
    """The sequences of a batch so far."""

    token_ids: Sequence[Sequence[int]]
    """prompt and continuation of each sequence"""
    prompt_lengths: Sequence[int] = ()
    stop_token_ids: tuple[int, ...] = ()

    def get_new_token_ids(self, batch_index: int) -> Sequence[int]:
        """Return the continuation of one sequence."""
        return self.token_ids[batch_index][self.prompt_lengths[batch_index] :]


LogitsProcessor = Callable[[Logits, GenerationState], Logits]
"""any function with this signature"""


class TruncationProcessor:
    """A processor that keeps the most likely tokens.

    If it removes a token, it removes all less likely tokens too, so a single token can be checked without sorting.
    """

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        raise NotImplementedError

    def keeps_token(self, probs: VocabVector, token_prob: float) -> bool:
        """Return whether a token with probability `token_prob` is kept, given the probabilities of all tokens."""
        raise NotImplementedError


def check_option(name: str, value: object, allowed: str, is_valid: bool) -> None:
    """Raise `StrategyError` unless an option is valid; `allowed` describes the valid values."""
    if not is_valid:
        raise StrategyError(f"{name} must be {allowed}, got {value!r}")


def is_finite_number(value: object) -> bool:
    """Return whether a value is a finite number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_positive_fraction(value: object) -> bool:
    """Return whether a value is a number in (0, 1]."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def is_integer_at_least(value: object, minimum: int = 1) -> bool:
    """Return whether a value is an integer, not a bool, of at least `minimum`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


@dataclass(frozen=True)
class TemperatureLogitsProcessor:
    """Divide logits by the temperature: below 1 sharpens, above 1 flattens, 0 is greedy. Ackley et al. 1985."""

    temperature: float

    def __post_init__(self) -> None:
        is_valid = is_finite_number(self.temperature) and self.temperature >= 0
        check_option("temperature", self.temperature, "at least 0 (0 is greedy)", is_valid)

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.temperature == 0:
            return logits.masked_fill(logits < logits.amax(-1, keepdim=True), MASKED_LOGIT)
        return logits if self.temperature == 1 else logits / self.temperature


@dataclass(frozen=True)
class TopKLogitsProcessor(TruncationProcessor):
    """Keep the k most likely tokens. Fan et al. 2018, arXiv:1805.04833."""

    top_k: int

    def __post_init__(self) -> None:
        check_option("k", self.top_k, "an integer of at least 1", is_integer_at_least(self.top_k))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.top_k >= logits.shape[-1]:
            return logits
        return logits.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], MASKED_LOGIT)

    def keeps_token(self, probs: VocabVector, token_prob: float) -> bool:
        return count_likelier_tokens(probs, token_prob) < self.top_k


@dataclass(frozen=True)
class TopPLogitsProcessor(TruncationProcessor):
    """Keep the most likely tokens until their cumulative probability reaches p (the nucleus).

    A token is kept if the total probability of all more likely tokens is below p. Holtzman et al. 2020,
    arXiv:1904.09751.
    """

    p: float

    def __post_init__(self) -> None:
        check_option("p", self.p, "a probability in (0, 1]", is_positive_fraction(self.p))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        """Keep the most likely tokens until their cumulative probability reaches p."""
        if self.p == 1:
            return logits
        probabilities = logits.softmax(-1)
        ranked_probs = probabilities.sort(-1, descending=True).values
        mass_of_likelier_tokens = ranked_probs.cumsum(-1) - ranked_probs
        min_kept_prob = ranked_probs.masked_fill(mass_of_likelier_tokens >= self.p, math.inf).amin(-1, keepdim=True)
        return logits.masked_fill(probabilities < min_kept_prob, MASKED_LOGIT)

    def keeps_token(self, probs: VocabVector, token_prob: float) -> bool:
        return self.p == 1 or sum_likelier_probs(probs, token_prob) < self.p


@dataclass(frozen=True)
class MinPLogitsProcessor(TruncationProcessor):
    """Keep tokens at least p times as likely as the most likely one. Nguyen et al. 2024, arXiv:2407.01082."""

    p: float

    def __post_init__(self) -> None:
        check_option("p", self.p, "a fraction in (0, 1]", is_positive_fraction(self.p))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        probabilities = logits.softmax(-1)
        return logits.masked_fill(probabilities < self.p * probabilities.amax(-1, keepdim=True), MASKED_LOGIT)

    def keeps_token(self, probs: VocabVector, token_prob: float) -> bool:
        return token_prob >= self.p * float(probs.max())


@dataclass(frozen=True)
class TypicalLogitsProcessor:
    """Keep the tokens whose surprisal is closest to the entropy, until their cumulative probability reaches p.

    Meister et al. 2022, arXiv:2202.00666.
    """

    p: float

    def __post_init__(self) -> None:
        check_option("p", self.p, "a probability in (0, 1]", is_positive_fraction(self.p))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        """Keep the tokens whose surprisal is closest to the entropy, until their cumulative probability reaches p."""
        if self.p == 1:
            return logits
        surprisal = -logits.log_softmax(-1)
        probabilities = logits.softmax(-1)
        entropy = (surprisal * probabilities).nansum(-1, keepdim=True)
        deviation = (surprisal - entropy).abs()
        ranked_deviations, order = deviation.sort(-1)
        last_kept_rank = (probabilities.gather(-1, order).cumsum(-1) < self.p).sum(-1, keepdim=True)
        max_kept_deviation = ranked_deviations.gather(-1, last_kept_rank.clamp_max(logits.shape[-1] - 1))
        return logits.masked_fill(deviation > max_kept_deviation, MASKED_LOGIT)


@dataclass(frozen=True)
class RepetitionPenaltyLogitsProcessor:
    """Divide positive logits of tokens in the prompt or continuation by the penalty, and multiply negative ones.

    Keskar et al. 2019, arXiv:1909.05858.
    """

    penalty: float

    def __post_init__(self) -> None:
        is_valid = is_finite_number(self.penalty) and self.penalty > 0
        check_option("repetition_penalty", self.penalty, "above 0 (1 has no effect)", is_valid)

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        return _update_token_logits(logits, [sorted(set(ids)) for ids in state.token_ids], self._apply_penalty)

    def _apply_penalty(self, logits: Tensor) -> Tensor:
        return torch.where(logits < 0, logits * self.penalty, logits / self.penalty)


@dataclass(frozen=True)
class FrequencyPenaltyLogitsProcessor:
    """Penalize tokens that occur in the continuation, as in the OpenAI API.

    Subtracts the frequency penalty once per occurrence, and the presence penalty once.
    """

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_option("frequency_penalty", self.frequency_penalty, "a number", is_finite_number(self.frequency_penalty))
        check_option("presence_penalty", self.presence_penalty, "a number", is_finite_number(self.presence_penalty))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        """Subtract the frequency penalty once per occurrence of a token, and the presence penalty once."""
        logits = logits.clone()
        for batch_index in range(len(logits)):
            counts = Counter(state.get_new_token_ids(batch_index))
            if counts:
                token_ids = torch.tensor(list(counts), device=logits.device)
                frequencies = torch.tensor(list(counts.values()), device=logits.device)
                logits[batch_index, token_ids] -= self.frequency_penalty * frequencies + self.presence_penalty
        return logits


@dataclass(frozen=True)
class NoRepeatNGramLogitsProcessor:
    """Remove tokens that would repeat an n-gram of the prompt or continuation. Paulus et al. 2017, arXiv:1705.04304."""

    ngram_size: int

    def __post_init__(self) -> None:
        check_option(
            "no_repeat_ngram", self.ngram_size, "an integer of at least 1", is_integer_at_least(self.ngram_size)
        )

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        return _update_token_logits(
            logits, [self._find_repeated_completions(ids) for ids in state.token_ids], _mask_logits
        )

    def _find_repeated_completions(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that would complete an n-gram that already occurs."""
        prefix_size = self.ngram_size - 1
        if len(token_ids) < self.ngram_size:
            return []
        prefix = tuple(token_ids[len(token_ids) - prefix_size :])
        ngram_starts = range(len(token_ids) - prefix_size)
        return sorted(
            {token_ids[i + prefix_size] for i in ngram_starts if tuple(token_ids[i : i + prefix_size]) == prefix}
        )


@dataclass(frozen=True)
class NoBadWordsLogitsProcessor:
    """Remove banned tokens, and the last token of a banned sequence where the others precede it."""

    sequences: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] = field(default=(), kw_only=True)
    """texts that `encode_texts` converts to sequences"""

    def __post_init__(self) -> None:
        has_valid_ids = all(ids and all(is_integer_at_least(i, 0) for i in ids) for ids in self.sequences)
        allowed_values = "a list of token ids, sequences of them, or texts"
        check_option("ban", self.sequences or self.texts, allowed_values, has_valid_ids and all(self.texts))

    def encode_texts(self, encode: Callable[[str], Sequence[int]]) -> NoBadWordsLogitsProcessor:
        """Return the processor with its texts as token ids, as encoded both at the start of a word and within one."""
        encoded = {tuple(encode(text_form)) for text in self.texts for text_form in (text, f" {text}")}
        return NoBadWordsLogitsProcessor((*self.sequences, *sorted(ids for ids in encoded if ids)))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.texts:
            raise StrategyError(f"ban: the text {self.texts[0]!r} requires a tokenizer")
        return _update_token_logits(logits, [self._find_banned_token_ids(ids) for ids in state.token_ids], _mask_logits)

    def _find_banned_token_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that are banned or would complete a banned sequence."""
        banned_ids = (
            ids[-1]
            for ids in self.sequences
            if len(ids) == 1 or tuple(token_ids[len(token_ids) - len(ids) + 1 :]) == ids[:-1]
        )
        return sorted(set(banned_ids))


@dataclass(frozen=True)
class MinNewTokensLogitsProcessor:
    """Remove stop tokens before the continuation has this many tokens."""

    min_new_tokens: int

    def __post_init__(self) -> None:
        is_valid = is_integer_at_least(self.min_new_tokens, 0)
        check_option("min_new_tokens", self.min_new_tokens, "an integer of at least 0", is_valid)

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        """Remove the stop tokens until enough tokens have been generated."""
        stop_token_ids = list(state.stop_token_ids)
        masked_ids = [
            stop_token_ids if len(state.get_new_token_ids(batch_index)) < self.min_new_tokens else []
            for batch_index in range(len(logits))
        ]
        return _update_token_logits(logits, masked_ids, _mask_logits)


@dataclass(frozen=True)
class ForcedEOSTokenLogitsProcessor:
    """Force a stop token as token number `max_new_tokens` at the latest."""

    max_new_tokens: int

    def __post_init__(self) -> None:
        is_valid = is_integer_at_least(self.max_new_tokens)
        check_option("force_stop", self.max_new_tokens, "an integer of at least 1", is_valid)

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        """Keep only the stop token at the last step."""
        if not state.stop_token_ids:
            raise StrategyError("force_stop: the model has no stop token")
        ending = [i for i in range(len(logits)) if len(state.get_new_token_ids(i)) >= self.max_new_tokens - 1]
        if not ending:
            return logits
        logits = logits.clone()
        logits[ending] = MASKED_LOGIT
        for batch_index in ending:
            logits[batch_index, list(state.stop_token_ids)] = 0.0
        return logits


def _update_token_logits(
    logits: Logits, token_ids: Sequence[Sequence[int]], update: Callable[[Tensor], Tensor]
) -> Logits:
    """Return the logits with `update` applied to the given tokens of each sequence in the batch."""
    if not any(token_ids):
        return logits
    logits, vocab_size = logits.clone(), logits.shape[-1]
    for batch_index, ids in enumerate(token_ids):
        if ids:
            indices = torch.tensor([i for i in ids if i < vocab_size], dtype=torch.long, device=logits.device)
            logits[batch_index, indices] = update(logits[batch_index, indices])
    return logits


def _mask_logits(logits: Tensor) -> Tensor:
    """Return minus infinity for every logit."""
    return torch.full_like(logits, MASKED_LOGIT)
