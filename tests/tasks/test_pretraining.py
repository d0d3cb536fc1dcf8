"""A classifier initialized from a pre-trained encoder."""

import pytest
import torch

from headtohead.config import trial_settings
from headtohead.config.experiment import BASELINE
from headtohead.errors import ConfigError, ModelError
from headtohead.experiment import loading
from headtohead.json_files import read_json
from headtohead.runner.run_experiment import run_experiment
from headtohead.saved_models import model_io
from headtohead.tasks import pretraining
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import build_initial_model, run_trial

pytestmark = pytest.mark.usefixtures("in_process_workers")

TRAINING = {"budget": "20 steps", "batch_size": 8, "eval_every": 20, "checkpoint_every": 20}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def classifier(rows_folder):
    def build(init_from=None, **tables):
        raw = {
            "question": "Does pre-training help?",
            "task": "classify",
            "seeds": 2,
            "data": {"source": str(rows_folder), "tokenizer": {"kind": "words", "add_mask": True}},
            "model": {"width": 16, "layers": 1, "heads": 2, "context": 12},
            "training": TRAINING,
            "variants": {"pretrained": {"model": {"init_from": init_from or {"masking": {"rate": 0.4}}}}},
            **tables,
        }
        return loading.build_experiment(raw, "pretraining")

    return build


def test_initial_weights_are_the_encoders_except_the_head(classifier):
    experiment = classifier()
    scratch, pretrained = (trial_settings.build_trial(experiment, name, 1) for name in (BASELINE, "pretrained"))
    dataset = prepare_dataset(scratch.data, scratch.task)
    initial = build_initial_model(scratch, dataset).state_dict()
    started = build_initial_model(pretrained, dataset).state_dict()
    folder = pretraining.train_encoder(pretrained, dataset.corpus.digest, run_trial)
    encoder = model_io.load_saved_model(folder).model.state_dict()
    assert read_json(folder / "trial.json")["trial"]["training"]["masking"]["rate"] == 0.4
    heads = {name for name in started if name.startswith(pretraining.HEAD_TENSOR_PREFIXES)}
    assert heads
    for name, tensor in started.items():
        assert torch.equal(tensor, initial[name] if name in heads else encoder[name]), name
    assert not torch.equal(started["embedding.weight"], initial["embedding.weight"])


def test_an_encoder_is_trained_once_for_all_seeds(classifier, monkeypatch):
    trials = [trial_settings.build_trial(classifier(), "pretrained", seed) for seed in (0, 1)]
    dataset = prepare_dataset(trials[0].data, trials[0].task)
    runs = []

    def count(trial, folder, *, on_progress):
        runs.append(trial.seed)
        return run_trial(trial, folder, on_progress=on_progress)

    first, second = (pretraining.train_encoder(trial, dataset.corpus.digest, count) for trial in trials)
    assert first == second
    assert runs == [2000]


def test_a_run_folder_can_be_named(classifier, tmp_path):
    trial = trial_settings.build_trial(classifier(), "pretrained", 0)
    dataset = prepare_dataset(trial.data, trial.task)
    folder = pretraining.train_encoder(trial, dataset.corpus.digest, run_trial)
    names = trial_settings.build_trial(classifier(str(folder)), "pretrained", 0)
    started, expected = (build_initial_model(item, dataset).state_dict() for item in (names, trial))
    assert all(torch.equal(started[name], expected[name]) for name in expected)


def test_an_encoder_of_another_shape_is_rejected(classifier):
    trial = trial_settings.build_trial(classifier(), "pretrained", 0)
    dataset = prepare_dataset(trial.data, trial.task)
    folder = pretraining.train_encoder(trial, dataset.corpus.digest, run_trial)
    wider = classifier(str(folder), model={"width": 32, "layers": 1, "heads": 2, "context": 12})
    with pytest.raises(ModelError, match=r"a different architecture: tensor embedding.weight has shape \(\d+, 16\)"):
        build_initial_model(trial_settings.build_trial(wider, "pretrained", 0), dataset)


def test_an_encoder_needs_a_vocabulary_with_a_mask_token_and_a_classifier(classifier, small):
    with pytest.raises(ConfigError, match=r"init_from.*mask token.*add_mask = true"):
        classifier(data={"source": "sotu"})
    with pytest.raises(ConfigError, match=r"model.init_from: applies to task classify"):
        small(model={"init_from": {"masking": {"rate": 0.15}}})


def test_the_experiment_pairs_pretrained_and_scratch(classifier, tmp_path):
    progress = []
    outcome = run_experiment(classifier(), tmp_path / "runs", num_workers=1, on_progress=progress.append)
    assert outcome.findings is not None
    assert any("pre-training the encoder" in update.description for update in progress)
    with pytest.raises(ModelError, match="started from a pre-trained encoder"):
        model_io.load_saved_model(outcome.runs.run("pretrained", 0).folder, use_initial_weights=True)
    (verdict,) = outcome.findings.verdicts
    assert verdict.variant == "pretrained"
    assert outcome.findings.pairing["pretrained"].unpaired_reason is None


def test_the_recipe_runs_in_quick_mode(tmp_path):
    overrides = ["seeds=1", "model.layers=1", "training.budget=4 steps", "training.eval_every=4"]
    variants = ("pretrained-15", "pretrained-40")
    overrides += [f"variants.{variant}.model.init_from.training.budget=4 steps" for variant in variants]
    experiment = loading.load_experiment("pretraining", overrides, use_quick_setting=True)
    outcome = run_experiment(experiment, tmp_path / "runs", num_workers=1)
    assert not outcome.failed_jobs
    assert {row.variant for row in outcome.findings.verdicts} == set(variants)
