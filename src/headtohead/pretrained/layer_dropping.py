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
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.loading import PretrainedModel, import_transformers, load_pretrained, silence_transformers
from headtohead.pretrained.weights import locate_weights

LayerSelection = Literal["evenly", "first"]
LOGITS_TOLERANCE = 1e-3
"""how far logits made in two ways may be apart, of numbers around 10"""


def select_layers(total_layers: int, num_layers: int, selection: LayerSelection = "evenly") -> tuple[int, ...]:
    """Which layers are kept: the first so many, or so many spread evenly, the first and the last among them."""
    if not 1 <= num_layers <= total_layers:
        raise ModelError(
            f"a student with {num_layers} layers cannot be made of a model with {total_layers}; from 1 to {total_layers} can"  # noqa: E501
        )
    if selection == "first" or num_layers == 1:
        return tuple(range(num_layers))
    return tuple(round(at * (total_layers - 1) / (num_layers - 1)) for at in range(num_layers))


def drop_layers(model: PretrainedModel, num_layers: int, selection: LayerSelection = "evenly") -> PretrainedModel:
    """A model of the same kind with so many of its layers; nothing is shared with the one that was given."""
    inner = model.inner
    prefix, total = _find_layer_list(model)
    kept = select_layers(total, num_layers, selection)
    config = copy.deepcopy(inner.config)
    _shorten_config(config.get_text_config(), total, kept)
    with fork_seeded_rng(0, "student"):  # what the constructor draws is written over
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
    named = f"{model.name}, {num_layers} of {total} layers"
    return PretrainedModel(made.eval(), named)


def _find_layer_list(model: PretrainedModel) -> tuple[str, int]:
    """The name of the list of layers, and how many it has."""
    total = int(model.inner.config.get_text_config().num_hidden_layers)
    for name, module in model.inner.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return name, total
    raise ModelError(f"{model.name}: has no list of {total} layers to choose from")


def _shorten_config(config: Any, total_layers: int, kept_layers: tuple[int, ...]) -> None:
    """The configuration of fewer layers; lists with an entry for each layer are shortened alike."""
    lists = [
        name for name, value in vars(config).items() if name.startswith("layer") and isinstance(value, list | tuple)
    ]
    for name in lists:
        value = getattr(config, name)
        if len(value) == total_layers:
            setattr(config, name, [value[at] for at in kept_layers])
    config.num_hidden_layers = len(kept_layers)


def build_student(model_config: pretrained.PretrainedModelConfig) -> StudentModel:
    """The student of this spec at step 0: it draws nothing, so every seed begins alike."""
    loaded = _load_teacher(model_config.pretrained)
    if model_config.layer_subset is not None:
        made = drop_layers(loaded, model_config.layer_subset.layers, model_config.layer_subset.selection)
        return StudentModel(made.inner, made.name, model_config.max_length).train()
    return StudentModel(copy.deepcopy(loaded.inner), loaded.name, model_config.max_length).train()


@lru_cache(maxsize=1)
def _load_teacher(source: str) -> PretrainedModel:
    """Kept, as every trial of a process begins from it; nobody trains this one."""
    return load_pretrained(source).model


def load_student(model_config: pretrained.PretrainedModelConfig, folder: Path) -> StudentModel:
    """What `save` wrote."""
    loaded = load_pretrained(folder).model
    return StudentModel(loaded.inner, loaded.name, model_config.max_length)


def save_student(folder: Path, model: StudentModel, metadata: dict[str, Any]) -> None:
    """As the library saves it, so that the library opens it; `about` is one more entry of config.json."""
    import transformers

    model.inner.config.headtohead = metadata
    with silence_transformers(transformers):
        model.inner.save_pretrained(folder)


def build_student_on_meta_device(model_config: pretrained.PretrainedModelConfig) -> StudentModel:
    """The same without any weights, to be counted: made on the meta device."""
    weights = locate_weights(model_config.pretrained)
    transformers = import_transformers(weights)
    gguf = {"gguf_file": weights.gguf_file} if weights.gguf_file else {}
    with silence_transformers(transformers), use_fast_reader():
        config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, **gguf)
    text = config.get_text_config()
    if model_config.layer_subset is not None:
        total = int(text.num_hidden_layers)
        _shorten_config(
            text, total, select_layers(total, model_config.layer_subset.layers, model_config.layer_subset.selection)
        )
    with torch.device("meta"):
        return StudentModel(
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager"),
            weights.name,
            model_config.max_length,
        )


class StudentModel(PretrainedModel):
    """A pretrained decoder that is trained: gives the stream before its output layer, so that the vocabulary is asked
    about the words of a summary alone, and not about those of the document before it."""

    def __init__(self, inner: nn.Module, name: str = "", context: int | None = None) -> None:
        super().__init__(inner, name)
        if not self.target.is_causal:
            raise ModelError(f"{self.name}: an encoder writes no text; a student is a decoder (a language model)")
        if context is not None:
            if context > self.context:
                raise ModelError(f"model.max_length: {self.name} has {self.context} positions, not {context}")
            self.context = context
        self._is_output_linear: bool | None = None

    @property
    def output(self) -> nn.Linear:
        """The vocabulary layer."""
        found: nn.Linear = self.inner.get_output_embeddings()
        return found

    def compute_hidden_states(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch length width"]:
        """The stream that the output layer reads."""
        how: dict[str, Any] = {} if attention_mask is None else {"attention_mask": attention_mask.long()}
        hidden: Tensor = self.inner.base_model(input_ids=input_ids, use_cache=False, **how).last_hidden_state
        return hidden

    def is_output_linear(self) -> bool:
        """Whether logits are the output layer of the stream and nothing else; some models scale or cap them. Tried
        once, on two tokens."""
        if self._is_output_linear is None:
            was_training = self.training
            self.eval()
            with torch.no_grad():
                ids = torch.tensor([[1, 2]], device=next(self.parameters()).device)
                whole = self(ids).logits
                self._is_output_linear = bool(
                    torch.allclose(
                        self.output(self.compute_hidden_states(ids)),
                        whole,
                        atol=LOGITS_TOLERANCE,
                        rtol=LOGITS_TOLERANCE,
                    )
                )
            self.train(was_training)
        return self._is_output_linear
