"""A network of the user's own: any nn.Module that maps input_ids to logits, used through our protocol.

What such networks look like in the wild: `forward(idx, targets=None)` that gives (logits, loss) and, without targets,
the last position only (nanoGPT); a tensor; a tuple; an object with `.logits` (transformers).
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtohead.config import model
from headtohead.errors import ModelError, suggest
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.protocol import ModelOutput

ARGUMENT_ALIASES = {
    "vocab_size": ("vocab_size", "vocab", "vocabulary", "n_vocab", "num_embeddings"),
    "context": ("context", "block_size", "context_length", "max_len", "n_ctx", "max_seq_len"),
    "classes": ("classes", "num_classes", "n_classes", "num_labels"),
}


def load_module_class(class_path: str, base_folder: Path) -> type[nn.Module]:
    """`file.py:Name` as a class."""
    path, _, name = class_path.rpartition(":")
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise ModelError(f"{class_path}: no file {path} in {base_folder}")
    module_name = f"headtohead_own_module_{file.stem}"
    found = importlib.util.spec_from_file_location(module_name, file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"{class_path}: {type(error).__name__}: {error}") from error
    made = getattr(module, name, None)
    classes = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, nn.Module)]
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        hint = suggest(name, classes)
        raise ModelError(
            f"{class_path}: {path} has no nn.Module {name!r}"
            + (f", did you mean {hint!r}?" if hint else "")
            + f" (it has: {', '.join(classes) or 'none'})"
        )
    return made


class CustomModel(nn.Module):
    """The user's network behind our protocol."""

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
        made = load_module_class(model_config.module, base_folder)
        offered: dict[str, Any] = {"vocab_size": vocab_size, "context": model_config.context, "classes": num_classes}
        try:
            self.inner = made(**{**_select_constructor_arguments(made, offered), **model_config.options})
        except TypeError as error:
            raise ModelError(
                f"{model_config.module}: {error} (given: options {model_config.options or '{}'}, and vocab_size, context and "  # noqa: E501
                "classes where the constructor takes them; name the rest in model.options)"
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
        if output_attentions:
            raise ModelError(f"{self.model_config.module}: a network of your own shows no attention maps")
        if cache is not None:
            raise ModelError(f"{self.model_config.module}: a network of your own has no cache")
        named: dict[str, Tensor] = {}
        if attention_mask is not None and "attention_mask" in self._forward_parameters:
            named["attention_mask"] = attention_mask
        logits = _extract_logits(self.inner(input_ids, **named))
        if self.classes is None and logits.shape[:2] != input_ids.shape and "targets" in self._forward_parameters:
            # Without targets some decoders give the last position only.
            logits = _extract_logits(self.inner(input_ids, targets=input_ids, **named))
        wanted = (len(input_ids), self.classes) if self.classes else (*input_ids.shape, self.vocab_size)
        if tuple(logits.shape) != wanted:
            raise ModelError(f"{self.model_config.module}: logits have the shape {tuple(logits.shape)}, not {wanted}")
        return ModelOutput(logits)

    def next_token_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Tensor:
        """What comes after the last token."""
        logits: Tensor = self(input_ids, attention_mask, cache=cache).logits
        return logits[:, -1]

    def build_decode_step(self, cache: KVCache) -> Callable[[Tensor], Tensor]:
        raise ModelError(f"{self.model_config.module}: a network of your own has no cache")

    def create_cache(self) -> None:
        """There is none: the whole text is read anew at each step."""
        return

    @property
    def can_pad(self) -> bool:
        """Padding on the left would shift positions that the network counts itself."""
        return False


def _select_constructor_arguments(module_class: type, available_arguments: dict[str, Any]) -> dict[str, Any]:
    """What we know and the constructor takes, under the name that it uses."""
    takes = inspect.signature(module_class.__init__).parameters  # type: ignore[misc]
    found = {}
    for what, value in available_arguments.items():
        for name in ARGUMENT_ALIASES[what]:
            if name in takes and value is not None:
                found[name] = value
                break
    return found


def _extract_logits(model_output: Any) -> Tensor:
    if isinstance(model_output, Tensor):
        return model_output
    named = getattr(model_output, "logits", None)  # before the tuple: in a named one, the loss may come first
    if isinstance(named, Tensor):
        return named
    if isinstance(model_output, tuple | list) and model_output and isinstance(model_output[0], torch.Tensor):
        return model_output[0]
    raise ModelError(
        f"a network of your own must give logits: a tensor, a tuple or .logits, not {type(model_output).__name__}"
    )
