"""How near a summary is to those that people wrote, how long it is, and how much of it is copied from the document.

ROUGE (Lin 2004, W04-1013) is the F-measure of the package rouge-score: shared words (rouge-1), shared pairs of words
(rouge-2), the longest common subsequence of the whole text (rouge-l), and the union of those of its sentences
(rouge-lsum). rouge-score expects a sentence a line for the last one, so sentences are split here, by a rule that needs
no download. Everything that a figure depends on stands in `signature`: two figures with different signatures are not
comparable.

Where a document has several references, each measure takes the reference that it finds nearest (`best`), as
rouge-score's own score_multi does and as is common for SciTLDR; `mean` averages over them, as some do for DialogSum.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, Literal

from headtohead.errors import MissingExtraError, RequestError
from headtohead.text_metrics.diversity import EMPTY_RATIO, Ratio, extract_ngrams, split_words

ReferenceAggregation = Literal["best", "mean"]
ROUGE_TYPES = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL", "rouge-lsum": "rougeLsum"}
"""our names, and rouge-score's"""
SENTENCE_SPLITTER_VERSION = "h2h-1"
"""the rule below; a change of it is another number"""
COPIED_NGRAM_SIZES = (2, 4)
"""lengths of the n-grams that are looked for in the document"""

# A sentence ends at . ! or ?, with what closes after it, before white space and something that can begin one.
_SENTENCE_END_PATTERN = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[#]*[A-Z0-9#])")
_ABBREVIATION_PATTERN = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|al|No|Fig|Eq)|\b[A-Z])\.$")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text. A line end always ends one; an abbreviation or an initial does not."""
    found: list[str] = []
    for line in text.splitlines():
        begun = ""
        start = 0
        for end in [*_SENTENCE_END_PATTERN.finditer(line), None]:
            piece = line[start : end.end() if end else len(line)]
            start = end.end() if end else start
            begun += piece
            if end is None or not _ABBREVIATION_PATTERN.search(begun.rstrip()):
                found += [begun.strip()] if begun.strip() else []
                begun = ""
    return found


def compute_rouge(
    summary: str,
    references: Sequence[str],
    *,
    use_stemmer: bool = True,
    reference_aggregation: ReferenceAggregation = "best",
) -> dict[str, float]:
    """The F-measures of a summary, from 0 to 1, by our names."""
    if not references:
        raise RequestError("a summary is scored against at least one reference, and there is none")
    scorer = _load_rouge_scorer(use_stemmer)
    said = "\n".join(split_sentences(summary))
    scores = [scorer.score("\n".join(split_sentences(one)), said) for one in references]
    found = {}
    for name, theirs in ROUGE_TYPES.items():
        values = [float(one[theirs].fmeasure) for one in scores]
        found[name] = max(values) if reference_aggregation == "best" else sum(values) / len(values)
    return found


def format_signature(*, use_stemmer: bool = True, reference_aggregation: ReferenceAggregation = "best") -> str:
    """How it was computed, in one line."""
    version = metadata.version("rouge-score")
    parts = (
        "f-measure",
        f"stemmer:{'porter' if use_stemmer else 'none'}",
        f"sentences:{SENTENCE_SPLITTER_VERSION}",
        f"references:{reference_aggregation}",
    )
    return "|".join([*parts, f"rouge-score:{version}"])


def compute_copied_ngrams(summary: str, document: str, n: int) -> Ratio:
    """How many n-grams of the summary stand in the document, of all that it has (See et al. 2017, arXiv:1704.04368)."""
    made = extract_ngrams(split_words(summary), n)
    if not made:
        return EMPTY_RATIO
    there = set(extract_ngrams(split_words(document), n))
    return Ratio(sum(gram in there for gram in made), len(made))


def check_rouge_installed() -> None:
    """Say at once, and not after an hour of training, that rouge-score is missing."""
    _load_rouge_scorer(True)


@lru_cache(maxsize=2)
def _load_rouge_scorer(use_stemmer: bool) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtraError("rouge-score", "pretrained", "ROUGE") from None
    return RougeScorer(list(ROUGE_TYPES.values()), use_stemmer=use_stemmer)
