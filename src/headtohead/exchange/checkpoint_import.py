"""`h2h import`: convert a transformers checkpoint to a folder that all commands accept like a run folder."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headtohead.atomic_io import write_text
from headtohead.config.experiment import Trial
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RequestError
from headtohead.exchange.architectures.registry import get_architecture
from headtohead.exchange.conversion.from_transformers import convert_to_parts
from headtohead.exchange.conversion.output_difference import measure_output_difference
from headtohead.exchange.model_structure import ModelStructure
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import loading
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import PretrainedWeights, check_memory, locate_weights
from headtohead.saved_models import model_io


@dataclass(frozen=True)
class ImportedModel:
    """The result of `h2h import`."""

    folder: Path
    architecture: str
    num_parameters: int
    has_head: bool
    max_difference: float
    """largest difference between the logits, or hidden states, of both models on random tokens"""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "folder": str(self.folder)}


def import_checkpoint(source: str, folder: Path | None = None) -> ImportedModel:
    """Convert a checkpoint to a model of parts and save it in `folder`, by default imported/NAME.

    The source is a folder, a GGUF file, hub:owner/name or an installed package with weights. Raise ModelError if the
    architecture, a field of its configuration or a tensor has no match in the parts.
    """
    weights = locate_weights(source)
    name = re.sub(r"[^\w.+-]+", "-", weights.name.rpartition("/")[2])
    folder = folder or Path("imported") / name
    if folder.exists() and any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty; choose another folder with --out")
    transformers = loading.import_transformers_for(weights)
    check_memory(weights)
    with loading.silence_transformers(transformers), use_fast_reader() if weights.gguf_file else nullcontext():
        transformers_model = _load_model_with_head(transformers, weights)
        model, structure = convert_to_parts(transformers_model)
        tokenizer = _convert_tokenizer(weights, transformers_model, structure)
        max_difference = measure_output_difference(transformers_model, model)
    trial = Trial.model_validate(
        {
            "task": "language-model" if structure.is_causal else "masked-lm",
            "variant": name,
            "seed": 0,
            "data": {"source": name, "tokenizer": {"kind": "file", "path": str((folder / "tokenizer.json").resolve())}},
            "model": model.model_config.model_dump(mode="json"),
            "training": {},
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    model_io.save_model(folder, model, tokenizer, trial, (), imported_from=weights.name)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    title = get_architecture(transformers_model.config.model_type).title
    result = ImportedModel(folder, title, num_parameters, structure.output_head != "none", max_difference)
    write_text(folder / "README.md", _render_import_card(weights.name, result, model))
    return result


def _load_model_with_head(transformers: Any, weights: PretrainedWeights) -> Any:
    """Return the transformers model to import, with the head that its checkpoint declares.

    Imported heads are those for causal and masked language modeling; any other model is loaded without its head.
    """
    class_names: list[str] = weights.config.get("architectures") or [""]
    if weights.gguf_file or loading.is_causal_lm_config(weights.config):
        model_class = transformers.AutoModelForCausalLM
    else:
        loading.check_model_type(transformers, weights)
        get_architecture(weights.config["model_type"])
        if class_names[0].endswith("ForMaskedLM") or class_names[0] == "BertForPreTraining":
            model_class = transformers.AutoModelForMaskedLM
        elif weights.config["model_type"] == "t5":
            model_class = transformers.T5EncoderModel
        else:
            model_class = transformers.AutoModel
    return loading.load_matching_weights(model_class, weights).eval()


def _convert_tokenizer(
    weights: PretrainedWeights, transformers_model: Any, structure: ModelStructure
) -> CorpusTokenizer:
    """Return a checkpoint's tokenizer as a tokenizer of runs; raise ModelError if it does not fit the model."""
    fast_backend = getattr(PretrainedTokenizer.load(weights, transformers_model).backend, "backend_tokenizer", None)
    if fast_backend is None:
        raise ModelError(f"{weights.name}: its tokenizer has no tokenizer.json")
    try:
        tokenizer = CorpusTokenizer(Tokenizer.from_str(fast_backend.to_str()))
    except ValueError as error:
        raise ModelError(f"{weights.name}: the tokenizer cannot be imported: {error}") from error
    if tokenizer.vocab_size > structure.vocab_size:
        raise ModelError(
            f"{weights.name}: the tokenizer has {tokenizer.vocab_size} tokens, the model only {structure.vocab_size}"
        )
    return tokenizer


def _render_import_card(name: str, result: ImportedModel, model: Transformer) -> str:
    """Return the README of an imported model: its origin, size and settings."""
    settings = "\n".join(f"- {key}: {value}" for key, value in model.model_config.model_dump(mode="json").items())
    return f"""---
library_name: headtohead
---
# {name}

Imported from transformers ({result.architecture}) by Head to Head (package headtohead). {result.num_parameters:,}
parameters. Largest difference from transformers on random tokens: {result.max_difference:.1e}.

## Settings
{settings}
"""
