"""The work that a trial does after training, expressed as a number of scored rows, to estimate its duration."""

from __future__ import annotations

from headtohead.config.experiment import Trial
from headtohead.config.model import TransformerConfig
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task

SCORING_AUDIT_ROWS, MODEL_AUDIT_ROWS, HEAD_MEASURE_ROWS = 500, 600, 500
"""rows whose scoring takes about as long as the analysis; measured on recipes window, speeches-classifier and sst2"""
GENERATED_TOKENS_PER_ROW = 8
"""summary tokens that take as long to generate as scoring one row"""


def count_rows_after_training(trial: Trial, dataset: Dataset) -> int:
    """Return the work after training (evaluation, audits, analyses) as an equivalent number of scored rows."""
    task = get_task(trial.task)
    if trial.is_search:
        return 0
    num_test_rows = {
        split.name: task.build_split_examples(trial, dataset, split.name).count
        for split in dataset.corpus.get_test_splits()
    }
    num_rows = sum(count for name, count in num_test_rows.items() if name not in trial.data.monitor)
    num_rows += len(trial.probe.contexts) * sum(num_test_rows.values())
    num_rows += SCORING_AUDIT_ROWS + (MODEL_AUDIT_ROWS if trial.seed == 0 else 0)
    num_rows += HEAD_MEASURE_ROWS if isinstance(trial.model, TransformerConfig) else 0
    if dataset.documents is not None and trial.teacher is not None:
        num_summaries = len(dataset.documents.splits["test"])
        num_rows += num_summaries * trial.teacher.max_new_tokens // GENERATED_TOKENS_PER_ROW
    return num_rows
