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
from headtohead.config.distillation import DOCUMENT_PLACEHOLDER
from headtohead.data.sft import PromptedRows, build_prompted_rows, select_evenly_spaced
from headtohead.data.sources.documents import Document, SummarizationCorpus, load_summarization_corpus
from headtohead.data.splits import Corpus, Split
from headtohead.errors import DataError, RequestError
from headtohead.experiment.schemas import SummaryLine
from headtohead.generation.detokenizer import encode_prompt
from headtohead.generation.generate import ContextOverflowWarning, generate
from headtohead.generation.strategies import Strategy
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.loading import import_transformers, silence_transformers
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import locate_weights
from headtohead.text_metrics import rouge
from headtohead.text_metrics.diversity import split_words
from headtohead.training import devices

SUMMARIES_FILE = "summaries.jsonl"
GENERATION_BATCH_SIZE = 16
"""summaries that a student writes at once"""
NUM_TIMED_DOCUMENTS = 5
"""documents that the time of a summary is measured on, one at a time with one thread"""
SPLIT_ROLES = {"train": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class SummaryPrompt:
    """How a model is asked for a summary, and how long the question may be."""

    prompt: str
    chat: bool
    limit: int

    def ids(self, tokenizer: Any, text: str) -> tuple[list[int], bool]:
        """The question as tokens, and whether the document had to lose its end to fit."""
        ids = self._encode_untruncated(tokenizer, text)
        pieces, cut = tokenizer.encode(text), False
        while len(ids) > self.limit:
            pieces = pieces[: len(pieces) - (len(ids) - self.limit)]
            if not pieces:
                raise RequestError(
                    f"model.max_length: the question alone has more than the {self.limit} tokens that are left beside "
                    "a summary; take a larger one, or a shorter prompt"
                )
            ids, cut = self._encode_untruncated(tokenizer, tokenizer.decode(pieces)), True
        return ids, cut

    def _encode_untruncated(self, tokenizer: Any, text: str) -> list[int]:
        in_turns = self.chat and isinstance(tokenizer, PretrainedTokenizer) and bool(tokenizer.backend.chat_template)
        return encode_prompt(tokenizer, self.prompt.replace(DOCUMENT_PLACEHOLDER, text), use_chat_template=in_turns)


def build_summary_prompt(tokenizer_choice: base.ComponentConfig) -> SummaryPrompt:
    """From the settings of the data's tokens, where the spec has put it."""
    options = tokenizer_choice.options
    limit = int(options["max_length"]) - int(options["max_new_tokens"])
    return SummaryPrompt(str(options["prompt"]), bool(options["chat"]), limit)


def prepare_documents(
    data: data.DataConfig,
) -> tuple[Corpus, PretrainedTokenizer, dict[str, PromptedRows], SummarizationCorpus]:
    """The documents, and every split as rows: the question, then the first of people's summaries and a stop."""
    if not Path(data.source).exists():
        raise DataError(
            f"{data.source}: no such file or folder; give documents with --data: JSON lines with document and summary "
            "(or summaries), in one file or as train, dev and test in a folder"
        )
    documents = _limit_train_documents(
        load_summarization_corpus(data.source, max_test_rows=data.max_test_rows), data.tokenizer.options["documents"]
    )
    tokenizer = load_tokenizer(data.tokenizer.options["model"])
    asking = build_summary_prompt(data.tokenizer)
    if tokenizer.eos_id is None:
        raise DataError(f"{tokenizer.name}: its tokenizer has no stop token, so that a summary could not end")
    encoded = {name: _encode_rows(name, split, tokenizer, asking) for name, split in documents.splits.items()}
    splits = {
        name: Split(name, role, tuple(document.text for document in documents.splits[name]))  # type: ignore[arg-type]
        for name, role in SPLIT_ROLES.items()
    }
    texts = Corpus(False, splits, (), (), documents.origin, documents.digest)
    return texts, tokenizer, encoded, documents


def _limit_train_documents(documents: SummarizationCorpus, limit: int | None) -> SummarizationCorpus:
    train = documents.splits["train"]
    kept = tuple(train[i] for i in select_evenly_spaced(len(train), limit))
    return SummarizationCorpus(
        {**documents.splits, "train": kept}, documents.origin, documents.digest, documents.left_out
    )


def _encode_rows(
    name: str, split: Sequence[Document], tokenizer: PretrainedTokenizer, summary_prompt: SummaryPrompt
) -> PromptedRows:
    asked = [summary_prompt.ids(tokenizer, document.text) for document in split]
    cut = sum(was_cut for _, was_cut in asked)
    if cut == len(split):
        raise DataError(
            f"model.max_length: {summary_prompt.limit} tokens for the question cut every one of the {cut:,} documents of {name}"  # noqa: E501
            "; take a larger one"
        )
    rows = [
        [*ids, *tokenizer.encode(document.summaries[0]), tokenizer.eos_id or 0]
        for (ids, _), document in zip(asked, split, strict=True)
    ]
    return build_prompted_rows(name, rows, [len(ids) for ids, _ in asked], num_truncated=cut)


def load_tokenizer(source: str) -> PretrainedTokenizer:
    """The tokenizer beside the weights, or inside the GGUF file."""
    weights = locate_weights(source)
    with silence_transformers(import_transformers(weights)), use_fast_reader():
        return PretrainedTokenizer.load(weights, None)


# ---- writing and scoring


def generate_summaries(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], decoding_strategy: Strategy, max_new_tokens: int
) -> list[Any]:
    """A summary of each document, several at a time, in the order of the documents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextOverflowWarning)
        return generate(
            model,
            [list(ids) for ids in prompts],
            decoding_strategy,
            max_new_tokens=max_new_tokens,
            tokenizer=tokenizer,
            batch_size=GENERATION_BATCH_SIZE,
        )


def measure_seconds_per_summary(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], decoding_strategy: Strategy, max_new_tokens: int
) -> float:
    """Seconds for a summary, one at a time with one thread: what a reader would wait for."""
    before = devices.set_num_threads(1)
    began = time.perf_counter()
    for ids in prompts[:NUM_TIMED_DOCUMENTS]:
        generate(model, [list(ids)], decoding_strategy, max_new_tokens=max_new_tokens, tokenizer=tokenizer)
    devices.set_num_threads(before)
    return (time.perf_counter() - began) / len(prompts[:NUM_TIMED_DOCUMENTS])


def score_summary(document: Document, text: str, stop_reason: str) -> SummaryLine:
    """Return a summary with its ROUGE scores, length and copied n-grams."""
    said = text.strip()
    copying = {f"copied-{n}": rouge.compute_copied_ngrams(said, document.text, n) for n in rouge.COPIED_NGRAM_SIZES}
    return SummaryLine(
        id=document.id,
        text=said,
        stop_reason=stop_reason,
        rouge=rouge.compute_rouge(said, document.summaries),
        length=len(split_words(said)),
        copied={name: (tally.total, tally.denominator) for name, tally in copying.items()},
    )
