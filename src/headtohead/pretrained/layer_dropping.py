"""Students made from a teacher: the same model with fewer layers, as a model of its own.

A start where nothing smaller can be had (the idea of DistilBERT, Sanh et al. 2019, arXiv:1910.01108). Embeddings, final
norm and output layer are the teacher's; of its layers some are kept, in order: the first n, or n chosen evenly from the
first to the last. Weights are copied, so that training the student leaves the teacher as it is.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtohead.config import pretrained
from headtohead.errors import ModelError
from headtohead.nn.torch_rng import drawing
from headtohead.pretrained.gguf import quick_reading
from headtohead.pretrained.loading import Pretrained, library, load_pretrained, quiet
from headtohead.pretrained.weights import find

Chosen = Literal["evenly", "first"]
CLOSE = 1e-3
"""how far logits made in two ways may be apart, of numbers around 10"""


def chosen_layers(total: int, count: int, chosen: Chosen = "evenly") -> tuple[int, ...]:
    """Which layers are kept: the first so many, or so many spread evenly, the first and the last among them."""
    if not 1 <= count <= total:
        raise ModelError(f"a student with {count} layers cannot be made of a model with {total}; from 1 to {total} can")
    if chosen == "first" or count == 1:
        return tuple(range(count))
    return tuple(round(at * (total - 1) / (count - 1)) for at in range(count))


def with_fewer_layers(model: Pretrained, count: int, chosen: Chosen = "evenly") -> Pretrained:
    """A model of the same kind with so many of its layers; nothing is shared with the one that was given."""
    inner = model.inner
    prefix, total = _layers(model)
    kept = chosen_layers(total, count, chosen)
    config = copy.deepcopy(inner.config)
    _shorten(config.get_text_config(), total, kept)
    with drawing(0, "student"):  # what the constructor draws is written over
        made = type(inner)(config)
    state = {}
    for name, tensor in inner.state_dict().items():
        if not name.startswith(f"{prefix}."):
            state[name] = tensor.clone()
            continue
        at, _, rest = name.removeprefix(f"{prefix}.").partition(".")
        state |= {f"{prefix}.{new}.{rest}": tensor.clone() for new, old in enumerate(kept) if old == int(at)}
    made.load_state_dict(state)
    made.to(dtype=next(inner.parameters()).dtype)
    if getattr(inner, "generation_config", None) is not None:
        made.generation_config = copy.deepcopy(inner.generation_config)
    named = f"{model.name}, {count} of {total} layers"
    return Pretrained(made.eval(), named)


def _layers(model: Pretrained) -> tuple[str, int]:
    """The name of the list of layers, and how many it has."""
    total = int(model.inner.config.get_text_config().num_hidden_layers)
    for name, module in model.inner.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return name, total
    raise ModelError(f"{model.name}: has no list of {total} layers to choose from")


def _shorten(config: Any, total: int, kept: tuple[int, ...]) -> None:
    """The configuration of fewer layers; lists with an entry for each layer are shortened alike."""
    lists = [
        name for name, value in vars(config).items() if name.startswith("layer") and isinstance(value, list | tuple)
    ]
    for name in lists:
        value = getattr(config, name)
        if len(value) == total:
            setattr(config, name, [value[at] for at in kept])
    config.num_hidden_layers = len(kept)


def begin(model: pretrained.Pretrained) -> Learner:
    """The student of this spec at step 0: it draws nothing, so every seed begins alike."""
    loaded = _loaded(model.pretrained)
    if model.fewer is not None:
        made = with_fewer_layers(loaded, model.fewer.layers, model.fewer.chosen)
        return Learner(made.inner, made.name, model.max_length).train()
    return Learner(copy.deepcopy(loaded.inner), loaded.name, model.max_length).train()


@lru_cache(maxsize=1)
def _loaded(where: str) -> Pretrained:
    """Kept, as every trial of a process begins from it; nobody trains this one."""
    return load_pretrained(where).model


def reopen(model: pretrained.Pretrained, folder: Path) -> Learner:
    """What `save` wrote."""
    loaded = load_pretrained(folder).model
    return Learner(loaded.inner, loaded.name, model.max_length)


def save(folder: Path, model: Learner, about: dict[str, Any]) -> None:
    """As the library saves it, so that the library opens it; `about` is one more entry of config.json."""
    import transformers

    model.inner.config.headtohead = about
    with quiet(transformers):
        model.inner.save_pretrained(folder)


def outline(model: pretrained.Pretrained) -> Learner:
    """The same without any weights, to be counted: made on the meta device."""
    weights = find(model.pretrained)
    transformers = library(weights)
    gguf = {"gguf_file": weights.gguf} if weights.gguf else {}
    with quiet(transformers), quick_reading():
        config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, **gguf)
    text = config.get_text_config()
    if model.fewer is not None:
        total = int(text.num_hidden_layers)
        _shorten(text, total, chosen_layers(total, model.fewer.layers, model.fewer.chosen))
    with torch.device("meta"):
        return Learner(
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager"),
            weights.name,
            model.max_length,
        )


class Learner(Pretrained):
    """A pretrained decoder that is trained: gives the stream before its output layer, so that the vocabulary is asked
    about the words of a summary alone, and not about those of the document before it."""

    def __init__(self, inner: nn.Module, name: str = "", context: int | None = None) -> None:
        super().__init__(inner, name)
        if self.task != "language-model":
            raise ModelError(f"{self.name}: an encoder writes no text; a student is a decoder (a language model)")
        if context is not None:
            if context > self.context:
                raise ModelError(f"model.max_length: {self.name} has {self.context} positions, not {context}")
            self.context = context
        self.direct: bool | None = None

    @property
    def output(self) -> nn.Linear:
        """The vocabulary layer."""
        found: nn.Linear = self.inner.get_output_embeddings()
        return found

    def stream(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch length width"]:
        """The stream that the output layer reads."""
        how: dict[str, Any] = {} if attention_mask is None else {"attention_mask": attention_mask.long()}
        hidden: Tensor = self.inner.base_model(input_ids=input_ids, use_cache=False, **how).last_hidden_state
        return hidden

    def is_direct(self) -> bool:
        """Whether logits are the output layer of the stream and nothing else; some models scale or cap them. Tried
        once, on two tokens."""
        if self.direct is None:
            was_training = self.training
            self.eval()
            with torch.no_grad():
                ids = torch.tensor([[1, 2]], device=next(self.parameters()).device)
                whole = self(ids).logits
                self.direct = bool(torch.allclose(self.output(self.stream(ids)), whole, atol=CLOSE, rtol=CLOSE))
            self.train(was_training)
        return self.direct
