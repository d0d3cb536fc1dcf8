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
from headtohead.errors import ModelError, nearest
from headtohead.nn.kv_cache import Cache
from headtohead.nn.protocol import Output

OFFERED = {
    "vocab_size": ("vocab_size", "vocab", "vocabulary", "n_vocab", "num_embeddings"),
    "context": ("context", "block_size", "context_length", "max_len", "n_ctx", "max_seq_len"),
    "classes": ("classes", "num_classes", "n_classes", "num_labels"),
}


def load_class(place: str, base: Path) -> type[nn.Module]:
    """`file.py:Name` as a class."""
    path, _, name = place.rpartition(":")
    file = (base / path).resolve()
    if not file.is_file():
        raise ModelError(f"{place}: no file {path} in {base}")
    module_name = f"headtohead_own_module_{file.stem}"
    found = importlib.util.spec_from_file_location(module_name, file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"{place}: {type(error).__name__}: {error}") from error
    made = getattr(module, name, None)
    classes = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, nn.Module)]
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        hint = nearest(name, classes)
        raise ModelError(
            f"{place}: {path} has no nn.Module {name!r}"
            + (f", did you mean {hint!r}?" if hint else "")
            + f" (it has: {', '.join(classes) or 'none'})"
        )
    return made


class OwnModel(nn.Module):
    """The user's network behind our protocol."""

    def __init__(self, model: model.OwnModel, vocab: int, classes: int | None, *, base: Path = Path(".")) -> None:
        super().__init__()
        self.spec, self.context, self.classes, self.vocab = model, model.context, classes, vocab
        made = load_class(model.module, base)
        offered: dict[str, Any] = {"vocab_size": vocab, "context": model.context, "classes": classes}
        try:
            self.inner = made(**{**_accepted(made, offered), **model.options})
        except TypeError as error:
            raise ModelError(
                f"{model.module}: {error} (given: options {model.options or '{}'}, and vocab_size, context and "
                "classes where the constructor takes them; name the rest in model.options)"
            ) from error
        except Exception as error:
            raise ModelError(f"{model.module}: {type(error).__name__} in the constructor: {error}") from error
        self._takes = frozenset(inspect.signature(self.inner.forward).parameters)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        maps: bool = False,
    ) -> Output:
        if maps:
            raise ModelError(f"{self.spec.module}: a network of your own shows no attention maps")
        if cache is not None:
            raise ModelError(f"{self.spec.module}: a network of your own has no cache")
        named: dict[str, Tensor] = {}
        if attention_mask is not None and "attention_mask" in self._takes:
            named["attention_mask"] = attention_mask
        logits = _logits(self.inner(input_ids, **named))
        if self.classes is None and logits.shape[:2] != input_ids.shape and "targets" in self._takes:
            # Without targets some decoders give the last position only.
            logits = _logits(self.inner(input_ids, targets=input_ids, **named))
        wanted = (len(input_ids), self.classes) if self.classes else (*input_ids.shape, self.vocab)
        if tuple(logits.shape) != wanted:
            raise ModelError(f"{self.spec.module}: logits have the shape {tuple(logits.shape)}, not {wanted}")
        return Output(logits)

    def next_logits(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, cache: Cache | None = None
    ) -> Tensor:
        """What comes after the last token."""
        logits: Tensor = self(input_ids, attention_mask, cache=cache).logits
        return logits[:, -1]

    def stepper(self, cache: Cache) -> Callable[[Tensor], Tensor]:
        raise ModelError(f"{self.spec.module}: a network of your own has no cache")

    def new_cache(self) -> None:
        """There is none: the whole text is read anew at each step."""
        return

    @property
    def pads(self) -> bool:
        """Padding on the left would shift positions that the network counts itself."""
        return False


def _accepted(made: type, offered: dict[str, Any]) -> dict[str, Any]:
    """What we know and the constructor takes, under the name that it uses."""
    takes = inspect.signature(made.__init__).parameters  # type: ignore[misc]
    found = {}
    for what, value in offered.items():
        for name in OFFERED[what]:
            if name in takes and value is not None:
                found[name] = value
                break
    return found


def _logits(answer: Any) -> Tensor:
    if isinstance(answer, Tensor):
        return answer
    named = getattr(answer, "logits", None)  # before the tuple: in a named one, the loss may come first
    if isinstance(named, Tensor):
        return named
    if isinstance(answer, tuple | list) and answer and isinstance(answer[0], torch.Tensor):
        return answer[0]
    raise ModelError(
        f"a network of your own must give logits: a tensor, a tuple or .logits, not {type(answer).__name__}"
    )
