"""Count the cost of a trial's model and of one of its training steps: parameters, tokens and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headtohead.config.experiment import Trial
from headtohead.model_cost import ModelCost, compute_model_cost
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset

FLOPS_PER_FORWARD_FLOP = 3
"""a backward pass takes about twice as many FLOPs as a forward pass"""


@dataclass(frozen=True)
class StepCost:
    """What a training step of a trial costs, and the size of its model."""

    steps_per_epoch: int
    tokens: float
    """input tokens per step, without padding"""
    flops: float | None
    """FLOPs per step, forward and backward; None if they cannot be counted"""
    parameters: int


def compute_trial_model_cost(trial: Trial, dataset: Dataset) -> ModelCost:
    """Return the parameter count, FLOPs and memory of a trial's model, without building its weights."""
    return compute_model_cost(
        trial.model,
        dataset.tokenizer.vocab_size,
        dataset.num_classes,
        is_causal=trial.spec.target.is_causal,
        training=trial.training,
    )


def compute_step_cost(trial: Trial) -> StepCost:
    """Return the cost of a trial's training step, counted without training."""
    return _compute_step_cost(trial.model_copy(update={"variant": "", "seed": 0}).model_dump_json())


@lru_cache(maxsize=256)
def _compute_step_cost(trial_json: str) -> StepCost:
    """Return the parameters, tokens and FLOPs of one training step of a trial, given as JSON."""
    trial = Trial.model_validate_json(trial_json)
    dataset = prepare_dataset(trial.data, trial.task)
    schedule, _ = get_task(trial.task).build_training_data(trial, dataset)
    model_cost = compute_trial_model_cost(trial, dataset)
    tokens, flops_per_token = schedule.tokens_per_step, model_cost.flops_per_token
    flops = None if flops_per_token is None else FLOPS_PER_FORWARD_FLOP * flops_per_token * tokens
    return StepCost(schedule.steps_per_epoch, tokens, flops, model_cost.parameters)
