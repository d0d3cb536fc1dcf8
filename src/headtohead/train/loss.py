"""Cross entropy over a vocabulary without the whole logits.

At the sizes that people try ideas at, the vocabulary layer and its softmax are most of a step, and most of that is
memory: 512 predictions of 5,755 words are 12 MB, written and read several times over. Here the predictions are taken a
few at a time, so that their logits stay near the processor; loss and gradients are made in the same visit and the
logits thrown away. The same mathematics as `cross_entropy` (tests hold the two against each other), after the idea of
Wijmans et al. 2024, arXiv:2411.09009.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

CHUNK = 128
"""predictions at a time: 128 x 5,755 logits are 3 MB"""

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
    room = _Room(hidden, output.weight)
    for rows, wanted in _chunks(hidden, labels):
        logits, shares = room.of(len(rows))
        _linear(rows, output.weight, output.bias, out=logits)
        said, highest = logits.gather(1, wanted[:, None]).squeeze(1), logits.amax(-1)
        torch.softmax(logits, -1, out=shares)
        losses.append(highest - shares.amax(-1).log_() - said)
        right.append(said >= highest)  # the place of the highest would take as long as the product
    if not losses:
        return hidden.new_zeros(0), labels.new_zeros(0, dtype=torch.bool)
    return torch.cat(losses), torch.cat(right)


class _VocabularyLoss(torch.autograd.Function):
    """Forward makes the gradients along with the loss; backward only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        wants = ctx.needs_input_grad
        to_hidden = torch.empty_like(hidden) if wants[0] else None
        to_weight = torch.zeros_like(weight) if wants[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and wants[2] else None
        losses = []
        room = _Room(hidden, weight)
        start = 0
        for rows, wanted in _chunks(hidden, labels):
            logits, shares = room.of(len(rows))
            _linear(rows, weight, bias, out=logits)
            column = wanted[:, None]
            said, highest = logits.gather(1, column), logits.amax(-1, keepdim=True)
            torch.softmax(logits, -1, out=shares)
            # The likeliest word's share is 1 / sum(exp(logits - highest)): the softmax has done that sum.
            losses.append(highest - shares.amax(-1, keepdim=True).log_() - said)
            shares.scatter_add_(1, column, torch.full_like(said, -1.0))  # the gradient, but for the mean
            if to_hidden is not None:
                torch.mm(shares, weight, out=to_hidden[start : start + len(rows)])
            if to_weight is not None:
                to_weight.addmm_(shares.t(), rows)
            if to_bias is not None:
                to_bias += shares.sum(0)
            start += len(rows)
        for made in (to_hidden, to_weight, to_bias):
            if made is not None:
                made /= max(1, len(labels))
        loss = torch.cat(losses).mean() if losses else hidden.new_zeros(())
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        made = [None if one is None else one * gradient for one in ctx.saved_tensors]
        return *made, None


class _Room:
    """Memory for the logits of one chunk and their softmax, taken once and used again: fresh pages cost as much as the
    product that fills them."""

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        self.both = hidden.new_empty(2, min(CHUNK, len(hidden)), len(weight))

    def of(self, rows: int) -> tuple[Tensor, Tensor]:
        return self.both[0, :rows], self.both[1, :rows]


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


def _chunks(hidden: Hidden, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
