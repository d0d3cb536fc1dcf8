"""Write a run as a folder of transformers that TransformerLens loads, and compare the two models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from headtohead.errors import MissingExtraError, ModelError
from headtohead.exchange.architectures.architecture import NoMatchError
from headtohead.exchange.conversion.output_difference import check_difference, draw_input_ids
from headtohead.exchange.conversion.to_transformers import EXPORT_PURPOSE, find_architecture, select_model_class
from headtohead.exchange.export.transformers_folder import (
    ExportedModel,
    export_to_transformers,
    load_model_of_parts,
)
from headtohead.pretrained.loading import import_transformers, silence_transformers


def export_to_transformer_lens(source: str | Path, folder: Path, *, model_type: str | None = None) -> ExportedModel:
    """Write the model of a run folder such that `TransformerBridge.boot_transformers(folder)` of TransformerLens loads
    it: as `export_to_transformers` does, but without a modeling file.
    """
    try:
        from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError as error:
        raise MissingExtraError("transformer_lens", "transformer-lens", "export to TransformerLens") from error
    transformers = import_transformers(EXPORT_PURPOSE)
    _, model = load_model_of_parts(source)
    architecture, structure, _ = find_architecture(model, model_type)
    class_name = select_model_class(transformers, structure, architecture).__name__
    if class_name not in SUPPORTED_ARCHITECTURES:
        raise NoMatchError(
            f"TransformerLens does not support {class_name} of transformers; choose another architecture with "
            "--architecture"
        )
    exported = export_to_transformers(source, folder, model_type=architecture.model_type)
    with silence_transformers(transformers), torch.no_grad():
        try:
            bridge = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"TransformerLens cannot load the exported folder: {error}") from error
        input_ids = draw_input_ids(model)
        difference = float((bridge(input_ids) - model(input_ids).logits).abs().max())
    return replace(exported, max_difference=max(exported.max_difference, check_difference(difference)))
