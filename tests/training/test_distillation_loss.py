"""Distillation losses, compared with torch.nn.functional on full logits, and their invariants."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from headtohead.training.losses.chunked_cross_entropy import CHUNK_SIZE, chunked_linear_cross_entropy
from headtohead.training.losses.distillation_loss import (
    DistillationLossConfig,
    TeacherTargets,
    compute_chunked_distillation_loss,
    compute_distillation_losses,
    compute_losses_and_gradients,
    compute_teacher_targets,
    kl_divergence,
)

VOCAB = 40
DIRECTIONS = ("forward", "reverse")


def draw_logits(num_predictions: int, seed: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(num_predictions, vocab, generator=torch.Generator().manual_seed(seed))


def compute_full_divergence(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float, direction: str
) -> torch.Tensor:
    """Compute the divergence with torch's kl_div, whose first argument is the approximating distribution."""
    q, p = ((x / temperature).log_softmax(-1) for x in (student, teacher))
    approximation, target = (q, p) if direction == "forward" else (p, q)
    return F.kl_div(approximation, target, reduction="none", log_target=True).sum(-1)


def compute_reduced_divergence(
    student: torch.Tensor, teacher: torch.Tensor, k: int, temperature: float, direction: str
) -> torch.Tensor:
    """Compute the divergence after reducing both distributions to k + 1 categories, with probabilities in float64."""
    q, p = ((x.double() / temperature).softmax(-1) for x in (student, teacher))
    is_top_k = torch.zeros_like(p, dtype=torch.bool).scatter_(1, p.topk(k, -1).indices, True)
    reduced = [
        torch.cat((x[is_top_k].view(-1, k), x.masked_fill(is_top_k, 0).sum(-1, keepdim=True)), -1) for x in (p, q)
    ]
    target, approximation = reduced if direction == "forward" else reduced[::-1]
    return F.kl_div(approximation.log(), target, reduction="none").sum(-1)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.sampled_from(DIRECTIONS), st.integers(0, 100))
def test_with_the_whole_vocabulary_it_is_torchs_divergence(temperature, direction, seed):
    student, teacher = draw_logits(7, seed), draw_logits(7, seed + 1)
    result = kl_divergence(student, compute_teacher_targets(teacher, VOCAB, temperature), temperature, direction)
    torch.testing.assert_close(
        result, compute_full_divergence(student, teacher, temperature, direction), rtol=1e-4, atol=1e-5
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, VOCAB - 1), st.sampled_from([1.0, 3.0]), st.sampled_from(DIRECTIONS), st.integers(0, 100))
def test_with_k_tokens_all_others_are_one_category(k, temperature, direction, seed):
    student, teacher = draw_logits(7, seed), draw_logits(7, seed + 1)
    result = kl_divergence(student, compute_teacher_targets(teacher, k, temperature), temperature, direction)
    expected = compute_reduced_divergence(student, teacher, k, temperature, direction).float()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fewer_tokens_never_increase_the_divergence(direction):
    student, teacher = draw_logits(50, 0), draw_logits(50, 1)
    by_k = torch.stack(
        [kl_divergence(student, compute_teacher_targets(teacher, k), 1.0, direction) for k in (1, 3, 10, 39, VOCAB)]
    )
    assert (by_k.diff(dim=0) > -1e-5).all()
    assert by_k[0].mean() < by_k[-1].mean()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("k", [1, 5, VOCAB - 1, VOCAB, 10 * VOCAB])
def test_a_student_equal_to_its_teacher_has_no_loss(k, temperature, direction):
    logits = draw_logits(64, 3, scale=6.0).requires_grad_()
    loss = compute_distillation_losses(
        logits,
        torch.zeros(64, dtype=torch.long),
        compute_teacher_targets(logits, k, temperature),
        DistillationLossConfig(temperature, direction, 1.0),
    )
    assert loss.abs().max() < 1e-6 * temperature**2
    loss.sum().backward()
    assert logits.grad.abs().max() < 1e-5


def test_underflowing_probabilities_give_a_finite_loss():
    student, teacher = torch.tensor([[500.0, 0.0, -500.0]]), torch.tensor([[-500.0, 0.0, 500.0]])
    for direction in DIRECTIONS:
        for k in (1, 2, 3):
            result = kl_divergence(student.requires_grad_(), compute_teacher_targets(teacher, k), 1.0, direction)
            assert torch.isfinite(result).all()
            assert result.item() > 400
            (gradient,) = torch.autograd.grad(result.sum(), student)
            assert torch.isfinite(gradient).all()


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 5, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE + 3]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from(DIRECTIONS),
    st.booleans(),
)
def test_loss_and_gradients_in_chunks_equal_those_of_all_logits(num_predictions, weight, temperature, direction, bias):
    generator = torch.Generator().manual_seed(num_predictions)
    output = nn.Linear(8, VOCAB, bias=bias)
    hidden, teacher = torch.randn(num_predictions, 8, generator=generator), draw_logits(num_predictions, 5)
    labels = torch.randint(VOCAB, (num_predictions,), generator=generator)
    options, targets = (
        DistillationLossConfig(temperature, direction, weight),
        compute_teacher_targets(teacher, VOCAB, temperature),
    )

    def compute_full_loss(hidden_states: torch.Tensor) -> torch.Tensor:
        cross_entropy = F.cross_entropy(output(hidden_states), labels)
        divergence = compute_full_divergence(output(hidden_states), teacher, temperature, direction).mean()
        return (1 - weight) * cross_entropy + weight * temperature**2 * divergence

    def compute_chunked_loss(hidden_states: torch.Tensor) -> torch.Tensor:
        return compute_chunked_distillation_loss(output, hidden_states, labels, targets, options)

    results = []
    for compute_loss in (compute_chunked_loss, compute_full_loss):
        hidden_states = hidden.clone().requires_grad_()
        output.zero_grad()
        loss = compute_loss(hidden_states)
        (3 * loss).backward()  # a factor, so that backward must scale
        results.append([loss.detach(), hidden_states.grad, *(p.grad.clone() for p in output.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 5, VOCAB - 1, VOCAB]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from(DIRECTIONS),
    st.sampled_from([1.0, 10.0, 400.0]),
)
def test_gradients_in_closed_form_equal_those_of_the_reference(k, weight, temperature, direction, scale):
    """With a scale of 400, probabilities underflow."""
    student, teacher = draw_logits(9, 1, scale=scale).double(), draw_logits(9, 2).double()
    labels = torch.arange(9)
    targets, config = (
        compute_teacher_targets(teacher, k, temperature),
        DistillationLossConfig(temperature, direction, weight),
    )
    reference = student.clone().requires_grad_()
    expected = compute_distillation_losses(reference, labels, targets, config)
    (expected_gradients,) = torch.autograd.grad(expected.sum(), reference)
    losses, gradients = compute_losses_and_gradients(student, labels, targets, config)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-6, atol=1e-6)


def test_with_weight_0_it_is_the_cross_entropy():
    output, hidden, labels = nn.Linear(8, VOCAB), torch.randn(9, 8), torch.arange(9)
    plain = chunked_linear_cross_entropy(output, hidden, labels)
    torch.testing.assert_close(
        compute_chunked_distillation_loss(
            output, hidden, labels, compute_teacher_targets(draw_logits(9, 1), 3), DistillationLossConfig(weight=0.0)
        ),
        plain,
    )


def test_a_frozen_output_layer_gets_no_gradient():
    output, hidden = nn.Linear(8, VOCAB).requires_grad_(False), torch.randn(9, 8, requires_grad=True)
    compute_chunked_distillation_loss(
        output, hidden, torch.arange(9), compute_teacher_targets(draw_logits(9, 1), 3), DistillationLossConfig()
    ).backward()
    assert hidden.grad is not None
    assert output.weight.grad is None


def test_targets_are_sliced_and_moved_together():
    targets = compute_teacher_targets(draw_logits(10, 2), 4)
    chunks = [targets[start : start + 4] for start in (0, 4, 8)]
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    assert torch.equal(torch.cat([chunk.token_ids for chunk in chunks]), targets.to("cpu").token_ids)
    assert isinstance(chunks[0], TeacherTargets)
