"""The two contestants that no trial trains: the teacher, and the student before training, on the held-out documents."""

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
from headtohead.experiment.open_model import FingerprintedModel, compute_weights_digest
from headtohead.experiment.schemas import ReferenceDocument, ReferenceModel, SummarizationTeacherFile
from headtohead.model_factory import build_model
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.pretrained.loading import LoadedPretrained
from headtohead.progress import ProgressCallback, ProgressUpdate, ignore_progress
from headtohead.text_metrics import rouge


def evaluate_references(
    trial: experiment.Trial,
    dataset: Any,
    folder: Path,
    run_trial: RunTrial,
    on_progress: ProgressCallback = ignore_progress,
    generators: TextGenerators | None = None,
) -> SummarizationTeacherFile:
    """What the teacher, and the student before any training, write about the held-out documents; sizes and times."""
    assert trial.teacher is not None
    rouge.check_rouge_installed()
    student = build_model(trial.model, 0, None).eval()
    assert isinstance(student, StudentModel)
    before = LoadedPretrained(student, dataset.tokenizer, Target.NEXT_TOKEN, f"{student.name}, before training", Path())
    writers = {
        TEACHER: open_teacher(trial, dataset, run_trial, on_progress),
        UNTRAINED_STUDENT: FingerprintedModel(
            before, student, dataset.tokenizer, before.name, compute_weights_digest(student)
        ),
    }
    documents = dataset.documents.splits["test"]
    how, longest = build_teacher_strategy(trial.teacher), trial.teacher.max_new_tokens
    references: dict[str, ReferenceModel] = {}
    (folder / REFERENCE_FOLDER).mkdir(exist_ok=True)
    for name, writer in writers.items():
        prompts = build_summary_prompts(trial.data, dataset, writer.tokenizer, "test")
        what = (
            "the teacher writes about held-out documents" if name == TEACHER else "the student before training writes"
        )
        size, hands = (None, generators) if name == TEACHER else (summarization.GENERATION_BATCH_SIZE, None)
        lines = generate_texts(writer, prompts, how, longest, trial.teacher.seed, on_progress, what, size, hands)
        scored = [
            summarization.score_summary(one, line.text, line.stop_reason)
            for one, line in zip(documents, lines, strict=True)
        ]
        content = "".join(json.dumps(line.to_json()) + "\n" for line in scored)
        write_text(folder / REFERENCE_FOLDER / f"{name}.jsonl", content)
        on_progress(ProgressUpdate(f"the time that the {name} takes is measured", 0, summarization.NUM_TIMED_DOCUMENTS))
        seconds = summarization.measure_seconds_per_summary(writer.model, writer.tokenizer, prompts, how, longest)
        parameters = sum(one.numel() for one in writer.model.parameters())
        references[name] = ReferenceModel(
            name=writer.name,
            digest=writer.digest,
            parameters=parameters,
            weights_bytes=4 * parameters,
            seconds_per_summary=seconds,
        )
    return SummarizationTeacherFile(
        signature=rouge.format_signature(),
        documents=[
            ReferenceDocument(id=one.id, document=one.text, references=list(one.summaries)) for one in documents
        ],
        num_truncated={name: encoded.num_pretruncated for name, encoded in dataset.encoded.items()},
        num_excluded=dict(dataset.documents.left_out),
        strategy=str(how),
        teacher=references[TEACHER],
        before=references[UNTRAINED_STUDENT],
    )
