"""A trial is a pure function from (settings, seed, corpus) to a run folder, however often it is killed and resumed."""

import json
import multiprocessing
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from headtohead.config import trial_settings
from headtohead.errors import DivergedError, RunFolderError
from headtohead.experiment.run_folder import Run
from headtohead.json_files import read_json, read_jsonl
from headtohead.saved_models import inference, model_io
from headtohead.training.loop import has_diverged
from headtohead.trials.trial import run_trial


def read_lines_without_times(path: Path) -> list[str]:
    lines = read_jsonl(path / "metrics.jsonl")
    return [json.dumps({key: value for key, value in line.items() if key != "seconds"}) for line in lines]


def assert_same_outcome(one: Path, other: Path) -> None:
    assert read_lines_without_times(one) == read_lines_without_times(other)
    for name in ("model.safetensors", "scores.safetensors", "probes.json", "maps.safetensors", "start.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    scores = [read_json(folder / "result.json")["scores"] for folder in (one, other)]
    assert scores[0] == scores[1]


def test_a_run_folder_holds_what_its_contract_says(small, tmp_path):
    run_trial(trial_settings.build_trial(small(), "baseline", 0), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.is_finished
    assert run.find_damaged_files() == []
    assert not list(run.folder.glob("checkpoint-*"))
    assert {line.split for line in run.metrics} == {"train", "validation", "batches"}
    assert [line.step for line in run.metrics if line.split == "validation"] == [0, 10, 20, 30, 40]
    scores = run.result.scores["test"]
    losses, counts = run.scores["test.losses"], run.scores["test.counts"]
    assert scores.loss == pytest.approx(losses.sum() / counts.sum())
    assert run.probes.samples[0].text
    (run.folder / "metrics.jsonl").write_text("")
    assert Run(run.folder).find_damaged_files() == ["metrics.jsonl"]


TRIAL_IN_A_NEW_PROCESS = """
import pathlib, json, sys
from headtohead.config.experiment import Trial
from headtohead.trials.trial import run_trial
run_trial(Trial.model_validate(json.loads(sys.argv[1])), pathlib.Path(sys.argv[2]))
print([name for name in ("altair", "scipy.stats", "torch._dynamo", "transformers") if name in sys.modules])
"""


def test_a_trial_imports_nothing_that_is_slow_to_import(small, tmp_path):
    """Each of these modules takes longer to import than many training steps; torch._dynamo is torch's compiler."""
    trial = trial_settings.build_trial(small(), "alibi", 0).model_dump_json()
    command = [sys.executable, "-c", TRIAL_IN_A_NEW_PROCESS, trial, str(tmp_path / "run")]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_training_learns(small, tmp_path):
    result = run_trial(
        trial_settings.build_trial(
            small(training={"budget": "150 steps", "optimizer": {"kind": "adamw", "lr": 0.01}}), "baseline", 0
        ),
        tmp_path / "run",
    )
    first = read_jsonl(tmp_path / "run" / "metrics.jsonl")[0]
    assert first["perplexity"] > 20  # of 32 words, before training
    assert result.scores["test"].perplexity < 8


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(small, tmp_path):
    experiment = small(model={"dropout": 0.1})
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        run_trial(trial_settings.build_trial(experiment, "baseline", seed), tmp_path / name)
    assert_same_outcome(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "one" / "model.safetensors").read_bytes() != (
        tmp_path / "three" / "model.safetensors"
    ).read_bytes()


def test_what_two_variants_share_starts_equal_and_sees_the_same_batches(small, tmp_path):
    experiment = small()
    starts = []
    for variant in experiment.names:
        run_trial(trial_settings.build_trial(experiment, variant, 0), tmp_path / variant)
        starts.append(Run(tmp_path / variant).start)
    shared = set(starts[0].tensor_hashes) & set(starts[1].tensor_hashes)
    assert len(shared) == len(starts[1].tensor_hashes)
    assert all(starts[0].tensor_hashes[name] == starts[1].tensor_hashes[name] for name in shared)
    assert starts[0].schedule_digest == starts[1].schedule_digest


KILLS = 10
HARD = {
    "model": {"dropout": 0.1},
    "data": {"word_dropout": 0.05},
    "training": {
        "budget": "60 steps",
        "max_eval_fraction": 1,
        "load_best_model_at_end": True,
        "max_grad_norm": 1.0,
        "schedule": {"kind": "cosine", "warmup": 5},
        "optimizer": {"kind": "adamw", "lr": 0.01},
    },
}


@pytest.mark.parametrize(
    "optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow), pytest.param("adagrad", marks=pytest.mark.slow)]
)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(small, tmp_path, optimizer):
    changes = json.loads(json.dumps(HARD))
    changes["training"]["optimizer"]["kind"] = optimizer
    trial = trial_settings.build_trial(small(**changes), "baseline", 0)
    began = time.perf_counter()
    run_trial(trial, tmp_path / "whole")
    complete = time.perf_counter() - began
    context = multiprocessing.get_context("fork")
    draw = random.Random(optimizer)
    process, folders = 0, [tmp_path / "killed-0"]
    while process < KILLS:
        child = context.Process(target=run_trial, args=(trial, folders[-1]))
        child.start()
        child.join(draw.uniform(0, 0.4 * complete))
        process += child.is_alive()
        child.kill()
        child.join()
        if (folders[-1] / "result.json").is_file():  # it came through between two kills: take another
            folders.append(tmp_path / f"killed-{len(folders)}")
    run_trial(trial, folders[-1])
    for folder in folders:
        assert_same_outcome(tmp_path / "whole", folder)
        assert not list(folder.glob(".*part*"))


def test_best_weights_are_chosen_by_validation_data_only(small, tmp_path):
    trial = trial_settings.build_trial(small(**HARD), "baseline", 0)
    result = run_trial(trial, tmp_path / "run")
    lines = [line for line in read_jsonl(tmp_path / "run" / "metrics.jsonl") if line["split"] == "validation"]
    best = min(lines, key=lambda line: line["loss"])
    assert result.training.chosen_step == best["step"]
    assert result.scores["validation"].loss == pytest.approx(best["loss"], rel=1e-6)


def test_early_stop_stops(small, tmp_path):
    changes = {**HARD, "training": {**HARD["training"], "budget": "400 steps", "early_stopping": {"patience": 2}}}
    result = run_trial(trial_settings.build_trial(small(**changes), "baseline", 0), tmp_path / "run")
    assert result.training.is_stopped_early
    assert result.training.steps < 400


def test_divergence_ends_with_a_plain_statement_and_what_to_try(small, tmp_path):
    trial = trial_settings.build_trial(small(training={"optimizer": {"kind": "sgd", "lr": 1e30}}), "baseline", 0)
    with pytest.raises(
        DivergedError, match=r"loss is not finite at step \d+: try a learning rate below 1e\+30 for sgd"
    ):
        run_trial(trial, tmp_path / "run")


def test_only_a_large_rise_of_the_loss_is_divergence():
    assert has_diverged(2.1, 9.9) and has_diverged(10.4, 35.0) and has_diverged(0.01, 6.0)
    assert not has_diverged(0.0101, 0.103) and not has_diverged(10.4, 14.0) and not has_diverged(0.69, 2.2)


def test_a_folder_of_another_trial_is_rejected(small, tmp_path):
    run_trial(trial_settings.build_trial(small(), "baseline", 0), tmp_path / "run")
    with pytest.raises(RunFolderError, match="a different trial"):
        run_trial(trial_settings.build_trial(small(), "alibi", 0), tmp_path / "run")


def test_a_damaged_checkpoint_is_reported_and_not_used(small, tmp_path):
    trial = trial_settings.build_trial(small(), "baseline", 0)
    run_trial(trial, tmp_path / "run")
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.trials.trial import build_training

    folder = tmp_path / "other"
    _, training = build_training(trial, prepare_dataset(trial.data, trial.task), folder, torch.device("cpu"))
    training.save_checkpoint()
    (file,) = folder.glob("checkpoint-*/model.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunFolderError, match="is corrupted: checksum mismatch"):
        run_trial(trial, folder)


def test_a_saved_model_gives_the_scores_of_its_run(small, tmp_path):
    run_trial(trial_settings.build_trial(small(), "alibi", 0), tmp_path / "run")
    loaded = model_io.load_saved_model(tmp_path / "run")
    answer = inference.score_text(loaded, "the people will defend the peace .")
    assert answer.perplexity == pytest.approx(Run(tmp_path / "run").probes.sentences["normal"].perplexity)
    assert len(answer.tokens) == 6
    before = model_io.load_saved_model(tmp_path / "run", use_initial_weights=True)
    assert inference.score_text(before, "the people will defend the peace .").perplexity > answer.perplexity


@pytest.mark.parametrize("pool", ["mean", "first", "max", "attention"])
def test_a_classifier_learns_and_predicts(rows_folder, tmp_path, pool):
    from headtohead.experiment import loading

    raw = {
        "question": "?",
        "task": "classify",
        "data": {"source": str(rows_folder)},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 12, "pool": pool},
        "training": {"budget": "12 epochs", "eval_every": "4 epochs", "optimizer": {"kind": "adam", "lr": 3e-3}},
    }
    result = run_trial(trial_settings.build_trial(loading.build_experiment(raw), "baseline", 0), tmp_path / "run")
    assert result.scores["test"].accuracy > 0.9
    answer = inference.predict_class(
        model_io.load_saved_model(tmp_path / "run"), "the congress must build new schools ."
    )
    assert answer.label == "builder"
    assert ", 12 epochs, batch size" in (tmp_path / "run" / "README.md").read_text()
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_muon_trains_where_bfloat16_works_and_rejects_where_it_kills(small, tmp_path):
    from headtohead.errors import DeviceError
    from headtohead.training.hardware.precision import is_bfloat16_usable

    trial = trial_settings.build_trial(small(training={"optimizer": {"kind": "muon"}}), "baseline", 0)
    if is_bfloat16_usable():
        assert run_trial(trial, tmp_path / "run").scores["test"].perplexity < 30
    else:
        with pytest.raises(DeviceError, match="kills the process"):
            run_trial(trial, tmp_path / "run")
