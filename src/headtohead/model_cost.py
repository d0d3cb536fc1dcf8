"""Parameters, FLOPs and memory of a model.

Built-in models are counted on the meta device, without allocating their weights. User code may need real values, for
example if it calls `.item()`, so custom networks and parts are counted in a real forward pass over one row.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from headtohead.config.tables.model import ModelConfig, PretrainedModelConfig, TransformerConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.model_factory import BYTES_PER_PARAMETER, build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.dispatch_mode import EagerDispatchMode
from headtohead.nn.parts import registry
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, student_model

MAX_ALLOCATED_PRODUCT = 2**29
"""Parameters times tokens up to which a pass with real values takes less time than importing torch's compiler, which
operations on the meta device need."""


@dataclass(frozen=True)
class ModelCost:
    """Size and cost of a model."""

    parameters: int
    flops_per_token: int | None
    """Forward pass at full context, with a multiply-add counted as two. Training takes about three times as many. None
    if a pass over one or two rows fails."""
    weights_bytes: int
    training_bytes: int
    """Peak memory of a training step: weights, gradients, two optimizer moments, and activations."""


ACTIVATION_OVERHEAD = 1.4
"""Peak memory of a training step without weights and optimizer state, divided by the bytes of activations saved for the
backward pass. It includes intermediate results and gaps between freed blocks. Measured on the CPU with 1 to 30 million
parameters."""


LOW_PRECISION_ACTIVATIONS = 0.7
"""Bytes of activations in mixed precision, divided by those in float32: norms and residual streams stay in float32.
Weights are saved in low precision as well. Measured with a model of 10 million parameters."""


def compute_model_cost(
    model_config: ModelConfig,
    vocab_size: int,
    num_classes: int | None = None,
    *,
    is_causal: bool | None = None,
    training: TrainingConfig = TrainingConfig(),  # noqa: B008  # immutable
    base_folder: Path = Path("."),
) -> ModelCost:
    """Return the size, FLOPs and memory of a model.

    Models without user code may have any size, because they are not allocated.
    """
    build = functools.partial(
        _build_without_pretrained_weights, model_config, vocab_size, num_classes, is_causal, base_folder
    )
    has_real_values = has_user_code(model_config)
    if not has_real_values:
        with torch.device("meta"), InitializationSkipper():
            network = build()
        allocated_product = sum(p.numel() for p in network.parameters()) * model_config.context
        has_real_values = isinstance(model_config, TransformerConfig) and allocated_product <= MAX_ALLOCATED_PRODUCT
    if has_real_values:
        network = build()
    # A pretrained model has its own vocabulary.
    input_ids = torch.arange(2 * model_config.context).reshape(2, -1) % max(1, vocab_size)
    input_ids = input_ids.to(next(network.parameters()).device)
    bytes_per_row = _count_activation_bytes(network.train(), input_ids) / len(input_ids)
    if training.gradient_checkpointing:
        bytes_per_row = _estimate_checkpointed_bytes(model_config, bytes_per_row)
    activation_bytes = bytes_per_row * math.ceil(training.batch_size / training.gradient_accumulation_steps)
    parameters = sum(p.numel() for p in network.parameters())
    trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
    if training.precision != "fp32":
        activation_bytes = LOW_PRECISION_ACTIVATIONS * activation_bytes + BYTES_PER_PARAMETER / 2 * parameters
    return ModelCost(
        parameters=parameters,
        flops_per_token=_count_flops_per_token(network.eval(), input_ids),
        weights_bytes=BYTES_PER_PARAMETER * parameters,
        training_bytes=BYTES_PER_PARAMETER * (parameters + 3 * trainable) + int(ACTIVATION_OVERHEAD * activation_bytes),
    )


def _estimate_checkpointed_bytes(model_config: ModelConfig, bytes_per_row: float) -> float:
    """Return the activation bytes per row with gradient checkpointing, which saves the inputs of all layers, and the
    activations of one layer at a time.
    """
    if not isinstance(model_config, TransformerConfig):
        return bytes_per_row
    return (
        bytes_per_row / model_config.layers
        + BYTES_PER_PARAMETER * model_config.layers * model_config.context * model_config.width
    )


def has_user_code(model_config: ModelConfig) -> bool:
    """Return whether a model's cost cannot be counted on the meta device: it contains a custom network or part.

    User code may need real values, so the cost of such a model is not counted on the meta device.
    """
    if isinstance(model_config, PretrainedModelConfig):
        return False
    if not isinstance(model_config, TransformerConfig):
        return True
    return not all(
        registry.get_part_class(slot, part.kind).__module__.startswith("headtohead.")
        for slot, part in model_config.list_parts()
    )


class InitializationSkipper(TorchFunctionMode):
    """Skips the initialization of parameters on the meta device, which have no values.

    Random initialization on the meta device would import torch's compiler.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init" or function is Tensor.normal_:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


class FlopCounter(EagerDispatchMode):
    """Counts FLOPs with torch's formulas, as its FlopCounterMode does, without importing torch's compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the FLOPs of an operation of the model, then run it."""
        result = function(*args, **(kwargs or {}))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


@torch.no_grad()
def _count_flops_per_token(network: nn.Module, input_ids: torch.Tensor) -> int | None:
    """Return the FLOPs per token as a cost of a model: of a pass over one row, or over two if it rejects a single row.

    None if both fail.
    """
    for batch_size in (1, 2):
        batch_ids = input_ids[:batch_size]
        # The registry has formulas for the operations of the math backend only.
        with FlopCounter() as counter, fork_seeded_rng("FLOPs"), sdpa_kernel(SDPBackend.MATH):
            try:
                network(*_build_forward_arguments(network, batch_ids))
            except Exception:  # noqa: BLE001  (a user's network may raise anything)
                continue
        return int(counter.flops) // batch_ids.numel()
    return None


def _count_activation_bytes(network: nn.Module, input_ids: torch.Tensor) -> int:
    """Return the memory of a model's activations: bytes that a pass saves for the backward pass; 0 if it fails.

    A chunked loss saves no logits. The loss of a custom network saves the logits and needs as much memory for their
    gradient.
    """
    num_logits = 0
    bytes_by_storage: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def record_saved_tensor(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        bytes_by_storage[storage._cdata] = (
            storage,
            storage.nbytes(),
        )  # while a storage is alive, its address is not reused
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(record_saved_tensor, lambda tensor: tensor),
        fork_seeded_rng("activations"),
        _FusedAttentionMode(),
    ):
        try:
            if isinstance(network, Transformer) and network.num_classes is None:
                network.compute_hidden_states(input_ids)
            else:
                output = network(*_build_forward_arguments(network, input_ids))
                num_logits = output.logits.numel() if isinstance(network, CustomModel) else 0
        except Exception:  # noqa: BLE001  (a user's network may raise anything)
            return 0
    for parameter in network.parameters():
        bytes_by_storage.pop(parameter.untyped_storage()._cdata, None)
    return sum(num_bytes for _, num_bytes in bytes_by_storage.values()) + 2 * BYTES_PER_PARAMETER * num_logits


class _FusedAttentionMode(TorchFunctionMode):
    """Makes attention on the meta device save the same tensors as a fused kernel, for the count of activation bytes.

    On the meta device, PyTorch would use matrix products and save the attention weights.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the cost of attention on meta tensors like that of a fused kernel; run every other function."""
        if func is torch.nn.functional.scaled_dot_product_attention and args[0].is_meta:
            arguments = (*args, *(kwargs or {}).values())
            tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
            return _SaveInputsAndOutput.apply(*tensors)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _SaveInputsAndOutput(torch.autograd.Function):
    """A function of queries, keys, values and mask that saves them and its output for the backward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        queries, _, values, *_ = inputs
        output = torch.empty_like(queries[..., :1].expand(*queries.shape[:-1], values.shape[-1]))
        ctx.save_for_backward(*inputs, output)
        return output


def _build_forward_arguments(network: nn.Module, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the arguments of the forward pass in which a model's cost is counted, over `input_ids` (batch, length).

    Decoders of transformers need a mask on the meta device, because they inspect the values of the ids otherwise.
    """
    if isinstance(network, student_model.StudentModel):
        return input_ids, torch.ones_like(input_ids)
    return (input_ids,)


def _build_without_pretrained_weights(
    model_config: ModelConfig, vocab_size: int, num_classes: int | None, is_causal: bool | None, base_folder: Path
) -> nn.Module:
    """Build a model to count its parameters and FLOPs. A pretrained model gets no weights, on the meta device."""
    if not isinstance(model_config, PretrainedModelConfig):
        return build_model(model_config, vocab_size, num_classes, is_causal=is_causal, base_folder=base_folder)
    if num_classes is None:
        return student_model.build_student_on_meta_device(model_config)
    return classifier.build_classifier_on_meta_device(model_config, num_classes)
