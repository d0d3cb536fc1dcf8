"""Pretrained models behind our protocol: decoders and encoders of the transformers library, in float32.

What may be opened at all is decided in `weights`; here it is loaded, and made to look like every other model. The cache
is the library's own, behind the small interface of `cache.Store`. A fused kernel has no attention maps to show: when
maps are asked for, that one pass takes the explicit ("eager") road.
"""

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
"""the context of a model that says nothing of its positions"""


class PretrainedCache:
    """The library's cache, and the padding of what was seen."""

    def __init__(self, config: Any) -> None:
        from transformers import DynamicCache

        self.inner: Any = DynamicCache(config=config)
        self.length = 0
        self.attention_mask: Bool[Tensor, "batch key"] | None = None

    def append_attention_mask(
        self, num_new_tokens: int, attention_mask: Bool[Tensor, "batch query"] | None, batch_size: int
    ) -> Tensor | None:
        """Note the padding of new tokens; gives that of all."""
        if attention_mask is not None or self.attention_mask is not None:
            like = attention_mask if attention_mask is not None else self.attention_mask
            assert like is not None
            old = like.new_ones(batch_size, self.length) if self.attention_mask is None else self.attention_mask
            self.attention_mask = torch.cat(
                (old, like.new_ones(batch_size, num_new_tokens) if attention_mask is None else attention_mask), dim=1
            )
        self.length += num_new_tokens
        return self.attention_mask

    def select_rows(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these rows of the batch, in this order; a row may be taken more than once."""
        self.inner.batch_select_indices(row_indices)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[row_indices]


class PretrainedModel(nn.Module):
    """A model of the transformers library: tokens in, logits out.

    An encoder has no vocabulary layer: its logits are the last layer's stream, as `hidden` is."""

    def __init__(self, inner: nn.Module, name: str = "") -> None:
        super().__init__()
        self.inner: Any = inner
        self.name = name or type(inner).__name__
        config: Any = inner.config
        text = config.get_text_config()
        known = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
        self.context = int(known) if known else UNLIMITED_CONTEXT
        self._forward_parameters = frozenset(inspect.signature(inner.forward).parameters)
        has_output = inner.get_output_embeddings() is not None  # type: ignore[operator]
        self.target = Target.NEXT_TOKEN if has_output else Target.NONE
        self.train(inner.training)

    @property
    def config(self) -> Any:
        return self.inner.config

    @property
    def can_pad(self) -> bool:
        """Texts of different length may stand in one batch: positions and masks are handed to the model."""
        return True

    def create_cache(self) -> PretrainedCache | None:
        """An empty cache; None for an encoder, and for a network with a state that is no cache of keys and values."""
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
        how: dict[str, Any] = {
            "output_hidden_states": True,
            **({"output_attentions": True} if output_attentions else {}),
        }
        with use_eager_attention(self.inner, self.name) if output_attentions else nullcontext():
            out = self._run(input_ids, attention_mask, cache, how)
        hidden = out.hidden_states[-1]
        logits = hidden if self.target is Target.NONE else out.logits
        return ModelOutput(logits, self._extract_attentions(out) if output_attentions else None, hidden)

    def next_token_logits(
        self, input_ids: InputIds, attention_mask: Tensor | None = None, *, cache: PretrainedCache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """What comes after the last token: the vocabulary layer is asked once a row and not once a token."""
        if self.target is Target.NONE:
            raise ModelError(f"{self.name}: an encoder writes no text; take a decoder (a language model)")
        last = {"logits_to_keep": 1} if "logits_to_keep" in self._forward_parameters else {}
        logits: Tensor = self._run(input_ids, attention_mask, cache, last).logits[:, -1]
        return logits

    def build_decode_step(self, cache: PretrainedCache) -> Callable[[InputIds], Tensor]:
        """A function that reads one more token of each row, with this cache."""
        return partial(self.next_token_logits, cache=cache)

    def _run(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None,
        cache: PretrainedCache | None,
        forward_kwargs: dict[str, Any],
    ) -> Any:
        batch, length = input_ids.shape
        if cache is not None and self.target is Target.NONE:
            raise ModelError(f"{self.name}: an encoder has no cache")
        unpadded = attention_mask is None and (cache is None or cache.attention_mask is None)
        if unpadded and length + (cache.length if cache is not None else 0) > self.context:
            raise ModelError(
                f"{self.name}: {length + (cache.length if cache is not None else 0)} positions are more than the "
                f"{self.context} that the model knows"
            )
        valid = None if attention_mask is None else attention_mask.bool()
        start = cache.length if cache is not None else 0
        seen = valid if cache is None else cache.append_attention_mask(length, valid, batch)
        if seen is not None:
            forward_kwargs["attention_mask"] = seen.long()
        if "position_ids" in self._forward_parameters and self.target is not Target.NONE:
            forward_kwargs["position_ids"] = self._compute_position_ids(seen, start, length, input_ids)
        if cache is not None:
            forward_kwargs["past_key_values"], forward_kwargs["use_cache"] = cache.inner, True
        elif "use_cache" in self._forward_parameters:
            forward_kwargs["use_cache"] = False
        return self.inner(input_ids=input_ids, **forward_kwargs)

    def _compute_position_ids(
        self, attention_mask: Tensor | None, start: int, length: int, reference: Tensor
    ) -> Tensor:
        """A token's position is the number of tokens before it that are not padding."""
        if attention_mask is None:
            return torch.arange(start, start + length, device=reference.device)[None]
        return (attention_mask.long().cumsum(1) - 1).clamp_min(0)[:, -length:]

    def _extract_attentions(self, model_output: Any) -> tuple[Tensor, ...]:
        found = model_output.attentions
        if not found or any(one is None for one in found):
            raise ModelError(f"{self.name}: this architecture shows no attention maps")
        return tuple(found)


@contextmanager
def use_eager_attention(inner: Any, name: str) -> Iterator[None]:
    """Attention in plain sight for one pass: fused kernels would give no maps, or empty ones."""
    before = inner.config._attn_implementation
    if before == "eager":
        yield
        return
    try:
        inner.set_attn_implementation("eager")
    except ValueError as error:
        raise ModelError(f"{name}: has no explicit attention, and so no maps to show ({error})") from error
    try:
        yield
    finally:
        inner.set_attn_implementation(before)


# ---- loading


@dataclass(frozen=True)
class LoadedPretrained:
    """A pretrained model with what is needed to use it."""

    model: PretrainedModel
    tokenizer: PretrainedTokenizer
    target: Target
    name: str
    folder: Path
    label_names: tuple[str, ...] = ()


def load_pretrained(source: str | Path) -> LoadedPretrained:
    """A folder, a GGUF file, hub:owner/name, or an installed package with weights; in float32, ready to use."""
    weights = locate_weights(source)
    transformers = import_transformers(weights)
    check_memory(weights)
    with silence_transformers(transformers), use_fast_reader() if weights.gguf_file else nullcontext():
        kind = _select_model_class(transformers, weights)
        inner = _load_model(transformers, kind, weights)
        tokenizer = PretrainedTokenizer.load(weights, inner)
    model = PretrainedModel(inner, weights.name)
    return LoadedPretrained(model.eval(), tokenizer, model.target, weights.name, weights.folder)


def import_transformers(weights: PretrainedWeights) -> Any:
    purpose = f"opening {weights.name}"
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "pretrained", purpose) from error
    if weights.gguf_file:
        for package in ("gguf", "accelerate"):
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError as error:
                raise MissingExtraError(package, "pretrained", purpose) from error
    return transformers


def _select_model_class(transformers: Any, weights: PretrainedWeights) -> Any:
    """The class that reads these weights: a language model, or a bare encoder."""
    if weights.gguf_file:
        return transformers.AutoModelForCausalLM
    config = weights.config
    check_model_type(transformers, weights)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{weights.folder}: an encoder-decoder ({config['model_type']}); decoders and encoders only")
    return transformers.AutoModelForCausalLM if is_causal_lm(config) else transformers.AutoModel


def check_model_type(transformers: Any, weights: PretrainedWeights) -> None:
    """An error when the installed library does not know the architecture."""
    kind = weights.config.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{weights.folder}: transformers {transformers.__version__} knows no model of the type {kind!r}"
        )


def is_causal_lm(config: dict[str, Any]) -> bool:
    """Is it a decoder, a model that writes text?"""
    made: list[str] = config.get("architectures") or [""]
    return bool(config.get("is_decoder")) or any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in made)


def _load_model(transformers: Any, model_class: Any, weights: PretrainedWeights) -> nn.Module:
    inner, report = load_from_pretrained(model_class, weights)
    # What is not in the file was drawn at random. An encoder's pooler is not used here; anything else is.
    drawn = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if drawn or report["mismatched_keys"]:
        raise build_mismatch_error(weights, drawn, report)
    return inner


def build_mismatch_error(
    weights: PretrainedWeights, missing_keys: list[str], loading_info: dict[str, Any]
) -> ModelError:
    named = missing_keys or sorted(str(entry[0]) for entry in loading_info["mismatched_keys"])
    return ModelError(f"{weights.name}: the weights do not fit the configuration, {named[0]} among them")


def load_from_pretrained(model_class: Any, weights: PretrainedWeights, **how: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The library's model with these weights in float32, and its report on what was not in the file."""
    gguf = {"gguf_file": weights.gguf_file} if weights.gguf_file else {"use_safetensors": True}
    try:
        if not weights.gguf_file:
            _check_config_size(model_class, weights)
        inner, report = model_class.from_pretrained(
            weights.folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **gguf,
            **how,
        )
    except ModelError:
        raise
    except Exception as error:  # a configuration can be wrong in any way, and the library does not look before
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ModelError(f"{weights.name}: transformers cannot read these weights ({reason})") from error
    model: nn.Module = inner
    found: dict[str, Any] = report
    return model, found


NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MAX_EXTRA_PARAMETERS = 2**24
"""parameters that a model may have beyond the file's: heads and poolers that are drawn, tied weights that are not"""


def _check_config_size(model_class: Any, weights: PretrainedWeights) -> None:
    """A configuration that speaks of a larger model than the file holds would have the rest drawn, however large."""
    from transformers import AutoConfig

    layers = max((n for name in NUM_LAYERS_KEYS if type(n := weights.config.get(name)) is int), default=0)
    if layers > MAX_LAYERS:
        raise ModelError(f"{weights.name}: its configuration speaks of {layers:,} layers")
    config = AutoConfig.from_pretrained(weights.folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        outline = model_class.from_config(config)
    size = sum(p.numel() for p in outline.parameters())
    if size > 2 * weights.parameters + MAX_EXTRA_PARAMETERS:
        raise ModelError(
            f"{weights.name}: its configuration speaks of {size:,} parameters, and the file has {weights.parameters:,}"
        )


@contextmanager
def silence_transformers(transformers: Any) -> Iterator[None]:
    """No bars and no advice while loading: what matters is raised."""
    from transformers import modeling_gguf_pytorch_utils as gguf_utils

    logging = transformers.utils.logging
    level, bars, bar = logging.get_verbosity(), logging.is_progress_bar_enabled(), gguf_utils.tqdm
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    gguf_utils.tqdm = partial(bar, disable=True)  # this one does not ask the library's own switch
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gguf_utils.tqdm = bar
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
