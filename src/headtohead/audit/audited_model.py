"""Forward and backward passes on a copy of the audited model, so that checks leave the original unchanged.

Works for any model that implements the protocol and any nn.Module that maps token ids to logits. The copy is in
float64, where equal results agree to the last digits even if logits are large; models that do not support float64 are
checked in float32. Tolerances follow the coarsest precision of a pass, because a model may compute parts of it in a
different precision. Every pass starts from the same RNG state and the same buffers, so that dropout, random
permutations and running statistics are not mistaken for violations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headtohead.audit.model_copy import adapt_module, copy_model, find_supported_forward_arguments, perturb_parameters
from headtohead.audit.tolerance import (
    MODEL_TOLERANCES,
    Difference,
    Tolerances,
    find_coarsest_precision,
    measure_tensor_difference,
)
from headtohead.audit.user_code import format_model_error
from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.nn.parts.embedding import Embedding
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.random_state import fork_seeded_rng

AUDIT_BATCH_SIZE = 4
MIN_INPUT_LENGTH_LIMIT = 32
"""number of tokens that inputs may have in any case, however large the model is"""
MAX_BLOCKED_INPUT_LENGTH = 512
MAX_PARAMETER_TOKENS = 4 * 10**8
"""limit on parameters times tokens of one pass, so that it takes a fraction of a second"""

InputIds = Int[Tensor, "batch length"]
PaddingMask = Bool[Tensor, "batch length"]
Nondeterminism = Literal["none", "drawn", "hidden"]
"""no two passes differ; only passes from different RNG states differ; passes from equal RNG states differ"""


class UnsupportedInputError(Exception):
    """The audited model raised an exception in a pass; the message quotes it."""


class AuditedModel:
    """A copy of a model, input ids to run it on, and reproducible passes.

    Args:
        model: The model to copy.
        target: What the model predicts.
        vocab_size, context: The model's vocabulary size and context length.
        num_classes: Number of classes; required for classifiers.
        pad_id: Padding token, which is never used as content.
        input_ids: Token ids to run the model on, shape (batch, length); random if None.
        audit_training_mode: Also check training mode.
        seed: Seed for all random draws.
        perturb_if_insensitive: Perturb the weights if the output does not depend on the input, since zero weights hide
            violations.
        input_length: Overrides the length of the inputs.
        dtypes: Precisions to try, in order.
        tolerances: Tolerances for each precision.
        is_strict: Compare passes of different shapes even if the model draws random numbers, and do not relax the
            tolerances for computations in a coarser precision.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        target: Target,
        vocab_size: int,
        context: int,
        num_classes: int | None = None,
        pad_id: int | None = None,
        input_ids: InputIds | None = None,
        audit_training_mode: bool = True,
        seed: int = 0,
        perturb_if_insensitive: bool = True,
        input_length: int | None = None,
        dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
        tolerances: Mapping[torch.dtype, Tolerances] = MODEL_TOLERANCES,
        is_strict: bool = False,
    ) -> None:
        """Copy the model to audit, in the first supported precision, and choose the inputs of its passes."""
        if target.is_class_label and num_classes is None:
            raise ModelError("auditing a classifier requires num_classes")
        self.is_causal, self.predicts_tokens = target.is_causal, not target.is_class_label
        self.vocab_size, self.context, self.pad_id, self.seed = vocab_size, context, pad_id, seed
        self.is_strict = is_strict
        if self._num_content_tokens < 2:
            raise ModelError(f"vocab_size must leave at least 2 tokens besides padding, got {vocab_size}")
        self.model = copy_model(
            adapt_module(model, vocab_size, num_classes if target.is_class_label else None, context)
        )
        # Inputs are as long as the cost of a forward pass allows, and long enough for blocked attention.
        self.supported_arguments = find_supported_forward_arguments(self.model)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        affordable_length = MAX_PARAMETER_TOKENS // (AUDIT_BATCH_SIZE * max(1, self.num_parameters))
        max_length = input_length or max(
            affordable_length, MIN_INPUT_LENGTH_LIMIT, choose_blocked_attention_input_length(self.model)
        )
        self.input_ids = self._build_input_ids(input_ids, min(context, max_length))
        self.input_length = self.input_ids.shape[1]
        self._initial_buffers: list[tuple[Tensor, Tensor]] = []
        self._repeat_differences: dict[tuple[int, bool], Difference] = {}
        # The tolerances follow from the precision.
        self.dtype = self._select_dtype(dtypes)
        selected_tolerances = tolerances[self.dtype]
        if not is_strict:
            selected_tolerances = selected_tolerances.relax_to(
                find_coarsest_precision(lambda: self.compute_logits(self.input_ids))
            )
        self.exact_tolerance, self.rounding_tolerance = selected_tolerances.exact, selected_tolerances.rounding
        self._audit_training_mode = audit_training_mode
        self.is_perturbed = perturb_if_insensitive and self._is_input_insensitive() and self._perturb_weights()

    # ---- inputs

    @property
    def _num_content_tokens(self) -> int:
        """Return the number of tokens in the vocabulary other than the padding token."""
        return self.vocab_size - (self.pad_id is not None)

    def _index_to_token(self, index: Tensor) -> Tensor:
        """Return the token with this index among all non-padding tokens."""
        return index if self.pad_id is None else index + (index >= self.pad_id).long()

    def _token_to_index(self, input_ids: Tensor) -> Tensor:
        """Return each token's index among all non-padding tokens."""
        return input_ids if self.pad_id is None else input_ids - (input_ids > self.pad_id).long()

    def _draw_integers(self, low: int, high: int, shape: tuple[int, ...], draw_index: int) -> Tensor:
        """Return random integers in [low, high) that depend only on the seed and `draw_index`."""
        generator = torch.Generator().manual_seed(1000 * self.seed + draw_index)
        return torch.randint(low, high, shape, generator=generator).to(self._device)

    @cached_property
    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def _build_input_ids(self, input_ids: Tensor | None, length: int) -> InputIds:
        """Return AUDIT_BATCH_SIZE sequences of at most `length` tokens: the given ones, then as many random ones as
        needed.
        """
        if input_ids is None or input_ids.shape[1] < 2:
            return self._index_to_token(self._draw_integers(0, self._num_content_tokens, (AUDIT_BATCH_SIZE, length), 0))
        low, high = int(input_ids.min()), int(input_ids.max())
        if high >= self.vocab_size or low < 0:
            raise ModelError(f"input_ids must be between 0 and {self.vocab_size - 1}, got {low} to {high}")
        given_ids = input_ids[:AUDIT_BATCH_SIZE, :length].to(self._device)
        missing_shape = (AUDIT_BATCH_SIZE - len(given_ids), given_ids.shape[1])
        random_ids = self._index_to_token(self._draw_integers(0, self._num_content_tokens, missing_shape, 1))
        return torch.cat((given_ids, random_ids))

    @property
    def padding_id(self) -> int:
        """Return the token id that checks write at padding positions."""
        return 0 if self.pad_id is None else self.pad_id

    def replace_tokens(self, input_ids: InputIds, draw_index: int = 0) -> InputIds:
        """Return the input with a different, non-padding token at every position, shape (batch, length)."""
        offsets = self._draw_integers(1, self._num_content_tokens, tuple(input_ids.shape), 2 + draw_index)
        return self._index_to_token((self._token_to_index(input_ids) + offsets) % self._num_content_tokens)

    def replace_tokens_from(self, input_ids: InputIds, start: int, draw_index: int = 0) -> InputIds:
        """Return the input with a different token at every position from `start` onwards."""
        return torch.cat((input_ids[:, :start], self.replace_tokens(input_ids[:, start:], draw_index)), dim=1)

    # ---- passes

    def run_forward(
        self,
        input_ids: InputIds,
        attention_mask: PaddingMask | None = None,
        *,
        training: bool = False,
        draw_index: int = 0,
        **kwargs: Any,
    ) -> ModelOutput:
        """Run one pass from an RNG state that depends on `draw_index` only."""
        with torch.no_grad():
            for buffer, initial_value in self._initial_buffers:
                buffer.copy_(initial_value)
        if self.model.training != training:
            self.model.train(training)
        has_mask = attention_mask is not None and "attention_mask" in self.supported_arguments
        model_inputs = (input_ids, attention_mask) if has_mask else (input_ids,)
        with fork_seeded_rng(self.seed, "audit", draw_index):
            try:
                output: ModelOutput = self.model(*model_inputs, **kwargs)
            except Exception as error:  # a user's network may raise any exception
                raise UnsupportedInputError(format_model_error(error)) from error
        return output

    def compute_logits(self, input_ids: InputIds, attention_mask: PaddingMask | None = None, **kwargs: Any) -> Tensor:
        """Return the logits of one pass without gradients. The arguments are those of `run_forward`."""
        with torch.no_grad():
            return self.run_forward(input_ids, attention_mask, **kwargs).logits

    def compute_input_gradient(
        self,
        input_ids: InputIds,
        attention_mask: PaddingMask | None,
        selection: Tensor | slice | None,
        *,
        training: bool = False,
    ) -> Tensor | None:
        """Return each token embedding's largest absolute gradient for the selected logits, shape (batch, length).

        `selection` is a mask or a slice of positions. None if no embedding layer sees the token ids.
        """
        with self.capture_embeddings(input_ids) as embeddings:
            logits = self.run_forward(input_ids, attention_mask, training=training).logits
        if not embeddings:
            return None
        if selection is not None:
            logits = logits[selection] if isinstance(selection, Tensor) else logits[:, selection]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            self._compute_weighted_sum(logits), embeddings, allow_unused=True
        )
        magnitudes = [gradient.abs().amax(-1) for gradient in gradients if gradient is not None]
        if not magnitudes:
            return torch.zeros(input_ids.shape, dtype=self.dtype, device=input_ids.device)
        return torch.stack(magnitudes).amax(0)

    def compute_weight_gradients(self, logits: Tensor) -> dict[str, Tensor]:
        """Return the gradient of `logits` with respect to each trainable parameter that affects them."""
        parameters = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            self._compute_weighted_sum(logits), list(parameters.values()), allow_unused=True
        )
        return {name: gradient for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None}

    @contextmanager
    def capture_embeddings(self, input_ids: InputIds) -> Iterator[list[Tensor]]:
        """Collect the outputs of embedding layers that are called with exactly `input_ids`, as leaf tensors."""
        embeddings: list[Tensor] = []

        def replace_with_leaf(_module: nn.Module, layer_inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            """Replace an embedding layer's output with a leaf tensor if its input is exactly `input_ids`."""
            if not (layer_inputs and isinstance(layer_inputs[0], Tensor) and layer_inputs[0].shape == input_ids.shape):
                return output
            if not torch.equal(layer_inputs[0], input_ids):
                return output
            embeddings.append(output.detach().requires_grad_())
            return embeddings[-1]

        hooks = [
            module.register_forward_hook(replace_with_leaf)
            for module in self.model.modules()
            if isinstance(module, nn.Embedding | Embedding)
        ]
        try:
            yield embeddings
        finally:
            for hook in hooks:
                hook.remove()

    def _compute_weighted_sum(self, logits: Tensor) -> Tensor:
        """Return a randomly weighted sum to differentiate, so that logits do not cancel each other by chance."""
        generator = torch.Generator().manual_seed(self.seed)
        position_weights, class_weights = (
            torch.randn(size, generator=generator).to(logits) for size in (logits.shape[:-1], logits.shape[-1:])
        )
        return (logits * (position_weights[..., None] * class_weights)).sum()

    # ---- model properties

    @property
    def setup_description(self) -> str:
        """Return a phrase on the copy's precision and state, which ends every procedure description."""
        dtype = "float64" if self.dtype == torch.float64 else "float32 (float64 is not supported by the model)"
        perturbation = "; all weights were perturbed, since the output did not depend on the input"
        return f"in {dtype} on a copy{perturbation if self.is_perturbed else ''}"

    @cached_property
    def can_check_training_mode(self) -> bool:
        """Return whether training mode is to be checked and is reproducible from equal RNG states."""
        if not self._audit_training_mode:
            return False
        return self.measure_repeat_difference(draw_index=0, training=True).is_within_tolerance

    @cached_property
    def nondeterminism(self) -> Nondeterminism:
        """Return whether passes always agree ("none"), agree only from equal RNG states ("drawn"), or differ even then
        ("hidden").
        """
        if not self.measure_repeat_difference(draw_index=0).is_within_tolerance:
            return "hidden"
        return "none" if self.is_deterministic(training=False) else "drawn"

    def is_deterministic(self, *, training: bool) -> bool:
        """Return whether passes from different RNG states agree."""
        repeats = (self.measure_repeat_difference(draw_index=index, training=training) for index in range(4))
        return all(repeat.is_within_tolerance for repeat in repeats)

    def can_compare_shapes(self, *, training: bool = False) -> bool:
        """Return whether passes over inputs of different shapes should agree. Random draws may depend on the shape."""
        return (self.is_strict and not training) or self.is_deterministic(training=training)

    def measure_repeat_difference(self, *, draw_index: int, training: bool = False) -> Difference:
        """Compare two passes over the same input, the second one from RNG state `draw_index`."""
        if (draw_index, training) not in self._repeat_differences:
            ids = self.input_ids[:2]
            logits = self.compute_logits(ids, training=training)
            repeated_logits = self.compute_logits(ids, training=training, draw_index=draw_index)
            label = "same random state" if draw_index == 0 else f"random state {draw_index}"
            difference = measure_tensor_difference(repeated_logits, logits, label, self.exact_tolerance)
            self._repeat_differences[draw_index, training] = difference
        return self._repeat_differences[draw_index, training]

    def _select_dtype(self, dtypes: Sequence[torch.dtype]) -> torch.dtype:
        """Convert the model to the first precision that it supports."""
        error_message = ""
        self.model.eval()  # submodules of the copy may be in different modes
        for dtype in dtypes:
            self.model.to(dtype)
            self._initial_buffers = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
            try:
                self.compute_logits(self.input_ids)
            except UnsupportedInputError as error:
                error_message = str(error)
            else:
                return dtype
        raise ModelError(
            f"a forward pass over input_ids of shape ({AUDIT_BATCH_SIZE}, {self.input_length}) fails: {error_message}"
        )

    def _is_input_insensitive(self) -> bool:
        """Return whether the output of a position does not depend on the rest of the input.

        This happens if an output layer or a gate is initialized to zero.
        """
        ids = self.input_ids[:2]
        replaced_ids = self.replace_tokens(ids)
        if self.predicts_tokens:
            replaced_ids = torch.cat((replaced_ids[:, :-1], ids[:, -1:]), dim=1)
            return torch.equal(self.compute_logits(ids)[:, -1], self.compute_logits(replaced_ids)[:, -1])
        logits, replaced_logits = self.compute_logits(ids), self.compute_logits(replaced_ids)
        return measure_tensor_difference(logits, replaced_logits, "", self.exact_tolerance).is_within_tolerance

    def _perturb_weights(self) -> bool:
        """Add noise to all weights and return True."""
        with torch.no_grad(), fork_seeded_rng(self.seed, "audit", "nudge"):
            perturb_parameters(self.model)
        return True

    def copy_without_buffer_restore(self) -> AuditedModel:
        """Return passes over the same model that do not restore buffers, so that checks can modify buffers."""
        unrestored = copy.copy(self)
        unrestored._initial_buffers = []
        return unrestored

    def copy_with_perturbed_weights(self) -> AuditedModel:
        """Return passes over a copy of the model with noise added to its weights."""
        perturbed = copy.copy(self)
        perturbed.model = copy.deepcopy(self.model)
        perturbed._repeat_differences, perturbed.is_perturbed = {}, perturbed._perturb_weights()
        return perturbed


def choose_blocked_attention_input_length(model: nn.Module) -> int:
    """Return an input length at which an audited model with windows uses the blocked attention implementation.

    0 for models without windows.
    """
    window_sizes = [module.window_size for module in model.modules() if isinstance(module, Pattern)]
    distances = [
        distance
        for window_size in window_sizes
        if None not in window_size
        for distance in window_size
        if distance is not None
    ]
    return min(MAX_BLOCKED_INPUT_LENGTH, 4 * max(16, *distances) + 7) if distances else 0
