"""Cross entropy over a vocabulary without the whole logits.

At the sizes that people try ideas at, the vocabulary layer and its softmax are most of a step, and most of that is
memory: 512 predictions of 5,755 words are 12 MB, written and read several times over. Here the predictions are taken a
few at a time, so that their logits stay near the processor; loss and gradients are made in the same visit and the
logits thrown away. The same mathematics as `cross_entropy` (tests hold the two against each other), after the idea of
Wijmans et al. 2024, arXiv:2411.09009.

A softmax takes the largest logit off all others, so that no exponential overflows. Where the lengths of the vectors
show that none can (`_is_mild`), that is left out, and with it several readings of all logits: exponentials straight
from the product, the bias and the sums multiplied into the small matrices.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

CHUNK = 128
"""predictions at a time: 128 x 5,755 logits are 3 MB"""
MILD = 60.0
"""logits between -60 and 60: a sum of 10^12 of their exponentials, and one divided by another, are still floats"""

Hidden = Float[Tensor, "predictions width"]
Labels = Int[Tensor, "predictions"]


def vocabulary_loss(output: nn.Linear, hidden: Hidden, labels: Labels) -> Float[Tensor, ""]:
    """The mean cross entropy of what the output layer says."""
    loss: Tensor = _VocabularyLoss.apply(hidden, output.weight, output.bias, labels)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def vocabulary_scores(
    output: nn.Linear, hidden: Hidden, labels: Labels
) -> tuple[Float[Tensor, "predictions"], Bool[Tensor, "predictions"]]:
    """Of each prediction: the cross entropy, and whether no word is likelier than the right one."""
    losses, right = [], []
    mild = _is_mild(hidden, output.weight, output.bias)
    room = _Room(hidden, output.weight, 1 if mild else 2)
    for rows, wanted in _chunks(hidden, labels):
        logits = room.of(len(rows), 0)
        _linear(rows, output.weight, output.bias, out=logits)
        said, highest = logits.gather(1, wanted[:, None]).squeeze(1), logits.amax(-1)
        if mild:
            losses.append(logits.exp_().sum(-1).log_() - said)
        else:
            shares = torch.softmax(logits, -1, out=room.of(len(rows), 1))
            losses.append(highest - shares.amax(-1).log_() - said)
        right.append(said >= highest)  # the place of the highest would take as long as the product
    if not losses:
        return hidden.new_zeros(0), labels.new_zeros(0, dtype=torch.bool)
    return torch.cat(losses), torch.cat(right)


class _VocabularyLoss(torch.autograd.Function):
    """Forward makes the gradients along with the loss; backward only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        to_hidden, to_weight, to_bias = (
            torch.zeros_like(one) if one is not None and wanted else None
            for one, wanted in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        )
        visit = _mildly if _is_mild(hidden, weight, bias) else _safely
        losses = visit(hidden, weight, bias, labels, to_hidden, to_weight, to_bias)
        for made in (to_hidden, to_weight, to_bias):
            if made is not None:
                made /= max(1, len(labels))
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        return torch.cat(losses).mean() if losses else hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if gradient.device.type == "cpu" and gradient == 1:  # nearly always: the loss is what is minimised
            return *ctx.saved_tensors, None
        return *(None if one is None else one * gradient for one in ctx.saved_tensors), None


Made = Tensor | None
"""a gradient that is wanted, still without the division by the number of predictions"""


def _safely(
    hidden: Tensor, weight: Tensor, bias: Made, labels: Tensor, to_hidden: Made, to_weight: Made, to_bias: Made
) -> list[Tensor]:
    """Losses, and gradients written in place, by a softmax over the logits. Right for any numbers."""
    losses = []
    room = _Room(hidden, weight, 2)
    start = 0
    for rows, wanted in _chunks(hidden, labels):
        logits, shares = room.of(len(rows), 0), room.of(len(rows), 1)
        _linear(rows, weight, bias, out=logits)
        column = wanted[:, None]
        said, highest = logits.gather(1, column), logits.amax(-1, keepdim=True)
        torch.softmax(logits, -1, out=shares)
        # The likeliest word's share is 1 / sum(exp(logits - highest)): the softmax has done that sum.
        losses.append(highest - shares.amax(-1, keepdim=True).log_() - said)
        shares.scatter_add_(1, column, torch.full_like(said, -1.0))  # the gradient by the logits
        if to_hidden is not None:
            torch.mm(shares, weight, out=to_hidden[start : start + len(rows)])
        if to_weight is not None:
            to_weight.addmm_(shares.t(), rows)
        if to_bias is not None:
            to_bias += shares.sum(0)
        start += len(rows)
    return losses


def _mildly(
    hidden: Tensor, weight: Tensor, bias: Made, labels: Tensor, to_hidden: Made, to_weight: Made, to_bias: Made
) -> list[Tensor]:
    """The same for mild logits. With e = exp(h w), a share is e exp(b) / sum: exp(b) goes with the rows of the weight
    and 1 / sum with the predictions, so that the large matrix e is only made, and multiplied by small ones."""
    factor = weight.new_ones(len(weight)) if bias is None else bias.exp()
    weighted = weight * factor[:, None]
    losses = []
    room = _Room(hidden, weight, 1)
    start = 0
    for rows, wanted in _chunks(hidden, labels):
        powers = torch.mm(rows, weight.t(), out=room.of(len(rows), 0)).exp_()
        sums = torch.mv(powers, factor)
        said = (rows * weight[wanted]).sum(1)
        losses.append(sums.log() - (said if bias is None else said + bias[wanted]))
        inverse = sums.reciprocal_()[:, None]
        if to_hidden is not None:
            torch.mm(powers, weighted, out=to_hidden[start : start + len(rows)]).mul_(inverse)
        if to_weight is not None:
            to_weight.addmm_(powers.t(), rows * inverse)
        if to_bias is not None:
            to_bias.addmv_(powers.t(), inverse[:, 0])
        start += len(rows)
    # What is left of the gradient by the logits is -1 where the right word is.
    if to_hidden is not None:
        to_hidden -= weight[labels]
    if to_weight is not None:
        to_weight.mul_(factor[:, None]).index_add_(0, labels, hidden, alpha=-1.0)
    if to_bias is not None:
        to_bias.mul_(factor).index_add_(0, labels, torch.ones_like(hidden[:, 0]), alpha=-1.0)
    return losses


def _is_mild(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Can no logit be large? A product of two vectors is no larger than the product of their lengths. Asked on the
    processor only: elsewhere the answer would have to be waited for."""
    if hidden.device.type != "cpu" or hidden.dtype not in (torch.float32, torch.float64) or not len(hidden):
        return False
    largest = torch.linalg.vector_norm(hidden, dim=1).max() * torch.linalg.vector_norm(weight, dim=1).max()
    if bias is not None:
        largest = largest + bias.abs().max()
    return bool(largest < MILD)  # never where something is not a number


class _Room:
    """Memory for what is as large as the logits of one chunk, taken once and used again: fresh pages cost as much as
    the product that fills them."""

    def __init__(self, hidden: Tensor, weight: Tensor, shelves: int) -> None:
        self.shelves = hidden.new_empty(shelves, min(CHUNK, len(hidden)), len(weight))

    def of(self, rows: int, shelf: int) -> Tensor:
        return self.shelves[shelf, :rows]


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _chunks(hidden: Hidden, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
