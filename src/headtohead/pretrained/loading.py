"""Load decoders and encoders of transformers in float32. `weights` decides what may be loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headtohead.config.tasks import Target
from headtohead.errors import MissingExtraError, ModelError
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.pretrained_model import PretrainedModel
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import PretrainedWeights, check_memory, locate_weights

MAX_LAYERS = 2000
# ---- loading


@dataclass(frozen=True)
class LoadedPretrained:
    """A pretrained model with its tokenizer and source."""

    model: PretrainedModel
    tokenizer: PretrainedTokenizer
    target: Target
    name: str
    folder: Path
    label_names: tuple[str, ...] = ()


def load_pretrained(source: str | Path) -> LoadedPretrained:
    """Load a model in float32, in evaluation mode, from a folder, GGUF file, hub:owner/name or installed package."""
    weights = locate_weights(source)
    transformers = import_transformers_for(weights)
    check_memory(weights)
    with silence_transformers(transformers), use_fast_reader() if weights.gguf_file else nullcontext():
        model_class = _select_model_class(transformers, weights)
        inner = load_matching_weights(model_class, weights)
        tokenizer = PretrainedTokenizer.load(weights, inner)
    model = PretrainedModel(inner, weights.name)
    return LoadedPretrained(model.eval(), tokenizer, model.target, weights.name, weights.folder)


def import_transformers(purpose: str) -> Any:
    """Import transformers to load a model; raise MissingExtraError, which states the purpose, if it is missing."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "pretrained", purpose) from error
    return transformers


def import_transformers_for(weights: PretrainedWeights) -> Any:
    """Import transformers to load pretrained weights; raise MissingExtraError if a package they need is missing."""
    purpose = f"loading {weights.name}"
    transformers = import_transformers(purpose)
    if weights.gguf_file:
        for package in ("gguf", "accelerate"):
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError as error:
                raise MissingExtraError(package, "pretrained", purpose) from error
    return transformers


def _select_model_class(transformers: Any, weights: PretrainedWeights) -> Any:
    """Return the transformers class to load `weights` with: a causal language model, or an encoder without a head."""
    if weights.gguf_file:
        return transformers.AutoModelForCausalLM
    config = weights.config
    check_model_type(transformers, weights)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{weights.folder}: encoder-decoder models ({config['model_type']}) are not supported")
    return transformers.AutoModelForCausalLM if is_causal_lm_config(config) else transformers.AutoModel


def check_model_type(transformers: Any, weights: PretrainedWeights) -> None:
    """Raise ModelError before loading if the installed version of transformers does not support the architecture."""
    model_type = weights.config.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{weights.folder}: transformers {transformers.__version__} does not support model type {model_type!r}"
        )


def is_causal_lm_config(config: dict[str, Any]) -> bool:
    """Return whether the config.json of a checkpoint describes a decoder, before it is loaded."""
    architectures: list[str] = config.get("architectures") or [""]
    return bool(config.get("is_decoder")) or any(
        name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures
    )


def load_matching_weights(model_class: Any, weights: PretrainedWeights) -> nn.Module:
    """Return a model with pretrained weights; raise ModelError if tensors are missing or have a different shape."""
    model, loading_info = load_from_pretrained(model_class, weights)
    # Tensors missing from the file were initialized at random. Only an encoder's pooler is unused and may be missing.
    missing_keys = sorted(name for name in loading_info["missing_keys"] if "pooler" not in name)
    if missing_keys or loading_info["mismatched_keys"]:
        raise build_mismatch_error(weights, missing_keys, loading_info)
    return model


def build_mismatch_error(
    weights: PretrainedWeights, missing_keys: list[str], loading_info: dict[str, Any]
) -> ModelError:
    """Return the error for loaded weights that do not match their configuration."""
    keys = missing_keys or sorted(str(entry[0]) for entry in loading_info["mismatched_keys"])
    return ModelError(f"{weights.name}: the weights do not match the configuration (for example {keys[0]})")


def load_from_pretrained(
    model_class: Any, weights: PretrainedWeights, **kwargs: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model in float32, and transformers' loading info (missing and mismatched keys)."""
    format_argument = {"gguf_file": weights.gguf_file} if weights.gguf_file else {"use_safetensors": True}
    try:
        if not weights.gguf_file:
            _check_config_size(model_class, weights)
        model, loading_info = model_class.from_pretrained(
            weights.folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **format_argument,
            **kwargs,
        )
    except ModelError:
        raise
    except Exception as error:  # transformers does not validate configurations
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ModelError(f"{weights.name}: transformers cannot load these weights ({reason})") from error
    return model, loading_info


NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MAX_EXTRA_PARAMETERS = 2**24
"""parameters that a model may have beyond those in its file: new heads and poolers, tied weights"""


def _check_config_size(model_class: Any, weights: PretrainedWeights) -> None:
    """Raise ModelError before loading if the configuration describes a far larger model than the file.

    The remaining tensors would be allocated and initialized at random.
    """
    from transformers import AutoConfig

    declared_counts = (weights.config.get(key) for key in NUM_LAYERS_KEYS)
    num_layers = max((count for count in declared_counts if type(count) is int), default=0)
    if num_layers > MAX_LAYERS:
        raise ModelError(f"{weights.name}: the configuration declares {num_layers:,} layers")
    config = AutoConfig.from_pretrained(weights.folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        outline = model_class.from_config(config)
    num_declared = sum(parameter.numel() for parameter in outline.parameters())
    if num_declared > 2 * weights.num_parameters + MAX_EXTRA_PARAMETERS:
        raise ModelError(
            f"{weights.name}: the configuration declares {num_declared:,} parameters, "
            f"the file has {weights.num_parameters:,}"
        )


@contextmanager
def silence_transformers(transformers: Any) -> Iterator[None]:
    """Disable transformers' progress bars, log messages and warnings while a model is loaded."""
    from transformers import modeling_gguf_pytorch_utils as gguf_utils

    logging = transformers.utils.logging
    verbosity, had_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    gguf_progress_bar = gguf_utils.tqdm
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    gguf_utils.tqdm = partial(gguf_progress_bar, disable=True)  # this bar ignores the setting above
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gguf_utils.tqdm = gguf_progress_bar
        logging.set_verbosity(verbosity)
        if had_progress_bar:
            logging.enable_progress_bar()
