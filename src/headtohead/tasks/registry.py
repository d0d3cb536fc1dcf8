"""The registry of tasks by name, and a cache of the datasets that they load."""

from __future__ import annotations

import json
from functools import lru_cache

from headtohead.config.tables.data import DataConfig
from headtohead.config.tasks import TaskName
from headtohead.tasks.base import Task
from headtohead.tasks.classification import ClassificationTask
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.distillation import DistillationTask
from headtohead.tasks.finetuning import FinetuningTask
from headtohead.tasks.language_model import LanguageModelTask
from headtohead.tasks.masked_lm import MaskedLanguageModelTask

NUM_CACHED_DATASETS = 4
TASKS: dict[str, Task] = {
    task.spec.name: task
    for task in (
        LanguageModelTask(),
        MaskedLanguageModelTask(),
        ClassificationTask(),
        FinetuningTask(),
        DistillationTask(),
    )
}


def get_task(name: TaskName) -> Task:
    """Return the task with this name."""
    return TASKS[name]


def prepare_dataset(data: DataConfig, task: TaskName) -> Dataset:
    """Return the encoded corpus that a task reads. The last four datasets stay in memory."""
    return _load_dataset_cached(data.model_dump_json(), task)


@lru_cache(maxsize=NUM_CACHED_DATASETS)
def _load_dataset_cached(data_json: str, task: TaskName) -> Dataset:
    return get_task(task).load_dataset(DataConfig.model_validate(json.loads(data_json)))
