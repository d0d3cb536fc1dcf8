"""What a student learns from a teacher's distribution, beside the right words.

For every prediction the teacher gives its k likeliest words at a temperature, and one more share for all the others
together. The student's distribution is sorted into the same k + 1 boxes, and the two are compared by the
Kullback-Leibler divergence:

    forward   sum of p log(p / q): the student must cover all that the teacher holds possible
    reverse   sum of q log(q / p): the student must not say what the teacher holds impossible
    loss      (1 - weight) x cross entropy of the right word + weight x temperature^2 x divergence

p is the teacher's and q the student's share, both at the temperature; the square keeps the gradients of the two parts
in proportion (Hinton et al. 2015, arXiv:1503.02531); reverse after Gu et al. 2024, arXiv:2306.08543.

Why a box for the rest, and not the k shares scaled to sum to 1? Scaled shares say nothing of what lies outside the k: a
student could spend most of its mass there for free. With the box these laws hold, for any k and in both directions:
 1. a student equal to its teacher has a divergence of 0;
 2. with k = the vocabulary it is the divergence of the whole distributions;
 3. it is never more than that (sorting into boxes loses information), and grows with k.

Only positions that are predicted count. As in `loss`, predictions are taken a few at a time and the logits thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.training.cross_entropy import CHUNK, Hidden, Labels

Direction = Literal["forward", "reverse"]
Logits = Float[Tensor, "predictions vocab"]
Each = Float[Tensor, "predictions"]


@dataclass(frozen=True)
class Targets:
    """What a teacher says of each prediction, at one temperature, as logarithms of shares."""

    ids: Int[Tensor, "predictions k"]
    """its likeliest words"""
    shares: Float[Tensor, "predictions k"]
    rest: Float[Tensor, "predictions"]
    """all other words together; minus infinity where there are none"""

    def to(self, device: torch.device | str) -> Targets:
        return Targets(self.ids.to(device), self.shares.to(device), self.rest.to(device))

    def __len__(self) -> int:
        return len(self.rest)

    def split(self, size: int) -> Iterator[Targets]:
        for ids, shares, rest in zip(*(x.split(size) for x in (self.ids, self.shares, self.rest)), strict=True):
            yield Targets(ids, shares, rest)


@dataclass(frozen=True)
class Mixture:
    """How the teacher's word and the right word are mixed."""

    temperature: float = 1.0
    direction: Direction = "forward"
    weight: float = 0.5
    """of the teacher's part, from 0 to 1"""


@torch.no_grad()
def targets_of(logits: Logits, k: int, temperature: float = 1.0) -> Targets:
    """The teacher's k likeliest words and the mass of all others; k beyond the vocabulary is the vocabulary."""
    said = (logits.float() / temperature).log_softmax(-1)
    shares, ids = said.topk(min(k, said.shape[1]), dim=-1)
    return Targets(ids, shares, _others(said, ids))


def divergence(logits: Logits, targets: Targets, temperature: float = 1.0, direction: Direction = "forward") -> Each:
    """Of each prediction: how far the student's logits are from the teacher's targets, at their temperature."""
    said = (logits / temperature).log_softmax(-1)
    student, teacher = said.gather(1, targets.ids), targets.shares
    if targets.ids.shape[1] < logits.shape[1]:
        student = torch.cat((student, _others(said, targets.ids)[:, None]), dim=1)
        teacher = torch.cat((teacher, targets.rest[:, None]), dim=1)
    p, q = (teacher, student) if direction == "forward" else (student, teacher)
    return (p.exp() * (p - q)).sum(-1)


def _others(said: Logits, ids: Int[Tensor, "predictions k"]) -> Each:
    """The logarithm of what is left for the words that are not named."""
    return said.scatter(1, ids, -torch.inf).logsumexp(-1)


def mixed_losses(logits: Logits, labels: Labels, targets: Targets, how: Mixture) -> Each:
    """Of each prediction, from its whole logits: the right word and the teacher's word, mixed."""
    loss = torch.zeros_like(logits[:, 0])
    if how.weight < 1:
        loss = loss + (1 - how.weight) * F.cross_entropy(logits, labels, reduction="none")
    if how.weight > 0:
        soft = divergence(logits, targets, how.temperature, how.direction)
        loss = loss + how.weight * how.temperature**2 * soft
    return loss


def distil_loss(output: nn.Linear, hidden: Hidden, labels: Labels, targets: Targets, how: Mixture) -> Float[Tensor, ""]:
    """The mean of the mixed losses of what the output layer says, without the whole logits at any time."""

    def losses(logits: Tensor, rows: slice) -> Tensor:
        some = Targets(targets.ids[rows], targets.shares[rows], targets.rest[rows])
        return mixed_losses(logits, labels[rows], some, how)

    loss: Tensor = _InChunks.apply(hidden, output.weight, output.bias, losses)  # type: ignore[no-untyped-call]
    return loss


class _InChunks(torch.autograd.Function):
    """The mean of a loss of logits that are made a few rows at a time. Forward makes the gradients along with the loss;
    backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, losses: Callable[[Tensor, slice], Tensor]
    ) -> Tensor:
        wants = ctx.needs_input_grad
        to_hidden = torch.zeros_like(hidden) if wants[0] else None
        to_weight = torch.zeros_like(weight) if wants[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and wants[2] else None
        total = hidden.new_zeros(())
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = F.linear(hidden[rows], weight, bias).detach().requires_grad_()
            with torch.enable_grad():
                loss = losses(logits, rows).sum()
                (gradient,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            if to_hidden is not None:
                torch.mm(gradient, weight, out=to_hidden[rows])
            if to_weight is not None:
                to_weight.addmm_(gradient.t(), hidden[rows])
            if to_bias is not None:
                to_bias += gradient.sum(0)
        for made in (total, to_hidden, to_weight, to_bias):
            if made is not None:
                made /= max(1, len(hidden))
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        made = [None if one is None else one * gradient for one in ctx.saved_tensors]
        return *made, None
