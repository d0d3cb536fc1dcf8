"""Fast decoding forms of the built-in parts: plain functions of the new token of each sequence, without module calls.

A form is registered for one exact class. Subclasses do not inherit it, because they may override what it computes; they
are called as modules unless they register a form of their own with `register_fast_form`. Tests compare every form, and
subclasses of parts that have one, with a full forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.nn.parts import embedding, feedforward, norm, output, position, projection
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.context import ForwardContext

TensorFunction = Callable[[Tensor], Tensor]
ResidualFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps (x, residual) to f(x) + residual."""
RopeFactors = Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor, int]]
"""Maps (position ids, dtype) to cosines and sines, (batch, 1, rotary_dim / 2), and rotary_dim."""

MAX_TRANSPOSED_NUMEL = 1 << 22
"""Weights of at most this many elements are stored transposed, which is faster for products with few vectors."""


class ContextHolder:
    """Holds the `ForwardContext` of the running decoding step, for parts that are called as modules."""

    context: ForwardContext
    """Set at each step if `is_required`."""

    def __init__(self) -> None:
        self.is_required = False

    def require(self) -> None:
        """Declare that a part is called as a module and needs the context."""
        self.is_required = True


FormBuilder = TypeVar("FormBuilder", bound=Callable[..., Any])
_fast_forms: dict[type[nn.Module], Callable[..., Any]] = {}


def register_fast_form(part_class: type[nn.Module]) -> Callable[[FormBuilder], FormBuilder]:
    """Register a function that builds the fast form for parts of exactly this class."""

    def register(builder: FormBuilder) -> FormBuilder:
        _fast_forms[part_class] = builder
        return builder

    return register


def find_fast_form(part: nn.Module) -> Callable[..., Any] | None:
    """Return the builder registered for the exact class of `part`, or None."""
    return _fast_forms.get(type(part))


def build_all_fast_forms(parts: Sequence[nn.Module]) -> list[Any] | None:
    """Return the fast forms of all parts, or None if any part has none."""
    builders = [find_fast_form(part) for part in parts]
    return [build(part) for build, part in zip(builders, parts, strict=True) if build] if all(builders) else None


# ---- linear layers


def build_linear(weight: Tensor, bias: Tensor | None) -> TensorFunction:
    """Return the fast form of a linear layer: x -> x @ weight.T + bias for x of shape (batch, in)."""
    if weight.numel() > MAX_TRANSPOSED_NUMEL or weight.device.type != "cpu":
        return lambda x: F.linear(x, weight, bias)
    transposed_weight = weight.t().contiguous()
    if bias is None:
        return lambda x: torch.mm(x, transposed_weight)
    bias_row = bias[None]
    return lambda x: torch.addmm(bias_row, x, transposed_weight)


def build_residual_linear(weight: Tensor, bias: Tensor | None) -> ResidualFunction:
    """Return the fast form of a linear layer and its residual: (x, residual) -> x @ weight.T + bias + residual."""
    if bias is None and weight.numel() <= MAX_TRANSPOSED_NUMEL and weight.device.type == "cpu":
        transposed_weight = weight.t().contiguous()
        return lambda x, residual: torch.addmm(residual, x, transposed_weight)
    linear = build_linear(weight, bias)
    return lambda x, residual: linear(x).add_(residual)


def _are_plain_linear(*modules: nn.Module) -> bool:
    """Return whether all modules are exactly nn.Linear, so that weight and bias describe them completely."""
    return all(type(module) is nn.Linear for module in modules)


# ---- embeddings


@register_fast_form(embedding.TableEmbedding)
def _get_embedding_table(part: embedding.TableEmbedding) -> Tensor:
    """Return the embedding table, (vocab, width)."""
    return part.weight


@register_fast_form(output.LinearOutput)
def _build_linear_output(part: output.LinearOutput) -> TensorFunction:
    """Return a function from hidden states, (batch, width), to logits, (batch, vocab)."""
    return build_linear(part.weight, part.bias)


# ---- positions


@register_fast_form(position.LearnedPosition)
def _get_position_table(part: position.LearnedPosition) -> Tensor:
    """Return the table of learned position embeddings, (positions, width)."""
    return part.table.weight


@register_fast_form(position.RotaryPosition)
def _build_rope_factors(part: position.RotaryPosition) -> RopeFactors:
    """Return the fast form of rotary positions: a function that computes their cosines and sines once per decoding step
    instead of once per layer.
    """

    def compute_cos_and_sin(position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
        angle = position_ids[..., None] * part.frequency
        return angle.cos().to(dtype), angle.sin().to(dtype), part.rotary_dim

    return compute_cos_and_sin


# ---- projections


def build_projection(attention: MultiHeadAttention, context_holder: ContextHolder) -> TensorFunction:
    """Return the fast form of the projection of an attention layer and of its steps: a function from (batch, width) to
    queries, keys and values side by side, (batch, (heads + 2 key_heads) * head_dim).
    """
    builder = find_fast_form(attention.projection)
    if (
        builder is not None
        and not len(attention.projection_steps)
        and (fast := builder(attention.projection)) is not None
    ):
        return fast  # type: ignore[no-any-return]
    context_holder.require()
    return lambda x: torch.cat(
        [heads[:, :, 0].flatten(1) for heads in attention.project(x[:, None], context_holder.context)], dim=1
    )


@register_fast_form(projection.LinearProjection)
def _build_linear_projection(part: projection.LinearProjection) -> TensorFunction | None:
    """Return one matrix product for queries, keys and values together, or None if a layer is not a plain nn.Linear."""
    layers = (part.query, part.key, part.value)
    if not _are_plain_linear(*layers):
        return None
    weight = torch.cat([layer.weight for layer in layers])
    biases = [layer._parameters["bias"] for layer in layers]  # the type of layer.bias hides that it may be None
    bias = torch.cat([b for b in biases if b is not None]) if biases[0] is not None else None
    return build_linear(weight, bias)


# ---- norms


def build_norm(part: nn.Module, context_holder: ContextHolder) -> TensorFunction | None:
    """Return the fast form of a norm, or None if it returns its input."""
    if type(part) is norm.NoNorm:
        return None
    if (builder := find_fast_form(part)) is not None:
        return builder(part)  # type: ignore[no-any-return]
    context_holder.require()
    return lambda x: part(x[:, None], context_holder.context)[:, 0]


@register_fast_form(norm.LayerNorm)
def _build_layer_norm(part: norm.LayerNorm) -> TensorFunction:
    inner = part.inner
    shape, weight, bias, eps = list(inner.normalized_shape), inner.weight, inner.bias, inner.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


@register_fast_form(norm.RMSNorm)
def _build_rms_norm(part: norm.RMSNorm) -> TensorFunction:
    inner = part.inner
    shape, weight, eps = list(inner.normalized_shape), inner.weight, inner.eps
    return lambda x: F.rms_norm(x, shape, weight, eps)


# ---- feed-forward layers


def build_feedforward(part: nn.Module, context_holder: ContextHolder) -> ResidualFunction:
    """Return the fast form of a feed-forward layer, which also adds the residual."""
    if (builder := find_fast_form(part)) is not None and (fast := builder(part)) is not None:
        return fast  # type: ignore[no-any-return]
    context_holder.require()
    return lambda x, residual: residual + part(x[:, None], context_holder.context)[:, 0]


@register_fast_form(feedforward.MLPFeedForward)
def _build_mlp(part: feedforward.MLPFeedForward) -> ResidualFunction | None:
    """Return the fast form of a two-layer MLP with its residual, or None if a layer is not a plain nn.Linear."""
    if not _are_plain_linear(part.up, part.down):
        return None
    up, down = build_linear(part.up.weight, part.up.bias), build_residual_linear(part.down.weight, part.down.bias)
    activation = _build_activation(part.activation)
    return lambda x, residual: down(activation(up(x)), residual)


def _build_activation(activation: nn.Module) -> TensorFunction:
    """Return the fast form of an activation, in place where PyTorch allows it: nothing else reads the input."""
    if type(activation) is nn.GELU:
        return partial(F.gelu, approximate=activation.approximate)
    in_place_functions: dict[type, TensorFunction] = {nn.ReLU: torch.relu_, nn.SiLU: partial(F.silu, inplace=True)}
    return in_place_functions.get(type(activation), activation)


@register_fast_form(feedforward.SwiGLUFeedForward)
def _build_swiglu(part: feedforward.SwiGLUFeedForward) -> ResidualFunction | None:
    """Return the fast form of a gated MLP with its residual, or None if a layer is not a plain nn.Linear."""
    if not _are_plain_linear(part.gate, part.up, part.down):
        return None
    gate, up = build_linear(part.gate.weight, part.gate.bias), build_linear(part.up.weight, part.up.bias)
    down = build_residual_linear(part.down.weight, part.down.bias)
    activation = _build_activation(part.activation)
    return lambda x, residual: down(activation(gate(x)).mul_(up(x)), residual)
