"""Distillation loss: cross entropy of the labels plus the divergence from the teacher's top-k distribution.

For each prediction, the teacher provides the probabilities of its k most likely tokens at a temperature, and the total
probability of all other tokens. The student's distribution is reduced to the same k + 1 categories:

    forward   sum of p log(p / q): the student must cover all tokens that the teacher considers likely
    reverse   sum of q log(q / p): the student must avoid tokens that the teacher considers unlikely
    loss      (1 - weight) x cross entropy of the label + weight x temperature^2 x divergence

p is the probability of the teacher and q that of the student, both at the temperature. The factor temperature^2 keeps
the gradients of the two terms in proportion (Hinton et al. 2015, arXiv:1503.02531); the reverse direction follows Gu et
al. 2024, arXiv:2306.08543.

Without the category for all other tokens, renormalized top-k probabilities would not penalize mass outside the k
tokens. With it, for any k and both directions:

    1. a student equal to its teacher has divergence 0;
    2. with k = vocabulary size, it is the divergence of the full distributions;
    3. it never exceeds the full divergence, by the data-processing inequality, and is monotonic in k.

Only predicted positions contribute. As in `chunked_cross_entropy`, logits are computed in chunks and discarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headtohead.training.losses.chunked_cross_entropy import CHUNK_SIZE, HiddenStates, Labels, LinearLayer

KLDirection = Literal["forward", "reverse"]
Logits = Float[Tensor, "predictions vocab"]
PerPrediction = Float[Tensor, "predictions"]
"""One value for each prediction."""


@dataclass(frozen=True)
class TeacherTargets:
    """The targets of each prediction: log-probabilities of the teacher's top-k tokens, at one temperature."""

    token_ids: Int[Tensor, "predictions k"]
    """The k most likely tokens."""
    log_probs: Float[Tensor, "predictions k"]
    other_log_prob: Float[Tensor, "predictions"]
    """Log of the total probability of all other tokens; minus infinity if there are none."""

    def to(self, device: torch.device | str) -> TeacherTargets:
        return TeacherTargets(self.token_ids.to(device), self.log_probs.to(device), self.other_log_prob.to(device))

    def __len__(self) -> int:
        return len(self.other_log_prob)

    def __getitem__(self, chunk: slice) -> TeacherTargets:
        """Return the targets of consecutive predictions."""
        return TeacherTargets(self.token_ids[chunk], self.log_probs[chunk], self.other_log_prob[chunk])


@dataclass(frozen=True)
class DistillationLossConfig:
    """Weights and parameters that combine the divergence from the teacher with the cross entropy of the labels."""

    temperature: float = 1.0
    direction: KLDirection = "forward"
    weight: float = 0.5
    """Weight of the divergence term, from 0 to 1."""


@torch.no_grad()
def compute_teacher_targets(logits: Logits, top_k: int, temperature: float = 1.0) -> TeacherTargets:
    """Reduce the logits of a teacher to the targets that the distillation loss compares a student with.

    Args:
        logits: Teacher logits, (predictions, vocab).
        top_k: Number of tokens to keep, at most the vocabulary size.
        temperature: Temperature of the softmax.
    """
    all_log_probs = (logits.float() / temperature).log_softmax(-1)
    log_probs, token_ids = all_log_probs.topk(min(top_k, all_log_probs.shape[1]), dim=-1)
    return TeacherTargets(token_ids, log_probs, _compute_other_log_prob(all_log_probs, token_ids))


def kl_divergence(
    logits: Logits, targets: TeacherTargets, temperature: float = 1.0, direction: KLDirection = "forward"
) -> PerPrediction:
    """Return the divergence between student and teacher, a term of the distillation loss, for each prediction.

    Args:
        logits: Student logits, (predictions, vocab).
        targets: Teacher targets for the same predictions.
        temperature: The temperature used to compute the targets.
        direction: "forward" or "reverse".
    """
    log_probs = (logits / temperature).log_softmax(-1)
    student, teacher = log_probs.gather(1, targets.token_ids), targets.log_probs
    if targets.token_ids.shape[1] < logits.shape[1]:
        student = torch.cat((student, _compute_other_log_prob(log_probs, targets.token_ids)[:, None]), dim=1)
        teacher = torch.cat((teacher, targets.other_log_prob[:, None]), dim=1)
    p, q = (teacher, student) if direction == "forward" else (student, teacher)
    return (p.exp() * (p - q)).sum(-1)


def _compute_other_log_prob(log_probs: Logits, token_ids: Int[Tensor, "predictions k"]) -> PerPrediction:
    """Return the log of the total probability of all tokens except `token_ids`."""
    return log_probs.scatter(1, token_ids, -torch.inf).logsumexp(-1)


def compute_distillation_losses(
    logits: Logits, labels: Labels, targets: TeacherTargets, config: DistillationLossConfig
) -> PerPrediction:
    """Return the combined loss for each prediction.

    Args:
        logits: Student logits, (predictions, vocab).
        labels: Token ids, (predictions,).
        targets: Teacher targets for the same predictions.
        config: Weight, temperature and direction of the divergence.
    """
    loss = torch.zeros_like(logits[:, 0])
    if config.weight < 1:
        loss = loss + (1 - config.weight) * F.cross_entropy(logits, labels, reduction="none")
    if config.weight > 0:
        divergence = kl_divergence(logits, targets, config.temperature, config.direction)
        loss = loss + config.weight * config.temperature**2 * divergence
    return loss


def compute_chunked_distillation_loss(
    output_layer: LinearLayer,
    hidden_states: HiddenStates,
    labels: Labels,
    targets: TeacherTargets,
    config: DistillationLossConfig,
) -> Float[Tensor, ""]:
    """Return the mean combined loss without materializing all logits, in float32 even under autocast.

    Args:
        output_layer: Weight and bias of the student's output layer.
        hidden_states: Inputs of the output layer, (predictions, width).
        labels: Token ids, (predictions,).
        targets: Teacher targets for the same predictions.
        config: Weight, temperature and direction of the divergence.
    """

    def compute_chunk_losses(logits: Tensor, chunk: slice) -> Tensor:
        return compute_distillation_losses(logits, labels[chunk], targets[chunk], config)

    with torch.autocast(hidden_states.device.type, enabled=False):
        loss: Tensor = _ChunkedMeanLoss.apply(  # type: ignore[no-untyped-call]
            hidden_states.to(output_layer.weight.dtype), output_layer.weight, output_layer.bias, compute_chunk_losses
        )
    return loss


class _ChunkedMeanLoss(torch.autograd.Function):
    """Mean distillation loss after the output layer, with logits computed in chunks.

    The forward pass computes loss and gradients; the backward pass scales the stored gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        compute_chunk_losses: Callable[[Tensor, slice], Tensor],
    ) -> Tensor:
        """Return the mean loss over all predictions; store the gradients of hidden states, weight and bias.

        `compute_chunk_losses(logits, chunk)` returns the loss of each prediction of a chunk.
        """
        needs_grad = ctx.needs_input_grad
        hidden_grad = torch.zeros_like(hidden) if needs_grad[0] else None
        weight_grad = torch.zeros_like(weight) if needs_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and needs_grad[2] else None
        loss_sum = hidden.new_zeros(())
        for start in range(0, len(hidden), CHUNK_SIZE):
            chunk = slice(start, start + CHUNK_SIZE)
            logits = F.linear(hidden[chunk], weight, bias).detach().requires_grad_()
            with torch.enable_grad():
                chunk_loss = compute_chunk_losses(logits, chunk).sum()
                (logit_grad,) = torch.autograd.grad(chunk_loss, logits)
            loss_sum += chunk_loss.detach()
            if hidden_grad is not None:
                torch.mm(logit_grad, weight, out=hidden_grad[chunk])
            if weight_grad is not None:
                weight_grad.addmm_(logit_grad.t(), hidden[chunk])
            if bias_grad is not None:
                bias_grad += logit_grad.sum(0)
        for tensor in (loss_sum, hidden_grad, weight_grad, bias_grad):
            if tensor is not None:
                tensor /= max(1, len(hidden))
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return loss_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return *(None if x is None else x * gradient for x in ctx.saved_tensors), None
