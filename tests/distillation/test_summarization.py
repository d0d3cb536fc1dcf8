"""Task distil on documents with summaries, with tiny models: asked, cut, taught, written, judged."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headtohead.atomic_io import read_json, read_jsonl
from headtohead.config import distillation, experiment
from headtohead.config import loading as config_loading
from headtohead.data.sources.documents import Document
from headtohead.distillation import distillation_data, evaluation, teacher_texts
from headtohead.distillation import teacher as distillation_teacher
from headtohead.distillation.evaluation import SystemOutputs
from headtohead.distillation.summarization import SummaryPrompt, score_summary
from headtohead.distillation.terminal import print_distillation
from headtohead.errors import ConfigError, DataError, RequestError
from headtohead.execution.local_worker import build_local_pool
from headtohead.execution.teacher_workers import build_teacher_workers
from headtohead.experiment import loading
from headtohead.experiment.schemas import SummaryLine
from headtohead.pretrained.layer_dropping import StudentModel
from headtohead.report import write
from headtohead.runner import run_experiment
from headtohead.saved_models.open_model import open_model
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.distillation_batches import DistillationBatch
from headtohead.trials.trial import run_trial

transformers = pytest.importorskip("transformers")
NAMES, VERBS, THINGS = ["Ann", "Bob", "Eve"], ["likes", "sells", "wants"], ["a car", "the house", "some tea"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _row(draw: random.Random, at: int, several: bool) -> dict[str, Any]:
    said = [f"{draw.choice(NAMES)} {draw.choice(VERBS)} {draw.choice(THINGS)} ." for _ in range(draw.randint(2, 5))]
    return {"document": " ".join(said) + f" {at}", "summaries": [said[0], said[-1]] if several else [said[0]]}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    draw = random.Random(0)
    folder = tmp_path / "documents"
    folder.mkdir()
    at = 0
    for name, count in (("train", 24), ("dev", 6), ("test", 8)):
        rows = [_row(draw, at + i, name == "test") for i in range(count)]
        at += count
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    known = sorted({word for part in (NAMES, VERBS, THINGS) for one in part for word in one.split()})
    words = ["<pad>", "<unk>", "<s>", "</s>", ".", ":", "Sum", *known, *map(str, range(40))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(tmp_path / "teacher")
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        max_position_embeddings=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


@pytest.fixture
def distil(documents: Path, teacher: Path) -> Any:
    def build(**changes: Any) -> experiment.Experiment:
        raw: dict[str, Any] = {
            "question": "Does a teacher help?",
            "task": "distil",
            "seeds": 2,
            "data": {"source": str(documents)},
            "teacher": {
                "model": str(teacher),
                "prompt": "Sum : {document} :",
                "documents": 16,
                "max_new_tokens": 8,
                "claims": [
                    {
                        "source": "X",
                        "statement": "it is",
                        "model": "teacher",
                        "reference": "distilled",
                        "expected_verdict": "helped",
                    }
                ],
                "published": [{"source": "X", "model": "teacher", "scores": {"rouge-1": 0.3}}],
            },
            "model": {"pretrained": str(teacher), "layer_subset": {"layers": 2}, "max_length": 48},
            "training": {"steps": 4, "batch_size": 4, "eval_every": 4},
            "variants": {
                "distilled": {"training": {"distillation": {"targets": "texts"}}},
                "logits": {"training": {"distillation": {"targets": "both", "top_k": 5, "weight": 1.0}}},
            },
        }
        for table, given in changes.items():
            raw[table] = {**raw[table], **given} if isinstance(given, dict) and table in raw else given
        return loading.build_experiment(raw)

    return build


def _prepared(experiment: experiment.Experiment, variant: str = "baseline") -> tuple[experiment.Trial, Any]:
    trial = config_loading.build_trial(experiment, variant, 0)
    return trial, prepare_dataset(trial.data, trial.task)


def test_only_the_summary_is_learned_and_scored(distil):
    trial, prepared = _prepared(distil())
    tokenizer = prepared.tokenizer
    lesson = distillation_data.build_distillation_data(trial, prepared, run_trial)
    assert len(lesson.rows) == 16
    schedule = lesson.schedule(trial, tokenizer)
    batch = schedule.batch(0)
    for row, at in enumerate(schedule.indices(0).tolist()):
        document = prepared.documents.splits["train"][at]
        said = batch.labels[row][batch.labels[row] != -100].tolist()
        assert said == [*tokenizer.encode(document.summaries[0]), tokenizer.eos_id]
        read = batch.input_ids[row][batch.attention_mask[row]].tolist()
        assert tokenizer.decode(read).startswith(f"Sum : {document.text.split()[0]}")


def test_batches_by_length_hold_the_same_documents_whoever_teaches(distil):
    experiment = distil(training={"group_by_length": True})
    lessons = []
    for variant in ("baseline", "distilled"):
        trial, prepared = _prepared(experiment, variant)
        lessons.append(
            (distillation_data.build_distillation_data(trial, prepared, run_trial), trial, prepared.tokenizer)
        )
    people, taught = (lesson.rows.lengths.argsort(stable=True).tolist() for lesson, _, _ in lessons)
    assert people != taught, "by their own lengths the two would be put side by side in other orders"
    first, second = (lesson.schedule(trial, tokenizer).digest(4) for lesson, trial, tokenizer in lessons)
    assert first == second


def test_the_loss_of_a_learner_is_that_of_whole_logits(distil):
    from torch.nn import functional as F

    trial, prepared = _prepared(distil())
    lesson = distillation_data.build_distillation_data(trial, prepared, run_trial)
    batch = lesson.schedule(trial, prepared.tokenizer).batch(0)
    from headtohead.trials.trial import build_initial_model

    model = build_initial_model(trial, prepared).eval()
    assert isinstance(model, StudentModel)
    whole = F.cross_entropy(model(batch.input_ids, batch.attention_mask).logits.flatten(0, 1), batch.labels.flatten())
    torch.testing.assert_close(lesson.objective.loss(model, batch), whole)
    scores = lesson.objective.score(model, batch)
    torch.testing.assert_close((scores["losses"].sum() / scores["counts"].sum()).float(), whole)


def test_a_pretrained_student_equal_to_its_teacher_has_nothing_to_learn(distil):
    trial, prepared = _prepared(distil(), "logits")
    lesson = distillation_data.build_distillation_data(trial, prepared, run_trial)
    batch = lesson.schedule(trial, prepared.tokenizer).batch(0)
    assert isinstance(batch, DistillationBatch)
    same = StudentModel(distillation_teacher.open_teacher(trial, prepared, run_trial).model.inner)
    with torch.no_grad():
        assert abs(lesson.objective.loss(same, batch).item()) < 1e-6


def test_documents_that_are_too_long_are_cut_at_their_end_and_counted(distil, teacher):
    whole, cut = (_prepared(distil(model={"max_length": limit}))[1] for limit in (48, 30))
    assert whole.encoded["train"].num_pretruncated == 0
    assert 0 < cut.encoded["train"].num_pretruncated < 16
    assert max(cut.encoded["train"].prompt_lengths) <= 22
    tokenizer = cut.tokenizer
    ids, was_cut = SummaryPrompt("Sum : {document} :", False, 8).ids(tokenizer, "Ann likes tea . Bob sells a car .")
    assert was_cut
    assert tokenizer.decode(ids) == "Sum : Ann likes tea . Bob :"
    with pytest.raises(RequestError, match="the question alone has more than the 2 tokens"):
        SummaryPrompt("Sum : {document} :", False, 2).ids(tokenizer, "Ann likes tea")
    with pytest.raises(DataError, match="cut every one of the"):
        _prepared(distil(model={"max_length": 14}))


def test_an_experiment_leaves_the_whole_table(distil, tmp_path, capsys):
    outcome = run_experiment.run_experiment(distil(), tmp_path / "runs", num_workers=1)
    assert not outcome.failed_jobs, outcome.failed_jobs[0].message
    assert outcome.findings is not None
    found = outcome.findings.summarization
    assert found is not None
    assert list(found.scores) == ["teacher", "untrained", "baseline", "distilled", "logits"]
    assert found.num_documents == 8
    assert "rouge-score" in found.signature
    assert len(found.pairs) == 4 * 10
    assert found.scores["teacher"].rouge["rouge-1"].over_seeds is None
    assert len(found.scores["distilled"].rouge["rouge-1"].by_seed) == 2
    assert found.scores["distilled"].rouge["rouge-1"].over_seeds is not None
    teacher, before = found.costs["teacher"], found.costs["untrained"]
    assert teacher.parameters > before.parameters == found.costs["distilled"].parameters
    assert all(cost.seconds_per_summary > 0 for cost in found.costs.values())
    assert len(found.examples) == 3
    assert set(found.examples[0].summaries) == set(found.scores)
    assert found.claims[0].answer in ("holds", "does not hold", "cannot tell")
    assert found.claims[0].outcome is not None
    starts = [read_json(tmp_path / "runs" / name / "seed-0" / "start.json") for name in ("baseline", "distilled")]
    assert starts[0]["schedule_digest"] == starts[1]["schedule_digest"]
    assert starts[0]["tensor_hashes"] == starts[1]["tensor_hashes"]
    assert starts[0]["parameters"] == before.parameters
    page = write(tmp_path / "runs", ["html", "csv"])[0].read_text()
    for words in ("Effect of distillation", "student before training", "Verdicts on all pairs", "rouge-score"):
        assert words in page
    print_distillation(outcome.findings)
    shown = capsys.readouterr().out
    assert "Verdicts by ROUGE-1" in shown
    assert "The X says that it is" in shown
    folder = tmp_path / "runs" / "distilled" / "seed-0"
    lines = read_jsonl(folder / "summaries.jsonl")
    assert "summaries.jsonl" in read_json(folder / "result.json")["sha256"]
    opened = open_model(folder)
    trial, prepared = _prepared(distil(), "distilled")
    prompts = teacher_texts.build_summary_prompts(trial.data, prepared, opened.tokenizer, "test")
    from headtohead.generation.generate import generate

    (again,) = generate(opened, [prompts[2]], "greedy", max_new_tokens=8)
    assert again.text.strip() == lines[2]["text"]


def test_a_line_is_scored_against_all_references():
    document = Document("Ann likes tea . Bob sells a car .", ("Ann likes tea .", "Bob sells a car ."), "x")
    line = score_summary(document, " Bob sells a car . ", "token")
    assert line.rouge["rouge-1"] == line.rouge["rouge-lsum"] == 1.0
    assert (line.length, line.copied) == (5, {"copied-2": (4, 4), "copied-4": (2, 2)})


def _contestant(name: str, values: Any, seeds: Any = None) -> SystemOutputs:
    rows = np.atleast_2d(values)
    keys = [None] if seeds is None else seeds
    return SystemOutputs(
        name,
        {
            key: [
                SummaryLine(
                    id=str(number),
                    text="",
                    stop_reason="token",
                    rouge=dict.fromkeys(evaluation.ROUGE_MEASURES, float(v)),
                    length=0,
                    copied={},
                )
                for number, v in enumerate(row)
            ]
            for key, row in zip(keys, rows, strict=True)
        },
    )


def test_pairs_are_judged_by_document_and_seed():
    rng = np.random.default_rng(0)
    easy = rng.uniform(0.1, 0.5, 150)
    teacher, before = _contestant("teacher", easy + 0.2), _contestant("untrained", easy)
    seeds = [0, 1, 2]
    people = _contestant("baseline", np.stack([easy + 0.1 + rng.normal(0, 0.01, 150) for _ in seeds]), seeds)
    taught = _contestant("distilled", np.stack([easy + 0.1 + rng.normal(0, 0.01, 150) for _ in seeds]), seeds)
    rows = {
        (row.system, row.reference): row
        for row in evaluation.compare_systems([teacher, before, people, taught], "rouge-1")
    }
    assert len(rows) == 6
    assert rows["untrained", "teacher"].outcome == "hurt"
    assert rows["untrained", "teacher"].effect == pytest.approx(-0.2)
    assert rows["baseline", "untrained"].outcome == "helped"
    assert rows["distilled", "teacher"].outcome == "hurt"
    assert rows["distilled", "baseline"].outcome == "no practical difference"
    assert rows["distilled", "baseline"].seeds == 3
    claim = distillation.DistillationClaim(
        source="D", statement="", model="teacher", reference="distilled", expected_verdict="helped"
    )
    assert evaluation.evaluate_claim(claim, list(rows.values())).answer == "holds"
    assert evaluation.evaluate_claim(claim, list(rows.values())).effect == pytest.approx(0.1, abs=0.01)


def test_the_recipe_speaks_of_those_who_take_part():
    experiment = loading.load_experiment("distil-summaries")
    assert experiment.teacher is not None
    assert len(experiment.teacher.published) == 4
    names = {"teacher", "untrained", *experiment.names}
    assert {row.model for row in experiment.teacher.published} <= names
    assert all({claim.model, claim.reference} <= names for claim in experiment.teacher.claims)


def test_the_recipe_reports_the_figures_of_the_report():
    published = Path(__file__).parents[3] / "shared" / "published.md"
    if not published.is_file():
        pytest.skip("the reports' figures are not at ../shared")
    text = published.read_text(encoding="utf-8")
    experiment = loading.load_experiment("distil-summaries")
    assert experiment.teacher is not None
    for row in experiment.teacher.published:
        assert " | ".join(f"{value:.4f}" for value in row.scores.values()) in text


def test_documents_that_are_not_there_are_asked_for():
    with pytest.raises(DataError, match="give documents with --data"):
        _prepared(loading.load_experiment("distil-summaries"))


def test_faults_of_the_file_are_named(distil):
    with pytest.raises(ConfigError, match=r"the prompt has no placeholder for the document; insert \{document\}"):
        distil(teacher={"prompt": "Sum"})
    with pytest.raises(ConfigError, match=r"model\.freeze: is for task finetune"):
        distil(model={"freeze": "encoder"})
    with pytest.raises(ConfigError, match=r"teacher\.prompt: is missing: a pretrained student"):
        distil(teacher={"prompt": None})


def test_workers_share_the_teachers_writing_and_write_the_same(distil, tmp_path, monkeypatch):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    lines = {}
    for cache, workers in ((alone, 1), (shared, 2)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        distillation_teacher._load_teacher.cache_clear()
        trial, prepared = _prepared(distil(), "distilled")
        pool = None if workers == 1 else build_local_pool(workers)
        told: list[Any] = []
        distillation_data.build_distillation_data(
            trial,
            prepared,
            run_trial,
            told.append,
            generators=build_teacher_workers(pool, trial, tmp_path),
        )
        (file,) = cache.rglob("texts.jsonl")
        lines[workers] = {line["key"]: (line["ids"], line["text"], line["stop_reason"]) for line in read_jsonl(file)}
        assert told[-1].completed == 16
    assert lines[1] == lines[2]
    assert len(lines[1]) == 16
    assert not list(tmp_path.glob("failure.json"))
