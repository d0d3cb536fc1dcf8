"""Logits processors: small functions that are applied in order, before the softmax gives the sampling distribution.

    [TemperatureLogitsProcessor(0.9), TopPLogitsProcessor(0.7)]

A processor takes the logits of all rows, (rows, vocab), and the `GenerationState`, and returns new logits. Removed
tokens have a logit of minus infinity; equally likely tokens are kept or removed together. Each processor gives the same
results as its counterpart in transformers, if there is one.
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
from headtohead.generation.token_ranks import ProbabilityRow, count_above, sum_above

Logits = Float[Tensor, "rows vocab"]
Probabilities = Float[Tensor, "rows vocab"]
MASKED_LOGIT = -math.inf


@dataclass
class GenerationState:
    """The tokens so far in each row of a batch."""

    rows: Sequence[Sequence[int]]
    """prompt and continuation"""
    prompt_lengths: Sequence[int] = ()
    stop_ids: tuple[int, ...] = ()

    def get_new_ids(self, row: int) -> Sequence[int]:
        """Return a row's continuation."""
        return self.rows[row][self.prompt_lengths[row] :]


LogitsProcessor = Callable[[Logits, GenerationState], Logits]
"""any function with this signature"""


class TruncationProcessor:
    """A processor that keeps the most likely tokens.

    If it removes a token, it removes all less likely tokens too, so a single token can be checked without sorting.
    """

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        raise NotImplementedError

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        """Return whether a token with probability `token_prob` is kept, given its row's probabilities."""
        raise NotImplementedError


def logits_to_probs(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState | None = None
) -> Probabilities:
    """Return the distribution after the processors, (rows, vocab)."""
    state = state or GenerationState([[] for _ in range(len(logits))], [0] * len(logits))
    logits = logits.float()
    for processor in processors:
        logits = processor(logits, state)
    return logits.softmax(-1)


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

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        return count_above(probs, token_prob) < self.top_k


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
        if self.p == 1:
            return logits
        probabilities = logits.softmax(-1)
        ranked = probabilities.sort(-1, descending=True).values
        mass_above = ranked.cumsum(-1) - ranked
        smallest_kept = ranked.masked_fill(mass_above >= self.p, math.inf).amin(-1, keepdim=True)
        return logits.masked_fill(probabilities < smallest_kept, MASKED_LOGIT)

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        return self.p == 1 or sum_above(probs, token_prob) < self.p


@dataclass(frozen=True)
class MinPLogitsProcessor(TruncationProcessor):
    """Keep tokens at least p times as likely as the most likely one. Nguyen et al. 2024, arXiv:2407.01082."""

    p: float

    def __post_init__(self) -> None:
        check_option("p", self.p, "a fraction in (0, 1]", is_positive_fraction(self.p))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        probabilities = logits.softmax(-1)
        return logits.masked_fill(probabilities < self.p * probabilities.amax(-1, keepdim=True), MASKED_LOGIT)

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
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
        if self.p == 1:
            return logits
        surprisal = -logits.log_softmax(-1)
        probabilities = logits.softmax(-1)
        entropy = (surprisal * probabilities).nansum(-1, keepdim=True)
        deviation = (surprisal - entropy).abs()
        ranked, order = deviation.sort(-1)
        last_kept = (probabilities.gather(-1, order).cumsum(-1) < self.p).sum(-1, keepdim=True)
        largest_kept = ranked.gather(-1, last_kept.clamp_max(logits.shape[-1] - 1))
        return logits.masked_fill(deviation > largest_kept, MASKED_LOGIT)


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
        return _update_token_logits(logits, [sorted(set(row)) for row in state.rows], self._apply_penalty)

    def _apply_penalty(self, logits: Tensor) -> Tensor:
        return torch.where(logits < 0, logits * self.penalty, logits / self.penalty)


@dataclass(frozen=True)
class FrequencyPenaltyLogitsProcessor:
    """Penalise tokens that occur in the continuation, as in the OpenAI API.

    Subtracts the frequency penalty once per occurrence, and the presence penalty once.
    """

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_option("frequency_penalty", self.frequency_penalty, "a number", is_finite_number(self.frequency_penalty))
        check_option("presence_penalty", self.presence_penalty, "a number", is_finite_number(self.presence_penalty))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        logits = logits.clone()
        for row in range(len(logits)):
            counts = Counter(state.get_new_ids(row))
            if counts:
                ids = torch.tensor(list(counts), device=logits.device)
                frequencies = torch.tensor(list(counts.values()), device=logits.device)
                logits[row, ids] -= self.frequency_penalty * frequencies + self.presence_penalty
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
        return _update_token_logits(logits, [self._find_repeated_completions(row) for row in state.rows], _mask_logits)

    def _find_repeated_completions(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that would complete an n-gram that already occurs."""
        prefix_size = self.ngram_size - 1
        if len(token_ids) < self.ngram_size:
            return []
        prefix = tuple(token_ids[len(token_ids) - prefix_size :])
        starts = range(len(token_ids) - prefix_size)
        return sorted({token_ids[i + prefix_size] for i in starts if tuple(token_ids[i : i + prefix_size]) == prefix})


@dataclass(frozen=True)
class NoBadWordsLogitsProcessor:
    """Remove banned tokens, and the last token of a banned sequence where the others precede it."""

    sequences: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] = field(default=(), kw_only=True)
    """texts that `encode_texts` converts to sequences"""

    def __post_init__(self) -> None:
        has_valid_ids = all(ids and all(is_integer_at_least(i, 0) for i in ids) for ids in self.sequences)
        allowed = "a list of token ids, sequences of them, or texts"
        check_option("ban", self.sequences or self.texts, allowed, has_valid_ids and all(self.texts))

    def encode_texts(self, encode: Callable[[str], Sequence[int]]) -> NoBadWordsLogitsProcessor:
        """Return the processor with its texts as token ids, as encoded both at the start of a word and within one."""
        encoded = {tuple(encode(form)) for text in self.texts for form in (text, f" {text}")}
        return NoBadWordsLogitsProcessor((*self.sequences, *sorted(ids for ids in encoded if ids)))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.texts:
            raise StrategyError(f"ban: the text {self.texts[0]!r} requires a tokenizer")
        return _update_token_logits(logits, [self._find_banned_token_ids(row) for row in state.rows], _mask_logits)

    def _find_banned_token_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that are banned or would complete a banned sequence."""
        last_ids = (
            ids[-1]
            for ids in self.sequences
            if len(ids) == 1 or tuple(token_ids[len(token_ids) - len(ids) + 1 :]) == ids[:-1]
        )
        return sorted(set(last_ids))


@dataclass(frozen=True)
class MinNewTokensLogitsProcessor:
    """Remove stop tokens before the continuation has this many tokens."""

    min_new_tokens: int

    def __post_init__(self) -> None:
        is_valid = is_integer_at_least(self.min_new_tokens, 0)
        check_option("min_new_tokens", self.min_new_tokens, "an integer of at least 0", is_valid)

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        is_short = [len(state.get_new_ids(row)) < self.min_new_tokens for row in range(len(logits))]
        return _update_token_logits(
            logits, [list(state.stop_ids) if is_row_short else [] for is_row_short in is_short], _mask_logits
        )


@dataclass(frozen=True)
class ForcedEOSTokenLogitsProcessor:
    """Force a stop token as token number `max_new_tokens` at the latest."""

    max_new_tokens: int

    def __post_init__(self) -> None:
        is_valid = is_integer_at_least(self.max_new_tokens)
        check_option("force_stop", self.max_new_tokens, "an integer of at least 1", is_valid)

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if not state.stop_ids:
            raise StrategyError("force_stop: the model has no stop token")
        rows = [i for i in range(len(logits)) if len(state.get_new_ids(i)) >= self.max_new_tokens - 1]
        if not rows:
            return logits
        logits = logits.clone()
        logits[rows] = MASKED_LOGIT
        for row in rows:
            logits[row, list(state.stop_ids)] = 0.0
        return logits


def _update_token_logits(
    logits: Logits, token_ids: Sequence[Sequence[int]], update: Callable[[Tensor], Tensor]
) -> Logits:
    """Return the logits with `update` applied to the given tokens in each row."""
    if not any(token_ids):
        return logits
    logits, vocab_size = logits.clone(), logits.shape[-1]
    for row, row_ids in enumerate(token_ids):
        if row_ids:
            ids = torch.tensor([i for i in row_ids if i < vocab_size], dtype=torch.long, device=logits.device)
            logits[row, ids] = update(logits[row, ids])
    return logits


def _mask_logits(logits: Tensor) -> Tensor:
    """Return minus infinity for every logit."""
    return torch.full_like(logits, MASKED_LOGIT)
