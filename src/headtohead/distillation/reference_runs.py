"""Evaluate the two systems that no trial trains: the teacher and the student before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headtohead.atomic_io import write_text
from headtohead.config import experiment
from headtohead.config.tasks import Target
from headtohead.distillation import summarization
from headtohead.distillation.evaluation import REFERENCE_FOLDER, TEACHER, UNTRAINED_STUDENT
from headtohead.distillation.teacher import RunTrial, build_teacher_strategy, open_teacher
from headtohead.distillation.teacher_texts import TextGenerators, build_summary_prompts, generate_texts
from headtohead.experiment.schemas import ReferenceDocument, ReferenceModel, SummarizationTeacherFile
from headtohead.model_factory import build_model
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.pretrained.loading import LoadedPretrained
from headtohead.progress import ProgressCallback, ProgressUpdate, ignore_progress
from headtohead.saved_models.open_model import FingerprintedModel, compute_weights_digest
from headtohead.text_metrics import rouge


def evaluate_references(
    trial: experiment.Trial,
    dataset: Any,
    folder: Path,
    run_trial: RunTrial,
    on_progress: ProgressCallback = ignore_progress,
    generators: TextGenerators | None = None,
) -> SummarizationTeacherFile:
    """Generate and score summaries of the held-out documents with the teacher and the untrained student.

    Writes one JSONL file per system under `folder` and returns the sizes, timings and documents for teacher.json.

    Args:
        run_trial: Trains a teacher that is built from parts. generators: Processes that generate teacher texts in
        parallel.
    """
    assert trial.teacher is not None
    rouge.check_rouge_installed()
    student = build_model(trial.model, 0, None).eval()
    assert isinstance(student, StudentModel)
    untrained_student = LoadedPretrained(
        student, dataset.tokenizer, Target.NEXT_TOKEN, f"{student.name}, before training", Path()
    )
    systems = {
        TEACHER: open_teacher(trial, dataset, run_trial, on_progress),
        UNTRAINED_STUDENT: FingerprintedModel(
            untrained_student, student, dataset.tokenizer, untrained_student.name, compute_weights_digest(student)
        ),
    }
    documents = dataset.documents.splits["test"]
    strategy, max_new_tokens = build_teacher_strategy(trial.teacher), trial.teacher.max_new_tokens
    references: dict[str, ReferenceModel] = {}
    (folder / REFERENCE_FOLDER).mkdir(exist_ok=True)
    for name, system in systems.items():
        prompts = build_summary_prompts(trial.data, dataset, system.tokenizer, "test")
        progress_label = (
            "the teacher writes about held-out documents" if name == TEACHER else "the student before training writes"
        )
        batch_size, system_generators = (
            (None, generators) if name == TEACHER else (summarization.GENERATION_BATCH_SIZE, None)
        )
        text_lines = generate_texts(
            system,
            prompts,
            strategy,
            max_new_tokens,
            trial.teacher.seed,
            on_progress,
            progress_label,
            batch_size,
            system_generators,
        )
        summary_lines = [
            summarization.score_summary(document, line.text, line.stop_reason)
            for document, line in zip(documents, text_lines, strict=True)
        ]
        content = "".join(json.dumps(line.to_json()) + "\n" for line in summary_lines)
        write_text(folder / REFERENCE_FOLDER / f"{name}.jsonl", content)
        on_progress(ProgressUpdate(f"the time that the {name} takes is measured", 0, summarization.NUM_TIMED_DOCUMENTS))
        seconds = summarization.measure_seconds_per_summary(
            system.model, system.tokenizer, prompts, strategy, max_new_tokens
        )
        parameters = sum(parameter.numel() for parameter in system.model.parameters())
        references[name] = ReferenceModel(
            name=system.name,
            digest=system.digest,
            parameters=parameters,
            weights_bytes=4 * parameters,
            seconds_per_summary=seconds,
        )
    return SummarizationTeacherFile(
        signature=rouge.format_signature(),
        documents=[
            ReferenceDocument(id=document.id, document=document.text, references=list(document.summaries))
            for document in documents
        ],
        num_truncated={name: encoded.num_pretruncated for name, encoded in dataset.encoded.items()},
        num_excluded=dict(dataset.documents.left_out),
        strategy=str(strategy),
        teacher=references[TEACHER],
        untrained=references[UNTRAINED_STUDENT],
    )
