"""Batches and evaluation examples for masked language models, after Devlin et al. 2019, arXiv:1810.04805."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.training import MaskingConfig, TrainingConfig
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream
from headtohead.data.evaluation_examples import EvaluationExamples
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import DataError

MASK_FRACTION = 0.8
"""fraction of the predicted tokens that are replaced with the mask token"""
RANDOM_FRACTION = 0.1
"""fraction of the predicted tokens that are replaced with a random token"""


class MaskedBatchSchedule(BatchSchedule):
    """Masked batches as a pure function of (seed, step). Rows, masks and replacements use separate random streams."""

    def __init__(
        self,
        encoded: EncodedSplit,
        training: TrainingConfig,
        data: DataConfig,
        context: int,
        seed: int,
        tokenizer: CorpusTokenizer,
    ) -> None:
        """Create the batches of masked tokens of a training split, for one seed."""
        super().__init__(encoded, Target.MASKED_TOKEN, training, data, context, seed, tokenizer)
        self.masking = training.masking or MaskingConfig()
        self.mask_id = get_mask_id(tokenizer)
        special_ids = torch.cat((self._special_ids, torch.tensor([self.mask_id])))
        vocabulary_ids = torch.arange(tokenizer.vocab_size)
        self._content_ids = vocabulary_ids[~torch.isin(vocabulary_ids, special_ids)]

    def get_batch(self, step: int) -> Batch:
        """Return the batch of a step: input ids with masked tokens, and labels at the masked positions only."""
        token_ids, attention_mask = self.get_token_ids(step)
        if self.word_dropout:
            token_ids = self._replace_with_unknown(token_ids, step)
        is_predicted = self._sample_predicted_positions(token_ids, attention_mask, step)
        labels = token_ids.masked_fill(~is_predicted, IGNORE_INDEX)
        return Batch(self._mask_tokens(token_ids, is_predicted, step), labels, attention_mask)

    def compute_digest(self, num_steps: int) -> str:
        """Return a SHA-256 of the examples in the first `num_steps` steps and of the masking settings."""
        settings_text = f"{super().compute_digest(num_steps)} {self.masking.model_dump_json()}"
        return hashlib.sha256(settings_text.encode()).hexdigest()

    def _sample_predicted_positions(
        self, token_ids: Int64[Tensor, "batch length"], attention_mask: Bool[Tensor, "batch length"] | None, step: int
    ) -> Bool[Tensor, "batch length"]:
        """Return which tokens are predicted: at least one per batch, and never padding, start or end tokens."""
        draws = torch.rand(token_ids.shape, generator=self._seed_generator("masked positions", step))
        is_special = torch.isin(token_ids, self._special_ids)
        draws.masked_fill_(is_special if attention_mask is None else is_special | ~attention_mask, 2.0)
        is_predicted = draws < self.masking.rate
        return is_predicted if bool(is_predicted.any()) else draws == draws.min()

    def _mask_tokens(
        self, token_ids: Int64[Tensor, "batch length"], is_predicted: Bool[Tensor, "batch length"], step: int
    ) -> Int64[Tensor, "batch length"]:
        """Return the input ids, in which predicted tokens are replaced by the mask or a random token, or unchanged."""
        if self.masking.replacement == "mask":
            return token_ids.masked_fill(is_predicted, self.mask_id)
        draws = torch.rand(token_ids.shape, generator=self._seed_generator("mask replacements", step))
        random_indices = torch.randint(
            self._content_ids.numel(), token_ids.shape, generator=self._seed_generator("mask random tokens", step)
        )
        is_random = is_predicted & (draws >= MASK_FRACTION) & (draws < MASK_FRACTION + RANDOM_FRACTION)
        input_ids = torch.where(is_random, self._content_ids[random_indices], token_ids)
        return input_ids.masked_fill(is_predicted & (draws < MASK_FRACTION), self.mask_id)


@dataclass(frozen=True)
class MaskedEvaluationExamples(EvaluationExamples):
    """Unmasked examples, in which every token is also its label. The objective masks one token at a time."""

    special_ids: tuple[int, ...] = ()
    """ids of the padding, start and end tokens, which are never predicted"""
    has_bos_eos: bool = False
    """whether rows start and end with special tokens"""

    @cached_property
    def prediction_counts(self) -> Int64[Tensor, "examples"]:
        """The number of predicted tokens per example."""
        assert isinstance(self.encoded, TokenRows)
        row_lengths = self.encoded.row_lengths
        num_tokens = row_lengths.clamp(max=self.context)
        return num_tokens - 1 - (row_lengths <= self.context).long() if self.has_bos_eos else num_tokens

    @property
    def passes_per_example(self) -> float:
        """The mean number of predicted tokens, because each of them takes one forward pass."""
        return float(self.prediction_counts.double().mean())

    def _iter_row_batches(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        """Yield batches of padded rows. Every token except padding and special tokens is a label."""
        special_ids = torch.tensor(self.special_ids, dtype=torch.int64)
        for indices in self._iter_row_indices(batch_size):
            width = rows.compute_batch_width(indices, self.context)
            token_ids, attention_mask = rows.pad_rows(indices, width, self.pad_id)
            labels = token_ids.masked_fill(torch.isin(token_ids, special_ids) | ~attention_mask, IGNORE_INDEX)
            yield Batch(token_ids, labels, attention_mask, indices)


def build_masked_examples(encoded: EncodedSplit, context: int, tokenizer: CorpusTokenizer) -> MaskedEvaluationExamples:
    """Return a split's evaluation examples: its rows, or consecutive blocks of `context` tokens from a stream."""
    rows = encoded if isinstance(encoded, TokenRows) else _split_into_blocks(encoded, context)
    has_bos_eos = isinstance(encoded, TokenRows) and tokenizer.bos_id is not None and tokenizer.eos_id is not None
    special_ids = tuple(
        token_id for token_id in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) if token_id is not None
    )
    return MaskedEvaluationExamples(
        rows, Target.MASKED_TOKEN, context, tokenizer.pad_id or 0, special_ids=special_ids, has_bos_eos=has_bos_eos
    )


def _split_into_blocks(stream: TokenStream, context: int) -> TokenRows:
    """Split a stream into consecutive blocks, as rows. A block is assigned to the document at its midpoint."""
    block_offsets = torch.cat((torch.arange(0, len(stream), context), torch.tensor([len(stream)])))
    block_documents = stream.find_document_indices((block_offsets[1:] + block_offsets[:-1]) // 2)
    return TokenRows(stream.name, stream.token_ids, block_offsets, row_documents=block_documents)


def get_mask_id(tokenizer: CorpusTokenizer) -> int:
    """Return the id of the mask token; raise DataError if the vocabulary has none."""
    if tokenizer.mask_id is None:
        raise DataError(
            f"masked language modeling requires a mask token, but the tokenizer ({tokenizer.kind}) has none"
        )
    return tokenizer.mask_id
