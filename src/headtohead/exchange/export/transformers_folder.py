"""Write a run as a folder that transformers loads: as one of its architectures, or with a modeling file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import RequestError
from headtohead.exchange.architectures.architecture import NoMatchError
from headtohead.exchange.conversion.output_difference import check_export_difference
from headtohead.exchange.conversion.to_transformers import (
    EXPORT_PURPOSE,
    convert_to_transformers,
    find_architecture,
    get_special_token_ids,
)
from headtohead.exchange.export.modeling_file import load_with_modeling_file, write_with_modeling_file
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import import_transformers, silence_transformers
from headtohead.saved_models import model_io
from headtohead.saved_models.model_io import SavedModel

OWN_MODELING_FILE = "own modeling file"
"""reported as the architecture of an export that no architecture of transformers expresses"""


@dataclass(frozen=True)
class ExportedModel:
    """The result of `h2h export`."""

    folder: Path
    architecture: str
    max_difference: float
    """largest difference between the outputs of both models on random tokens"""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "folder": str(self.folder)}


def export_to_transformers(source: str | Path, folder: Path, *, model_type: str | None = None) -> ExportedModel:
    """Write a run's model and tokenizer as a folder that transformers loads.

    Args:
        source: Run folder.
        folder: Output folder, which must be new or empty.
        model_type: Architecture of transformers; by default, the first one that has the parts of the model.
    """
    transformers = import_transformers(EXPORT_PURPOSE)
    saved, model = load_model_of_parts(source)
    check_folder_is_empty(folder)
    try:
        architecture, structure, config = find_architecture(model, model_type)
    except NoMatchError:
        if model_type is not None:
            raise
        return _export_with_modeling_file(saved, model, folder, transformers)
    with silence_transformers(transformers):
        transformers_model = convert_to_transformers(model, architecture, structure, config, saved.tokenizer)
        difference = check_export_difference(transformers_model, model)
        folder.mkdir(parents=True, exist_ok=True)
        transformers_model.save_pretrained(folder)
        if isinstance(saved.tokenizer, CorpusTokenizer):
            save_transformers_tokenizer(saved.tokenizer, folder, model.context)
    return ExportedModel(folder, architecture.title, difference)


def load_model_of_parts(source: str | Path) -> tuple[SavedModel, Transformer]:
    """Return the run to export and its model; raise RequestError unless the model is made of parts."""
    saved = model_io.load_saved_model(source)
    if not isinstance(saved.model, Transformer):
        raise RequestError(f"{source}: only models of parts can be exported, not a {type(saved.model).__name__}")
    return saved, saved.model


def _export_with_modeling_file(saved: SavedModel, model: Transformer, folder: Path, transformers: Any) -> ExportedModel:
    """Write a folder with its own modeling file, for `trust_remote_code`."""
    with silence_transformers(transformers):
        write_with_modeling_file(model, folder, saved.label_names, get_special_token_ids(saved.tokenizer))
        difference = check_export_difference(load_with_modeling_file(folder), model)
        if isinstance(saved.tokenizer, CorpusTokenizer):
            save_transformers_tokenizer(saved.tokenizer, folder, model.context)
    return ExportedModel(folder, OWN_MODELING_FILE, difference)


def check_folder_is_empty(folder: Path) -> None:
    """Raise RequestError unless the output folder of an export is new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty; choose another folder with --out")


def save_transformers_tokenizer(tokenizer: CorpusTokenizer, folder: Path, context: int) -> None:
    """Write the tokenizer of a run in the format of transformers."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    special_ids = {
        "pad": tokenizer.pad_id,
        "unk": tokenizer.unk_id,
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "mask": tokenizer.mask_id,
    }
    special_tokens = {
        f"{name}_token": tokenizer.id_to_token(token_id)
        for name, token_id in special_ids.items()
        if token_id is not None
    }
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend.to_str()), model_max_length=context, **special_tokens
    )
    fast_tokenizer.save_pretrained(folder)
