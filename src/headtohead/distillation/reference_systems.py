"""Generate and score the summaries of the two systems that no trial trains: the teacher and the untrained student."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headtohead.atomic_io import write_text
from headtohead.config import experiment
from headtohead.config.tasks import Target
from headtohead.distillation import summary_generation
from headtohead.distillation.summary_dataset import encode_split_prompts
from headtohead.distillation.system_comparison import REFERENCE_FOLDER, TEACHER, UNTRAINED_STUDENT
from headtohead.distillation.teacher import RunTrial, build_teacher_strategy, open_teacher
from headtohead.distillation.teacher_texts import TeacherTextGenerators, generate_cached_texts
from headtohead.experiment.schemas import ReferenceDocument, ReferenceModel, SummarizationTeacherFile
from headtohead.model_factory import build_model
from headtohead.pretrained.loading import LoadedPretrained
from headtohead.pretrained.student_model import StudentModel
from headtohead.progress import ProgressCallback, ProgressUpdate, ignore_progress
from headtohead.saved_models.fingerprint import FingerprintedModel, compute_weights_digest
from headtohead.text_metrics import rouge


def evaluate_reference_systems(
    trial: experiment.Trial,
    dataset: Any,
    folder: Path,
    run_trial: RunTrial,
    on_progress: ProgressCallback = ignore_progress,
    generators: TeacherTextGenerators | None = None,
) -> SummarizationTeacherFile:
    """Generate and score summaries of the held-out documents with the teacher and the untrained student.

    Writes one JSONL file per system under `folder` and returns the sizes, timings and documents for teacher.json.

    Args:
        trial: A trial of the experiment; its teacher and initial student are evaluated.
        dataset: The dataset of the trial.
        folder: The experiment folder.
        run_trial: Trains a teacher that is built from parts.
        on_progress: Called with the progress of text generation.
        generators: Processes that generate teacher texts in parallel.
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
    reference_models: dict[str, ReferenceModel] = {}
    (folder / REFERENCE_FOLDER).mkdir(exist_ok=True)
    for name, system in systems.items():
        prompts = encode_split_prompts(trial.data, dataset, system.tokenizer, "test")
        progress_label = (
            "generating the teacher's test summaries"
            if name == TEACHER
            else "generating the untrained student's test summaries"
        )
        text_lines = generate_cached_texts(
            system,
            prompts,
            strategy,
            max_new_tokens,
            trial.teacher.seed,
            on_progress,
            progress_label,
            batch_size=None if name == TEACHER else summary_generation.GENERATION_BATCH_SIZE,
            generators=generators if name == TEACHER else None,
        )
        summary_lines = [
            summary_generation.build_summary_line(document, line.text, line.stop_reason)
            for document, line in zip(documents, text_lines, strict=True)
        ]
        jsonl_text = "".join(json.dumps(line.to_json()) + "\n" for line in summary_lines)
        write_text(folder / REFERENCE_FOLDER / f"{name}.jsonl", jsonl_text)
        timing_label = f"timing summaries of the {name if name == TEACHER else 'untrained student'}"
        on_progress(ProgressUpdate(timing_label, 0, summary_generation.NUM_TIMED_DOCUMENTS))
        seconds_per_summary = summary_generation.measure_seconds_per_summary(
            system.model, system.tokenizer, prompts, strategy, max_new_tokens
        )
        num_parameters = sum(parameter.numel() for parameter in system.model.parameters())
        reference_models[name] = ReferenceModel(
            name=system.name,
            digest=system.digest,
            parameters=num_parameters,
            weights_bytes=4 * num_parameters,
            seconds_per_summary=seconds_per_summary,
        )
    return SummarizationTeacherFile(
        signature=rouge.format_signature(),
        documents=[
            ReferenceDocument(id=document.id, document=document.text, references=list(document.summaries))
            for document in documents
        ],
        num_truncated={name: encoded.num_pretruncated for name, encoded in dataset.encoded.items()},
        num_excluded=dict(dataset.documents.num_overlapping),
        strategy=str(strategy),
        teacher=reference_models[TEACHER],
        untrained=reference_models[UNTRAINED_STUDENT],
    )
