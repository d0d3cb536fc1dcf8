"""Custom models: any nn.Module from a user's file that maps token ids to logits, adapted to our protocol.

`forward` may return a tensor, a tuple that starts with the logits, or an object with `.logits` (transformers). A
decoder with `forward(idx, targets=None)` (nanoGPT) receives its input as targets, because without them it may return
logits for the last position only. It is called once per pass.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headtohead.config import model
from headtohead.errors import ModelError, format_suggestion
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.protocol import ModelOutput

ARGUMENT_ALIASES = {
    "vocab_size": ("vocab_size", "vocab", "vocabulary", "n_vocab", "num_embeddings"),
    "context": ("context", "block_size", "context_length", "max_len", "n_ctx", "max_seq_len"),
    "classes": ("classes", "num_classes", "n_classes", "num_labels"),
}


def load_module_class(class_path: str, base_folder: Path) -> type[nn.Module]:
    """Return the nn.Module class named by `file.py:Name`, relative to `base_folder`."""
    path, _, name = class_path.rpartition(":")
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise ModelError(f"{class_path}: file {path} not found in {base_folder}")
    module_name = f"headtohead_own_module_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"{class_path}: {type(error).__name__}: {error}") from error
    classes = {
        n: value for n, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)
    }
    if name not in classes:
        hint = format_suggestion(name, classes)
        available = ", ".join(classes) or "none"
        raise ModelError(f"{class_path}: {path} defines no nn.Module {name!r}{hint} (available: {available})")
    return classes[name]


class CustomModel(nn.Module):
    """Wraps a user's module in the interface of our models, without a KV cache or attention weights."""

    def __init__(
        self,
        model_config: model.CustomModelConfig,
        vocab_size: int,
        num_classes: int | None,
        *,
        base_folder: Path = Path("."),
    ) -> None:
        super().__init__()
        self.model_config, self.context, self.classes, self.vocab_size = (
            model_config,
            model_config.context,
            num_classes,
            vocab_size,
        )
        module_class = load_module_class(model_config.module, base_folder)
        available: dict[str, Any] = {"vocab_size": vocab_size, "context": model_config.context, "classes": num_classes}
        try:
            arguments = _select_constructor_arguments(module_class, available)
            self.inner = module_class(**{**arguments, **model_config.options})
        except TypeError as error:
            raise ModelError(
                f"{model_config.module}: {error} (model.options = {model_config.options or '{}'}; vocab_size, context "
                "and classes are passed if the constructor accepts them; put other arguments in model.options)"
            ) from error
        except Exception as error:
            raise ModelError(f"{model_config.module}: {type(error).__name__} in the constructor: {error}") from error
        self._forward_parameters = frozenset(inspect.signature(self.inner.forward).parameters)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
    ) -> ModelOutput:
        """Return the module's logits, (batch, length, vocab) or (batch, classes)."""
        if output_attentions:
            raise ModelError(f"{self.model_config.module}: custom models do not return attention weights")
        if cache is not None:
            raise ModelError(f"{self.model_config.module}: custom models have no cache")
        arguments: dict[str, Tensor] = {}
        if attention_mask is not None and "attention_mask" in self._forward_parameters:
            arguments["attention_mask"] = attention_mask
        if self.classes is None and "targets" in self._forward_parameters:
            arguments["targets"] = input_ids  # without targets, some decoders return logits for the last position only
        logits = extract_logits(self.inner(input_ids, **arguments))
        if self.classes is None and logits.shape[:-1] == (input_ids.numel(),):
            logits = logits.unflatten(0, input_ids.shape)  # given targets, some decoders flatten their logits
        expected = (len(input_ids), self.classes) if self.classes else (*input_ids.shape, self.vocab_size)
        if tuple(logits.shape) != expected:
            raise ModelError(
                f"{self.model_config.module}: logits have shape {tuple(logits.shape)}, expected {expected}"
            )
        return ModelOutput(logits)

    def next_token_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Tensor:
        """Return next-token logits, (batch, vocab)."""
        logits: Tensor = self(input_ids, attention_mask, cache=cache).logits
        return logits[:, -1]

    def build_decode_step(self, cache: KVCache) -> Callable[[Tensor], Tensor]:
        raise ModelError(f"{self.model_config.module}: custom models have no cache")

    def create_cache(self) -> None:
        """Return None: each decoding step processes the whole text."""
        return

    @property
    def can_pad(self) -> bool:
        """Return False: the module counts positions itself, and left padding would shift them."""
        return False


def _select_constructor_arguments(module_class: type, available_arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the available arguments that the custom model's constructor accepts, under the names it uses."""
    parameters = inspect.signature(module_class.__init__).parameters  # type: ignore[misc]
    arguments = {}
    for argument, value in available_arguments.items():
        alias = next((alias for alias in ARGUMENT_ALIASES[argument] if alias in parameters), None)
        if alias is not None and value is not None:
            arguments[alias] = value
    return arguments


def extract_logits(model_output: Any) -> Tensor:
    """Return the logits from a module's output: a tensor, `.logits`, or the first item of a tuple."""
    if isinstance(model_output, Tensor):
        return model_output
    logits = getattr(model_output, "logits", None)  # checked first: a named tuple may start with the loss
    if isinstance(logits, Tensor):
        return logits
    if isinstance(model_output, tuple | list) and model_output and isinstance(model_output[0], Tensor):
        return model_output[0]
    raise ModelError(
        f"a custom model must return logits as a tensor, a tuple or .logits, got {type(model_output).__name__}"
    )
