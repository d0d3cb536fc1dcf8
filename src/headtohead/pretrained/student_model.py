"""Students for distillation: pretrained decoders that are trained, saved and loaded."""

from __future__ import annotations

import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtohead.config.tables.model import PretrainedModelConfig
from headtohead.errors import ModelError
from headtohead.pretrained.gguf import use_fast_reader
from headtohead.pretrained.layer_dropping import drop_layers, select_layer_indices, shorten_config
from headtohead.pretrained.loading import import_transformers_for, load_pretrained, silence_transformers
from headtohead.pretrained.pretrained_model import PretrainedModel
from headtohead.pretrained.weights import locate_weights

LOGITS_TOLERANCE = 1e-3
"""tolerance between two computations of logits of magnitude 10"""


class StudentModel(PretrainedModel):
    """A pretrained decoder that a distillation trains.

    It exposes the hidden states before the output layer, so that the objective applies the output layer to predicted
    positions only: to the summary, not to the document before it.
    """

    def __init__(self, inner: nn.Module, name: str = "", context: int | None = None) -> None:
        """Wrap a pretrained decoder as a student with this context length."""
        super().__init__(inner, name)
        if not self.target.is_causal:
            raise ModelError(f"{self.name}: a student must be a decoder, got an encoder")
        if context is not None:
            if context > self.context:
                raise ModelError(f"model.max_length: {self.name} supports {self.context} positions, got {context}")
            self.context = context
        self._has_linear_logits: bool | None = None

    @property
    def output(self) -> nn.Linear:
        """Return the output layer over the vocabulary."""
        layer: nn.Linear = self.inner.get_output_embeddings()
        return layer

    def compute_hidden_states(
        self, input_ids: Int[Tensor, "batch length"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch length width"]:
        """Return the input to the output layer, (batch, length, width)."""
        mask_argument: dict[str, Any] = {} if attention_mask is None else {"attention_mask": attention_mask.long()}
        output = self.inner.base_model(input_ids=input_ids, use_cache=False, **mask_argument)
        hidden_states: Tensor = output.last_hidden_state
        return hidden_states

    def has_linear_logits(self) -> bool:
        """Return whether the student's logits are exactly its output layer applied to its hidden states.

        Some models also scale or cap their logits. Checked once, on two tokens.
        """
        if self._has_linear_logits is None:
            was_training = self.training
            self.eval()
            with torch.no_grad():
                input_ids = torch.tensor([[1, 2]], device=next(self.parameters()).device)
                logits = self(input_ids).logits
                linear_logits = self.output(self.compute_hidden_states(input_ids))
                self._has_linear_logits = torch.allclose(
                    linear_logits, logits, atol=LOGITS_TOLERANCE, rtol=LOGITS_TOLERANCE
                )
            self.train(was_training)
        return self._has_linear_logits


def build_student(model_config: PretrainedModelConfig) -> StudentModel:
    """Return the configured student with its initial weights, which are the same for all seeds."""
    teacher = _load_teacher(model_config.pretrained)
    if (subset := model_config.layer_subset) is not None:
        student = drop_layers(teacher, subset.layers, subset.selection)
        return StudentModel(student.inner, student.name, model_config.max_length).train()
    return StudentModel(copy.deepcopy(teacher.inner), teacher.name, model_config.max_length).train()


@lru_cache(maxsize=1)
def _load_teacher(source: str) -> PretrainedModel:
    """Return the teacher, cached because every trial in a process copies it. It is never trained."""
    return load_pretrained(source).model


def load_student(model_config: PretrainedModelConfig, folder: Path) -> StudentModel:
    """Load a student that `save_student` wrote."""
    model = load_pretrained(folder).model
    return StudentModel(model.inner, model.name, model_config.max_length)


def save_student(folder: Path, model: StudentModel, metadata: dict[str, Any]) -> None:
    """Save a student in transformers' format, with `metadata` as an additional entry in config.json."""
    import transformers

    model.inner.config.headtohead = metadata
    with silence_transformers(transformers):
        model.inner.save_pretrained(folder)


def build_student_on_meta_device(model_config: PretrainedModelConfig) -> StudentModel:
    """Return the student on the meta device, without loading weights."""
    weights = locate_weights(model_config.pretrained)
    transformers = import_transformers_for(weights)
    gguf_argument = {"gguf_file": weights.gguf_file} if weights.gguf_file else {}
    with silence_transformers(transformers), use_fast_reader():
        config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, **gguf_argument)
    text_config = config.get_text_config()
    if (subset := model_config.layer_subset) is not None:
        num_available = int(text_config.num_hidden_layers)
        kept_indices = select_layer_indices(num_available, subset.layers, subset.selection)
        shorten_config(text_config, num_available, kept_indices)
    with torch.device("meta"):
        return StudentModel(
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager"),
            weights.name,
            model_config.max_length,
        )
