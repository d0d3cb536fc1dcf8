"""Students for distillation: copies of a pretrained decoder with fewer layers.

Initialised as in DistilBERT, Sanh et al. 2019, arXiv:1910.01108. The embeddings, the final norm and the output layer
are copied from the teacher, as are some of its layers, in order: the first n, or n spread evenly from first to last.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtohead.config.model import PretrainedModelConfig
from headtohead.errors import ModelError
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.loading import PretrainedModel, import_transformers, load_pretrained, silence_transformers
from headtohead.pretrained.weights import locate_weights

LayerSelection = Literal["evenly", "first"]
LOGITS_TOLERANCE = 1e-3
"""Tolerance between two computations of logits of magnitude 10."""


def select_layers(total_layers: int, num_layers: int, selection: LayerSelection = "evenly") -> tuple[int, ...]:
    """Return the indices of the layers to keep: the first ones, or evenly spaced, including the first and the last."""
    if not 1 <= num_layers <= total_layers:
        raise ModelError(f"layers must be between 1 and {total_layers}, got {num_layers}")
    if selection == "first" or num_layers == 1:
        return tuple(range(num_layers))
    return tuple(round(i * (total_layers - 1) / (num_layers - 1)) for i in range(num_layers))


def drop_layers(model: PretrainedModel, num_layers: int, selection: LayerSelection = "evenly") -> PretrainedModel:
    """Return a copy of the model with `num_layers` of its layers. It shares no tensors with the original."""
    inner = model.inner
    prefix, total = _find_layer_list(model)
    kept_layers = select_layers(total, num_layers, selection)
    config = copy.deepcopy(inner.config)
    _shorten_config(config.get_text_config(), total, kept_layers)
    with fork_seeded_rng(0, "student"):  # the random weights are overwritten below
        student = type(inner)(config)
    state = {}
    for name, tensor in inner.state_dict().items():
        if not name.startswith(f"{prefix}."):
            state[name] = tensor.clone()
            continue
        index, _, suffix = name.removeprefix(f"{prefix}.").partition(".")
        state |= {
            f"{prefix}.{new}.{suffix}": tensor.clone() for new, old in enumerate(kept_layers) if old == int(index)
        }
    student.load_state_dict(state)
    student.to(dtype=next(inner.parameters()).dtype)
    if getattr(inner, "generation_config", None) is not None:
        student.generation_config = copy.deepcopy(inner.generation_config)
    return PretrainedModel(student.eval(), f"{model.name}, {num_layers} of {total} layers")


def _find_layer_list(model: PretrainedModel) -> tuple[str, int]:
    """Return the name of the module list that holds the layers, and their number."""
    total = int(model.inner.config.get_text_config().num_hidden_layers)
    for name, module in model.inner.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return name, total
    raise ModelError(f"{model.name} has no list of {total} layers to choose from")


def _shorten_config(config: Any, total_layers: int, kept_layers: tuple[int, ...]) -> None:
    """Reduce a configuration to the kept layers, including lists with one entry per layer."""
    lists = [
        name for name, value in vars(config).items() if name.startswith("layer") and isinstance(value, list | tuple)
    ]
    for name in lists:
        value = getattr(config, name)
        if len(value) == total_layers:
            setattr(config, name, [value[i] for i in kept_layers])
    config.num_hidden_layers = len(kept_layers)


def build_student(model_config: PretrainedModelConfig) -> StudentModel:
    """Return the configured student with its initial weights, which are the same for all seeds."""
    loaded = _load_teacher(model_config.pretrained)
    if model_config.layer_subset is not None:
        student = drop_layers(loaded, model_config.layer_subset.layers, model_config.layer_subset.selection)
        return StudentModel(student.inner, student.name, model_config.max_length).train()
    return StudentModel(copy.deepcopy(loaded.inner), loaded.name, model_config.max_length).train()


@lru_cache(maxsize=1)
def _load_teacher(source: str) -> PretrainedModel:
    """Return the teacher, cached because every trial in a process copies it. It is never trained."""
    return load_pretrained(source).model


def load_student(model_config: PretrainedModelConfig, folder: Path) -> StudentModel:
    """Load a student that `save_student` wrote."""
    loaded = load_pretrained(folder).model
    return StudentModel(loaded.inner, loaded.name, model_config.max_length)


def save_student(folder: Path, model: StudentModel, metadata: dict[str, Any]) -> None:
    """Save in transformers' format, with `metadata` as an additional entry in config.json."""
    import transformers

    model.inner.config.headtohead = metadata
    with silence_transformers(transformers):
        model.inner.save_pretrained(folder)


def build_student_on_meta_device(model_config: PretrainedModelConfig) -> StudentModel:
    """Return the student on the meta device, without loading weights."""
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
    """A pretrained decoder for training.

    It exposes the hidden states before the output layer, which is then applied to predicted positions only: to the
    summary, not to the document before it.
    """

    def __init__(self, inner: nn.Module, name: str = "", context: int | None = None) -> None:
        super().__init__(inner, name)
        if not self.target.is_causal:
            raise ModelError(f"{self.name}: a student must be a decoder, got an encoder")
        if context is not None:
            if context > self.context:
                raise ModelError(f"model.max_length: {self.name} supports {self.context} positions, got {context}")
            self.context = context
        self._is_output_linear: bool | None = None

    @property
    def output(self) -> nn.Linear:
        """Return the output layer over the vocabulary."""
        layer: nn.Linear = self.inner.get_output_embeddings()
        return layer

    def compute_hidden_states(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch length width"]:
        """Return the input to the output layer."""
        kwargs: dict[str, Any] = {} if attention_mask is None else {"attention_mask": attention_mask.long()}
        hidden: Tensor = self.inner.base_model(input_ids=input_ids, use_cache=False, **kwargs).last_hidden_state
        return hidden

    def is_output_linear(self) -> bool:
        """Return whether the output layer alone maps hidden states to logits; some models also scale or cap them.
        Checked once, on two tokens.
        """
        if self._is_output_linear is None:
            was_training = self.training
            self.eval()
            with torch.no_grad():
                ids = torch.tensor([[1, 2]], device=next(self.parameters()).device)
                logits = self(ids).logits
                linear = self.output(self.compute_hidden_states(ids))
                tolerance = LOGITS_TOLERANCE
                self._is_output_linear = torch.allclose(linear, logits, atol=tolerance, rtol=tolerance)
            self.train(was_training)
        return self._is_output_linear
