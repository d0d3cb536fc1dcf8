"""A fused linear layer and cross entropy that never materialize all logits.

In small models, the output layer and its softmax account for most of a training step, and most of their time is memory
traffic: the logits for 512 predictions over 5,755 tokens take 12 MB, written and read several times. Predictions are
therefore processed in chunks whose logits fit into the cache; loss and gradients are computed in the same pass, and the
logits are discarded. The result equals `F.cross_entropy`. The method is due to Wijmans et al. 2024, arXiv:2411.09009.

A softmax subtracts the maximum to avoid overflow. If vector norms show that no exponential can overflow
(`_has_bounded_logits`), the subtraction and several passes over the logits are skipped: exponentials are computed
directly from the product, and the normalization is applied to the small matrices.

Under autocast, the three matrix products use its precision; softmax, loss and sums use float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

CHUNK_SIZE = 128
"""Predictions per chunk: 128 x 5,755 logits are 3 MB."""
MAX_SAFE_LOGIT = 60.0
"""With logits in [-60, 60], sums of 10^12 exponentials and their quotients are finite in float32."""

LOG2_E = math.log2(math.e)
"""exp(x) is computed as 2 ** (x LOG2_E): PyTorch's exp2 takes a fifth of the time of its exp on some CPUs."""

HiddenStates = Float[Tensor, "predictions width"]
Labels = Int[Tensor, "predictions"]


@runtime_checkable
class LinearLayer(Protocol):
    """Weight and bias of a linear layer."""

    weight: nn.Parameter
    bias: nn.Parameter | None


def chunked_linear_cross_entropy(
    output_layer: LinearLayer, hidden_states: HiddenStates, labels: Labels
) -> Float[Tensor, ""]:
    """Return the mean cross entropy after a linear output layer, computed in chunks.

    Args:
        output_layer: Weight and bias of the output layer.
        hidden_states: Inputs of the output layer, (predictions, width).
        labels: Token ids, (predictions,).
    """
    loss: Tensor = _ChunkedLinearCrossEntropy.apply(hidden_states, output_layer.weight, output_layer.bias, labels)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def score_predictions(
    output_layer: LinearLayer, hidden_states: HiddenStates, labels: Labels
) -> tuple[Float[Tensor, "predictions"], Bool[Tensor, "predictions"]]:
    """Return the cross entropy of each prediction, and whether its label has the largest logit, (predictions,) each."""
    losses, is_correct = [], []
    bias: Tensor | None = output_layer.bias
    is_bounded = _has_bounded_logits(hidden_states, output_layer.weight, bias)
    if is_bounded:  # powers of 2 are faster than powers of e
        hidden_states, bias = hidden_states * LOG2_E, None if bias is None else bias * LOG2_E
    buffer = _LogitsBuffer(hidden_states, output_layer.weight, has_bounded_logits=is_bounded)
    for chunk_states, chunk_labels in _iter_chunks(hidden_states, labels):
        logits = buffer.view(len(chunk_states), 0)
        _apply_linear(chunk_states, output_layer.weight, bias, out=logits)
        label_logits, max_logits = logits.gather(1, chunk_labels[:, None]).squeeze(1), logits.amax(-1)
        if is_bounded:
            losses.append(_compute_negative_log_likelihood(logits.exp2_().sum(-1), label_logits.exp2()))
        else:
            probs = torch.softmax(logits, -1, out=buffer.view(len(chunk_states), 1))
            losses.append((max_logits - label_logits) - probs.amax(-1).log_())
        is_correct.append(label_logits >= max_logits)  # argmax would take as long as the matrix product
    if not losses:
        return hidden_states.new_zeros(0), labels.new_zeros(0, dtype=torch.bool)
    return torch.cat(losses), torch.cat(is_correct)


class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    """The forward pass computes loss and gradients; the backward pass returns the stored gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Return the mean loss. Gradients are computed chunk by chunk in the same pass, so logits are never stored."""
        if not len(labels):
            ctx.save_for_backward(*(None if x is None else torch.zeros_like(x) for x in (hidden, weight, bias)))
            return hidden.new_zeros(())
        gradients = _ChunkedGradients.allocate((hidden, weight, bias), ctx.needs_input_grad)
        if torch.is_autocast_enabled(hidden.device.type):
            losses = _accumulate_in_low_precision(hidden, weight, bias, labels, gradients)
        else:
            is_bounded = _has_bounded_logits(hidden, weight, bias)
            accumulate = _accumulate_without_max_subtraction if is_bounded else _accumulate_with_softmax
            losses = accumulate(hidden, weight, bias, labels, gradients)
        ctx.save_for_backward(gradients.hidden, gradients.weight, gradients.bias)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if gradient.device.type == "cpu" and gradient == 1:  # the usual case: backward is called on the loss itself
            return *ctx.saved_tensors, None
        return *(None if x is None else x * gradient for x in ctx.saved_tensors), None


@dataclass(frozen=True)
class _ChunkedGradients:
    """The required gradients of the mean loss, accumulated over chunks."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def allocate(cls, inputs: tuple[Tensor | None, ...], needs_grad: tuple[bool, ...]) -> _ChunkedGradients:
        """Allocate the required gradients without initializing them, because the first chunk overwrites them."""
        buffers = (
            torch.empty_like(x) if x is not None and needs_gradient else None
            for x, needs_gradient in zip(inputs, needs_grad[:3], strict=True)
        )
        return cls(*buffers)

    def accumulate(
        self, start: int, logit_gradients: Tensor, factors: Tensor, chunk_states: Tensor, weight: Tensor
    ) -> None:
        """Add the gradients of one chunk.

        Args:
            start: Index of the first prediction in the chunk.
            logit_gradients: Gradients with respect to the logits before multiplication by `factors`,
                (chunk predictions, vocab).
            factors: One factor per prediction, (chunk predictions,).
            chunk_states: Hidden states of the chunk, (chunk predictions, width).
            weight: Weight of the output layer, (vocab, width).
        """
        beta = 1.0 if start else 0.0  # the first chunk overwrites
        factor_column = factors[:, None]
        if self.hidden is not None:
            torch.mm(logit_gradients, weight, out=self.hidden[start : start + len(chunk_states)]).mul_(factor_column)
        if self.weight is not None:
            self.weight.addmm_(logit_gradients.t(), chunk_states * factor_column, beta=beta)
        if self.bias is not None:
            self.bias.addmv_(logit_gradients.t(), factors, beta=beta)


def _accumulate_with_softmax(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _ChunkedGradients
) -> Tensor:
    """Return the cross entropy of each prediction and accumulate gradients of a chunk. Safe for logits of any size."""
    losses = torch.empty_like(hidden[:, 0])
    buffer = _LogitsBuffer(hidden, weight, has_bounded_logits=False)
    start = 0
    for chunk_states, chunk_labels in _iter_chunks(hidden, labels):
        logits, probs = buffer.view(len(chunk_states), 0), buffer.view(len(chunk_states), 1)
        _apply_linear(chunk_states, weight, bias, out=logits)
        label_column = chunk_labels[:, None]
        label_logits, max_logits = logits.gather(1, label_column), logits.amax(-1, keepdim=True)
        torch.softmax(logits, -1, out=probs)
        # The largest probability is 1 / sum(exp(logits - max_logits)), so the sum need not be recomputed.
        chunk_losses = (max_logits - label_logits) - probs.amax(-1, keepdim=True).log_()
        losses[start : start + len(chunk_states)] = chunk_losses[:, 0]
        probs.scatter_add_(1, label_column, torch.full_like(label_logits, -1.0))
        gradients.accumulate(start, probs, torch.full_like(label_logits[:, 0], 1 / len(labels)), chunk_states, weight)
        start += len(chunk_states)
    return losses


def _accumulate_without_max_subtraction(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _ChunkedGradients
) -> Tensor:
    """Return the cross entropy of each prediction and accumulate gradients of a chunk, for bounded logits.

    A probability is exp(h w) exp(b) / sum. The large matrix exp(h w) is computed in place, as a power of 2, and not
    modified again; exp(b) is applied to the weight and 1 / sum to each prediction.
    """
    exp_sums, label_exps = torch.empty_like(hidden[:, 0]), torch.empty_like(hidden[:, 0])
    buffer = _LogitsBuffer(hidden, weight, has_bounded_logits=True)
    bias_exp = None if bias is None else bias.exp()
    scaled_weight = weight if bias_exp is None else weight * bias_exp[:, None]
    mean_factor = 1 / len(labels)
    start = 0
    scaled_chunks = (hidden * LOG2_E).split(CHUNK_SIZE)
    for (chunk_states, chunk_labels), scaled_states in zip(_iter_chunks(hidden, labels), scaled_chunks, strict=True):
        exps = torch.mm(scaled_states, weight.t(), out=buffer.view(len(chunk_states), 0)).exp2_()
        chunk = slice(start, start + len(chunk_states))
        chunk_sums = exp_sums[chunk]
        torch.sum(exps, 1, out=chunk_sums) if bias_exp is None else torch.mv(exps, bias_exp, out=chunk_sums)
        label_exps[chunk] = exps.gather(1, chunk_labels[:, None])[:, 0]
        gradients.accumulate(start, exps, mean_factor / chunk_sums, chunk_states, scaled_weight)
        start += len(chunk_states)
    if bias_exp is not None and gradients.weight is not None:
        gradients.weight.mul_(bias_exp[:, None])
    if bias_exp is not None and gradients.bias is not None:
        gradients.bias.mul_(bias_exp)
    # The gradient with respect to the logits is the softmax minus the one-hot label.
    if gradients.hidden is not None:
        gradients.hidden.sub_(weight[labels], alpha=mean_factor)
    if gradients.weight is not None:
        gradients.weight.index_add_(0, labels, hidden, alpha=-mean_factor)
    if gradients.bias is not None:
        gradients.bias.sub_(labels.bincount(minlength=len(weight)), alpha=mean_factor)
    return _compute_negative_log_likelihood(exp_sums, label_exps if bias_exp is None else label_exps * bias_exp[labels])


def _accumulate_in_low_precision(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _ChunkedGradients
) -> Tensor:
    """Return the cross entropy of each prediction and accumulate gradients of a chunk under autocast.

    Gradients with respect to logits are between -1 and 1, so they cannot overflow. They are divided by the number of
    predictions only in float32.
    """
    dtype = torch.get_autocast_dtype(hidden.device.type)
    mean_factor = 1 / len(labels)
    losses = torch.empty_like(hidden[:, 0], dtype=torch.float32)
    for gradient in (gradients.weight, gradients.bias):
        if gradient is not None:
            gradient.zero_()
    start = 0
    with torch.autocast(hidden.device.type, enabled=False):
        low_precision_weight = weight.to(dtype)
        for chunk_states, chunk_labels in _iter_chunks(hidden.to(dtype), labels):
            chunk = slice(start, start + len(chunk_states))
            logits = (chunk_states @ low_precision_weight.t()).float()
            log_probs = (logits if bias is None else logits.add_(bias)).log_softmax(-1)
            losses[chunk] = -log_probs.gather(1, chunk_labels[:, None])[:, 0]
            logit_gradients = log_probs.exp_()
            logit_gradients[torch.arange(len(chunk_states), device=chunk_states.device), chunk_labels] -= 1
            low_precision_gradients = logit_gradients.to(dtype)
            if gradients.hidden is not None:
                gradients.hidden[chunk] = (low_precision_gradients @ low_precision_weight) * mean_factor
            if gradients.weight is not None:
                gradients.weight.add_(low_precision_gradients.t() @ chunk_states, alpha=mean_factor)
            if gradients.bias is not None:
                gradients.bias.add_(logit_gradients.sum(0), alpha=mean_factor)
            start += len(chunk_states)
    return losses


def _compute_negative_log_likelihood(exp_sums: Tensor, label_exps: Tensor) -> Tensor:
    """Return the cross entropy of each prediction in a chunk, log(exp_sums / label_exps).

    Dividing first avoids cancellation between two large logarithms. The difference of logarithms is used only where the
    quotient overflows.
    """
    quotient = exp_sums / label_exps
    return torch.where(quotient.isinf(), exp_sums.log() - label_exps.log(), quotient.log())


def _has_bounded_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether the cross entropy can skip subtracting the maximum: all logits are below MAX_SAFE_LOGIT.

    Always False on accelerators, where reading the result would force a synchronization.
    """
    if hidden.device.type != "cpu" or hidden.dtype not in (torch.float32, torch.float64) or not len(hidden):
        return False
    logit_bound = torch.linalg.vector_norm(hidden, dim=1).max() * torch.linalg.vector_norm(weight, dim=1).max()
    if bias is not None:
        logit_bound = logit_bound + bias.abs().max()
    return bool(logit_bound < MAX_SAFE_LOGIT)  # False if any value is nan


class _LogitsBuffer:
    """Preallocated buffers for the logits of one chunk.

    Touching newly allocated pages costs as much as the matrix product. A softmax needs a second buffer, and logits that
    are contiguous per prediction. Without a softmax, the product is faster with logits that are contiguous per token.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, *, has_bounded_logits: bool) -> None:
        """Allocate memory for the logits of one chunk."""
        chunk_size, vocab_size = min(CHUNK_SIZE, len(hidden)), len(weight)
        self.buffers = (
            hidden.new_empty(1, vocab_size, chunk_size).mT
            if has_bounded_logits
            else hidden.new_empty(2, chunk_size, vocab_size)
        )

    def view(self, num_predictions: int, buffer_index: int) -> Tensor:
        """Return a buffer for the logits of this many predictions, (num_predictions, vocab)."""
        return self.buffers[buffer_index, :num_predictions]


def _apply_linear(chunk_states: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write the logits of a chunk, (chunk predictions, vocab), to `out`."""
    if bias is None:
        torch.mm(chunk_states, weight.t(), out=out)
    else:
        torch.addmm(bias, chunk_states, weight.t(), out=out)


def _iter_chunks(hidden: HiddenStates, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield hidden states and labels in chunks of CHUNK_SIZE predictions."""
    return zip(hidden.split(CHUNK_SIZE), labels.split(CHUNK_SIZE), strict=True)
