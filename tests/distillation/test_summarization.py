"""Distillation of summarization with tiny models: prompts, truncation, training, generation and verdicts."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headtohead.config import experiment, trial_settings
from headtohead.config.tables import distillation
from headtohead.data.sources.summarization import Document
from headtohead.distillation import student_data, summary_dataset, system_comparison
from headtohead.distillation import teacher as distillation_teacher
from headtohead.distillation.summary_dataset import SummaryPrompt
from headtohead.distillation.summary_generation import build_summary_line
from headtohead.distillation.system_comparison import SystemOutputs
from headtohead.distillation.terminal import print_distillation
from headtohead.errors import ConfigError, DataError, RequestError
from headtohead.execution.local_worker import build_local_pool
from headtohead.execution.teacher_workers import build_teacher_workers
from headtohead.experiment import loading
from headtohead.experiment.schemas import SummaryLine
from headtohead.json_files import read_json, read_jsonl
from headtohead.pretrained.student_model import StudentModel
from headtohead.report import write
from headtohead.runner import run_experiment
from headtohead.saved_models.open_model import open_model
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.task_objectives.distillation import DistillationBatch
from headtohead.trials.trial import run_trial
from headtohead.verdict import AlphaBudget, InterimAnalysis, compute_interim_confidence

transformers = pytest.importorskip("transformers")
SUBJECTS = ["Ann", "Bob", "Eve"]
VERBS = ["likes", "sells", "wants"]
OBJECTS = ["a car", "the house", "some tea"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _make_document(rng: random.Random, number: int, has_two_summaries: bool) -> dict[str, Any]:
    num_sentences = rng.randint(2, 5)
    sentences = [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} ." for _ in range(num_sentences)]
    summaries = [sentences[0], sentences[-1]] if has_two_summaries else [sentences[0]]
    return {"document": " ".join(sentences) + f" {number}", "summaries": summaries}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    rng = random.Random(0)
    folder = tmp_path / "documents"
    folder.mkdir()
    first_number = 0
    for split, num_documents in (("train", 24), ("dev", 6), ("test", 8)):
        numbers = range(first_number, first_number + num_documents)
        split_documents = [_make_document(rng, number, has_two_summaries=split == "test") for number in numbers]
        first_number += num_documents
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, split_documents)))
    return folder


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    document_words = sorted(
        {word for phrases in (SUBJECTS, VERBS, OBJECTS) for phrase in phrases for word in phrase.split()}
    )
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", ".", ":", "Sum", *document_words, *map(str, range(40))]
    word_ids = {word: token_id for token_id, word in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(word_ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special_tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens).save_pretrained(
        tmp_path / "teacher"
    )
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
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
            "training": {"budget": "4 steps", "batch_size": 4, "eval_every": 4},
            "variants": {
                "distilled": {"training": {"distillation": {"targets": "texts"}}},
                "logits": {"training": {"distillation": {"targets": "both", "top_k": 5, "weight": 1.0}}},
            },
        }
        for table, value in changes.items():
            raw[table] = {**raw[table], **value} if isinstance(value, dict) and table in raw else value
        return loading.build_experiment(raw)

    return build


def _build_trial_and_dataset(
    experiment: experiment.Experiment, variant: str = "baseline"
) -> tuple[experiment.Trial, Any]:
    trial = trial_settings.build_trial(experiment, variant, 0)
    return trial, prepare_dataset(trial.data, trial.task)


def test_labels_are_the_tokens_of_the_summary(distil):
    trial, dataset = _build_trial_and_dataset(distil())
    tokenizer = dataset.tokenizer
    data = student_data.build_student_data(trial, dataset, run_trial)
    assert len(data.rows) == 16
    schedule = data.build_schedule(trial, tokenizer)
    batch = schedule.get_batch(0)
    for batch_index, document_index in enumerate(schedule.get_example_indices(0).tolist()):
        document = dataset.documents.splits["train"][document_index]
        labels = batch.labels[batch_index]
        assert labels[labels != -100].tolist() == [*tokenizer.encode(document.summaries[0]), tokenizer.eos_id]
        unpadded_ids = batch.input_ids[batch_index][batch.attention_mask[batch_index]].tolist()
        assert tokenizer.decode(unpadded_ids).startswith(f"Sum : {document.text.split()[0]}")


def test_batches_ordered_by_length_have_the_same_documents_in_every_variant(distil):
    experiment = distil(training={"order": "by-length"})
    student_inputs = []
    for variant in ("baseline", "distilled"):
        trial, dataset = _build_trial_and_dataset(experiment, variant)
        student_inputs.append((student_data.build_student_data(trial, dataset, run_trial), trial, dataset.tokenizer))
    reference_order, teacher_order = (
        data.rows.row_lengths.argsort(stable=True).tolist() for data, _, _ in student_inputs
    )
    assert reference_order != teacher_order, "the lengths of teacher texts would give a different order"
    digests = {data.build_schedule(trial, tokenizer).compute_digest(4) for data, trial, tokenizer in student_inputs}
    assert len(digests) == 1


def test_chunked_loss_equals_the_cross_entropy_of_full_logits(distil):
    from torch.nn import functional as F

    trial, dataset = _build_trial_and_dataset(distil())
    data = student_data.build_student_data(trial, dataset, run_trial)
    batch = data.build_schedule(trial, dataset.tokenizer).get_batch(0)
    from headtohead.trials.trial import build_initial_model

    model = build_initial_model(trial, dataset).eval()
    assert isinstance(model, StudentModel)
    cross_entropy = F.cross_entropy(
        model(batch.input_ids, batch.attention_mask).logits.flatten(0, 1), batch.labels.flatten()
    )
    torch.testing.assert_close(data.objective.compute_loss(model, batch), cross_entropy)
    scores = data.objective.score_batch(model, batch)
    torch.testing.assert_close((scores["losses"].sum() / scores["counts"].sum()).float(), cross_entropy)


def test_loss_is_zero_for_a_pretrained_student_equal_to_its_teacher(distil):
    trial, dataset = _build_trial_and_dataset(distil(), "logits")
    data = student_data.build_student_data(trial, dataset, run_trial)
    batch = data.build_schedule(trial, dataset.tokenizer).get_batch(0)
    assert isinstance(batch, DistillationBatch)
    student = StudentModel(distillation_teacher.open_teacher(trial, dataset, run_trial).model.inner)
    with torch.no_grad():
        assert abs(data.objective.compute_loss(student, batch).item()) < 1e-6


def test_long_documents_are_truncated_at_the_end_and_counted(distil, teacher):
    dataset, truncated_dataset = (
        _build_trial_and_dataset(distil(model={"max_length": limit}))[1] for limit in (48, 30)
    )
    assert dataset.encoded["train"].num_pretruncated == 0
    assert 0 < truncated_dataset.encoded["train"].num_pretruncated < 16
    assert max(truncated_dataset.encoded["train"].prompt_lengths) <= 22
    tokenizer = truncated_dataset.tokenizer
    prompt = SummaryPrompt("Sum : {document} :", use_chat_template=False, max_prompt_tokens=8)
    prompt_ids, was_truncated = prompt.encode_document(tokenizer, "Ann likes tea . Bob sells a car .")
    assert was_truncated
    assert tokenizer.decode(prompt_ids) == "Sum : Ann likes tea . Bob :"
    with pytest.raises(RequestError, match="the prompt without a document has more than the 2 tokens"):
        SummaryPrompt("Sum : {document} :", False, 2).encode_document(tokenizer, "Ann likes tea")
    with pytest.raises(DataError, match="truncate every one of the"):
        _build_trial_and_dataset(distil(model={"max_length": 14}))


def test_experiment_compares_all_systems(distil, tmp_path, capsys):
    outcome = run_experiment.run_experiment(distil(), tmp_path / "runs", num_workers=1)
    assert not outcome.failed_jobs, outcome.failed_jobs[0].message
    assert outcome.findings is not None
    summarization = outcome.findings.summarization
    assert summarization is not None
    assert list(summarization.scores) == ["teacher", "untrained", "baseline", "distilled", "logits"]
    assert summarization.num_documents == 8
    assert "rouge-score" in summarization.signature
    assert len(summarization.pairs) == 4 * 10
    assert summarization.scores["teacher"].rouge["rouge-1"].over_seeds is None
    assert len(summarization.scores["distilled"].rouge["rouge-1"].by_seed) == 2
    assert summarization.scores["distilled"].rouge["rouge-1"].over_seeds is None  # an interval takes three seeds
    teacher_cost, untrained_cost = summarization.costs["teacher"], summarization.costs["untrained"]
    assert teacher_cost.parameters > untrained_cost.parameters == summarization.costs["distilled"].parameters
    assert all(cost.seconds_per_summary > 0 for cost in summarization.costs.values())
    assert len(summarization.examples) == 3
    assert set(summarization.examples[0].summaries) == set(summarization.scores)
    assert summarization.claims[0].answer in ("holds", "does not hold", "cannot tell")
    assert summarization.claims[0].outcome is not None
    start_files = [read_json(tmp_path / "runs" / name / "seed-0" / "start.json") for name in ("baseline", "distilled")]
    assert start_files[0]["schedule_digest"] == start_files[1]["schedule_digest"]
    assert start_files[0]["tensor_hashes"] == start_files[1]["tensor_hashes"]
    assert start_files[0]["parameters"] == untrained_cost.parameters
    page = write(tmp_path / "runs", ["html", "csv"])[0].read_text()
    for phrase in ("Effect of distillation", "student before training", "Verdicts on all pairs", "rouge-score"):
        assert phrase in page
    print_distillation(outcome.findings)
    output = capsys.readouterr().out
    assert "Verdicts by ROUGE-1" in output
    assert "The X says that it is" in output
    folder = tmp_path / "runs" / "distilled" / "seed-0"
    summary_lines = read_jsonl(folder / "summaries.jsonl")
    assert "summaries.jsonl" in read_json(folder / "result.json")["sha256"]
    model = open_model(folder)
    trial, dataset = _build_trial_and_dataset(distil(), "distilled")
    prompts = summary_dataset.encode_split_prompts(trial.data, dataset, model.tokenizer, "test")
    from headtohead.generation.generate import generate

    (continuation,) = generate(model, [prompts[2]], "greedy", max_new_tokens=8)
    assert continuation.text.strip() == summary_lines[2]["text"]


def test_summaries_are_scored_against_all_references():
    document = Document("Ann likes tea . Bob sells a car .", ("Ann likes tea .", "Bob sells a car ."), "x")
    line = build_summary_line(document, " Bob sells a car . ", "token")
    assert line.rouge["rouge-1"] == line.rouge["rouge-lsum"] == 1.0
    assert (line.length, line.copied) == (5, {"copied-2": (4, 4), "copied-4": (2, 2)})


def _make_system_outputs(name: str, rouge_scores: Any, seeds: Any = None) -> SystemOutputs:
    """Return outputs whose ROUGE scores have shape (seeds, documents), or (documents,) without seeds."""
    seed_keys = [None] if seeds is None else seeds
    return SystemOutputs(
        name,
        {
            seed: [
                SummaryLine(
                    id=str(number),
                    text="",
                    stop_reason="token",
                    rouge=dict.fromkeys(system_comparison.ROUGE_METRICS, float(score)),
                    length=0,
                    copied={},
                )
                for number, score in enumerate(document_scores)
            ]
            for seed, document_scores in zip(seed_keys, np.atleast_2d(rouge_scores), strict=True)
        },
    )


def test_pairs_are_judged_by_document_and_seed():
    rng = np.random.default_rng(0)
    document_scores = rng.uniform(0.1, 0.5, 150)
    teacher = _make_system_outputs("teacher", document_scores + 0.2)
    untrained = _make_system_outputs("untrained", document_scores)
    seeds = [0, 1, 2]
    baseline, distilled = (
        _make_system_outputs(name, np.stack([document_scores + 0.1 + rng.normal(0, 0.01, 150) for _ in seeds]), seeds)
        for name in ("baseline", "distilled")
    )
    verdicts = {
        (pair.system, pair.reference): pair
        for pair in system_comparison.compare_systems([teacher, untrained, baseline, distilled], "rouge-1")
    }
    assert len(verdicts) == 6
    assert verdicts["untrained", "teacher"].outcome == "hurt"
    assert verdicts["untrained", "teacher"].effect == pytest.approx(-0.2)
    assert verdicts["baseline", "untrained"].outcome == "helped"
    assert verdicts["distilled", "teacher"].outcome == "hurt"
    assert verdicts["distilled", "baseline"].outcome == "no practical difference"
    assert verdicts["distilled", "baseline"].seeds == 3
    claim = distillation.DistillationClaim(
        source="D", statement="", model="teacher", reference="distilled", expected_verdict="helped"
    )
    assert system_comparison.evaluate_claim(claim, list(verdicts.values())).answer == "holds"
    assert system_comparison.evaluate_claim(claim, list(verdicts.values())).effect == pytest.approx(0.1, abs=0.01)
    # An interim analysis counts for every pair with a trained student; the data of other pairs are fixed in advance.
    budget = AlphaBudget({"distilled": [InterimAnalysis(3)]})
    systems_after_five_seeds = [
        _make_system_outputs(name, np.stack([document_scores] * 5), range(5)) for name in ("baseline", "distilled")
    ]
    confidences = {
        (pair.system, pair.reference): pair.adjusted_confidence
        for pair in system_comparison.compare_systems(
            [teacher, untrained, *systems_after_five_seeds], "rouge-1", budget
        )
    }
    final_confidence = compute_interim_confidence(5, [InterimAnalysis(3)], num_comparisons=6)
    assert confidences["distilled", "baseline"] == confidences["baseline", "teacher"] == pytest.approx(final_confidence)
    assert confidences["untrained", "teacher"] == pytest.approx(1 - 0.05 / 6)


def test_published_scores_and_claims_of_the_recipe_name_its_systems():
    experiment = loading.load_experiment("distil-summaries")
    assert experiment.teacher is not None
    assert len(experiment.teacher.published) == 4
    system_names = {"teacher", "untrained", *experiment.names}
    assert {scores.model for scores in experiment.teacher.published} <= system_names
    assert all({claim.model, claim.reference} <= system_names for claim in experiment.teacher.claims)


def test_published_scores_of_the_recipe_are_those_of_the_course_reports():
    published_file = Path(__file__).parents[3] / "shared" / "published.md"
    if not published_file.is_file():
        pytest.skip("the scores of the course reports are not at ../shared")
    text = published_file.read_text(encoding="utf-8")
    experiment = loading.load_experiment("distil-summaries")
    assert experiment.teacher is not None
    for publication in experiment.teacher.published:
        assert " | ".join(f"{score:.4f}" for score in publication.scores.values()) in text


def test_missing_documents_are_reported():
    with pytest.raises(DataError, match="give documents with --data"):
        _build_trial_and_dataset(loading.load_experiment("distil-summaries"))


def test_errors_in_the_file_are_reported(distil):
    with pytest.raises(ConfigError, match=r"the prompt has no placeholder for the document; insert \{document\}"):
        distil(teacher={"prompt": "Sum"})
    with pytest.raises(ConfigError, match=r"model\.freeze: is for task finetune"):
        distil(model={"freeze": "encoder"})
    with pytest.raises(ConfigError, match=r"teacher\.prompt: is missing: a pretrained student"):
        distil(teacher={"prompt": None})


def test_parallel_workers_generate_the_same_teacher_texts(distil, tmp_path, monkeypatch):
    lines_by_num_workers = {}
    for num_workers in (1, 2):
        cache_folder = tmp_path / f"cache-{num_workers}"
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))
        distillation_teacher._load_teacher.cache_clear()
        trial, dataset = _build_trial_and_dataset(distil(), "distilled")
        pool = None if num_workers == 1 else build_local_pool(num_workers)
        updates: list[Any] = []
        student_data.build_student_data(
            trial,
            dataset,
            run_trial,
            updates.append,
            generators=build_teacher_workers(pool, trial, tmp_path),
        )
        (path,) = cache_folder.rglob("texts.jsonl")
        lines_by_num_workers[num_workers] = {
            line["key"]: (line["ids"], line["text"], line["stop_reason"]) for line in read_jsonl(path)
        }
        assert updates[-1].completed == 16
    assert lines_by_num_workers[1] == lines_by_num_workers[2]
    assert len(lines_by_num_workers[1]) == 16
    assert not list(tmp_path.glob("failure.json"))
