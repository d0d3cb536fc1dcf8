"""Steps from logits to a distribution: small functions that are composed in a list. The distribution is the softmax of
what the last one leaves; a token that is out has a logit of minus infinity.

    [Temperature(0.9), TopP(0.7)]

A step takes the logits of all rows and what was `Seen` so far. Tokens of equal probability stay or go together. Each
equals the processor of the transformers library of the same meaning, where it has one.
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
    """What the rows of a batch hold so far."""

    rows: Sequence[Sequence[int]]
    """prompt and continuation"""
    prompts: Sequence[int] = ()
    """how many tokens of each row are its prompt's"""
    stop_ids: tuple[int, ...] = ()

    def made(self, row: int) -> Sequence[int]:
        """The continuation so far."""
        return self.rows[row][self.prompts[row] :]


LogitsProcessor = Callable[[Logits, GenerationState], Logits]
"""the contract; a function of one's own will do"""


class TruncationProcessor:
    """A step that keeps the likeliest tokens and drops the rest, so that a single token can be judged without sorting:
    if one is out, so are all that are less likely."""

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        raise NotImplementedError

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        """Whether a token of probability `at` stays, of a row of probabilities."""
        raise NotImplementedError


def logits_to_probs(
    logits: Logits, processors: Sequence[LogitsProcessor], state: GenerationState | None = None
) -> Probabilities:
    """What the steps leave of the model's distribution, renormalised."""
    state = state or GenerationState([[] for _ in range(len(logits))], [0] * len(logits))
    logits = logits.float()
    for step in processors:
        logits = step(logits, state)
    return logits.softmax(-1)


def check_option(name: str, value: object, allowed: str, is_valid: bool) -> None:
    if not is_valid:
        raise StrategyError(f"{name} is {allowed}, not {value!r}")


def is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_positive_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def is_integer_at_least(value: object, minimum: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


# ---- shape


@dataclass(frozen=True)
class TemperatureLogitsProcessor:
    """Logits divided by t: below 1 sharper, above 1 flatter, towards 0 the likeliest alone. Ackley et al. 1985."""

    t: float

    def __post_init__(self) -> None:
        check_option(
            "temperature", self.t, "at least 0 (0 takes the likeliest token)", is_finite_number(self.t) and self.t >= 0
        )

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.t == 0:
            return logits.masked_fill(logits < logits.amax(-1, keepdim=True), MASKED_LOGIT)
        return logits if self.t == 1 else logits / self.t


# ---- cuts


@dataclass(frozen=True)
class TopKLogitsProcessor(TruncationProcessor):
    """The k likeliest tokens. Fan et al. 2018, arXiv:1805.04833."""

    top_k: int

    def __post_init__(self) -> None:
        check_option("k", self.top_k, "a whole number of tokens, at least 1", is_integer_at_least(self.top_k))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.top_k >= logits.shape[-1]:
            return logits
        return logits.masked_fill(logits < logits.topk(self.top_k).values[:, -1:], MASKED_LOGIT)

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        return count_above(probs, token_prob) < self.top_k


@dataclass(frozen=True)
class TopPLogitsProcessor(TruncationProcessor):
    """The nucleus: the fewest likeliest tokens that hold a share p. A token is in when the mass of all likelier ones is
    below p. Holtzman et al. 2020, arXiv:1904.09751."""

    p: float

    def __post_init__(self) -> None:
        check_option("p", self.p, "a share of probability, in (0, 1]", is_positive_fraction(self.p))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.p == 1:
            return logits
        probabilities = logits.softmax(-1)
        ranked = probabilities.sort(-1, descending=True).values
        likelier = ranked.cumsum(-1) - ranked
        least = ranked.masked_fill(likelier >= self.p, math.inf).amin(-1, keepdim=True)
        return logits.masked_fill(probabilities < least, MASKED_LOGIT)

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        return self.p == 1 or sum_above(probs, token_prob) < self.p


@dataclass(frozen=True)
class MinPLogitsProcessor(TruncationProcessor):
    """Tokens at least p times as likely as the likeliest. Nguyen et al. 2024, arXiv:2407.01082."""

    p: float

    def __post_init__(self) -> None:
        check_option(
            "p", self.p, "a share of the likeliest token's probability, in (0, 1]", is_positive_fraction(self.p)
        )

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        probabilities = logits.softmax(-1)
        return logits.masked_fill(probabilities < self.p * probabilities.amax(-1, keepdim=True), MASKED_LOGIT)

    def is_kept(self, probs: ProbabilityRow, token_prob: float) -> bool:
        return token_prob >= self.p * float(probs.max())


@dataclass(frozen=True)
class TypicalLogitsProcessor:
    """Tokens whose surprise is nearest to the expected one (the entropy), until they hold a share p. Meister et al.
    2022, arXiv:2202.00666."""

    p: float

    def __post_init__(self) -> None:
        check_option("p", self.p, "a share of probability, in (0, 1]", is_positive_fraction(self.p))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.p == 1:
            return logits
        surprise = -logits.log_softmax(-1)
        probabilities = logits.softmax(-1)
        entropy = (surprise * probabilities).nansum(-1, keepdim=True)
        off = (surprise - entropy).abs()
        ranked, order = off.sort(-1)
        before = (probabilities.gather(-1, order).cumsum(-1) < self.p).sum(-1, keepdim=True)
        furthest = ranked.gather(-1, before.clamp_max(logits.shape[-1] - 1))
        return logits.masked_fill(off > furthest, MASKED_LOGIT)


# ---- what was said before


@dataclass(frozen=True)
class RepetitionPenaltyLogitsProcessor:
    """Logits of tokens that occurred, in the prompt or after, are divided by `by` (multiplied where negative). Keskar
    et al. 2019, arXiv:1909.05858."""

    by: float

    def __post_init__(self) -> None:
        check_option(
            "repetition_penalty", self.by, "above 0 (1 changes nothing)", is_finite_number(self.by) and self.by > 0
        )

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        return _update_token_logits(logits, [sorted(set(row)) for row in state.rows], self._apply_penalty)

    def _apply_penalty(self, logits: Tensor) -> Tensor:
        return torch.where(logits < 0, logits * self.by, logits / self.by)


@dataclass(frozen=True)
class FrequencyPenaltyLogitsProcessor:
    """Each time that a token was said in the continuation takes `each` off its logit, and the first time takes `once`
    more; as the interfaces of large models have it."""

    frequency_penalty: float = 0.0
    once: float = 0.0

    def __post_init__(self) -> None:
        check_option("frequency_penalty", self.frequency_penalty, "a number", is_finite_number(self.frequency_penalty))
        check_option("presence_penalty", self.once, "a number", is_finite_number(self.once))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        logits = logits.clone()
        for index in range(len(logits)):
            counts = Counter(state.made(index))
            if counts:
                ids = torch.tensor(list(counts), device=logits.device)
                times = torch.tensor(list(counts.values()), device=logits.device)
                logits[index, ids] -= self.frequency_penalty * times + self.once
        return logits


@dataclass(frozen=True)
class NoRepeatNGramLogitsProcessor:
    """No group of `size` tokens occurs twice, the prompt's among them. Paulus et al. 2017, arXiv:1705.04304."""

    size: int

    def __post_init__(self) -> None:
        check_option(
            "no_repeat_ngram", self.size, "a whole number of tokens, at least 1", is_integer_at_least(self.size)
        )

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        return _update_token_logits(logits, [self._find_repeated_completions(row) for row in state.rows], _mask_logits)

    def _find_repeated_completions(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens that would complete a group which is there already."""
        before = self.size - 1
        if len(token_ids) < self.size:
            return []
        ending = tuple(token_ids[len(token_ids) - before :])
        found = {
            token_ids[i + before] for i in range(len(token_ids) - before) if tuple(token_ids[i : i + before]) == ending
        }
        return sorted(found)


@dataclass(frozen=True)
class NoBadWordsLogitsProcessor:
    """Tokens, or runs of tokens, that may not be said. A run's last token is out where the others stand before it."""

    runs: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] = field(default=(), kw_only=True)
    """texts that become runs once a tokenizer is known"""

    def __post_init__(self) -> None:
        fine = all(run and all(is_integer_at_least(i, 0) for i in run) for run in self.runs) and all(self.texts)
        check_option("ban", self.runs or self.texts, "a list of token ids, of runs of them, or of texts", fine)

    def bound(self, encode: Callable[[str], Sequence[int]]) -> NoBadWordsLogitsProcessor:
        """With its texts as runs, at the beginning of a word and inside one."""
        runs = {tuple(encode(form)) for text in self.texts for form in (text, f" {text}")}
        return NoBadWordsLogitsProcessor((*self.runs, *sorted(run for run in runs if run)))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if self.texts:
            raise StrategyError(f"ban: {self.texts[0]!r} is a text, and there is no tokenizer to read it with")
        return _update_token_logits(logits, [self._find_banned_token_ids(row) for row in state.rows], _mask_logits)

    def _find_banned_token_ids(self, token_ids: Sequence[int]) -> list[int]:
        ends = (
            run[-1]
            for run in self.runs
            if len(run) == 1 or tuple(token_ids[len(token_ids) - len(run) + 1 :]) == run[:-1]
        )
        return sorted(set(ends))


# ---- the end


@dataclass(frozen=True)
class MinNewTokensLogitsProcessor:
    """No stop before so many tokens are made."""

    count: int

    def __post_init__(self) -> None:
        check_option(
            "min_new_tokens", self.count, "a whole number of tokens, at least 0", is_integer_at_least(self.count, 0)
        )

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        early = [list(state.stop_ids) if len(state.made(i)) < self.count else [] for i in range(len(logits))]
        return _update_token_logits(logits, early, _mask_logits)


@dataclass(frozen=True)
class ForcedEOSTokenLogitsProcessor:
    """The stop token comes at the latest as token number `after`."""

    after: int

    def __post_init__(self) -> None:
        check_option("force_stop", self.after, "a whole number of tokens, at least 1", is_integer_at_least(self.after))

    def __call__(self, logits: Logits, state: GenerationState) -> Logits:
        if not state.stop_ids:
            raise StrategyError("force_stop: the model has no stop token to force")
        late = [i for i in range(len(logits)) if len(state.made(i)) >= self.after - 1]
        if not late:
            return logits
        logits = logits.clone()
        logits[late] = MASKED_LOGIT
        for index in late:
            logits[index, list(state.stop_ids)] = 0.0
        return logits


def _update_token_logits(
    logits: Logits, token_ids: Sequence[Sequence[int]], update: Callable[[Tensor], Tensor]
) -> Logits:
    """The logits with `change` applied to some tokens of each row."""
    if not any(token_ids):
        return logits
    logits, vocab = logits.clone(), logits.shape[-1]
    for index, found in enumerate(token_ids):
        if found:
            ids = torch.tensor([i for i in found if i < vocab], dtype=torch.long, device=logits.device)
            logits[index, ids] = update(logits[index, ids])
    return logits


def _mask_logits(logits: Tensor) -> Tensor:
    return torch.full_like(logits, MASKED_LOGIT)
