"""Load documents with reference summaries, build their prompts and encode them as training sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.config import base
from headtohead.config.tables import data
from headtohead.config.tables.distillation import DOCUMENT_PLACEHOLDER
from headtohead.data.sft import PromptedRows, build_prompted_rows
from headtohead.data.sources.summarization import Document, SummarizationCorpus, load_summarization_corpus
from headtohead.data.splits import Corpus, Split, select_evenly_spaced
from headtohead.errors import DataError, RequestError
from headtohead.generation.prompt_encoding import encode_prompt
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.loading import import_transformers_for, silence_transformers
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import locate_weights

SPLIT_ROLES = {"train": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class SummaryPrompt:
    """Prompt that asks for the summary of a document."""

    template: str
    """text of the prompt with a placeholder for the document"""
    use_chat_template: bool
    """no effect on tokenizers without a chat template"""
    max_prompt_tokens: int

    def encode_document(self, tokenizer: Any, document_text: str) -> tuple[list[int], bool]:
        """Return the token ids of the prompt for a document, and whether the document was truncated to fit."""
        prompt_ids = self._encode_untruncated(tokenizer, document_text)
        document_ids, was_truncated = tokenizer.encode(document_text), False
        while len(prompt_ids) > self.max_prompt_tokens:
            document_ids = document_ids[: len(document_ids) - (len(prompt_ids) - self.max_prompt_tokens)]
            if not document_ids:
                raise RequestError(
                    f"model.max_length: the prompt without a document has more than the {self.max_prompt_tokens} "
                    "tokens that remain beside a summary; increase it, or shorten the prompt"
                )
            prompt_ids, was_truncated = self._encode_untruncated(tokenizer, tokenizer.decode(document_ids)), True
        return prompt_ids, was_truncated

    def _encode_untruncated(self, tokenizer: Any, document_text: str) -> list[int]:
        """Return the token ids of the prompt with the whole document."""
        use_chat_template = (
            self.use_chat_template
            and isinstance(tokenizer, PretrainedTokenizer)
            and bool(tokenizer.backend.chat_template)
        )
        prompt_text = self.template.replace(DOCUMENT_PLACEHOLDER, document_text)
        return encode_prompt(tokenizer, prompt_text, use_chat_template=use_chat_template)


def build_summary_prompt(tokenizer_choice: base.ComponentConfig) -> SummaryPrompt:
    """Build the prompt from the tokenizer options, where the experiment file stores its settings."""
    options = tokenizer_choice.options
    max_prompt_tokens = int(options["max_length"]) - int(options["max_new_tokens"])
    return SummaryPrompt(str(options["prompt"]), bool(options["use_chat_template"]), max_prompt_tokens)


def encode_split_prompts(data_config: data.DataConfig, dataset: Any, tokenizer: Any, split: str) -> list[list[int]]:
    """Return the token ids of the summary prompt for every document in a split, in the vocabulary of `tokenizer`."""
    summary_prompt = build_summary_prompt(data_config.tokenizer)
    return [summary_prompt.encode_document(tokenizer, document.text)[0] for document in dataset.documents.splits[split]]


def load_summarization_dataset(
    data_config: data.DataConfig,
) -> tuple[Corpus, PretrainedTokenizer, dict[str, PromptedRows], SummarizationCorpus]:
    """Load documents with summaries and encode every split.

    A training sequence is the prompt, the first reference summary and a stop token. Returns the corpus of texts, the
    tokenizer, the encoded sequences by split and the documents.
    """
    if not Path(data_config.source_name).exists():
        raise DataError(
            f"{data_config.source_name}: no such file or folder; give documents with --data: JSON lines with document "
            "and summary (or summaries), in one file or as train, dev and test in a folder"
        )
    all_documents = load_summarization_corpus(data_config.source_name, row_limits=data_config.row_limits)
    documents = _subsample_training_documents(all_documents, data_config.tokenizer.options["documents"])
    tokenizer = load_student_tokenizer(data_config.tokenizer.options["model"])
    summary_prompt = build_summary_prompt(data_config.tokenizer)
    if tokenizer.eos_id is None:
        raise DataError(f"{tokenizer.name}: its tokenizer has no stop token, so that a summary could not end")
    encoded = {
        name: _encode_summary_split(name, split, tokenizer, summary_prompt) for name, split in documents.splits.items()
    }
    splits = {
        name: Split(name, role, tuple(document.text for document in documents.splits[name]))  # type: ignore[arg-type]
        for name, role in SPLIT_ROLES.items()
    }
    corpus = Corpus(False, splits, (), (), documents.origin, documents.digest)
    return corpus, tokenizer, encoded, documents


def _subsample_training_documents(documents: SummarizationCorpus, max_documents: int | None) -> SummarizationCorpus:
    """Return the documents and summaries of the dataset with at most `max_documents` for training, evenly spaced."""
    train = documents.splits["train"]
    selected_documents = tuple(train[index] for index in select_evenly_spaced(len(train), max_documents))
    return SummarizationCorpus(
        {**documents.splits, "train": selected_documents}, documents.origin, documents.digest, documents.num_overlapping
    )


def _encode_summary_split(
    split_name: str, documents: Sequence[Document], tokenizer: PretrainedTokenizer, summary_prompt: SummaryPrompt
) -> PromptedRows:
    """Encode the prompts and reference summaries of a split; raise DataError if every document had to be truncated."""
    prompts = [summary_prompt.encode_document(tokenizer, document.text) for document in documents]
    num_truncated = sum(was_truncated for _, was_truncated in prompts)
    if num_truncated == len(documents):
        raise DataError(
            f"model.max_length: {summary_prompt.max_prompt_tokens} tokens for the prompt truncate every one of the "
            f"{num_truncated:,} documents of {split_name}; increase it"
        )
    sequences = [
        [*prompt_ids, *tokenizer.encode(document.summaries[0]), tokenizer.eos_id or 0]
        for (prompt_ids, _), document in zip(prompts, documents, strict=True)
    ]
    prompt_lengths = [len(prompt_ids) for prompt_ids, _ in prompts]
    return build_prompted_rows(split_name, sequences, prompt_lengths, num_truncated_rows=num_truncated)


def load_student_tokenizer(model_source: str) -> PretrainedTokenizer:
    """Load the tokenizer from the folder of the student's weights or from its GGUF file."""
    weights = locate_weights(model_source)
    with silence_transformers(import_transformers_for(weights)), use_fast_reader():
        return PretrainedTokenizer.load(weights, None)
