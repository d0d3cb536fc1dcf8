"""N-gram metrics of generated texts, which need no model: diversity, repetition, similarity to human text, and copying.

Every metric returns a ratio per prompt, a total and its denominator, and an estimate is total over total. A long
continuation therefore counts more than a short one, as in perplexity, and prompts stay separate: intervals are computed
over them.

Distinct n-grams follow Li et al. 2016, arXiv:1510.03055, over all samples of a prompt. Repetition is seq-rep-4 of
Welleck et al. 2020, arXiv:1908.04319, within one sample. Self-BLEU follows Zhu et al. 2018, arXiv:1802.01886: each
sample against the others of its prompt. Similarity to human text is chrF (Popović 2015, W15-3049) instead of BLEU or
ROUGE-L: two valid continuations of a story share few word n-grams, so sentence BLEU is mostly smoothing, while
character n-grams also match stems and names, and need no word tokenization. Copied n-grams of a summary follow See et
al. 2017, arXiv:1704.04368.
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
"""length of the n-grams whose repetition is counted"""
COPIED_NGRAM_SIZES = (2, 4)
"""lengths of a summary's n-grams that are searched in its document"""
Words = tuple[str, ...]


@dataclass(frozen=True)
class Ratio:
    """A total and its denominator."""

    total: float
    denominator: float

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.total + other.total, self.denominator + other.denominator)

    @property
    def value(self) -> float | None:
        """Total over denominator; None if the denominator is 0."""
        return self.total / self.denominator if self.denominator else None


EMPTY_RATIO = Ratio(0.0, 0.0)


def split_words(text: str) -> Words:
    """Return the lowercase words and punctuation marks of a text, independent of any model's tokenizer."""
    return tuple(WORD_PATTERN.findall(text.lower()))


def extract_ngrams(words: Words, n: int) -> list[Words]:
    """Return all n-grams of a sequence of words, in order."""
    return [words[i : i + n] for i in range(len(words) - n + 1)]


def compute_distinct_n(samples: Iterable[str], n: int) -> Ratio:
    """Return the number of distinct n-grams in all samples of a prompt, over the number of n-grams."""
    ngrams = [ngram for sample in samples for ngram in extract_ngrams(split_words(sample), n)]
    return Ratio(len(set(ngrams)), len(ngrams))


def compute_repetition(samples: Iterable[str], n: int = REPETITION_NGRAM_SIZE) -> Ratio:
    """Return the number of n-grams that already occurred in the same sample, summed over samples."""
    ratio = EMPTY_RATIO
    for sample in samples:
        ngrams = extract_ngrams(split_words(sample), n)
        ratio += Ratio(len(ngrams) - len(set(ngrams)), len(ngrams))
    return ratio


def compute_self_bleu(samples: Sequence[str]) -> Ratio:
    """Return self-BLEU: n-gram similarity of each sample to the other samples of its prompt; 100 if all are equal.

    Empty samples are ignored. The ratio is empty for fewer than two samples.
    """
    texts = [sample.strip() for sample in samples if sample.strip()]
    if len(texts) < 2:
        return EMPTY_RATIO
    if len(set(texts)) == 1:
        return Ratio(100.0 * len(texts), len(texts))
    score_sentence = _load_sacrebleu_metrics().bleu.sentence_score
    total = sum(score_sentence(text, texts[:i] + texts[i + 1 :]).score for i, text in enumerate(texts))
    return Ratio(total, len(texts))


def compute_chrf(samples: Iterable[str], reference: str) -> list[float]:
    """Return the chrF of each sample against the reference, from 0 to 100."""
    score_sentence = _load_sacrebleu_metrics().chrf.sentence_score
    return [score_sentence(sample.strip(), [reference.strip()]).score for sample in samples]


def compute_copied_ngrams(summary: str, document: str, n: int) -> Ratio:
    """Return the number of n-grams of a summary that occur in the document, over all of its n-grams."""
    ngrams = extract_ngrams(split_words(summary), n)
    document_ngrams = set(extract_ngrams(split_words(document), n))
    return Ratio(sum(ngram in document_ngrams for ngram in ngrams), len(ngrams))


def check_sacrebleu_installed() -> None:
    """Raise `MissingExtraError` if sacrebleu is missing, before any text is generated."""
    _load_sacrebleu_metrics()


@dataclass(frozen=True)
class _SacrebleuMetrics:
    bleu: Any
    chrf: Any


@lru_cache(maxsize=1)
def _load_sacrebleu_metrics() -> _SacrebleuMetrics:
    """Return BLEU and chrF of sacrebleu; raise MissingExtraError if it is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise MissingExtraError("sacrebleu", "pretrained", "self-BLEU and chrF") from None
    # Sentences shorter than four words are scored by the n-grams they have.
    return _SacrebleuMetrics(BLEU(effective_order=True), CHRF())


def get_sacrebleu_signatures() -> dict[str, str]:
    """Return sacrebleu's signatures of the n-gram metrics. Scores with different signatures are not comparable."""
    signatures = {}
    for name, scorer in (("self-BLEU", _load_sacrebleu_metrics().bleu), ("chrF", _load_sacrebleu_metrics().chrf)):
        scorer.sentence_score("a", ["a"])  # a signature is available only after scoring
        fields = str(scorer.get_signature()).split("|")
        signatures[name] = "|".join(field for field in fields if not field.startswith("nrefs:"))
    return signatures
