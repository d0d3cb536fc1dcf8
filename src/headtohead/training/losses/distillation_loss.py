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

Only predicted positions contribute. As in `chunked_cross_entropy`, logits are computed in chunks and discarded. Their
gradients are computed in closed form; `compute_distillation_losses` is the reference. With r = log(q / p) for each of
the k + 1 categories, and D for the divergence, the gradient with respect to logit j of category c is, at temperature 1,

    forward   q_j (1 - p_c / q_c)
    reverse   q_j (r_c - D)
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

    def compute_chunk(logits: Tensor, chunk: slice) -> tuple[PerPrediction, Logits]:
        return compute_losses_and_gradients(logits, labels[chunk], targets[chunk], config)

    with torch.autocast(hidden_states.device.type, enabled=False):
        loss: Tensor = _ChunkedMeanLoss.apply(  # type: ignore[no-untyped-call]
            hidden_states.to(output_layer.weight.dtype), output_layer.weight, output_layer.bias, compute_chunk
        )
    return loss


@torch.no_grad()
def compute_losses_and_gradients(
    logits: Logits, labels: Labels, targets: TeacherTargets, config: DistillationLossConfig
) -> tuple[PerPrediction, Logits]:
    """Return the combined loss for each prediction, and the gradient of their sum with respect to the logits."""
    losses, gradients = torch.zeros_like(logits[:, 0]), None
    if config.weight > 0:
        scaled_logits = logits if config.temperature == 1 else logits / config.temperature
        divergence_and_gradients = _compute_divergence_and_gradients(scaled_logits, targets, config.direction)
        if divergence_and_gradients is None:
            return _differentiate_losses(logits, labels, targets, config)
        divergence, gradients = divergence_and_gradients
        losses += config.weight * config.temperature**2 * divergence
        gradients *= config.weight * config.temperature
    if config.weight < 1:
        label_weight, label_column = 1 - config.weight, labels[:, None]
        log_probs = logits.log_softmax(-1)
        losses -= label_weight * log_probs.gather(1, label_column)[:, 0]
        label_gradients = log_probs.exp_().mul_(label_weight)
        gradients = label_gradients if gradients is None else gradients.add_(label_gradients)
        gradients.scatter_add_(1, label_column, torch.full_like(gradients[:, :1], -label_weight))
    assert gradients is not None
    return losses, gradients


def _compute_divergence_and_gradients(
    logits: Logits, targets: TeacherTargets, direction: KLDirection
) -> tuple[PerPrediction, Logits] | None:
    """Return the divergence for each prediction and its gradients; None if the probability of all other tokens
    underflows.
    """
    token_ids, teacher_log_probs = targets.token_ids, targets.log_probs
    probs = logits.softmax(-1)
    # The largest probability is 1 / sum(exp(logits - max_logits)).
    log_normalizer = logits.amax(-1, keepdim=True) - probs.amax(-1, keepdim=True).log()
    top_log_probs, top_probs = logits.gather(1, token_ids) - log_normalizer, probs.gather(1, token_ids)
    has_other_tokens = token_ids.shape[1] < logits.shape[1]
    if has_other_tokens:
        other_probs = probs.scatter_(1, token_ids, 0.0).sum(-1, keepdim=True)
        if not bool((other_probs > 0).all()):
            return None
        other_log_ratio = other_probs.log() - targets.other_log_prob[:, None]
    log_ratios = top_log_probs - teacher_log_probs
    if direction == "forward":
        divergence = -(teacher_log_probs.exp() * log_ratios).sum(-1, keepdim=True)
        if has_other_tokens:
            teacher_other_probs = targets.other_log_prob[:, None].exp()
            divergence -= teacher_other_probs * other_log_ratio
            probs *= 1 - teacher_other_probs / other_probs
        probs.scatter_(1, token_ids, top_probs - teacher_log_probs.exp())
    else:
        divergence = (top_probs * log_ratios).sum(-1, keepdim=True)
        if has_other_tokens:
            divergence += other_probs * other_log_ratio
            probs *= other_log_ratio - divergence
        probs.scatter_(1, token_ids, top_probs * (log_ratios - divergence))
    return divergence[:, 0], probs


def _differentiate_losses(
    logits: Logits, labels: Labels, targets: TeacherTargets, config: DistillationLossConfig
) -> tuple[PerPrediction, Logits]:
    """Return losses and gradients of the reference, which is slower, and exact for probabilities that underflow."""
    with torch.enable_grad():
        losses = compute_distillation_losses(logits.requires_grad_(), labels, targets, config)
        (gradients,) = torch.autograd.grad(losses.sum(), logits)
    return losses.detach(), gradients


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
        compute_chunk: Callable[[Tensor, slice], tuple[Tensor, Tensor]],
    ) -> Tensor:
        """Return the mean loss over all predictions; store the gradients of hidden states, weight and bias.

        `compute_chunk(logits, chunk)` returns the loss of each prediction of a chunk, and the gradients of their sum
        with respect to the logits.
        """
        needs_grad = ctx.needs_input_grad
        hidden_grad = torch.zeros_like(hidden) if needs_grad[0] else None
        weight_grad = torch.zeros_like(weight) if needs_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and needs_grad[2] else None
        loss_sum = hidden.new_zeros(())
        for start in range(0, len(hidden), CHUNK_SIZE):
            chunk = slice(start, start + CHUNK_SIZE)
            losses, logit_grad = compute_chunk(F.linear(hidden[chunk], weight, bias), chunk)
            loss_sum += losses.sum()
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
