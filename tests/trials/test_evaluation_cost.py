"""Evaluation during training takes a bounded fraction of the computation, and final scores use complete splits."""

import math

import numpy as np
import pytest
import torch

from headtohead.config.tasks import Target
from headtohead.config.trial_settings import build_trial
from headtohead.data.encoding import TokenRows
from headtohead.data.evaluation_examples import EvaluationExamples, sample_within_pass_limit
from headtohead.experiment.run_folder import Run
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.loop import EVALUATION_BATCH_SIZE
from headtohead.training.task_objectives.evaluation_pass import run_evaluation_pass
from headtohead.trials.trial import build_training, run_trial


def build_examples(num_rows: int) -> EvaluationExamples:
    rows = TokenRows("split", torch.ones(4 * num_rows, dtype=torch.int64), torch.arange(num_rows + 1) * 4)
    return EvaluationExamples(rows, Target.NEXT_TOKEN, 8, 0)


def test_large_splits_share_what_small_splits_leave() -> None:
    splits = {"small": build_examples(32), "medium": build_examples(640), "large": build_examples(64_000)}
    limited = sample_within_pass_limit(splits, 1_000)
    assert limited["small"] is splits["small"]
    assert 320 <= limited["medium"].num_passes <= 484
    assert sum(examples.num_passes for examples in limited.values()) <= 1_000
    assert limited["large"].num_passes > 400
    assert sample_within_pass_limit(splits, 1e9) == splits


def test_each_split_keeps_a_batch() -> None:
    limited = sample_within_pass_limit({"a": build_examples(500), "b": build_examples(900)}, 1)
    assert [len(list(examples.iter_batches(16))) for examples in limited.values()] == [1, 1]


def test_positions_of_rows_in_a_sample() -> None:
    examples = build_examples(100).limit_passes(40)  # every third batch of 16
    sampled = [*range(16), *range(48, 64), *range(96, 100)]
    positions = examples.find_score_positions(torch.tensor([3, 17, 50, 99]), 16)
    assert [sampled[i] for i in positions] == [3, 50, 99]


@pytest.mark.parametrize(("fraction", "is_limited"), [(0.1, True), (1.0, False)])
def test_final_scores_are_complete_and_scores_along_the_way_are_sampled(small, tmp_path, fraction, is_limited) -> None:
    settings = {"budget": "60 steps", "eval_every": 20, "max_eval_fraction": fraction}
    trial = build_trial(small(training=settings), "baseline", 0)
    dataset = prepare_dataset(trial.data, trial.task)
    _, trainer = build_training(trial, dataset, tmp_path / "other", torch.device("cpu"))
    along_the_way = trainer.num_evaluations * trainer.passes_per_evaluation
    assert (along_the_way <= 0.1 * 3 * 8 * 60) is is_limited
    result = run_trial(trial, tmp_path / "run")
    run = Run(tmp_path / "run")
    complete = get_task(trial.task).build_split_examples(trial, dataset, "validation")
    num_tokens = int(complete.prediction_counts.sum())
    counts = [line.count for line in run.metrics if line.split == "validation"]
    assert len(counts) == 4 and len(set(counts)) == 1
    assert (counts[0] < num_tokens) is is_limited
    for name in ("validation", "test"):
        assert result.scores[name].count == int(run.scores[f"{name}.counts"].sum())
    assert result.scores["validation"].count == num_tokens


def test_the_sample_has_the_scores_of_the_complete_split(small, tmp_path) -> None:
    trial = build_trial(small(training={"budget": "60 steps", "eval_every": 20}), "baseline", 0)
    dataset = prepare_dataset(trial.data, trial.task)
    model, trainer = build_training(trial, dataset, tmp_path, torch.device("cpu"))
    task = get_task(trial.task)
    examples, device = task.build_split_examples(trial, dataset, "validation"), torch.device("cpu")
    complete = run_evaluation_pass(model, trainer.objective, examples.iter_batches(EVALUATION_BATCH_SIZE), device)
    by_block = examples.sum_scores_by_example(torch.as_tensor(complete.losses)).numpy()
    sample = trainer.tracked_examples["validation"]
    sampled = run_evaluation_pass(model, trainer.objective, sample.iter_batches(EVALUATION_BATCH_SIZE), device)
    indices = torch.cat([batch.example_indices for batch in sample.iter_batches(EVALUATION_BATCH_SIZE)]).numpy()
    assert len(indices) < examples.num_examples
    assert np.allclose(sampled.losses, by_block[indices])
    assert math.isfinite(sampled.perplexity)
