"""Batches and evaluation examples for masked language models, after Devlin et al. 2019, arXiv:1810.04805."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from headtohead.config.data import DataConfig
from headtohead.config.tasks import Target
from headtohead.config.training import MaskingConfig, TrainingConfig
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule
from headtohead.data.encoding import EncodedSplit, TokenRows, TokenStream
from headtohead.data.examples import EvaluationExamples
from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.errors import DataError

MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
"""fractions of the predicted tokens that are replaced with the mask token and with a random token"""


class MaskedBatchSchedule(BatchSchedule):
    """Masked batches as a pure function of (seed, step): rows, masks and replacements have separate random streams."""

    def __init__(
        self,
        encoded: EncodedSplit,
        training: TrainingConfig,
        data: DataConfig,
        context: int,
        seed: int,
        tokenizer: CorpusTokenizer,
    ) -> None:
        super().__init__(encoded, Target.MASKED_TOKEN, training, data, context, seed, tokenizer)
        self.masking = training.masking or MaskingConfig()
        self.mask_id = get_mask_id(tokenizer)
        special_ids = torch.cat((self._special_ids, torch.tensor([self.mask_id])))
        vocabulary = torch.arange(tokenizer.vocab_size)
        self._content_ids = vocabulary[~torch.isin(vocabulary, special_ids)]

    def batch(self, step: int) -> Batch:
        """Return the batch for a step: input ids with masked tokens, and labels at the masked positions only."""
        rows = self.indices(step)
        if isinstance(self.encoded, TokenStream):
            tokens, attention_mask = self._windows[rows][:, : self.context].long(), None
        else:
            tokens, attention_mask = self.encoded.pad_rows(rows, self.encoded.width(rows, self.context), self.pad_id)
        if self.word_dropout:
            tokens = self._replace_with_unknown(tokens, step)
        is_chosen = self._choose_positions(tokens, attention_mask, step)
        labels = tokens.masked_fill(~is_chosen, IGNORE_INDEX)
        return Batch(self._replace_tokens(tokens, is_chosen, step), labels, attention_mask)

    def digest(self, num_steps: int) -> str:
        """Return a SHA-256 over each step's examples and the masking settings."""
        return hashlib.sha256(f"{super().digest(num_steps)} {self.masking.model_dump_json()}".encode()).hexdigest()

    def _choose_positions(
        self, tokens: Int64[Tensor, "batch length"], attention_mask: Bool[Tensor, "batch length"] | None, step: int
    ) -> Bool[Tensor, "batch length"]:
        """Choose the positions to predict: never padding, start or end tokens, and at least one per batch."""
        draws = torch.rand(tokens.shape, generator=self._seed_generator("masked positions", step))
        is_special = torch.isin(tokens, self._special_ids)
        draws.masked_fill_(is_special if attention_mask is None else is_special | ~attention_mask, 2.0)
        is_chosen = draws < self.masking.rate
        return is_chosen if bool(is_chosen.any()) else draws == draws.min()

    def _replace_tokens(
        self, tokens: Int64[Tensor, "batch length"], is_chosen: Bool[Tensor, "batch length"], step: int
    ) -> Int64[Tensor, "batch length"]:
        """Return the input ids: chosen positions hold the mask token, a random token or the original one."""
        if self.masking.replacement == "mask":
            return tokens.masked_fill(is_chosen, self.mask_id)
        draws = torch.rand(tokens.shape, generator=self._seed_generator("mask replacements", step))
        indices = torch.randint(
            self._content_ids.numel(), tokens.shape, generator=self._seed_generator("mask random tokens", step)
        )
        is_random = is_chosen & (draws >= MASK_FRACTION) & (draws < MASK_FRACTION + RANDOM_FRACTION)
        replaced = torch.where(is_random, self._content_ids[indices], tokens)
        return replaced.masked_fill(is_chosen & (draws < MASK_FRACTION), self.mask_id)


@dataclass(frozen=True)
class MaskedEvaluationExamples(EvaluationExamples):
    """Unmasked examples whose labels are their own tokens; the objective masks each of them once."""

    special_ids: tuple[int, ...] = ()
    """the padding, start and end tokens, which are never predicted"""

    def _rows(self, rows: TokenRows, batch_size: int) -> Iterator[Batch]:
        """Yield batches of padded rows. Every token except padding and special tokens is a label."""
        special_ids = torch.tensor(self.special_ids, dtype=torch.int64)
        for indices in self._iter_row_indices(batch_size):
            tokens, attention_mask = rows.pad_rows(indices, rows.width(indices, self.context), self.pad_id)
            labels = tokens.masked_fill(torch.isin(tokens, special_ids) | ~attention_mask, IGNORE_INDEX)
            yield Batch(tokens, labels, attention_mask, indices)


def build_masked_examples(encoded: EncodedSplit, context: int, tokenizer: CorpusTokenizer) -> MaskedEvaluationExamples:
    """Return a split's evaluation examples: its rows, or consecutive blocks of `context` tokens from a stream."""
    rows = encoded if isinstance(encoded, TokenRows) else _split_into_blocks(encoded, context)
    num_tokens = rows.lengths.clamp(max=context)
    if isinstance(encoded, TokenRows) and tokenizer.bos_id is not None and tokenizer.eos_id is not None:
        num_tokens = num_tokens - 1 - (rows.lengths <= context).long()
    special_ids = tuple(i for i in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) if i is not None)
    return MaskedEvaluationExamples(
        rows, Target.MASKED_TOKEN, context, tokenizer.pad_id or 0, num_tokens, special_ids=special_ids
    )


def _split_into_blocks(stream: TokenStream, context: int) -> TokenRows:
    """Return consecutive blocks as rows. A block belongs to the document at its midpoint, which holds most of its
    tokens.
    """
    offsets = torch.cat((torch.arange(0, len(stream), context), torch.tensor([len(stream)])))
    documents = stream.find_documents((offsets[1:] + offsets[:-1]) // 2)
    return TokenRows(stream.name, stream.tokens, offsets, documents=documents)


def get_mask_id(tokenizer: CorpusTokenizer) -> int:
    """Return the mask token's id; raise an error if the vocabulary has none."""
    if tokenizer.mask_id is None:
        raise DataError(f"masked language modelling needs a mask token, and the tokenizer ({tokenizer.kind}) has none")
    return tokenizer.mask_id
