"""Count the work of a trial after training in forward passes over a sequence, to estimate the trial's duration."""

from __future__ import annotations

from headtohead.attention_analysis.trial_metrics import count_head_metric_passes
from headtohead.audit.audited_model import AUDIT_BATCH_SIZE, MAX_PARAMETER_TOKENS, MIN_INPUT_LENGTH_LIMIT
from headtohead.audit.rescoring import MAX_MASKED_LABELS, NUM_SAMPLED_ROWS
from headtohead.config.experiment import Trial
from headtohead.config.tasks import Target
from headtohead.nn.transformer import Transformer
from headtohead.tasks.base import TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task
from headtohead.training.loop import Trainer

SCORING_AUDIT_PASSES = 7.3
"""passes over each sampled example: reference, other batches, four replaced futures, and a few repeated batches"""
MODEL_AUDIT_PASSES = 160
"""passes over the rows of a probe in float64 that take about as long as the audit of a model"""
HEAD_METRIC_OVERHEAD = 2.2
"""time of the head metrics relative to their forward passes: attention maps and statistics of single heads"""
GENERATED_TOKENS_PER_PASS = 8
"""summary tokens that take as long to generate as a forward pass over a sequence of full context length"""


def count_passes_after_training(trial: Trial, dataset: Dataset, model: TrialModel, trainer: Trainer) -> float:
    """Return the forward passes, one sequence each, that scoring of complete splits, audits and analyses take."""
    task = get_task(trial.task)
    passes_by_split = {
        name: task.build_split_examples(trial, dataset, name).num_passes
        for name, split in dataset.corpus.splits.items()
        if split.role == "validation" or not trial.is_search
    }
    passes = sum(passes for name, passes in passes_by_split.items() if name not in trainer.completely_tracked_splits)
    if trial.is_search:
        return passes
    passes_by_test_split = [passes_by_split[split.name] for split in dataset.corpus.get_test_splits()]
    passes += len(trial.probe.contexts) * sum(passes_by_test_split)
    passes_per_audited_example = MAX_MASKED_LABELS if trial.spec.target is Target.MASKED_TOKEN else 1
    passes += SCORING_AUDIT_PASSES * min(NUM_SAMPLED_ROWS * passes_per_audited_example, passes_by_test_split[0])
    if trial.seed == 0:  # other seeds have the same architecture
        passes += MODEL_AUDIT_PASSES * _count_model_probe_passes(model, trial.model.context)
    if isinstance(model, Transformer):
        passes += HEAD_METRIC_OVERHEAD * count_head_metric_passes(model)
    if dataset.documents is not None and trial.teacher is not None:
        num_summaries = len(dataset.documents.splits["test"])
        passes += num_summaries * trial.teacher.max_new_tokens / GENERATED_TOKENS_PER_PASS
    return passes


def _count_model_probe_passes(model: TrialModel, context: int) -> float:
    """Return the number of sequence passes that cost as much as one pass of the audited model (`AuditedModel`)."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    probe_length = max(MAX_PARAMETER_TOKENS // (AUDIT_BATCH_SIZE * num_parameters), MIN_INPUT_LENGTH_LIMIT)
    return AUDIT_BATCH_SIZE * min(probe_length, context) / context
