"""Distillation loss: cross entropy of the labels plus the divergence from the teacher's top-k distribution.

For each prediction the teacher provides its k most likely tokens at a temperature, and the total probability of all
others. The student's distribution is reduced to the same k + 1 categories:

    forward   sum of p log(p / q): the student must cover what the teacher considers possible
    reverse   sum of q log(q / p): the student must avoid what the teacher considers impossible
    loss      (1 - weight) x cross entropy of the label + weight x temperature^2 x divergence

p is the teacher's probability and q the student's, both at the temperature. Its square keeps the gradients of the two
terms in proportion (Hinton et al. 2015, arXiv:1503.02531); the reverse direction follows Gu et al. 2024,
arXiv:2306.08543.

The category for all other tokens is needed because k renormalized probabilities would not penalize mass outside the k
tokens. With it, for any k and both directions:

    1. a student equal to its teacher has divergence 0;
    2. with k = vocabulary size, it is the divergence of the full distributions;
    3. it never exceeds that, by the data-processing inequality, and grows with k.

Only predicted positions count. As in `cross_entropy`, logits are computed in chunks and discarded.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """The log-probabilities of the teacher's top-k tokens for each prediction, at one temperature."""

    ids: Int[Tensor, "predictions k"]
    """The k most likely tokens."""
    log_probs: Float[Tensor, "predictions k"]
    other_log_prob: Float[Tensor, "predictions"]
    """Log of the total probability of all other tokens; minus infinity if there are none."""

    def to(self, device: torch.device | str) -> TeacherTargets:
        return TeacherTargets(self.ids.to(device), self.log_probs.to(device), self.other_log_prob.to(device))

    def __len__(self) -> int:
        return len(self.other_log_prob)

    def __getitem__(self, rows: slice) -> TeacherTargets:
        """Return the targets for consecutive predictions."""
        return TeacherTargets(self.ids[rows], self.log_probs[rows], self.other_log_prob[rows])


@dataclass(frozen=True)
class DistillationLossConfig:
    """How the divergence from the teacher and the cross entropy of the labels are combined."""

    temperature: float = 1.0
    direction: KLDirection = "forward"
    weight: float = 0.5
    """Weight of the divergence term, from 0 to 1."""


@torch.no_grad()
def compute_teacher_targets(logits: Logits, top_k: int, temperature: float = 1.0) -> TeacherTargets:
    """Return the teacher's top-k tokens and the total probability of all others; k is capped at the vocabulary size."""
    all_log_probs = (logits.float() / temperature).log_softmax(-1)
    log_probs, ids = all_log_probs.topk(min(top_k, all_log_probs.shape[1]), dim=-1)
    return TeacherTargets(ids, log_probs, _compute_other_log_prob(all_log_probs, ids))


def kl_divergence(
    logits: Logits, targets: TeacherTargets, temperature: float = 1.0, direction: KLDirection = "forward"
) -> PerPrediction:
    """Return the divergence for each prediction. `temperature` must be the one used to compute the targets."""
    log_probs = (logits / temperature).log_softmax(-1)
    student, teacher = log_probs.gather(1, targets.ids), targets.log_probs
    if targets.ids.shape[1] < logits.shape[1]:
        student = torch.cat((student, _compute_other_log_prob(log_probs, targets.ids)[:, None]), dim=1)
        teacher = torch.cat((teacher, targets.other_log_prob[:, None]), dim=1)
    p, q = (teacher, student) if direction == "forward" else (student, teacher)
    return (p.exp() * (p - q)).sum(-1)


def _compute_other_log_prob(log_probs: Logits, token_ids: Int[Tensor, "predictions k"]) -> PerPrediction:
    """Return the log of the total probability of all tokens except `token_ids`."""
    return log_probs.scatter(1, token_ids, -torch.inf).logsumexp(-1)


def compute_distillation_losses(
    logits: Logits, labels: Labels, targets: TeacherTargets, config: DistillationLossConfig
) -> PerPrediction:
    """Return the combined loss for each prediction, given the student's logits."""
    loss = torch.zeros_like(logits[:, 0])
    if config.weight < 1:
        loss = loss + (1 - config.weight) * F.cross_entropy(logits, labels, reduction="none")
    if config.weight > 0:
        divergence = kl_divergence(logits, targets, config.temperature, config.direction)
        loss = loss + config.weight * config.temperature**2 * divergence
    return loss


def compute_chunked_distillation_loss(
    output_layer: nn.Linear,
    hidden_states: HiddenStates,
    labels: Labels,
    targets: TeacherTargets,
    config: DistillationLossConfig,
) -> Float[Tensor, ""]:
    """Return the mean combined loss without materializing all logits.

    Args:
        hidden_states: Shape (predictions, width).
        labels: Token ids, shape (predictions,).
        targets: Teacher targets for the same predictions.
    """

    def compute_chunk_losses(logits: Tensor, rows: slice) -> Tensor:
        return compute_distillation_losses(logits, labels[rows], targets[rows], config)

    loss: Tensor = _ChunkedMeanLoss.apply(hidden_states, output_layer.weight, output_layer.bias, compute_chunk_losses)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedMeanLoss(torch.autograd.Function):
    """Mean distillation loss after the output layer, with logits computed in chunks of rows.

    The forward pass computes loss and gradients; the backward pass scales the stored gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, losses: Callable[[Tensor, slice], Tensor]
    ) -> Tensor:
        """Return the mean distillation loss over all rows; store the gradients for hidden states, weight and bias.

        `losses(logits, rows)` returns the loss of each row of a chunk.
        """
        needs_grad = ctx.needs_input_grad
        hidden_grad = torch.zeros_like(hidden) if needs_grad[0] else None
        weight_grad = torch.zeros_like(weight) if needs_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and needs_grad[2] else None
        total = hidden.new_zeros(())
        for start in range(0, len(hidden), CHUNK_SIZE):
            rows = slice(start, start + CHUNK_SIZE)
            logits = F.linear(hidden[rows], weight, bias).detach().requires_grad_()
            with torch.enable_grad():
                loss = losses(logits, rows).sum()
                (gradient,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            if hidden_grad is not None:
                torch.mm(gradient, weight, out=hidden_grad[rows])
            if weight_grad is not None:
                weight_grad.addmm_(gradient.t(), hidden[rows])
            if bias_grad is not None:
                bias_grad += gradient.sum(0)
        for tensor in (total, hidden_grad, weight_grad, bias_grad):
            if tensor is not None:
                tensor /= max(1, len(hidden))
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return *(None if x is None else x * gradient for x in ctx.saved_tensors), None
