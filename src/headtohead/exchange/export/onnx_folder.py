"""Write a run in the ONNX format, and compare it with the model of parts in onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import MissingExtraError, ModelError
from headtohead.exchange.conversion.output_difference import check_difference, draw_input_ids
from headtohead.exchange.export.transformers_folder import (
    ExportedModel,
    check_folder_is_empty,
    load_model_of_parts,
)
from headtohead.nn.transformer import Transformer

MODEL_FILE = "model.onnx"
INPUT_NAMES = ("input_ids", "attention_mask")


class OnnxModel(nn.Module):
    """A model of parts as a function of two tensors. It uses the reference implementation of attention."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits, (batch, length, vocab) or (batch, classes)."""
        logits: Tensor = self.model(input_ids, attention_mask, attn_implementation="eager").logits
        return logits


def export_to_onnx(source: str | Path, folder: Path) -> ExportedModel:
    """Write the model of a run folder to model.onnx, and its tokenizer to tokenizer.json.

    The inputs of the ONNX model are `input_ids` and `attention_mask`, (batch, length) in int64; its output is `logits`.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  imported by torch.onnx
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx", "export to ONNX") from error
    saved, model = load_model_of_parts(source)
    check_folder_is_empty(folder)
    program = _trace(model)
    folder.mkdir(parents=True, exist_ok=True)
    program.save(folder / MODEL_FILE)
    if isinstance(saved.tokenizer, CorpusTokenizer):
        saved.tokenizer.backend.save(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(folder / MODEL_FILE, providers=["CPUExecutionProvider"])
    return ExportedModel(folder, "ONNX", check_difference(_measure_session_difference(session, model)))


def _trace(model: Transformer) -> Any:
    """Return the ONNX program of a model, for any batch size and length. Raise ModelError if torch cannot trace it."""
    input_ids = draw_input_ids(model)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=model.max_positions)
    try:
        with _silence_exporter():
            return torch.onnx.export(
                OnnxModel(model.eval()),
                (input_ids, torch.ones_like(input_ids)),
                dynamo=True,
                input_names=INPUT_NAMES,
                output_names=("logits",),
                dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = error.__cause__ or error
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise ModelError(
            f"the model cannot be converted to ONNX, because torch.export cannot trace one of its parts ({reason}); "
            "a part must not use the value of a tensor in Python"
        ) from error


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Disable warnings and log messages of the ONNX exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def _measure_session_difference(session: Any, model: Transformer) -> float:
    """Return the largest difference of logits on random tokens of several shapes, with and without padding. Raise
    ModelError if the session accepts a single shape only.
    """
    if not all(isinstance(size, str) for model_input in session.get_inputs() for size in model_input.shape):
        shape = tuple(session.get_inputs()[0].shape)
        raise ModelError(f"a part of the model fixes the shape of its inputs: {INPUT_NAMES[0]} must have shape {shape}")
    differences = []
    for batch_size, length in ((2, model.context), (2, max(1, model.context // 2)), (1, 1)):
        input_ids = draw_input_ids(model)[:batch_size, :length]
        attention_mask = torch.ones_like(input_ids)
        attention_mask[1:, 1 + length // 2 :] = 0
        inputs = dict(zip(INPUT_NAMES, (input_ids.numpy(), attention_mask.numpy()), strict=True))
        difference = torch.from_numpy(session.run(None, inputs)[0]) - model(input_ids, attention_mask).logits
        if model.num_classes is None:
            difference = difference[attention_mask.bool()]
        differences.append(float(difference.abs().max()))
    return max(differences)
