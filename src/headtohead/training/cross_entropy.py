"""A fused linear layer and cross entropy that never materialize all logits.

In small models, the vocabulary layer and its softmax take up most of a step, and most of that time is memory traffic:
the logits for 512 predictions over 5,755 tokens are 12 MB, written and read several times. Predictions are therefore
processed in chunks whose logits fit into the cache; loss and gradients are computed in the same pass, and the logits
are discarded. The result equals `F.cross_entropy` (tested). The idea is from Wijmans et al. 2024, arXiv:2411.09009.

A softmax subtracts the maximum so that no exponential overflows. If vector norms show that none can overflow
(`_has_bounded_logits`), the subtraction and several passes over the logits are skipped: exponentials are computed
directly from the product, and the normalization is applied to the small matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

CHUNK_SIZE = 128
"""Predictions per chunk: 128 x 5,755 logits are 3 MB."""
MAX_SAFE_LOGIT = 60.0
"""With logits in [-60, 60], sums of 10^12 exponentials and their quotients are finite in float32."""

HiddenStates = Float[Tensor, "predictions width"]
Labels = Int[Tensor, "predictions"]


def chunked_linear_cross_entropy(
    output_layer: nn.Linear, hidden_states: HiddenStates, labels: Labels
) -> Float[Tensor, ""]:
    """Return the mean cross entropy after a linear output layer, computed in chunks.

    Args:
        hidden_states: Shape (predictions, width).
        labels: Token ids, shape (predictions,).
    """
    loss: Tensor = _ChunkedLinearCrossEntropy.apply(hidden_states, output_layer.weight, output_layer.bias, labels)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def score_predictions(
    output_layer: nn.Linear, hidden_states: HiddenStates, labels: Labels
) -> tuple[Float[Tensor, "predictions"], Bool[Tensor, "predictions"]]:
    """Return each prediction's cross entropy, and whether no token has a larger logit than the label."""
    losses, is_correct = [], []
    is_bounded = _has_bounded_logits(hidden_states, output_layer.weight, output_layer.bias)
    buffer = _LogitsBuffer(hidden_states, output_layer.weight, has_bounded_logits=is_bounded)
    for rows, chunk_labels in _iter_chunks(hidden_states, labels):
        logits = buffer.get(len(rows), 0)
        _apply_linear(rows, output_layer.weight, output_layer.bias, out=logits)
        label_logits, max_logits = logits.gather(1, chunk_labels[:, None]).squeeze(1), logits.amax(-1)
        if is_bounded:
            losses.append(_compute_negative_log_likelihood(logits.exp_().sum(-1), label_logits.exp()))
        else:
            probs = torch.softmax(logits, -1, out=buffer.get(len(rows), 1))
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
        gradients = _LinearGradients.allocate((hidden, weight, bias), ctx.needs_input_grad)
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
class _LinearGradients:
    """The required gradients of the mean loss, accumulated chunk by chunk."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def allocate(cls, inputs: tuple[Tensor | None, ...], needs_grad: tuple[bool, ...]) -> _LinearGradients:
        """Allocate the required gradients without initializing them; the first chunk overwrites them."""
        empty = (
            torch.empty_like(x) if x is not None and needed else None
            for x, needed in zip(inputs, needs_grad[:3], strict=True)
        )
        return cls(*empty)

    def accumulate(
        self, start: int, logit_gradients: Tensor, row_factors: Tensor, rows: Tensor, weight: Tensor
    ) -> None:
        """Add the gradients for the predictions from `start` on.

        Their gradient with respect to the logits is `logit_gradients` times `row_factors`, row by row.
        """
        beta = 1.0 if start else 0.0  # the first chunk overwrites
        by_row = row_factors[:, None]
        if self.hidden is not None:
            torch.mm(logit_gradients, weight, out=self.hidden[start : start + len(rows)]).mul_(by_row)
        if self.weight is not None:
            self.weight.addmm_(logit_gradients.t(), rows * by_row, beta=beta)
        if self.bias is not None:
            self.bias.addmv_(logit_gradients.t(), row_factors, beta=beta)


def _accumulate_with_softmax(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _LinearGradients
) -> Tensor:
    """Return each prediction's loss and accumulate gradients, using a softmax. Valid for all inputs."""
    losses = torch.empty_like(hidden[:, 0])
    buffer = _LogitsBuffer(hidden, weight, has_bounded_logits=False)
    start = 0
    for rows, chunk_labels in _iter_chunks(hidden, labels):
        logits, probs = buffer.get(len(rows), 0), buffer.get(len(rows), 1)
        _apply_linear(rows, weight, bias, out=logits)
        column = chunk_labels[:, None]
        label_logits, max_logits = logits.gather(1, column), logits.amax(-1, keepdim=True)
        torch.softmax(logits, -1, out=probs)
        # The largest probability is 1 / sum(exp(logits - max_logits)), so the sum need not be recomputed.
        losses[start : start + len(rows)] = ((max_logits - label_logits) - probs.amax(-1, keepdim=True).log_())[:, 0]
        probs.scatter_add_(1, column, torch.full_like(label_logits, -1.0))
        gradients.accumulate(start, probs, torch.full_like(label_logits[:, 0], 1 / len(labels)), rows, weight)
        start += len(rows)
    return losses


def _accumulate_without_max_subtraction(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _LinearGradients
) -> Tensor:
    """Return each prediction's loss and accumulate gradients, for bounded logits.

    A probability is exp(h w) exp(b) / sum. The large matrix exp(h w) is computed in place and not modified again;
    exp(b) is applied to the weight and 1 / sum to the rows.
    """
    sums, label_exps = torch.empty_like(hidden[:, 0]), torch.empty_like(hidden[:, 0])
    buffer = _LogitsBuffer(hidden, weight, has_bounded_logits=True)
    bias_exp = None if bias is None else bias.exp()
    scaled_weight = weight if bias_exp is None else weight * bias_exp[:, None]
    mean_factor = 1 / len(labels)
    start = 0
    for rows, chunk_labels in _iter_chunks(hidden, labels):
        exps = torch.mm(rows, weight.t(), out=buffer.get(len(rows), 0)).exp_()
        chunk_sums = sums[start : start + len(rows)]
        torch.sum(exps, 1, out=chunk_sums) if bias_exp is None else torch.mv(exps, bias_exp, out=chunk_sums)
        label_exps[start : start + len(rows)] = exps.gather(1, chunk_labels[:, None])[:, 0]
        gradients.accumulate(start, exps, mean_factor / chunk_sums, rows, scaled_weight)
        start += len(rows)
    if bias_exp is not None and gradients.weight is not None:
        gradients.weight.mul_(bias_exp[:, None])
    if bias_exp is not None and gradients.bias is not None:
        gradients.bias.mul_(bias_exp)
    # The gradient with respect to the logits is the probability, minus 1 at the label; subtract that 1.
    if gradients.hidden is not None:
        gradients.hidden.sub_(weight[labels], alpha=mean_factor)
    if gradients.weight is not None:
        gradients.weight.index_add_(0, labels, hidden, alpha=-mean_factor)
    if gradients.bias is not None:
        gradients.bias.index_add_(0, labels, torch.ones_like(sums), alpha=-mean_factor)
    return _compute_negative_log_likelihood(sums, label_exps if bias_exp is None else label_exps * bias_exp[labels])


def _compute_negative_log_likelihood(exp_sums: Tensor, label_exps: Tensor) -> Tensor:
    """Return log(exp_sums / label_exps).

    Dividing first avoids cancellation between two large logarithms. Their difference is used only where the quotient
    overflows.
    """
    quotient = exp_sums / label_exps
    return torch.where(quotient.isinf(), exp_sums.log() - label_exps.log(), quotient.log())


def _has_bounded_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether no logit can exceed MAX_SAFE_LOGIT, by the Cauchy-Schwarz inequality.

    Always False on accelerators, where reading the answer would force a synchronization.
    """
    if hidden.device.type != "cpu" or hidden.dtype not in (torch.float32, torch.float64) or not len(hidden):
        return False
    logit_bound = torch.linalg.vector_norm(hidden, dim=1).max() * torch.linalg.vector_norm(weight, dim=1).max()
    if bias is not None:
        logit_bound = logit_bound + bias.abs().max()
    return bool(logit_bound < MAX_SAFE_LOGIT)  # False if any value is nan


class _LogitsBuffer:
    """Buffers for the logits of one chunk, allocated once because touching fresh pages costs as much as the matrix
    product.

    A softmax needs a second buffer, and contiguous logits for each prediction. Without a softmax, the product is faster
    with contiguous logits for each token.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, *, has_bounded_logits: bool) -> None:
        rows, vocab_size = min(CHUNK_SIZE, len(hidden)), len(weight)
        self.buffers = (
            hidden.new_empty(1, vocab_size, rows).mT if has_bounded_logits else hidden.new_empty(2, rows, vocab_size)
        )

    def get(self, num_rows: int, buffer_index: int) -> Tensor:
        """Return the first `num_rows` rows of a buffer, shape (num_rows, vocab)."""
        return self.buffers[buffer_index, :num_rows]


def _apply_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write these rows' logits to `out`."""
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _iter_chunks(hidden: HiddenStates, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield hidden states and labels in chunks of CHUNK_SIZE predictions."""
    return zip(hidden.split(CHUNK_SIZE), labels.split(CHUNK_SIZE), strict=True)
