"""Load transformers' decoders and encoders, in float32, behind the interface of our own models.

`weights` decides what may be loaded. The cache is transformers' own, wrapped as a `DecodingCache`. Fused kernels
return no attention weights, so a forward pass with `output_attentions` switches to eager attention."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.config.tasks import Target
from headtohead.errors import MissingExtraError, ModelError
from headtohead.nn.protocol import ModelOutput
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.tokenizer import PretrainedTokenizer
from headtohead.pretrained.weights import PretrainedWeights, check_memory, locate_weights

InputIds = Int[Tensor, "batch length"]
MAX_LAYERS = 2000
UNLIMITED_CONTEXT = 1 << 30
"""context length for a model whose configuration does not limit positions"""


class PretrainedCache:
    """A transformers DynamicCache, with the padding mask of the cached tokens."""

    def __init__(self, config: Any) -> None:
        """Create an empty cache of transformers for this configuration."""
        from transformers import DynamicCache

        self.inner: Any = DynamicCache(config=config)
        self.length = 0
        self.attention_mask: Bool[Tensor, "batch key"] | None = None

    def append_attention_mask(
        self, num_new_tokens: int, attention_mask: Bool[Tensor, "batch query"] | None, batch_size: int
    ) -> Tensor | None:
        """Append the padding mask of new tokens; return the mask of all tokens, or None without padding."""
        if attention_mask is not None or self.attention_mask is not None:
            reference = attention_mask if attention_mask is not None else self.attention_mask
            assert reference is not None
            previous_mask = (
                reference.new_ones(batch_size, self.length) if self.attention_mask is None else self.attention_mask
            )
            self.attention_mask = torch.cat(
                (
                    previous_mask,
                    reference.new_ones(batch_size, num_new_tokens) if attention_mask is None else attention_mask,
                ),
                dim=1,
            )
        self.length += num_new_tokens
        return self.attention_mask

    def select_rows(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these batch rows, in this order. Indices may repeat."""
        self.inner.batch_select_indices(row_indices)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[row_indices]


class PretrainedModel(nn.Module):
    """A transformers model that implements our protocol.

    An encoder has no output layer: its logits are its last hidden state."""

    def __init__(self, inner: nn.Module, name: str = "") -> None:
        """Wrap a loaded transformers model."""
        super().__init__()
        self.inner: Any = inner
        self.name = name or type(inner).__name__
        config: Any = inner.config
        text_config = config.get_text_config()
        max_positions = getattr(text_config, "max_position_embeddings", None) or getattr(
            text_config, "n_positions", None
        )
        self.context = int(max_positions) if max_positions else UNLIMITED_CONTEXT
        self._forward_parameters = frozenset(inspect.signature(inner.forward).parameters)
        has_output = inner.get_output_embeddings() is not None  # type: ignore[operator]
        self.target = Target.NEXT_TOKEN if has_output else Target.NONE
        self.train(inner.training)

    @property
    def config(self) -> Any:
        return self.inner.config

    @property
    def can_pad(self) -> bool:
        """Return True: the model receives position ids and a padding mask."""
        return True

    def create_cache(self) -> PretrainedCache | None:
        """Return an empty cache; None for an encoder, or a model whose state is not a KV cache."""
        if self.target is Target.NONE or getattr(self.inner, "_is_stateful", False):
            return None
        return PretrainedCache(self.inner.config)

    def forward(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: PretrainedCache | None = None,
        output_attentions: bool = False,
    ) -> ModelOutput:
        """Return logits, hidden states and, if requested, attentions. Encoders return hidden states as logits."""
        arguments: dict[str, Any] = {"output_hidden_states": True}
        if output_attentions:
            arguments["output_attentions"] = True
        with use_eager_attention(self.inner, self.name) if output_attentions else nullcontext():
            output = self._call_inner(input_ids, attention_mask, cache, arguments)
        hidden_states = output.hidden_states[-1]
        logits = hidden_states if self.target is Target.NONE else output.logits
        attentions = self._extract_attentions(output) if output_attentions else None
        return ModelOutput(logits, attentions, hidden_states)

    def next_token_logits(
        self, input_ids: InputIds, attention_mask: Tensor | None = None, *, cache: PretrainedCache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """Return next-token logits. Applies the output layer to the last position only, where the model supports it."""
        if self.target is Target.NONE:
            raise ModelError(f"{self.name}: an encoder cannot generate text; use a decoder")
        arguments = {"logits_to_keep": 1} if "logits_to_keep" in self._forward_parameters else {}
        logits: Tensor = self._call_inner(input_ids, attention_mask, cache, arguments).logits[:, -1]
        return logits

    def build_decode_step(self, cache: PretrainedCache) -> Callable[[InputIds], Tensor]:
        """Return a function from the latest token of each sequence to next-token logits, using this cache."""
        return partial(self.next_token_logits, cache=cache)

    def _call_inner(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None,
        cache: PretrainedCache | None,
        forward_arguments: dict[str, Any],
    ) -> Any:
        """Call the loaded transformers model with the mask, position ids and cache that its signature accepts."""
        batch, length = input_ids.shape
        if cache is not None and self.target is Target.NONE:
            raise ModelError(f"{self.name}: encoders have no cache")
        is_unpadded = attention_mask is None and (cache is None or cache.attention_mask is None)
        start = cache.length if cache is not None else 0
        if is_unpadded and start + length > self.context:
            raise ModelError(
                f"{self.name}: the text needs {start + length} positions, but the model supports {self.context}"
            )
        mask = None if attention_mask is None else attention_mask.bool()
        full_mask = mask if cache is None else cache.append_attention_mask(length, mask, batch)
        if full_mask is not None:
            forward_arguments["attention_mask"] = full_mask.long()
        if "position_ids" in self._forward_parameters and self.target is not Target.NONE:
            forward_arguments["position_ids"] = self._compute_position_ids(full_mask, start, length, input_ids.device)
        if cache is not None:
            forward_arguments["past_key_values"], forward_arguments["use_cache"] = cache.inner, True
        elif "use_cache" in self._forward_parameters:
            forward_arguments["use_cache"] = False
        return self.inner(input_ids=input_ids, **forward_arguments)

    def _compute_position_ids(
        self, attention_mask: Tensor | None, start: int, length: int, device: torch.device
    ) -> Tensor:
        """Return position ids. A token's position is the number of tokens before it that are not padding."""
        if attention_mask is None:
            return torch.arange(start, start + length, device=device)[None]
        return (attention_mask.long().cumsum(1) - 1).clamp_min(0)[:, -length:]

    def _extract_attentions(self, model_output: Any) -> tuple[Tensor, ...]:
        """Return the attention weights of each layer; raise ModelError if the architecture does not return them."""
        attentions = model_output.attentions
        if not attentions or any(weights is None for weights in attentions):
            raise ModelError(f"{self.name}: this architecture does not return attention weights")
        return tuple(attentions)


@contextmanager
def use_eager_attention(inner: Any, name: str) -> Iterator[None]:
    """Use eager attention inside the context: fused kernels return no attention weights."""
    previous_implementation = inner.config._attn_implementation
    if previous_implementation == "eager":
        yield
        return
    try:
        inner.set_attn_implementation("eager")
    except ValueError as error:
        raise ModelError(f"{name} has no eager attention, so it cannot return attention weights ({error})") from error
    try:
        yield
    finally:
        inner.set_attn_implementation(previous_implementation)


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
    """Import transformers to load these weights; raise MissingExtraError if a package that they need is missing."""
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
