"""Measure the scores and costs of a trial's model at input lengths that differ from the training length."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from headtohead.config.tables import model as config_model
from headtohead.errors import ModelError
from headtohead.experiment.schemas import LengthCost, LengthResult
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.tasks.base import Task, TrialModel
from headtohead.tasks.dataset import Dataset
from headtohead.training.loop import summarize_evaluation
from headtohead.training.task_objectives.evaluation_pass import run_evaluation_pass

TOKENS_PER_BATCH = 512
"""tokens per batch at every length, so that cost differences are due to the length alone"""
TOKENS_PER_COST_MEASUREMENT = 2048
NUM_COST_REPEATS = 3
"""the fastest repeat counts"""


def evaluate_at_lengths(
    model: TrialModel, task: Task, dataset: Dataset, context_lengths: tuple[int, ...]
) -> list[LengthResult]:
    """Return each test split's scores and time at each context length, or the error that the model raised."""
    return [
        _evaluate_at_length(model, task, dataset, split.name, length)
        for length in context_lengths
        for split in dataset.corpus.get_test_splits()
    ]


def _evaluate_at_length(
    model: TrialModel, task: Task, dataset: Dataset, split: str, context_length: int
) -> LengthResult:
    """Score a split at a different context length and measure the time.

    An error raised by the model is recorded in the result.
    """
    encoded = task.join_rows(dataset.encoded[split], context_length)
    examples = task.build_examples(dataset, encoded, context_length)
    batches = examples.iter_batches(max(1, TOKENS_PER_BATCH // context_length))
    start_time = time.perf_counter()
    try:
        evaluation = run_evaluation_pass(model, task.build_objective(dataset), batches, torch.device("cpu"))
    except ModelError as error:
        return LengthResult(split=split, context=context_length, error=str(error))
    except (RuntimeError, IndexError) as error:  # a custom network may raise anything
        if isinstance(model, Transformer):
            raise
        return LengthResult(split=split, context=context_length, error=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start_time
    return LengthResult.model_validate(
        {
            "split": split,
            "context": context_length,
            **summarize_evaluation(evaluation, task.spec.metric),
            "seconds_per_1000_tokens": 1000 * seconds / len(encoded.token_ids),
        }
    )


def measure_costs_at_lengths(
    model_config: config_model.ModelConfig,
    vocab_size: int,
    num_classes: int | None,
    context_lengths: tuple[int, ...],
    *,
    is_causal: bool | None = None,
) -> list[LengthCost]:
    """Measure the layers' forward and backward time and activation memory, with equally many tokens at every length.

    The output layer is excluded: its cost per token does not depend on the length. Memory is the size of the
    activations saved for the backward pass, which limits the trainable length.
    """
    if not isinstance(model_config, config_model.TransformerConfig):
        return []
    costs = []
    for length in context_lengths:
        model = build_model(
            model_config.model_copy(update={"context": length}), vocab_size, num_classes, is_causal=is_causal
        )
        assert isinstance(model, Transformer)
        num_tokens = max(1, TOKENS_PER_COST_MEASUREMENT // length) * length
        input_ids = torch.arange(num_tokens).remainder(vocab_size).view(-1, length)
        saved_bytes = _measure_saved_activation_bytes(model, input_ids)
        seconds = min(_time_forward_backward(model, input_ids) for _ in range(NUM_COST_REPEATS))
        costs.append(
            LengthCost(
                context=length,
                seconds_per_1000_tokens=1000 * seconds / input_ids.numel(),
                bytes_per_token=saved_bytes / input_ids.numel(),
            )
        )
    return costs


def _measure_saved_activation_bytes(model: Transformer, input_ids: Tensor) -> int:
    """Return the bytes of activations that training at one length needs, for inputs (batch, length)."""
    bytes_by_address: dict[int, int] = {}

    def record_storage(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        bytes_by_address[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_storage, lambda tensor: tensor):
        hidden_states, _ = model.compute_hidden_states(input_ids)
    for parameter in model.parameters():
        bytes_by_address.pop(parameter.untyped_storage().data_ptr(), None)
    hidden_states.sum().backward()  # the graph kept every storage alive until here, so no address was reused
    model.zero_grad(set_to_none=True)
    return sum(bytes_by_address.values())


def _time_forward_backward(model: Transformer, input_ids: Tensor) -> float:
    """Return the seconds of a forward and backward pass at one length, for inputs (batch, length)."""
    start_time = time.perf_counter()
    hidden_states, _ = model.compute_hidden_states(input_ids)
    hidden_states.sum().backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - start_time
