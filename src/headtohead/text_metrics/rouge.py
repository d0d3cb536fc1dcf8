"""ROUGE scores of summaries against references.

ROUGE (Lin 2004, W04-1013) is the F-measure of the package rouge-score: unigrams (rouge-1), bigrams (rouge-2), the
longest common subsequence of the whole text (rouge-l), and the union over sentences (rouge-lsum). rouge-score expects
one sentence per line for the last one, so sentences are split here by a rule that needs no download. `format_signature`
lists all settings that affect a score: scores with different signatures are not comparable.

With several references, each metric takes the best one, as rouge-score's score_multi does and as is common for SciTLDR;
`mean` averages over them, as some do for DialogSum.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, Literal

from headtohead.errors import MissingExtraError, RequestError

ReferenceAggregation = Literal["best", "mean"]
ROUGE_TYPES = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL", "rouge-lsum": "rougeLsum"}
"""names of the metrics in results, and in the package rouge-score"""
SENTENCE_SPLITTER_VERSION = "h2h-1"
"""version of the rule that splits sentences, part of the signature; increase it when the rule changes"""

# A sentence ends at . ! or ? and closing marks, before whitespace and a character that can start a sentence.
_SENTENCE_END_PATTERN = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[#]*[A-Z0-9#])")
_ABBREVIATION_PATTERN = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|al|No|Fig|Eq)|\b[A-Z])\.$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a summary, for ROUGE. Line breaks end a sentence; abbreviations and initials do not."""
    sentences: list[str] = []
    for line in text.splitlines():
        sentence = ""
        start = 0
        for match in [*_SENTENCE_END_PATTERN.finditer(line), None]:
            end = match.end() if match else len(line)
            sentence += line[start:end]
            start = end
            if match is None or not _ABBREVIATION_PATTERN.search(sentence.rstrip()):
                sentences += [sentence.strip()] if sentence.strip() else []
                sentence = ""
    return sentences


def compute_rouge(
    summary: str,
    references: Sequence[str],
    *,
    use_stemmer: bool = True,
    reference_aggregation: ReferenceAggregation = "best",
) -> dict[str, float]:
    """Return the F-measures of a summary, from 0 to 1, by metric name.

    `reference_aggregation` selects the best reference per metric, or averages over references.
    """
    if not references:
        raise RequestError("a summary needs at least one reference to be scored")
    scorer = _load_rouge_scorer(use_stemmer)
    prediction = "\n".join(split_sentences(summary))
    scores = [scorer.score("\n".join(split_sentences(reference)), prediction) for reference in references]
    rouge_by_name = {}
    for name, rouge_type in ROUGE_TYPES.items():
        f_measures = [float(score[rouge_type].fmeasure) for score in scores]
        is_best = reference_aggregation == "best"
        rouge_by_name[name] = max(f_measures) if is_best else sum(f_measures) / len(f_measures)
    return rouge_by_name


def format_signature(*, use_stemmer: bool = True, reference_aggregation: ReferenceAggregation = "best") -> str:
    """Return the settings that ROUGE scores depend on, in one line."""
    version = metadata.version("rouge-score")
    settings = (
        "f-measure",
        f"stemmer:{'porter' if use_stemmer else 'none'}",
        f"sentences:{SENTENCE_SPLITTER_VERSION}",
        f"references:{reference_aggregation}",
    )
    return "|".join([*settings, f"rouge-score:{version}"])


def check_rouge_installed() -> None:
    """Raise `MissingExtraError` if rouge-score is missing, before training starts."""
    _load_rouge_scorer(True)


@lru_cache(maxsize=2)
def _load_rouge_scorer(use_stemmer: bool) -> Any:
    """Return the scorer of rouge-score; raise MissingExtraError if it is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtraError("rouge-score", "pretrained", "ROUGE") from None
    return RougeScorer(list(ROUGE_TYPES.values()), use_stemmer=use_stemmer)
