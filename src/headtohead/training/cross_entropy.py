"""Cross entropy over a vocabulary without the whole logits.

At the sizes that people try ideas at, the vocabulary layer and its softmax are most of a step, and most of that is
memory: 512 predictions of 5,755 words are 12 MB, written and read several times over. Here the predictions are taken a
few at a time, so that their logits stay near the processor; loss and gradients are made in the same visit and the
logits thrown away. The same mathematics as `cross_entropy` (tests hold the two against each other), after the idea of
Wijmans et al. 2024, arXiv:2411.09009.

A softmax takes the largest logit off all others, so that no exponential overflows. Where the lengths of the vectors
show that none can (`_is_mild`), that is left out, and with it several readings of all logits: exponentials straight
from the product, and the sums multiplied into the small matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

CHUNK_SIZE = 128
"""predictions at a time: 128 x 5,755 logits are 3 MB"""
MAX_SAFE_LOGIT = 60.0
"""logits between -60 and 60: a sum of 10^12 of their exponentials, and one divided by another, are still floats"""

HiddenStates = Float[Tensor, "predictions width"]
Labels = Int[Tensor, "predictions"]


def chunked_linear_cross_entropy(
    output_layer: nn.Linear, hidden_states: HiddenStates, labels: Labels
) -> Float[Tensor, ""]:
    """The mean cross entropy of what the output layer says."""
    loss: Tensor = _ChunkedLinearCrossEntropy.apply(hidden_states, output_layer.weight, output_layer.bias, labels)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def score_predictions(
    output_layer: nn.Linear, hidden_states: HiddenStates, labels: Labels
) -> tuple[Float[Tensor, "predictions"], Bool[Tensor, "predictions"]]:
    """Of each prediction: the cross entropy, and whether no word is likelier than the right one."""
    losses, right = [], []
    mild = _has_bounded_logits(hidden_states, output_layer.weight, output_layer.bias)
    room = _LogitsBuffer(hidden_states, output_layer.weight, has_bounded_logits=mild)
    for rows, wanted in _iter_chunks(hidden_states, labels):
        logits = room.of(len(rows), 0)
        _apply_linear(rows, output_layer.weight, output_layer.bias, out=logits)
        said, highest = logits.gather(1, wanted[:, None]).squeeze(1), logits.amax(-1)
        if mild:
            losses.append(_compute_negative_log_likelihood(logits.exp_().sum(-1), said.exp()))
        else:
            shares = torch.softmax(logits, -1, out=room.of(len(rows), 1))
            losses.append((highest - said) - shares.amax(-1).log_())
        right.append(said >= highest)  # the place of the highest would take as long as the product
    if not losses:
        return hidden_states.new_zeros(0), labels.new_zeros(0, dtype=torch.bool)
    return torch.cat(losses), torch.cat(right)


class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    """Forward makes the gradients along with the loss; backward only hands them on."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        if not len(labels):
            ctx.save_for_backward(*(None if one is None else torch.zeros_like(one) for one in (hidden, weight, bias)))
            return hidden.new_zeros(())
        made = _LinearGradients.wanted((hidden, weight, bias), ctx.needs_input_grad)
        visit = (
            _accumulate_without_max_subtraction
            if _has_bounded_logits(hidden, weight, bias)
            else _accumulate_with_softmax
        )
        losses = visit(hidden, weight, bias, labels, made)
        ctx.save_for_backward(made.hidden, made.weight, made.bias)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if gradient.device.type == "cpu" and gradient == 1:  # nearly always: the loss is what is minimised
            return *ctx.saved_tensors, None
        return *(None if one is None else one * gradient for one in ctx.saved_tensors), None


@dataclass(frozen=True)
class _LinearGradients:
    """The gradients of the mean loss that are wanted, filled chunk by chunk."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def wanted(cls, inputs: tuple[Tensor | None, ...], needs_grad: tuple[bool, ...]) -> _LinearGradients:
        """Room that the first chunk fills: nothing is written there before."""
        empty = (
            torch.empty_like(one) if one is not None and ask else None
            for one, ask in zip(inputs, needs_grad[:3], strict=True)
        )
        return cls(*empty)

    def add(self, start: int, logit_gradients: Tensor, row_factors: Tensor, rows: Tensor, weight: Tensor) -> None:
        """Predictions from `start` on, whose gradient by the logits is `shares`, row by row times `factors`."""
        kept = 1.0 if start else 0.0  # of what is there already
        by_row = row_factors[:, None]
        if self.hidden is not None:
            torch.mm(logit_gradients, weight, out=self.hidden[start : start + len(rows)]).mul_(by_row)
        if self.weight is not None:
            self.weight.addmm_(logit_gradients.t(), rows * by_row, beta=kept)
        if self.bias is not None:
            self.bias.addmv_(logit_gradients.t(), row_factors, beta=kept)


def _accumulate_with_softmax(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _LinearGradients
) -> Tensor:
    """Losses, and gradients written in place, by a softmax over the logits. Right for any numbers."""
    losses = torch.empty_like(hidden[:, 0])
    room = _LogitsBuffer(hidden, weight, has_bounded_logits=False)
    start = 0
    for rows, wanted in _iter_chunks(hidden, labels):
        logits, shares = room.of(len(rows), 0), room.of(len(rows), 1)
        _apply_linear(rows, weight, bias, out=logits)
        column = wanted[:, None]
        said, highest = logits.gather(1, column), logits.amax(-1, keepdim=True)
        torch.softmax(logits, -1, out=shares)
        # The likeliest word's share is 1 / sum(exp(logits - highest)): the softmax has done that sum.
        losses[start : start + len(rows)] = ((highest - said) - shares.amax(-1, keepdim=True).log_())[:, 0]
        shares.scatter_add_(1, column, torch.full_like(said, -1.0))
        gradients.add(start, shares, torch.full_like(said[:, 0], 1 / len(labels)), rows, weight)
        start += len(rows)
    return losses


def _accumulate_without_max_subtraction(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, gradients: _LinearGradients
) -> Tensor:
    """The same for mild logits. A share is exp(h w) exp(b) / sum: the large matrix is made where it lies and not
    touched again. exp(b) and 1 / sum go with words and predictions into the small matrices."""
    sums, right = torch.empty_like(hidden[:, 0]), torch.empty_like(hidden[:, 0])
    room = _LogitsBuffer(hidden, weight, has_bounded_logits=True)
    factor = None if bias is None else bias.exp()
    weighted = weight if factor is None else weight * factor[:, None]
    each = 1 / len(labels)
    start = 0
    for rows, wanted in _iter_chunks(hidden, labels):
        powers = torch.mm(rows, weight.t(), out=room.of(len(rows), 0)).exp_()
        here = sums[start : start + len(rows)]
        torch.sum(powers, 1, out=here) if factor is None else torch.mv(powers, factor, out=here)
        right[start : start + len(rows)] = powers.gather(1, wanted[:, None])[:, 0]
        gradients.add(start, powers, each / here, rows, weighted)
        start += len(rows)
    if factor is not None and gradients.weight is not None:
        gradients.weight.mul_(factor[:, None])
    if factor is not None and gradients.bias is not None:
        gradients.bias.mul_(factor)
    # What is left of the gradient by the logits is -1 where the right word is.
    if gradients.hidden is not None:
        gradients.hidden.sub_(weight[labels], alpha=each)
    if gradients.weight is not None:
        gradients.weight.index_add_(0, labels, hidden, alpha=-each)
    if gradients.bias is not None:
        gradients.bias.index_add_(0, labels, torch.ones_like(sums), alpha=-each)
    return _compute_negative_log_likelihood(sums, right if factor is None else right * factor[labels])


def _compute_negative_log_likelihood(exp_sums: Tensor, label_exps: Tensor) -> Tensor:
    """log(sum / right). Divided first: a difference of two large logarithms has lost its last digits. Where the
    quotient is too large for a float, it has none to lose."""
    quotient = exp_sums / label_exps
    return torch.where(quotient.isinf(), exp_sums.log() - label_exps.log(), quotient.log())


def _has_bounded_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Can no logit be large? A product of two vectors is no larger than the product of their lengths. Asked on the
    processor only: elsewhere the answer would have to be waited for."""
    if hidden.device.type != "cpu" or hidden.dtype not in (torch.float32, torch.float64) or not len(hidden):
        return False
    largest = torch.linalg.vector_norm(hidden, dim=1).max() * torch.linalg.vector_norm(weight, dim=1).max()
    if bias is not None:
        largest = largest + bias.abs().max()
    return bool(largest < MAX_SAFE_LOGIT)  # never where something is not a number


class _LogitsBuffer:
    """Memory for what is as large as the logits of one chunk, taken once and used again: fresh pages cost as much as
    the product that fills them. A softmax wants a second shelf, and each prediction's logits side by side; without one,
    products are quicker with each word's side by side."""

    def __init__(self, hidden: Tensor, weight: Tensor, *, has_bounded_logits: bool) -> None:
        rows, words = min(CHUNK_SIZE, len(hidden)), len(weight)
        self.buffers = hidden.new_empty(1, words, rows).mT if has_bounded_logits else hidden.new_empty(2, rows, words)

    def of(self, num_rows: int, buffer_index: int) -> Tensor:
        return self.buffers[buffer_index, :num_rows]


def _apply_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _iter_chunks(hidden: HiddenStates, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(CHUNK_SIZE), labels.split(CHUNK_SIZE), strict=True)
