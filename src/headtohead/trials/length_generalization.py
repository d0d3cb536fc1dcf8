"""Other lengths of input than a model was trained with: how well it does there, and what a step costs there."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from headtohead.config import model as config_model
from headtohead.config.tasks import Target
from headtohead.data import batches
from headtohead.data import examples as data_examples
from headtohead.data.batches import TokenRows
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import ModelError
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.transformer import Transformer
from headtohead.training.loop import summarize_evaluation
from headtohead.training.objectives import build_objective, evaluate

TOKENS_PER_BATCH = 512
"""tokens of a batch, whatever their length: what grows with the length is the length's doing"""
TOKENS_PER_COST_MEASUREMENT = 2048
NUM_COST_REPEATS = 3


def evaluate_at_lengths(
    model: Transformer | CustomModel,
    target: Target,
    tokenizer: TokenizerProtocol,
    held_out_splits: dict[str, batches.EncodedSplit],
    context_lengths: tuple[int, ...],
) -> list[dict[str, Any]]:
    """The held-out texts read in pieces of each length: the scores and the time, or why the model cannot."""
    return [
        _evaluate_at_length(model, target, tokenizer, name, held_out_splits[name], at)
        for at in context_lengths
        for name in held_out_splits
    ]


def _evaluate_at_length(
    model: Transformer | CustomModel,
    target: Target,
    tokenizer: TokenizerProtocol,
    split: str,
    encoded: batches.EncodedSplit,
    context_length: int,
) -> dict[str, Any]:
    row = {"split": split, "context": context_length}
    if target.is_class and isinstance(encoded, TokenRows):
        encoded = join_rows_by_label(encoded, context_length)
    examples = data_examples.build_evaluation_examples(encoded, target, context_length, tokenizer)
    objective = build_objective(target)
    began = time.perf_counter()
    try:
        found = evaluate(
            model, objective, examples.batches(max(1, TOKENS_PER_BATCH // context_length)), torch.device("cpu")
        )
    except ModelError as error:
        return {**row, "error": str(error)}
    except (RuntimeError, IndexError) as error:  # a network of the user's own: whatever it says
        if isinstance(model, Transformer):
            raise
        return {**row, "error": f"{type(error).__name__}: {error}"}
    seconds = time.perf_counter() - began
    return {
        **row,
        **summarize_evaluation(found, objective.metric),
        "seconds_per_1000_tokens": 1000 * seconds / len(encoded.tokens),
    }


def join_rows_by_label(rows: TokenRows, max_tokens: int) -> TokenRows:
    """Rows of one class joined to texts of up to so many tokens. A longer text holds more evidence, so that a model
    that can use it does better; a row that is longer by itself stays alone."""
    assert rows.labels is not None
    pieces: list[Tensor] = []
    labels: list[int] = []
    for label in range(int(rows.labels.max()) + 1):
        text: list[Tensor] = []
        for i in torch.nonzero(rows.labels == label).flatten().tolist():
            row = rows.tokens[rows.offsets[i] : rows.offsets[i + 1]]
            if text and sum(map(len, text)) + len(row) > max_tokens:
                pieces.append(torch.cat(text))
                labels.append(label)
                text = []
            text.append(row)
        if text:
            pieces.append(torch.cat(text))
            labels.append(label)
    offsets = torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0)
    return TokenRows(rows.name, torch.cat(pieces), offsets, torch.tensor(labels))


def measure_costs_at_lengths(
    model: config_model.ModelConfig, vocab_size: int, num_classes: int | None, context_lengths: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Time and memory of the layers, forward and backward, for the same number of tokens in rows of each length.

    The vocabulary layer is left out: it costs the same at every length and would hide what differs. Memory is what is
    kept for the way back, counted tensor by tensor: it is what limits the length that can be trained.
    """
    if not isinstance(model, config_model.TransformerConfig):
        return []
    rows = []
    for at in context_lengths:
        made = build_model(model.model_copy(update={"context": at}), vocab_size, num_classes)
        assert isinstance(made, Transformer)
        ids = torch.arange(max(1, TOKENS_PER_COST_MEASUREMENT // at) * at).remainder(vocab_size).view(-1, at)
        kept = _measure_saved_activation_bytes(made, ids)
        seconds = min(_time_forward_backward(made, ids) for _ in range(NUM_COST_REPEATS))
        rows.append(
            {
                "context": at,
                "seconds_per_1000_tokens": 1000 * seconds / ids.numel(),
                "bytes_per_token": kept / ids.numel(),
            }
        )
    return rows


def _measure_saved_activation_bytes(model: Transformer, ids: Tensor) -> int:
    """Bytes kept between forward and backward, shared ones counted once, without the weights."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        stream, _ = model.compute_hidden_states(ids)
    for parameter in model.parameters():
        sizes.pop(parameter.untyped_storage().data_ptr(), None)
    stream.sum().backward()  # the graph has held everything until here, so that no address was used twice
    model.zero_grad(set_to_none=True)
    return sum(sizes.values())


def _time_forward_backward(model: Transformer, ids: Tensor) -> float:
    began = time.perf_counter()
    stream, _ = model.compute_hidden_states(ids)
    stream.sum().backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began
