"""Metrics are read from typical script output and files."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headtohead.errors import RequestError
from headtohead.versus.config import MetricConfig, infer_direction
from headtohead.versus.outputs.example_scores import join_example_scores, read_example_scores
from headtohead.versus.outputs.metric_aggregation import aggregate_values
from headtohead.versus.outputs.metric_readers import (
    MetricValue,
    find_step_in_line,
    list_metric_names_in_output,
    read_metric_from_file,
    read_metric_from_output,
)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("val_loss=1.25", 1.25),
        ("val_loss: 1.25", 1.25),
        ('{"step": 3, "val_loss": 1.25, "lr": 1e-3}', 1.25),
        ("{'eval_loss': 0.5, 'val_loss': 1.25, 'epoch': 1.0}", 1.25),
        ("METRIC val_loss=1.25", 1.25),
        ("step 250: train loss 1.0, val loss 1.25", 1.25),
        ("Epoch 2/3 - loss: 0.7 - val_loss: 1.25e0 - val_accuracy: 0.9", 1.25),
        ("val-loss = -1.25e-2", -0.0125),
        ("val_loss 1.25 | time 3s", 1.25),
        ("val_loss=nan", math.nan),
        ("val_loss: inf", math.inf),
        ("│         val_loss          │    1.25    │", 1.25),
        ("| val_loss | 1.25 |", 1.25),
        ("final val loss: 1.25.", 1.25),
        ("val_loss: 1,250.5", 1250.5),
        ("val_loss=12,250,000, lr=3", 12_250_000),
    ],
)
def test_a_value_is_found_in_a_line_of_output(line: str, value: float) -> None:
    values = read_metric_from_output(f"starting\n{line}\ndone", "val_loss")
    assert [item.value for item in values] == pytest.approx([value], nan_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        *("eval_loss=1.0", "val_loss_ema=1.0", "my.val_loss=1.0", "val_loss=abc", "val_loss"),
        *("val_loss=1,5", "val_loss=1.2.3", "val_loss 3x", "val_loss=1,2,3"),  # no number, or not clear which
    ],
)
def test_other_names_are_not_taken_for_the_metric(line: str) -> None:
    assert read_metric_from_output(line, "val_loss") == []


def test_the_step_is_taken_from_the_line_or_counted() -> None:
    assert read_metric_from_output("step 0: val loss 4.0\nstep 250: val loss 2.0", "val_loss") == [
        MetricValue(0, 4.0),
        MetricValue(250, 2.0),
    ]
    assert read_metric_from_output("val loss 4.0\nval loss 2.0", "val_loss") == [
        MetricValue(0, 4.0),
        MetricValue(1, 2.0),
    ]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("epoch 3 | step 1,200/5,000 | loss 2.0", 1200),
        ("Epoch 3: loss 2.0", 3),
        ("iter 40: loss 2.0, time/step 5", 40),
        ("{'loss': 2.0, 'global_step': 70, 'epoch': 0.5}", 70),
        ("loss 2.0", -1),
    ],
)
def test_the_most_precise_step_of_a_line_counts(line: str, step: int) -> None:
    assert find_step_in_line(line, default=-1) == step


def test_a_name_that_several_splits_report_is_rejected() -> None:
    losses = "step 0: train loss 4.1, val loss 4.2\niter 0: loss 4.0\n"
    with pytest.raises(RequestError, match=r"'loss' is ambiguous.*\n  train: step 0.*\n  validation: step 0"):
        read_metric_from_output(losses, "loss")
    assert read_metric_from_output(losses, "val loss") == [MetricValue(0, 4.2)]
    assert read_metric_from_output(losses, "loss", r"iter .*loss ([\d.]+)") == [MetricValue(0, 4.0)]
    with pytest.raises(RequestError, match=r"test: Test set: Average loss: 0.1"):
        read_metric_from_output("Train Epoch: 1 Loss: 2.3\nTest set: Average loss: 0.1, Accuracy: 9/10\n", "loss")
    assert [value.split for value in read_metric_from_output("loss 3.0\ntraining: loss 2.0", "loss")] == [
        "train",
        "train",
    ]
    assert [value.split for value in read_metric_from_output("evaluation: loss 3.0\nvalid loss 2.0", "loss")] == [
        "validation"
    ] * 2


def test_names_before_numbers_are_listed() -> None:
    names = list_metric_names_in_output(
        "step 0: train loss 4.1, val loss 4.2\nstep 9: train loss 3.9, val loss 3.9 in 5 s\n"
    )
    assert names[:3] == ["step", "train loss", "val loss"]


def test_a_pattern_replaces_the_usual_forms() -> None:
    assert read_metric_from_output("test: 12.5%\n", "accuracy", r"test: ([\d.]+)%") == [MetricValue(0, 12.5)]


def test_values_are_aggregated() -> None:
    values = [MetricValue(0, 3.0), MetricValue(10, 1.0), MetricValue(20, 2.0)]
    validation = [MetricValue(0, 0.5), MetricValue(10, 0.9), MetricValue(20, 0.8)]
    assert aggregate_values(values, MetricConfig(name="test_loss")) == 2.0
    assert aggregate_values(values, MetricConfig(name="test_loss", aggregate="best")) == 1.0
    assert aggregate_values(values, MetricConfig(name="test_loss", aggregate="mean", window=2)) == 1.5
    by_loss = MetricConfig(name="test_loss", aggregate="best", metric_for_best_step="val_loss")
    assert aggregate_values(values, by_loss, validation) == 3.0  # the lowest validation loss is at step 0
    accuracy = MetricConfig(name="hits", direction="maximize", aggregate="best", metric_for_best_step="val_loss")
    assert aggregate_values(values, accuracy, validation) == 3.0  # the direction of hits is not that of val_loss
    diverged = [MetricValue(0, math.nan), *values]
    assert aggregate_values(diverged, MetricConfig(name="test_loss", aggregate="best")) == 1.0


def test_values_are_matched_by_position_if_steps_repeat() -> None:
    values = [MetricValue(1, 3.0), MetricValue(1, 1.0), MetricValue(1, 2.0)]
    selecting_values = [MetricValue(1, 0.5), MetricValue(1, 0.9), MetricValue(1, 0.4)]
    config = MetricConfig(name="test_loss", aggregate="best", metric_for_best_step="val_loss")
    assert aggregate_values(values, config, selecting_values) == 2.0
    with pytest.raises(RequestError, match="no step has both 'test_loss' and 'val_loss'"):
        aggregate_values(values, config, selecting_values[:2])


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        *[
            (name, "minimize")
            for name in ("val_loss", "valLoss", "eval/ppl", "error_rate", "WER", "bits_per_byte", "MSE")
        ],
        *[(name, "maximize") for name in ("sentiment_acc", "answer_f1", "rougeL", "top1_acc", "acc@5", "BLEU4", "R2")],
        *[(name, None) for name in ("speed", "acc_loss", "powers", "steps")],
    ],
)
def test_the_direction_follows_from_the_words_of_a_name(name: str, direction: str | None) -> None:
    assert infer_direction(name) == direction


def test_only_a_perplexity_is_compared_relatively() -> None:
    names = ("val_ppl", "log_perplexity", "val_loss", "f1")
    assert [MetricConfig(name=name).verdict_metric for name in names] == ["perplexity", "loss", "loss", "score"]


def test_json_jsonl_and_csv_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"eval": {"loss": 1.5}}))
    (tmp_path / "b.jsonl").write_text('{"step": 5, "loss": 2.0}\n{"step": 9, "lr": 1}\n{"step": 10, "loss": 1.0}\n')
    (tmp_path / "c.csv").write_text("epoch,loss\n1,3.0\n2,2.5\n")
    assert read_metric_from_file(tmp_path / "a.json", "eval.loss") == [MetricValue(0, 1.5)]
    assert read_metric_from_file(tmp_path / "b.jsonl", "loss") == [MetricValue(5, 2.0), MetricValue(10, 1.0)]
    assert read_metric_from_file(tmp_path / "c.csv", "loss") == [MetricValue(1, 3.0), MetricValue(2, 2.5)]


def test_tensorboard_files(tmp_path: Path) -> None:
    writer_module = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with writer_module.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("val/loss", 2.0, 1)
        writer.add_scalar("val/loss", 1.5, 2)
    assert read_metric_from_file(tmp_path, "val/loss") == [MetricValue(1, 2.0), MetricValue(2, 1.5)]


TRACKER_SCRIPTS = {
    "wandb": """
import sys, wandb
run = wandb.init(mode="offline", dir=sys.argv[1], project="p")
for step in range(3):
    run.log({"val/loss": 2.0 - step / 2, "other": 1})
run.finish()
""",
    "trackio": """
import os, sys
os.environ["TRACKIO_DIR"] = sys.argv[1]
import trackio
trackio.init(project="p", name="r")
for step in range(3):
    trackio.log({"val/loss": 2.0 - step / 2, "other": 1})
trackio.finish()
""",
}


@pytest.mark.parametrize("tracker", TRACKER_SCRIPTS)
def test_folders_that_trackers_wrote(tracker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed")
    command = [sys.executable, "-c", TRACKER_SCRIPTS[tracker], str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    expected = [MetricValue(step, 2.0 - step / 2) for step in range(3)]
    assert read_metric_from_file(tmp_path, "val/loss") == expected
    assert read_metric_from_file(tmp_path, "loss") == []


def test_unreadable_metric_files_are_errors_that_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "log.xyz").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"bad\.json cannot be read"):
        read_metric_from_file(tmp_path / "bad.json", "loss")
    with pytest.raises(RequestError, match=r"unsupported file extension '\.xyz'; allowed: \.json, \.jsonl, \.csv"):
        read_metric_from_file(tmp_path / "log.xyz", "loss")
    with pytest.raises(RequestError, match="no TensorBoard, W&B or trackio files"):
        read_metric_from_file(tmp_path / "empty", "loss")
    with pytest.raises(RequestError, match="No such file"):
        read_metric_from_file(tmp_path / "missing.json", "loss")


def test_examples_become_scores_with_documents(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / f"{seed}.csv").write_text(f"example,score,weight,document\na,{1 + seed},10,x\nb,2,30,y\n")
    scores = join_example_scores({seed: read_example_scores(tmp_path / f"{seed}.csv") for seed in (0, 1)})
    assert scores.documents == ("x", "y")
    np.testing.assert_allclose(scores.compute_seed_means(), [(10 + 60) / 40, (20 + 60) / 40])
    (tmp_path / "2.csv").write_text("example,score,weight,document\na,1,10,x\n")
    with pytest.raises(RequestError, match="the examples, weights or documents of seed 2 differ from those of seed 0"):
        join_example_scores({seed: read_example_scores(tmp_path / f"{seed}.csv") for seed in (0, 2)})
