"""Masked language modeling: an encoder predicts masked tokens from both sides."""

from __future__ import annotations

from headtohead.config.base import ComponentConfig
from headtohead.config.experiment import Trial
from headtohead.config.tables.data import DataConfig
from headtohead.config.tasks import MASKED_LM
from headtohead.data import token_cache
from headtohead.data.batches import IGNORE_INDEX, Batch, BatchSchedule
from headtohead.data.encoding import EncodedSplit
from headtohead.data.evaluation_examples import EvaluationExamples
from headtohead.data.masking import MaskedBatchSchedule, build_masked_examples, get_mask_id
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.distillation.teacher import RunTrial
from headtohead.experiment.schemas import TextScore
from headtohead.saved_models import inference
from headtohead.saved_models.model_io import SavedModel
from headtohead.tasks.base import AUDIT_BATCH_SIZE, Task
from headtohead.tasks.dataset import Dataset
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.language_modeling import MaskedLanguageModelObjective

MAX_EVALUATION_EXAMPLES = 128
"""rows or blocks of each split that are scored, evenly spaced: pseudo-perplexity needs one forward pass per token"""


class MaskedLanguageModelTask(Task):
    """Predict masked tokens of a stream, sentences or labeled rows; report pseudo-perplexity."""

    spec = MASKED_LM
    label_description = f"the original token at masked positions; {IGNORE_INDEX} elsewhere"

    def load_dataset(self, data: DataConfig) -> Dataset:
        """Load the corpus with a tokenizer that has a mask token."""
        if data.tokenizer.kind != "file":
            tokenizer = ComponentConfig(kind=data.tokenizer.kind, **{**data.tokenizer.options, "add_mask": True})
            data = data.model_copy(update={"tokenizer": tokenizer})
        tokenized = token_cache.load_tokenized_corpus(data, has_labels=data.rows == "labelled")
        get_mask_id(tokenized.tokenizer)  # raises an error if there is none
        return Dataset(tokenized.corpus, tokenized.tokenizer, tokenized.encoded)

    def build_objective(self, dataset: Dataset) -> TaskObjective:
        return MaskedLanguageModelObjective(get_mask_id(_get_corpus_tokenizer(dataset)))

    def build_training_data(
        self, trial: Trial, dataset: Dataset, run_trial: RunTrial | None = None
    ) -> tuple[BatchSchedule, TaskObjective]:
        """Return batches of masked tokens, and the objective that predicts them."""
        batches = MaskedBatchSchedule(
            dataset.encoded["train"],
            trial.training,
            trial.data,
            trial.model.context,
            trial.seed,
            _get_corpus_tokenizer(dataset),
        )
        return batches, self.build_objective(dataset)

    def build_examples(self, dataset: Dataset, encoded: EncodedSplit, context: int) -> EvaluationExamples:
        return build_masked_examples(encoded, context, _get_corpus_tokenizer(dataset)).sample(MAX_EVALUATION_EXAMPLES)

    def build_split_examples(self, trial: Trial, dataset: Dataset, split: str) -> EvaluationExamples:
        return self.build_examples(dataset, dataset.encoded[split], trial.model.context)

    def build_audit_batch(self, trial: Trial, dataset: Dataset) -> Batch:
        """Return a masked batch: with tied embeddings, an unmasked token predicts itself before training."""
        return self.build_training_data(trial, dataset)[0].get_batch(0).slice_rows(0, AUDIT_BATCH_SIZE)

    def score_sentence(self, model: SavedModel, text: str) -> TextScore:
        return inference.score_text(model, text)


def _get_corpus_tokenizer(dataset: Dataset) -> CorpusTokenizer:
    """Return the tokenizer of a masked language model's dataset, which is never pretrained."""
    assert isinstance(dataset.tokenizer, CorpusTokenizer)
    return dataset.tokenizer
