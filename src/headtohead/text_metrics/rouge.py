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
from headtohead.text_metrics.diversity import NOTHING, Tally, ngrams, words

References = Literal["best", "mean"]
KINDS = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL", "rouge-lsum": "rougeLsum"}
"""our names, and rouge-score's"""
SPLITTER = "h2h-1"
"""the rule below; a change of it is another number"""
COPIED = (2, 4)
"""lengths of the n-grams that are looked for in the document"""

# A sentence ends at . ! or ?, with what closes after it, before white space and something that can begin one.
_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[#]*[A-Z0-9#])")
_NO_END = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|al|No|Fig|Eq)|\b[A-Z])\.$")


def sentences(text: str) -> list[str]:
    """The sentences of a text. A line end always ends one; an abbreviation or an initial does not."""
    found: list[str] = []
    for line in text.splitlines():
        begun = ""
        start = 0
        for end in [*_END.finditer(line), None]:
            piece = line[start : end.end() if end else len(line)]
            start = end.end() if end else start
            begun += piece
            if end is None or not _NO_END.search(begun.rstrip()):
                found += [begun.strip()] if begun.strip() else []
                begun = ""
    return found


def rouge(
    text: str, references: Sequence[str], *, stemmer: bool = True, several: References = "best"
) -> dict[str, float]:
    """The F-measures of a summary, from 0 to 1, by our names."""
    if not references:
        raise RequestError("a summary is scored against at least one reference, and there is none")
    scorer = _scorer(stemmer)
    said = "\n".join(sentences(text))
    scores = [scorer.score("\n".join(sentences(one)), said) for one in references]
    found = {}
    for name, theirs in KINDS.items():
        values = [float(one[theirs].fmeasure) for one in scores]
        found[name] = max(values) if several == "best" else sum(values) / len(values)
    return found


def signature(*, stemmer: bool = True, several: References = "best") -> str:
    """How it was computed, in one line."""
    version = metadata.version("rouge-score")
    parts = (
        "f-measure",
        f"stemmer:{'porter' if stemmer else 'none'}",
        f"sentences:{SPLITTER}",
        f"references:{several}",
    )
    return "|".join([*parts, f"rouge-score:{version}"])


def copied(text: str, document: str, n: int) -> Tally:
    """How many n-grams of the summary stand in the document, of all that it has (See et al. 2017, arXiv:1704.04368)."""
    made = ngrams(words(text), n)
    if not made:
        return NOTHING
    there = set(ngrams(words(document), n))
    return Tally(sum(gram in there for gram in made), len(made))


def check_scorer() -> None:
    """Say at once, and not after an hour of training, that rouge-score is missing."""
    _scorer(True)


@lru_cache(maxsize=2)
def _scorer(stemmer: bool) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtraError("rouge-score", "pretrained", "ROUGE") from None
    return RougeScorer(list(KINDS.values()), use_stemmer=stemmer)
