"""Distillation: train a student on reference texts, on a teacher's texts or on its logits."""

from __future__ import annotations

from pathlib import Path

from headtohead.config.experiment import Trial
from headtohead.config.tables.data import DataConfig
from headtohead.config.tasks import DISTIL
from headtohead.data.batches import BatchSchedule
from headtohead.data.encoding import EncodedSplit
from headtohead.data.evaluation_examples import EvaluationExamples
from headtohead.data.sft import PromptedRows, build_prompted_examples
from headtohead.distillation import summary_generation
from headtohead.distillation.student_data import build_student_data
from headtohead.distillation.summary_dataset import encode_split_prompts, load_summarization_dataset
from headtohead.distillation.teacher import RunTrial, build_teacher_strategy
from headtohead.json_files import append_jsonl
from headtohead.tasks.base import TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.language_model import LanguageModelTask
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.distillation import DistillationObjective


class DistillationTask(LanguageModelTask):
    """Predict the next token of plain text or of summaries; report perplexity and ROUGE."""

    spec = DISTIL

    def load_dataset(self, data: DataConfig) -> Dataset:
        """Load plain text, or documents with summaries if the student has a pretrained tokenizer."""
        if data.tokenizer.kind != "pretrained":
            return super().load_dataset(data)
        corpus, tokenizer, encoded, documents = load_summarization_dataset(data)
        return Dataset(corpus, tokenizer, encoded, documents=documents)

    def build_objective(self, dataset: Dataset) -> TaskObjective:
        return DistillationObjective()

    def build_training_data(
        self, trial: Trial, dataset: Dataset, run_trial: RunTrial | None = None
    ) -> tuple[BatchSchedule, TaskObjective]:
        student_data = build_student_data(trial, dataset, run_trial)
        return student_data.build_schedule(trial, dataset.tokenizer), student_data.objective

    def build_examples(self, dataset: Dataset, encoded: EncodedSplit, context: int) -> EvaluationExamples:
        if isinstance(encoded, PromptedRows):
            return build_prompted_examples(encoded, context, dataset.tokenizer.pad_id or 0)
        return super().build_examples(dataset, encoded, context)

    def write_outputs(self, trial: Trial, dataset: Dataset, model: TrialModel, folder: Path) -> dict[str, float]:
        """Write scored summaries of all test documents. Seed 0 also measures the latency per summary."""
        if dataset.documents is None or trial.teacher is None or trial.is_search:
            return {}
        model.eval().cpu()
        strategy, max_new_tokens = build_teacher_strategy(trial.teacher), trial.teacher.max_new_tokens
        prompts = encode_split_prompts(trial.data, dataset, dataset.tokenizer, "test")
        summaries = summary_generation.generate_summaries(model, dataset.tokenizer, prompts, strategy, max_new_tokens)
        path = folder / summary_generation.SUMMARIES_FILE
        path.unlink(missing_ok=True)
        for document, summary in zip(dataset.documents.splits["test"], summaries, strict=True):
            summary_line = summary_generation.build_summary_line(document, summary.text, summary.finish_reason)
            append_jsonl(path, summary_line.to_json())
        if trial.seed != 0:
            return {}
        seconds_per_summary = summary_generation.measure_seconds_per_summary(
            model, dataset.tokenizer, prompts, strategy, max_new_tokens
        )
        return {"seconds_per_summary": seconds_per_summary}
