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

from headtohead.training.cross_entropy import CHUNK_SIZE, HiddenStates, Labels

KLDirection = Literal["forward", "reverse"]
Logits = Float[Tensor, "predictions vocab"]
PerPrediction = Float[Tensor, "predictions"]


@dataclass(frozen=True)
class TeacherTargets:
    """What a teacher says of each prediction, at one temperature, as logarithms of shares."""

    ids: Int[Tensor, "predictions k"]
    """its likeliest words"""
    shares: Float[Tensor, "predictions k"]
    other_log_prob: Float[Tensor, "predictions"]
    """all other words together; minus infinity where there are none"""

    def to(self, device: torch.device | str) -> TeacherTargets:
        return TeacherTargets(self.ids.to(device), self.shares.to(device), self.other_log_prob.to(device))

    def __len__(self) -> int:
        return len(self.other_log_prob)

    def split(self, chunk_size: int) -> Iterator[TeacherTargets]:
        for ids, shares, rest in zip(
            *(x.split(chunk_size) for x in (self.ids, self.shares, self.other_log_prob)), strict=True
        ):
            yield TeacherTargets(ids, shares, rest)


@dataclass(frozen=True)
class DistillationLossConfig:
    """How the teacher's word and the right word are mixed."""

    temperature: float = 1.0
    direction: KLDirection = "forward"
    weight: float = 0.5
    """of the teacher's part, from 0 to 1"""


@torch.no_grad()
def compute_teacher_targets(logits: Logits, top_k: int, temperature: float = 1.0) -> TeacherTargets:
    """The teacher's k likeliest words and the mass of all others; k beyond the vocabulary is the vocabulary."""
    said = (logits.float() / temperature).log_softmax(-1)
    shares, ids = said.topk(min(top_k, said.shape[1]), dim=-1)
    return TeacherTargets(ids, shares, _compute_other_log_prob(said, ids))


def kl_divergence(
    logits: Logits, targets: TeacherTargets, temperature: float = 1.0, direction: KLDirection = "forward"
) -> PerPrediction:
    """Of each prediction: how far the student's logits are from the teacher's targets, at their temperature."""
    said = (logits / temperature).log_softmax(-1)
    student, teacher = said.gather(1, targets.ids), targets.shares
    if targets.ids.shape[1] < logits.shape[1]:
        student = torch.cat((student, _compute_other_log_prob(said, targets.ids)[:, None]), dim=1)
        teacher = torch.cat((teacher, targets.other_log_prob[:, None]), dim=1)
    p, q = (teacher, student) if direction == "forward" else (student, teacher)
    return (p.exp() * (p - q)).sum(-1)


def _compute_other_log_prob(log_probs: Logits, token_ids: Int[Tensor, "predictions k"]) -> PerPrediction:
    """The logarithm of what is left for the words that are not named."""
    return log_probs.scatter(1, token_ids, -torch.inf).logsumexp(-1)


def compute_distillation_losses(
    logits: Logits, labels: Labels, targets: TeacherTargets, config: DistillationLossConfig
) -> PerPrediction:
    """Of each prediction, from its whole logits: the right word and the teacher's word, mixed."""
    loss = torch.zeros_like(logits[:, 0])
    if config.weight < 1:
        loss = loss + (1 - config.weight) * F.cross_entropy(logits, labels, reduction="none")
    if config.weight > 0:
        soft = kl_divergence(logits, targets, config.temperature, config.direction)
        loss = loss + config.weight * config.temperature**2 * soft
    return loss


def compute_chunked_distillation_loss(
    output_layer: nn.Linear,
    hidden_states: HiddenStates,
    labels: Labels,
    targets: TeacherTargets,
    config: DistillationLossConfig,
) -> Float[Tensor, ""]:
    """The mean of the mixed losses of what the output layer says, without the whole logits at any time."""

    def losses(logits: Tensor, rows: slice) -> Tensor:
        some = TeacherTargets(targets.ids[rows], targets.shares[rows], targets.other_log_prob[rows])
        return compute_distillation_losses(logits, labels[rows], some, config)

    loss: Tensor = _ChunkedMeanLoss.apply(hidden_states, output_layer.weight, output_layer.bias, losses)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedMeanLoss(torch.autograd.Function):
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
        for start in range(0, len(hidden), CHUNK_SIZE):
            rows = slice(start, start + CHUNK_SIZE)
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
