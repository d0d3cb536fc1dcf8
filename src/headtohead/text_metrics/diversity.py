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

WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
REPETITION_NGRAM_SIZE = 4
"""the length of the n-grams whose repetition is counted"""
Words = tuple[str, ...]


@dataclass(frozen=True)
class Ratio:
    """A total, and what it is a total of."""

    total: float
    of: float

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.total + other.total, self.of + other.of)

    @property
    def figure(self) -> float | None:
        """None where there is nothing to count."""
        return self.total / self.of if self.of else None


EMPTY_RATIO = Ratio(0.0, 0.0)


def split_words(text: str) -> Words:
    """Words and signs in lower case. Not the model's tokens: two models cut differently, and people read words."""
    return tuple(WORD_PATTERN.findall(text.lower()))


def extract_ngrams(words: Words, n: int) -> list[Words]:
    return [words[i : i + n] for i in range(len(words) - n + 1)]


def compute_distinct_n(texts: Iterable[str], n: int) -> Ratio:
    """How many different n-grams the samples of a prompt hold together, of all that they hold."""
    found = [gram for text in texts for gram in extract_ngrams(split_words(text), n)]
    return Ratio(len(set(found)), len(found))


def compute_repetition(texts: Iterable[str], n: int = REPETITION_NGRAM_SIZE) -> Ratio:
    """How many n-grams of a sample it already held before, summed over samples."""
    tally = EMPTY_RATIO
    for text in texts:
        found = extract_ngrams(split_words(text), n)
        tally += Ratio(len(found) - len(set(found)), len(found))
    return tally


def compute_self_bleu(texts: Sequence[str]) -> Ratio:
    """BLEU of each sample with the other samples of its prompt as references: 100 where all are the same.

    A sample without words is neither judged nor a reference; of fewer than two nothing can be said.
    """
    written = [text.strip() for text in texts if text.strip()]
    if len(written) < 2:
        return EMPTY_RATIO
    if len(set(written)) == 1:
        return Ratio(100.0 * len(written), len(written))
    score = _load_sacrebleu_metrics().bleu.sentence_score
    total = sum(score(text, written[:i] + written[i + 1 :]).score for i, text in enumerate(written))
    return Ratio(total, len(written))


def compute_chrf(texts: Iterable[str], reference: str) -> list[float]:
    """chrF of each sample against the people's continuation, from 0 to 100."""
    score = _load_sacrebleu_metrics().chrf.sentence_score
    return [score(text.strip(), [reference.strip()]).score for text in texts]


def check_sacrebleu_installed() -> None:
    """Say at once, and not after an hour of decoding, that sacrebleu is missing."""
    _load_sacrebleu_metrics()


@dataclass(frozen=True)
class _SacrebleuMetrics:
    bleu: Any
    chrf: Any


@lru_cache(maxsize=1)
def _load_sacrebleu_metrics() -> _SacrebleuMetrics:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise MissingExtraError("sacrebleu", "pretrained", "self-BLEU and chrF") from None
    # A sentence shorter than four words is scored by the n-grams that it has.
    return _SacrebleuMetrics(BLEU(effective_order=True), CHRF())


def get_sacrebleu_signatures() -> dict[str, str]:
    """How sacrebleu counted, in its own words: two figures with different signatures are not comparable."""
    made = {}
    for name, scorer in (("self-BLEU", _load_sacrebleu_metrics().bleu), ("chrF", _load_sacrebleu_metrics().chrf)):
        scorer.sentence_score("a", ["a"])  # it signs only what it has done
        parts = str(scorer.get_signature()).split("|")
        made[name] = "|".join(part for part in parts if not part.startswith("nrefs:"))
    return made
