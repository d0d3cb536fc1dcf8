"""The two contestants that no trial trains: the teacher, and the student before training, on the held-out documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headtohead.atomic_io import write_text
from headtohead.config import experiment
from headtohead.decoding_comparison.request import Writer, digest
from headtohead.distillation import summarization, teacher
from headtohead.distillation.evaluation import BEFORE, FOLDER, TEACHER
from headtohead.nn.init import create
from headtohead.pretrained.layer_dropping import Learner
from headtohead.pretrained.loading import Loaded
from headtohead.progress import Pace, Tell
from headtohead.text_metrics import rouge


def contest(
    trial: experiment.Trial,
    prepared: Any,
    folder: Path,
    tell: Tell = teacher.silent,
    helpers: teacher.Helpers | None = None,
) -> dict[str, Any]:
    """What the teacher, and the student before any training, write about the held-out documents; sizes and times."""
    assert trial.teacher is not None
    rouge.check_scorer()
    student = create(trial.model, 0, None).eval()
    assert isinstance(student, Learner)
    before = Loaded(student, prepared.tokenizer, "language-model", f"{student.name}, before training", Path())
    writers = {
        TEACHER: teacher.teacher_of(trial, prepared, tell),
        BEFORE: Writer(before, student, prepared.tokenizer, before.name, digest(student)),
    }
    documents = prepared.documents.splits["test"]
    how, longest = teacher.chosen_strategy(trial.teacher), trial.teacher.max_new_tokens
    row: dict[str, Any] = {
        "signature": rouge.signature(),
        "documents": [{"id": one.id, "document": one.text, "people": list(one.summaries)} for one in documents],
        "cut": {name: encoded.cut_before for name, encoded in prepared.encoded.items()},
        "left_out": dict(prepared.documents.left_out),
        "strategy": str(how),
    }
    (folder / FOLDER).mkdir(exist_ok=True)
    for name, writer in writers.items():
        prompts = teacher.questions(trial.data, prepared, writer.tokenizer, "test")
        what = (
            "the teacher writes about held-out documents" if name == TEACHER else "the student before training writes"
        )
        size, hands = (None, helpers) if name == TEACHER else (summarization.SIDE_BY_SIDE, None)
        lines = teacher.write(writer, prompts, how, longest, trial.teacher.seed, tell, what, size, hands)
        scored = [
            summarization.line_of(one, line["text"], line["ended"]) for one, line in zip(documents, lines, strict=True)
        ]
        content = "".join(json.dumps(line) + "\n" for line in scored)
        write_text(folder / FOLDER / f"{name}.jsonl", content)
        tell(Pace(f"the time that the {name} takes is measured", 0, summarization.TIMED))
        seconds = summarization.seconds_each(writer.model, writer.tokenizer, prompts, how, longest)
        parameters = sum(one.numel() for one in writer.model.parameters())
        row[name] = {
            "name": writer.name,
            "digest": writer.digest,
            "parameters": parameters,
            "weights_bytes": 4 * parameters,
            "seconds_per_summary": seconds,
        }
    return row
