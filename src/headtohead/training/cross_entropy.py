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
    room = _Room(hidden, output.weight, mild=mild)
    for rows, wanted in _chunks(hidden, labels):
        logits = room.of(len(rows), 0)
        _linear(rows, output.weight, output.bias, out=logits)
        said, highest = logits.gather(1, wanted[:, None]).squeeze(1), logits.amax(-1)
        if mild:
            losses.append(_surprise(logits.exp_().sum(-1), said.exp()))
        else:
            shares = torch.softmax(logits, -1, out=room.of(len(rows), 1))
            losses.append((highest - said) - shares.amax(-1).log_())
        right.append(said >= highest)  # the place of the highest would take as long as the product
    if not losses:
        return hidden.new_zeros(0), labels.new_zeros(0, dtype=torch.bool)
    return torch.cat(losses), torch.cat(right)


class _VocabularyLoss(torch.autograd.Function):
    """Forward makes the gradients along with the loss; backward only hands them on."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        if not len(labels):
            ctx.save_for_backward(*(None if one is None else torch.zeros_like(one) for one in (hidden, weight, bias)))
            return hidden.new_zeros(())
        made = _Gradients.wanted((hidden, weight, bias), ctx.needs_input_grad)
        visit = _mildly if _is_mild(hidden, weight, bias) else _safely
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
class _Gradients:
    """The gradients of the mean loss that are wanted, filled chunk by chunk."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def wanted(cls, inputs: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> _Gradients:
        """Room that the first chunk fills: nothing is written there before."""
        empty = (
            torch.empty_like(one) if one is not None and ask else None
            for one, ask in zip(inputs, wanted[:3], strict=True)
        )
        return cls(*empty)

    def add(self, start: int, shares: Tensor, factors: Tensor, rows: Tensor, weight: Tensor) -> None:
        """Predictions from `start` on, whose gradient by the logits is `shares`, row by row times `factors`."""
        kept = 1.0 if start else 0.0  # of what is there already
        by_row = factors[:, None]
        if self.hidden is not None:
            torch.mm(shares, weight, out=self.hidden[start : start + len(rows)]).mul_(by_row)
        if self.weight is not None:
            self.weight.addmm_(shares.t(), rows * by_row, beta=kept)
        if self.bias is not None:
            self.bias.addmv_(shares.t(), factors, beta=kept)


def _safely(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, made: _Gradients) -> Tensor:
    """Losses, and gradients written in place, by a softmax over the logits. Right for any numbers."""
    losses = torch.empty_like(hidden[:, 0])
    room = _Room(hidden, weight, mild=False)
    start = 0
    for rows, wanted in _chunks(hidden, labels):
        logits, shares = room.of(len(rows), 0), room.of(len(rows), 1)
        _linear(rows, weight, bias, out=logits)
        column = wanted[:, None]
        said, highest = logits.gather(1, column), logits.amax(-1, keepdim=True)
        torch.softmax(logits, -1, out=shares)
        # The likeliest word's share is 1 / sum(exp(logits - highest)): the softmax has done that sum.
        losses[start : start + len(rows)] = ((highest - said) - shares.amax(-1, keepdim=True).log_())[:, 0]
        shares.scatter_add_(1, column, torch.full_like(said, -1.0))
        made.add(start, shares, torch.full_like(said[:, 0], 1 / len(labels)), rows, weight)
        start += len(rows)
    return losses


def _mildly(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, made: _Gradients) -> Tensor:
    """The same for mild logits. A share is exp(h w) exp(b) / sum: the large matrix is made where it lies and not
    touched again. exp(b) and 1 / sum go with words and predictions into the small matrices."""
    sums, right = torch.empty_like(hidden[:, 0]), torch.empty_like(hidden[:, 0])
    room = _Room(hidden, weight, mild=True)
    factor = None if bias is None else bias.exp()
    weighted = weight if factor is None else weight * factor[:, None]
    each = 1 / len(labels)
    start = 0
    for rows, wanted in _chunks(hidden, labels):
        powers = torch.mm(rows, weight.t(), out=room.of(len(rows), 0)).exp_()
        here = sums[start : start + len(rows)]
        torch.sum(powers, 1, out=here) if factor is None else torch.mv(powers, factor, out=here)
        right[start : start + len(rows)] = powers.gather(1, wanted[:, None])[:, 0]
        made.add(start, powers, each / here, rows, weighted)
        start += len(rows)
    if factor is not None and made.weight is not None:
        made.weight.mul_(factor[:, None])
    if factor is not None and made.bias is not None:
        made.bias.mul_(factor)
    # What is left of the gradient by the logits is -1 where the right word is.
    if made.hidden is not None:
        made.hidden.sub_(weight[labels], alpha=each)
    if made.weight is not None:
        made.weight.index_add_(0, labels, hidden, alpha=-each)
    if made.bias is not None:
        made.bias.index_add_(0, labels, torch.ones_like(sums), alpha=-each)
    return _surprise(sums, right if factor is None else right * factor[labels])


def _surprise(sums: Tensor, right: Tensor) -> Tensor:
    """log(sum / right). Divided first: a difference of two large logarithms has lost its last digits. Where the
    quotient is too large for a float, it has none to lose."""
    quotient = sums / right
    return torch.where(quotient.isinf(), sums.log() - right.log(), quotient.log())


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
    the product that fills them. A softmax wants a second shelf, and each prediction's logits side by side; without one,
    products are quicker with each word's side by side."""

    def __init__(self, hidden: Tensor, weight: Tensor, *, mild: bool) -> None:
        rows, words = min(CHUNK, len(hidden)), len(weight)
        self.shelves = hidden.new_empty(1, words, rows).mT if mild else hidden.new_empty(2, rows, words)

    def of(self, rows: int, shelf: int) -> Tensor:
        return self.shelves[shelf, :rows]


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _chunks(hidden: Hidden, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
