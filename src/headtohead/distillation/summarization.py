"""Documents and their summaries in a trial: how a model is asked, what it writes, and how near that is to people's.

A line of summaries.jsonl is one held-out document: what was written, how it ended, ROUGE against all of people's
summaries, its length in words, and how many of its n-grams stand in the document.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.config import base, data
from headtohead.config.distillation import DOCUMENT
from headtohead.data.sft import Prompted, prompted, spread
from headtohead.data.sources.documents import Document, Documents, load_documents
from headtohead.data.splits import Corpus, Split
from headtohead.errors import CorpusError, RequestError
from headtohead.generation.detokenizer import prompt_ids
from headtohead.generation.generate import SlidingWarning, generate
from headtohead.generation.strategies import Strategy
from headtohead.pretrained.gguf import quick_reading
from headtohead.pretrained.loading import library, quiet
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import find
from headtohead.text_metrics import rouge
from headtohead.text_metrics.diversity import words
from headtohead.training import devices

FILE = "summaries.jsonl"
SIDE_BY_SIDE = 16
"""summaries that a student writes at once"""
TIMED = 5
"""documents that the time of a summary is measured on, one at a time with one thread"""
ROLES = {"train": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class Asking:
    """How a model is asked for a summary, and how long the question may be."""

    prompt: str
    chat: bool
    limit: int

    def ids(self, tokenizer: Any, text: str) -> tuple[list[int], bool]:
        """The question as tokens, and whether the document had to lose its end to fit."""
        ids = self._whole(tokenizer, text)
        pieces, cut = tokenizer.encode(text), False
        while len(ids) > self.limit:
            pieces = pieces[: len(pieces) - (len(ids) - self.limit)]
            if not pieces:
                raise RequestError(
                    f"model.max_length: the question alone has more than the {self.limit} tokens that are left beside "
                    "a summary; take a larger one, or a shorter prompt"
                )
            ids, cut = self._whole(tokenizer, tokenizer.decode(pieces)), True
        return ids, cut

    def _whole(self, tokenizer: Any, text: str) -> list[int]:
        in_turns = self.chat and isinstance(tokenizer, PretrainedTokenizer) and bool(tokenizer.backend.chat_template)
        return prompt_ids(tokenizer, self.prompt.replace(DOCUMENT, text), chat=in_turns)


def asking_of(tokens: base.Choice) -> Asking:
    """From the settings of the data's tokens, where the spec has put it."""
    options = tokens.options
    limit = int(options["max_length"]) - int(options["max_new_tokens"])
    return Asking(str(options["prompt"]), bool(options["chat"]), limit)


def prepare(data: data.Data) -> tuple[Corpus, PretrainedTokenizer, dict[str, Prompted], Documents]:
    """The documents, and every split as rows: the question, then the first of people's summaries and a stop."""
    if not Path(data.source).exists():
        raise CorpusError(
            f"{data.source}: no such file or folder; give documents with --data: JSON lines with document and summary "
            "(or summaries), in one file or as train, dev and test in a folder"
        )
    documents = _limited(load_documents(data.source, test_rows=data.test_rows), data.tokens.options["documents"])
    tokenizer = read_tokenizer(data.tokens.options["model"])
    asking = asking_of(data.tokens)
    if tokenizer.stop_id is None:
        raise CorpusError(f"{tokenizer.name}: its tokenizer has no stop token, so that a summary could not end")
    encoded = {name: _rows(name, split, tokenizer, asking) for name, split in documents.splits.items()}
    splits = {
        name: Split(name, role, tuple(document.text for document in documents.splits[name]))  # type: ignore[arg-type]
        for name, role in ROLES.items()
    }
    texts = Corpus("language-model", splits, (), (), documents.origin, documents.digest)
    return texts, tokenizer, encoded, documents


def _limited(documents: Documents, limit: int | None) -> Documents:
    train = documents.splits["train"]
    kept = tuple(train[i] for i in spread(len(train), limit))
    return Documents({**documents.splits, "train": kept}, documents.origin, documents.digest, documents.left_out)


def _rows(name: str, split: Sequence[Document], tokenizer: PretrainedTokenizer, asking: Asking) -> Prompted:
    asked = [asking.ids(tokenizer, document.text) for document in split]
    cut = sum(was_cut for _, was_cut in asked)
    if cut == len(split):
        raise CorpusError(
            f"model.max_length: {asking.limit} tokens for the question cut every one of the {cut:,} documents of {name}"
            "; take a larger one"
        )
    rows = [
        [*ids, *tokenizer.encode(document.summaries[0]), tokenizer.stop_id or 0]
        for (ids, _), document in zip(asked, split, strict=True)
    ]
    return prompted(name, rows, [len(ids) for ids, _ in asked], cut=cut)


def read_tokenizer(where: str) -> PretrainedTokenizer:
    """The tokenizer beside the weights, or inside the GGUF file."""
    weights = find(where)
    with quiet(library(weights)), quick_reading():
        return PretrainedTokenizer.load(weights, None)


# ---- writing and scoring


def write(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], how: Strategy, longest: int) -> list[Any]:
    """A summary of each document, several at a time, in the order of the documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlidingWarning)
        return generate(
            model, [list(ids) for ids in prompts], how, max_new_tokens=longest, tokenizer=tokenizer, batch=SIDE_BY_SIDE
        )


def seconds_each(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], how: Strategy, longest: int) -> float:
    """Seconds for a summary, one at a time with one thread: what a reader would wait for."""
    before = devices.threads(1)
    began = time.perf_counter()
    for ids in prompts[:TIMED]:
        generate(model, [list(ids)], how, max_new_tokens=longest, tokenizer=tokenizer)
    devices.threads(before)
    return (time.perf_counter() - began) / len(prompts[:TIMED])


def line_of(document: Document, text: str, ended: str) -> dict[str, Any]:
    """A document with what was written about it, measured."""
    said = text.strip()
    copying = {f"copied-{n}": rouge.copied(said, document.text, n) for n in rouge.COPIED}
    return {
        "id": document.id,
        "text": said,
        "ended": ended,
        **rouge.rouge(said, document.summaries),
        "length": len(words(said)),
        **{name: [tally.total, tally.of] for name, tally in copying.items()},
    }
