"""Summarization in distillation trials: build prompts, generate summaries and score them.

A line of summaries.jsonl holds one held-out document: the summary, its stop reason, ROUGE against all reference
summaries, its length in words and the number of n-grams copied from the document.
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
from headtohead.data.sft import PromptedRows, build_prompted_rows
from headtohead.data.sources.documents import Document, SummarizationCorpus, load_summarization_corpus
from headtohead.data.splits import Corpus, Split, select_evenly_spaced
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
"""summaries that a student generates per batch"""
NUM_TIMED_DOCUMENTS = 5
"""documents used to measure the latency per summary"""
SPLIT_ROLES = {"train": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class SummaryPrompt:
    """Prompt template for a summary.

    `limit` is the maximum prompt length in tokens. `use_chat_template` has no effect on tokenizers without a template.
    """

    prompt: str
    use_chat_template: bool
    limit: int

    def ids(self, tokenizer: Any, text: str) -> tuple[list[int], bool]:
        """Return the prompt ids for a document, and whether the document was truncated to fit."""
        prompt_ids = self._encode_untruncated(tokenizer, text)
        document_ids, was_truncated = tokenizer.encode(text), False
        while len(prompt_ids) > self.limit:
            document_ids = document_ids[: len(document_ids) - (len(prompt_ids) - self.limit)]
            if not document_ids:
                raise RequestError(
                    f"model.max_length: the question alone has more than the {self.limit} tokens that are left beside "
                    "a summary; increase it, or shorten the prompt"
                )
            prompt_ids, was_truncated = self._encode_untruncated(tokenizer, tokenizer.decode(document_ids)), True
        return prompt_ids, was_truncated

    def _encode_untruncated(self, tokenizer: Any, text: str) -> list[int]:
        """Encode the prompt with the whole document."""
        use_chat_template = (
            self.use_chat_template
            and isinstance(tokenizer, PretrainedTokenizer)
            and bool(tokenizer.backend.chat_template)
        )
        return encode_prompt(
            tokenizer, self.prompt.replace(DOCUMENT_PLACEHOLDER, text), use_chat_template=use_chat_template
        )


def build_summary_prompt(tokenizer_choice: base.ComponentConfig) -> SummaryPrompt:
    """Build the prompt from the tokenizer options, where the experiment file stores its settings."""
    options = tokenizer_choice.options
    limit = int(options["max_length"]) - int(options["max_new_tokens"])
    return SummaryPrompt(str(options["prompt"]), bool(options["use_chat_template"]), limit)


def prepare_documents(
    data: data.DataConfig,
) -> tuple[Corpus, PretrainedTokenizer, dict[str, PromptedRows], SummarizationCorpus]:
    """Load the documents and encode every split.

    Each row holds the prompt, the first reference summary and a stop token. Returns the corpus of texts, the tokenizer,
    the rows by split and the documents.
    """
    if not Path(data.source_name).exists():
        raise DataError(
            f"{data.source_name}: no such file or folder; give documents with --data: JSON lines with document and "
            "summary (or summaries), in one file or as train, dev and test in a folder"
        )
    documents = _limit_train_documents(
        load_summarization_corpus(data.source_name, row_limits=data.row_limits), data.tokenizer.options["documents"]
    )
    tokenizer = load_tokenizer(data.tokenizer.options["model"])
    summary_prompt = build_summary_prompt(data.tokenizer)
    if tokenizer.eos_id is None:
        raise DataError(f"{tokenizer.name}: its tokenizer has no stop token, so that a summary could not end")
    encoded = {name: _encode_rows(name, split, tokenizer, summary_prompt) for name, split in documents.splits.items()}
    splits = {
        name: Split(name, role, tuple(document.text for document in documents.splits[name]))  # type: ignore[arg-type]
        for name, role in SPLIT_ROLES.items()
    }
    corpus = Corpus(False, splits, (), (), documents.origin, documents.digest)
    return corpus, tokenizer, encoded, documents


def _limit_train_documents(documents: SummarizationCorpus, limit: int | None) -> SummarizationCorpus:
    """Keep at most `limit` evenly spaced training documents."""
    train = documents.splits["train"]
    kept_documents = tuple(train[index] for index in select_evenly_spaced(len(train), limit))
    return SummarizationCorpus(
        {**documents.splits, "train": kept_documents}, documents.origin, documents.digest, documents.left_out
    )


def _encode_rows(
    name: str, split: Sequence[Document], tokenizer: PretrainedTokenizer, summary_prompt: SummaryPrompt
) -> PromptedRows:
    """Encode one split; raise DataError if every document had to be truncated."""
    prompts = [summary_prompt.ids(tokenizer, document.text) for document in split]
    num_truncated = sum(was_truncated for _, was_truncated in prompts)
    if num_truncated == len(split):
        raise DataError(
            f"model.max_length: {summary_prompt.limit} tokens for the question cut every one of the {num_truncated:,} documents of {name}"  # noqa: E501
            "; increase it"
        )
    rows = [
        [*prompt_ids, *tokenizer.encode(document.summaries[0]), tokenizer.eos_id or 0]
        for (prompt_ids, _), document in zip(prompts, split, strict=True)
    ]
    return build_prompted_rows(name, rows, [len(prompt_ids) for prompt_ids, _ in prompts], num_truncated=num_truncated)


def load_tokenizer(source: str) -> PretrainedTokenizer:
    """Load the tokenizer stored beside the weights or inside the GGUF file."""
    weights = locate_weights(source)
    with silence_transformers(import_transformers(weights)), use_fast_reader():
        return PretrainedTokenizer.load(weights, None)


# ---- generating and scoring


def generate_summaries(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], decoding_strategy: Strategy, max_new_tokens: int
) -> list[Any]:
    """Generate one summary per prompt, in batches; return them in prompt order."""
    with warnings.catch_warnings(action="ignore", category=ContextOverflowWarning):
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
    """Return the mean generation latency in seconds, for one document at a time on one thread."""
    num_threads_before = devices.set_num_threads(1)
    start = time.perf_counter()
    for prompt_ids in prompts[:NUM_TIMED_DOCUMENTS]:
        generate(model, [list(prompt_ids)], decoding_strategy, max_new_tokens=max_new_tokens, tokenizer=tokenizer)
    devices.set_num_threads(num_threads_before)
    return (time.perf_counter() - start) / len(prompts[:NUM_TIMED_DOCUMENTS])


def score_summary(document: Document, text: str, stop_reason: str) -> SummaryLine:
    """Return a summary with its ROUGE scores, length and copied n-grams."""
    summary = text.strip()
    copied_by_name = {
        f"copied-{n}": rouge.compute_copied_ngrams(summary, document.text, n) for n in rouge.COPIED_NGRAM_SIZES
    }
    return SummaryLine(
        id=document.id,
        text=summary,
        stop_reason=stop_reason,
        rouge=rouge.compute_rouge(summary, document.summaries),
        length=len(split_words(summary)),
        copied={name: (fraction.total, fraction.denominator) for name, fraction in copied_by_name.items()},
    )
