"""What can be said of texts that a strategy wrote, from the texts alone: how varied they are, how much they repeat
themselves, how near they are to what people wrote. How likely they are stands in likelihood.

Every measure gives a tally for each prompt, a total and what it is a total of, and a figure is total over total. So a
long continuation counts for more than a short one, as it does in perplexity, and prompts stay apart: they are the
unit over which intervals are taken.

Distinct n-grams after Li et al. 2016, arXiv:1510.03055, over all samples of a prompt. Repetition is seq-rep-4 of
Welleck et al. 2020, arXiv:1908.04319, within one sample. Self-BLEU after Zhu et al. 2018, arXiv:1802.01886: each sample
against the others of its prompt. Nearness to people's text is chrF (Popović 2015, W15-3049), and not BLEU or ROUGE-L:
two honest continuations of a story share few runs of words, so BLEU of a sentence is nearly always its smoothing, while
n-grams of characters also see a stem or a name that both use, and need no rule for cutting words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headtohead.errors import MissingExtraError

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
REPEATED = 4
"""the length of the n-grams whose repetition is counted"""
Words = tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """A total, and what it is a total of."""

    total: float
    of: float

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.total + other.total, self.of + other.of)

    @property
    def figure(self) -> float | None:
        """None where there is nothing to count."""
        return self.total / self.of if self.of else None


NOTHING = Tally(0.0, 0.0)


def words(text: str) -> Words:
    """Words and signs in lower case. Not the model's tokens: two models cut differently, and people read words."""
    return tuple(WORD.findall(text.lower()))


def ngrams(of: Words, n: int) -> list[Words]:
    return [of[i : i + n] for i in range(len(of) - n + 1)]


def distinct(texts: Iterable[str], n: int) -> Tally:
    """How many different n-grams the samples of a prompt hold together, of all that they hold."""
    found = [gram for text in texts for gram in ngrams(words(text), n)]
    return Tally(len(set(found)), len(found))


def repetition(texts: Iterable[str], n: int = REPEATED) -> Tally:
    """How many n-grams of a sample it already held before, summed over samples."""
    tally = NOTHING
    for text in texts:
        found = ngrams(words(text), n)
        tally += Tally(len(found) - len(set(found)), len(found))
    return tally


def self_bleu(texts: Sequence[str]) -> Tally:
    """BLEU of each sample with the other samples of its prompt as references: 100 where all are the same.

    A sample without words is neither judged nor a reference; of fewer than two nothing can be said.
    """
    written = [text.strip() for text in texts if text.strip()]
    if len(written) < 2:
        return NOTHING
    if len(set(written)) == 1:
        return Tally(100.0 * len(written), len(written))
    score = _scorers().bleu.sentence_score
    total = sum(score(text, written[:i] + written[i + 1 :]).score for i, text in enumerate(written))
    return Tally(total, len(written))


def nearness(texts: Iterable[str], people: str) -> list[float]:
    """chrF of each sample against the people's continuation, from 0 to 100."""
    score = _scorers().chrf.sentence_score
    return [score(text.strip(), [people.strip()]).score for text in texts]


def check_scorers() -> None:
    """Say at once, and not after an hour of decoding, that sacrebleu is missing."""
    _scorers()


@dataclass(frozen=True)
class _Scorers:
    bleu: Any
    chrf: Any


@lru_cache(maxsize=1)
def _scorers() -> _Scorers:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise MissingExtraError("sacrebleu", "pretrained", "self-BLEU and chrF") from None
    # A sentence shorter than four words is scored by the n-grams that it has.
    return _Scorers(BLEU(effective_order=True), CHRF())


def signatures() -> dict[str, str]:
    """How sacrebleu counted, in its own words: two figures with different signatures are not comparable."""
    made = {}
    for name, scorer in (("self-BLEU", _scorers().bleu), ("chrF", _scorers().chrf)):
        scorer.sentence_score("a", ["a"])  # it signs only what it has done
        parts = str(scorer.get_signature()).split("|")
        made[name] = "|".join(part for part in parts if not part.startswith("nrefs:"))
    return made
