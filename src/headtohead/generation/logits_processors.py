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
from headtohead.generation.token_ranks import Row, likelier_count, likelier_mass

Logits = Float[Tensor, "rows vocab"]
Probabilities = Float[Tensor, "rows vocab"]
OUT = -math.inf


@dataclass
class Seen:
    """What the rows of a batch hold so far."""

    rows: Sequence[Sequence[int]]
    """prompt and continuation"""
    prompts: Sequence[int] = ()
    """how many tokens of each row are its prompt's"""
    stop_ids: tuple[int, ...] = ()

    def made(self, row: int) -> Sequence[int]:
        """The continuation so far."""
        return self.rows[row][self.prompts[row] :]


Step = Callable[[Logits, Seen], Logits]
"""the contract; a function of one's own will do"""


class Cut:
    """A step that keeps the likeliest tokens and drops the rest, so that a single token can be judged without sorting:
    if one is out, so are all that are less likely."""

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        raise NotImplementedError

    def keeps(self, row: Row, at: float) -> bool:
        """Whether a token of probability `at` stays, of a row of probabilities."""
        raise NotImplementedError


def distribution(logits: Logits, steps: Sequence[Step], seen: Seen | None = None) -> Probabilities:
    """What the steps leave of the model's distribution, renormalised."""
    seen = seen or Seen([[] for _ in range(len(logits))], [0] * len(logits))
    logits = logits.float()
    for step in steps:
        logits = step(logits, seen)
    return logits.softmax(-1)


def require(what: str, given: object, allowed: str, fine: bool) -> None:
    if not fine:
        raise StrategyError(f"{what} is {allowed}, not {given!r}")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# ---- shape


@dataclass(frozen=True)
class Temperature:
    """Logits divided by t: below 1 sharper, above 1 flatter, towards 0 the likeliest alone. Ackley et al. 1985."""

    t: float

    def __post_init__(self) -> None:
        require("temperature", self.t, "at least 0 (0 takes the likeliest token)", is_number(self.t) and self.t >= 0)

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        if self.t == 0:
            return logits.masked_fill(logits < logits.amax(-1, keepdim=True), OUT)
        return logits if self.t == 1 else logits / self.t


# ---- cuts


@dataclass(frozen=True)
class TopK(Cut):
    """The k likeliest tokens. Fan et al. 2018, arXiv:1805.04833."""

    k: int

    def __post_init__(self) -> None:
        require("k", self.k, "a whole number of tokens, at least 1", is_count(self.k))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        if self.k >= logits.shape[-1]:
            return logits
        return logits.masked_fill(logits < logits.topk(self.k).values[:, -1:], OUT)

    def keeps(self, row: Row, at: float) -> bool:
        return likelier_count(row, at) < self.k


@dataclass(frozen=True)
class TopP(Cut):
    """The nucleus: the fewest likeliest tokens that hold a share p. A token is in when the mass of all likelier ones is
    below p. Holtzman et al. 2020, arXiv:1904.09751."""

    p: float

    def __post_init__(self) -> None:
        require("p", self.p, "a share of probability, in (0, 1]", is_share(self.p))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        if self.p == 1:
            return logits
        probabilities = logits.softmax(-1)
        ranked = probabilities.sort(-1, descending=True).values
        likelier = ranked.cumsum(-1) - ranked
        least = ranked.masked_fill(likelier >= self.p, math.inf).amin(-1, keepdim=True)
        return logits.masked_fill(probabilities < least, OUT)

    def keeps(self, row: Row, at: float) -> bool:
        return self.p == 1 or likelier_mass(row, at) < self.p


@dataclass(frozen=True)
class MinP(Cut):
    """Tokens at least p times as likely as the likeliest. Nguyen et al. 2024, arXiv:2407.01082."""

    p: float

    def __post_init__(self) -> None:
        require("p", self.p, "a share of the likeliest token's probability, in (0, 1]", is_share(self.p))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        probabilities = logits.softmax(-1)
        return logits.masked_fill(probabilities < self.p * probabilities.amax(-1, keepdim=True), OUT)

    def keeps(self, row: Row, at: float) -> bool:
        return at >= self.p * float(row.max())


@dataclass(frozen=True)
class Typical:
    """Tokens whose surprise is nearest to the expected one (the entropy), until they hold a share p. Meister et al.
    2022, arXiv:2202.00666."""

    p: float

    def __post_init__(self) -> None:
        require("p", self.p, "a share of probability, in (0, 1]", is_share(self.p))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        if self.p == 1:
            return logits
        surprise = -logits.log_softmax(-1)
        probabilities = logits.softmax(-1)
        entropy = (surprise * probabilities).nansum(-1, keepdim=True)
        off = (surprise - entropy).abs()
        ranked, order = off.sort(-1)
        before = (probabilities.gather(-1, order).cumsum(-1) < self.p).sum(-1, keepdim=True)
        furthest = ranked.gather(-1, before.clamp_max(logits.shape[-1] - 1))
        return logits.masked_fill(off > furthest, OUT)


# ---- what was said before


@dataclass(frozen=True)
class RepetitionPenalty:
    """Logits of tokens that occurred, in the prompt or after, are divided by `by` (multiplied where negative). Keskar
    et al. 2019, arXiv:1909.05858."""

    by: float

    def __post_init__(self) -> None:
        require("repetition_penalty", self.by, "above 0 (1 changes nothing)", is_number(self.by) and self.by > 0)

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        return _changed(logits, [sorted(set(row)) for row in seen.rows], self._penalised)

    def _penalised(self, old: Tensor) -> Tensor:
        return torch.where(old < 0, old * self.by, old / self.by)


@dataclass(frozen=True)
class FrequencyPenalty:
    """Each time that a token was said in the continuation takes `each` off its logit, and the first time takes `once`
    more; as the interfaces of large models have it."""

    each: float = 0.0
    once: float = 0.0

    def __post_init__(self) -> None:
        require("frequency_penalty", self.each, "a number", is_number(self.each))
        require("presence_penalty", self.once, "a number", is_number(self.once))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        logits = logits.clone()
        for index in range(len(logits)):
            counts = Counter(seen.made(index))
            if counts:
                ids = torch.tensor(list(counts), device=logits.device)
                times = torch.tensor(list(counts.values()), device=logits.device)
                logits[index, ids] -= self.each * times + self.once
        return logits


@dataclass(frozen=True)
class NoRepeat:
    """No group of `size` tokens occurs twice, the prompt's among them. Paulus et al. 2017, arXiv:1705.04304."""

    size: int

    def __post_init__(self) -> None:
        require("no_repeat_ngram", self.size, "a whole number of tokens, at least 1", is_count(self.size))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        return _changed(logits, [self._repeats(row) for row in seen.rows], _dropped)

    def _repeats(self, row: Sequence[int]) -> list[int]:
        """The tokens that would complete a group which is there already."""
        before = self.size - 1
        if len(row) < self.size:
            return []
        ending = tuple(row[len(row) - before :])
        found = {row[i + before] for i in range(len(row) - before) if tuple(row[i : i + before]) == ending}
        return sorted(found)


@dataclass(frozen=True)
class Ban:
    """Tokens, or runs of tokens, that may not be said. A run's last token is out where the others stand before it."""

    runs: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...] = field(default=(), kw_only=True)
    """texts that become runs once a tokenizer is known"""

    def __post_init__(self) -> None:
        fine = all(run and all(is_count(i, 0) for i in run) for run in self.runs) and all(self.texts)
        require("ban", self.runs or self.texts, "a list of token ids, of runs of them, or of texts", fine)

    def bound(self, encode: Callable[[str], Sequence[int]]) -> Ban:
        """With its texts as runs, at the beginning of a word and inside one."""
        runs = {tuple(encode(form)) for text in self.texts for form in (text, f" {text}")}
        return Ban((*self.runs, *sorted(run for run in runs if run)))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        if self.texts:
            raise StrategyError(f"ban: {self.texts[0]!r} is a text, and there is no tokenizer to read it with")
        return _changed(logits, [self._out(row) for row in seen.rows], _dropped)

    def _out(self, row: Sequence[int]) -> list[int]:
        ends = (run[-1] for run in self.runs if len(run) == 1 or tuple(row[len(row) - len(run) + 1 :]) == run[:-1])
        return sorted(set(ends))


# ---- the end


@dataclass(frozen=True)
class MinNewTokens:
    """No stop before so many tokens are made."""

    count: int

    def __post_init__(self) -> None:
        require("min_new_tokens", self.count, "a whole number of tokens, at least 0", is_count(self.count, 0))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        early = [list(seen.stop_ids) if len(seen.made(i)) < self.count else [] for i in range(len(logits))]
        return _changed(logits, early, _dropped)


@dataclass(frozen=True)
class ForceStop:
    """The stop token comes at the latest as token number `after`."""

    after: int

    def __post_init__(self) -> None:
        require("force_stop", self.after, "a whole number of tokens, at least 1", is_count(self.after))

    def __call__(self, logits: Logits, seen: Seen) -> Logits:
        if not seen.stop_ids:
            raise StrategyError("force_stop: the model has no stop token to force")
        late = [i for i in range(len(logits)) if len(seen.made(i)) >= self.after - 1]
        if not late:
            return logits
        logits = logits.clone()
        logits[late] = OUT
        for index in late:
            logits[index, list(seen.stop_ids)] = 0.0
        return logits


def _changed(logits: Logits, tokens: Sequence[Sequence[int]], change: Callable[[Tensor], Tensor]) -> Logits:
    """The logits with `change` applied to some tokens of each row."""
    if not any(tokens):
        return logits
    logits, vocab = logits.clone(), logits.shape[-1]
    for index, found in enumerate(tokens):
        if found:
            ids = torch.tensor([i for i in found if i < vocab], dtype=torch.long, device=logits.device)
            logits[index, ids] = change(logits[index, ids])
    return logits


def _dropped(old: Tensor) -> Tensor:
    return torch.full_like(old, OUT)
