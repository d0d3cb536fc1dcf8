"""The losses of distillation, held against torch.nn.functional on whole logits, and their laws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from headtohead.training.cross_entropy import CHUNK_SIZE, chunked_linear_cross_entropy
from headtohead.training.distillation_loss import (
    DistillationLossConfig,
    TeacherTargets,
    compute_chunked_distillation_loss,
    compute_distillation_losses,
    compute_teacher_targets,
    kl_divergence,
)

VOCAB = 40
DIRECTIONS = ("forward", "reverse")


def _logits(rows: int, seed: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def _whole(student: torch.Tensor, teacher: torch.Tensor, temperature: float, direction: str) -> torch.Tensor:
    """By torch's own kl_div, whose first argument is the one that approximates."""
    q, p = ((x / temperature).log_softmax(-1) for x in (student, teacher))
    one, other = (q, p) if direction == "forward" else (p, q)
    return F.kl_div(one, other, reduction="none", log_target=True).sum(-1)


def _boxed(student: torch.Tensor, teacher: torch.Tensor, k: int, temperature: float, direction: str) -> torch.Tensor:
    """The same after both have been sorted into k boxes and one, in plain probabilities and double precision."""
    q, p = ((x.double() / temperature).softmax(-1) for x in (student, teacher))
    kept = torch.zeros_like(p, dtype=torch.bool).scatter_(1, p.topk(k, -1).indices, True)
    boxes = [torch.cat((x[kept].view(-1, k), x.masked_fill(kept, 0).sum(-1, keepdim=True)), -1) for x in (p, q)]
    one, other = boxes if direction == "forward" else boxes[::-1]
    return F.kl_div(other.log(), one, reduction="none").sum(-1)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.sampled_from(DIRECTIONS), st.integers(0, 100))
def test_with_the_whole_vocabulary_it_is_torchs_divergence(temperature, direction, seed):
    student, teacher = _logits(7, seed), _logits(7, seed + 1)
    found = kl_divergence(student, compute_teacher_targets(teacher, VOCAB, temperature), temperature, direction)
    torch.testing.assert_close(found, _whole(student, teacher, temperature, direction), rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, VOCAB - 1), st.sampled_from([1.0, 3.0]), st.sampled_from(DIRECTIONS), st.integers(0, 100))
def test_with_k_words_the_others_are_one_box(k, temperature, direction, seed):
    student, teacher = _logits(7, seed), _logits(7, seed + 1)
    found = kl_divergence(student, compute_teacher_targets(teacher, k, temperature), temperature, direction)
    wanted = _boxed(student, teacher, k, temperature, direction).float()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fewer_words_never_make_the_divergence_larger(direction):
    student, teacher = _logits(50, 0), _logits(50, 1)
    by_k = torch.stack(
        [kl_divergence(student, compute_teacher_targets(teacher, k), 1.0, direction) for k in (1, 3, 10, 39, VOCAB)]
    )
    assert (by_k.diff(dim=0) > -1e-5).all()
    assert by_k[0].mean() < by_k[-1].mean()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("k", [1, 5, VOCAB - 1, VOCAB, 10 * VOCAB])
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(k, temperature, direction):
    logits = _logits(64, 3, scale=6.0).requires_grad_()
    loss = compute_distillation_losses(
        logits,
        torch.zeros(64, dtype=torch.long),
        compute_teacher_targets(logits, k, temperature),
        DistillationLossConfig(temperature, direction, 1.0),
    )
    assert loss.abs().max() < 1e-6 * temperature**2
    loss.sum().backward()
    assert logits.grad.abs().max() < 1e-5


def test_shares_too_small_for_a_float_are_no_infinite_loss():
    student, teacher = torch.tensor([[500.0, 0.0, -500.0]]), torch.tensor([[-500.0, 0.0, 500.0]])
    for direction in DIRECTIONS:
        for k in (1, 2, 3):
            found = kl_divergence(student.requires_grad_(), compute_teacher_targets(teacher, k), 1.0, direction)
            assert torch.isfinite(found).all()
            assert found.item() > 400
            (gradient,) = torch.autograd.grad(found.sum(), student)
            assert torch.isfinite(gradient).all()


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 5, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE + 3]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from(DIRECTIONS),
    st.booleans(),
)
def test_in_chunks_it_has_the_loss_and_the_gradients_of_whole_logits(rows, weight, temperature, direction, bias):
    generator = torch.Generator().manual_seed(rows)
    output = nn.Linear(8, VOCAB, bias=bias)
    hidden, teacher = torch.randn(rows, 8, generator=generator), _logits(rows, 5)
    labels = torch.randint(VOCAB, (rows,), generator=generator)
    how, targets = (
        DistillationLossConfig(temperature, direction, weight),
        compute_teacher_targets(teacher, VOCAB, temperature),
    )

    def whole(given: torch.Tensor) -> torch.Tensor:
        hard = F.cross_entropy(output(given), labels)
        soft = _whole(output(given), teacher, temperature, direction).mean()
        return (1 - weight) * hard + weight * temperature**2 * soft

    found = []
    for loss_of in (lambda given: compute_chunked_distillation_loss(output, given, labels, targets, how), whole):
        given_rows = hidden.clone().requires_grad_()
        output.zero_grad()
        loss = loss_of(given_rows)
        (3 * loss).backward()  # a factor, so that backward must scale
        found.append([loss.detach(), given_rows.grad, *(p.grad.clone() for p in output.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_without_the_teachers_part_it_is_the_ordinary_loss():
    output, hidden, labels = nn.Linear(8, VOCAB), torch.randn(9, 8), torch.arange(9)
    plain = chunked_linear_cross_entropy(output, hidden, labels)
    torch.testing.assert_close(
        compute_chunked_distillation_loss(
            output, hidden, labels, compute_teacher_targets(_logits(9, 1), 3), DistillationLossConfig(weight=0.0)
        ),
        plain,
    )


def test_a_frozen_output_layer_gets_no_gradient():
    output, hidden = nn.Linear(8, VOCAB).requires_grad_(False), torch.randn(9, 8, requires_grad=True)
    compute_chunked_distillation_loss(
        output, hidden, torch.arange(9), compute_teacher_targets(_logits(9, 1), 3), DistillationLossConfig()
    ).backward()
    assert hidden.grad is not None
    assert output.weight.grad is None


def test_targets_are_sliced_and_moved_together():
    targets = compute_teacher_targets(_logits(10, 2), 4)
    chunks = [targets[start : start + 4] for start in (0, 4, 8)]
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]
    assert torch.equal(torch.cat([chunk.ids for chunk in chunks]), targets.to("cpu").ids)
    assert isinstance(chunks[0], TeacherTargets)
