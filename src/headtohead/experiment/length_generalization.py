"""Other lengths of input than a model was trained with: how well it does there, and what a step costs there."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from headtohead.config import model as config_model
from headtohead.data import batches, splits
from headtohead.data import examples as data_examples
from headtohead.data.batches import Rows
from headtohead.data.tokenizers import Tokens
from headtohead.errors import ModelError
from headtohead.nn.custom_model import OwnModel
from headtohead.nn.init import create
from headtohead.nn.transformer import Transformer
from headtohead.training.loop import scores_of
from headtohead.training.objectives import evaluate, objective_of

TOKENS_AT_ONCE = 512
"""tokens of a batch, whatever their length: what grows with the length is the length's doing"""
COST_TOKENS = 2048
COST_REPEATS = 3


def test_at(
    model: Transformer | OwnModel,
    task: splits.Task,
    tokenizer: Tokens,
    held_out: dict[str, batches.Encoded],
    contexts: tuple[int, ...],
) -> list[dict[str, Any]]:
    """The held-out texts read in pieces of each length: the scores and the time, or why the model cannot."""
    return [_test_one(model, task, tokenizer, name, held_out[name], at) for at in contexts for name in held_out]


def _test_one(
    model: Transformer | OwnModel, task: splits.Task, tokenizer: Tokens, name: str, encoded: batches.Encoded, at: int
) -> dict[str, Any]:
    row = {"split": name, "context": at}
    if task == "classify" and isinstance(encoded, Rows):
        encoded = joined(encoded, at)
    examples = data_examples.examples(encoded, task, at, tokenizer)
    objective = objective_of(task)
    began = time.perf_counter()
    try:
        found = evaluate(model, objective, examples.batches(max(1, TOKENS_AT_ONCE // at)), torch.device("cpu"))
    except ModelError as error:
        return {**row, "error": str(error)}
    except (RuntimeError, IndexError) as error:  # a network of the user's own: whatever it says
        if isinstance(model, Transformer):
            raise
        return {**row, "error": f"{type(error).__name__}: {error}"}
    seconds = time.perf_counter() - began
    return {
        **row,
        **scores_of(found, objective.metric),
        "seconds_per_1000_tokens": 1000 * seconds / len(encoded.tokens),
    }


def joined(rows: Rows, length: int) -> Rows:
    """Rows of one class joined to texts of up to so many tokens. A longer text holds more evidence, so that a model
    that can use it does better; a row that is longer by itself stays alone."""
    assert rows.labels is not None
    pieces: list[Tensor] = []
    labels: list[int] = []
    for label in range(int(rows.labels.max()) + 1):
        text: list[Tensor] = []
        for i in torch.nonzero(rows.labels == label).flatten().tolist():
            row = rows.tokens[rows.offsets[i] : rows.offsets[i + 1]]
            if text and sum(map(len, text)) + len(row) > length:
                pieces.append(torch.cat(text))
                labels.append(label)
                text = []
            text.append(row)
        if text:
            pieces.append(torch.cat(text))
            labels.append(label)
    offsets = torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0)
    return Rows(rows.name, torch.cat(pieces), offsets, torch.tensor(labels))


def costs_at(
    model: config_model.Model, vocab: int, classes: int | None, contexts: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Time and memory of the layers, forward and backward, for the same number of tokens in rows of each length.

    The vocabulary layer is left out: it costs the same at every length and would hide what differs. Memory is what is
    kept for the way back, counted tensor by tensor: it is what limits the length that can be trained.
    """
    if not isinstance(model, config_model.Transformer):
        return []
    rows = []
    for at in contexts:
        made = create(model.model_copy(update={"context": at}), vocab, classes)
        assert isinstance(made, Transformer)
        ids = torch.arange(max(1, COST_TOKENS // at) * at).remainder(vocab).view(-1, at)
        kept = _kept_bytes(made, ids)
        seconds = min(_pass(made, ids) for _ in range(COST_REPEATS))
        rows.append(
            {
                "context": at,
                "seconds_per_1000_tokens": 1000 * seconds / ids.numel(),
                "bytes_per_token": kept / ids.numel(),
            }
        )
    return rows


def _kept_bytes(model: Transformer, ids: Tensor) -> int:
    """Bytes kept between forward and backward, shared ones counted once, without the weights."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        stream, _ = model.stream(ids)
    for parameter in model.parameters():
        sizes.pop(parameter.untyped_storage().data_ptr(), None)
    stream.sum().backward()  # the graph has held everything until here, so that no address was used twice
    model.zero_grad(set_to_none=True)
    return sum(sizes.values())


def _pass(model: Transformer, ids: Tensor) -> float:
    began = time.perf_counter()
    stream, _ = model.stream(ids)
    stream.sum().backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began
