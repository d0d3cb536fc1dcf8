"""The chunked loss, which never materializes all logits, equals F.cross_entropy."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from headtohead.training.losses import chunked_cross_entropy
from headtohead.training.losses.chunked_cross_entropy import CHUNK_SIZE, chunked_linear_cross_entropy, score_predictions


def build_case(num_predictions: int, vocab_size: int, scale: float, bias: bool, seed: int = 0):
    """Return an output layer, hidden states and labels."""
    generator = torch.Generator().manual_seed(seed)
    output = nn.Linear(8, vocab_size, bias=bias)
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(num_predictions, 8, generator=generator)
    return output, hidden, torch.randint(vocab_size, (num_predictions,), generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 5, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE + 3]),
    st.integers(2, 50),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.booleans(),
)
def test_loss_and_gradients_equal_cross_entropy(num_predictions, vocab_size, scale, bias):
    output, hidden, labels = build_case(num_predictions, vocab_size, scale, bias)
    results = []
    for compute_loss in (
        lambda hidden_states: chunked_linear_cross_entropy(output, hidden_states, labels),
        lambda hidden_states: F.cross_entropy(output(hidden_states), labels),
    ):
        hidden_states = hidden.clone().requires_grad_()
        output.zero_grad()
        loss = compute_loss(hidden_states)
        (3 * loss).backward()  # a factor, so that backward must scale
        results.append([loss.detach(), hidden_states.grad, *(p.grad.clone() for p in output.parameters())])
    # Gradients of hidden states are sums of weights of size `scale`, which cancel; float32 rounds each of them.
    atol = 1e-6 * max(1.0, scale)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=atol)


def test_an_underflowing_probability_gives_a_finite_loss():
    output = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.tensor([[0.0], [500.0]]))
    loss = chunked_linear_cross_entropy(output, torch.ones(1, 1), torch.tensor([0]))
    assert loss.item() == 500.0


def test_scores_equal_those_of_all_logits():
    output, hidden, labels = build_case(2 * CHUNK_SIZE + 7, 20, 1.0, True)
    losses, is_correct = score_predictions(output, hidden, labels)
    logits = output(hidden)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(is_correct, logits.argmax(-1) == labels) and 0 < is_correct.sum() < len(is_correct)


def test_frozen_parameters_get_no_gradient():
    output, hidden, labels = build_case(10, 6, 1.0, True)
    output.requires_grad_(False)
    hidden_states = hidden.clone().requires_grad_()
    chunked_linear_cross_entropy(output, hidden_states, labels).backward()
    assert hidden_states.grad is not None and output.weight.grad is None


def test_both_implementations_agree(monkeypatch):
    """Bounded logits are exponentiated directly; the general path gives the same losses and gradients."""
    output, hidden, labels = build_case(2 * CHUNK_SIZE + 3, 40, 1.0, True)
    assert chunked_cross_entropy._has_bounded_logits(hidden, output.weight, output.bias)
    results = []
    for is_bounded in (True, False):
        monkeypatch.setattr(chunked_cross_entropy, "_has_bounded_logits", lambda *_, is_bounded=is_bounded: is_bounded)
        hidden_states = hidden.clone().requires_grad_()
        output.zero_grad()
        loss = chunked_linear_cross_entropy(output, hidden_states, labels)
        loss.backward()
        losses, is_correct = score_predictions(output, hidden, labels)
        results.append(
            [loss.detach(), hidden_states.grad, *(p.grad.clone() for p in output.parameters()), losses, is_correct]
        )
    for without_max, with_softmax in zip(*results, strict=True):
        torch.testing.assert_close(without_max, with_softmax, rtol=1e-5, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 3.0), st.floats(0.0, 25.0), st.integers(0, 5))
def test_bounded_logits_are_in_the_safe_range(scale, offset, seed):
    output, hidden, _ = build_case(20, 30, scale, True, seed)
    with torch.no_grad():
        output.bias += offset
    if chunked_cross_entropy._has_bounded_logits(hidden, output.weight, output.bias):
        assert output(hidden).abs().max() < chunked_cross_entropy.MAX_SAFE_LOGIT


def test_large_logits_and_nan_are_not_bounded():
    output, hidden, _ = build_case(20, 30, 30.0, False)
    assert not chunked_cross_entropy._has_bounded_logits(hidden, output.weight, None)
    output, hidden, labels = build_case(20, 30, 1.0, False)
    hidden[3, 2] = torch.nan
    assert not chunked_cross_entropy._has_bounded_logits(hidden, output.weight, None)
    assert chunked_linear_cross_entropy(output, hidden, labels).isnan()


def test_without_predictions_loss_and_gradients_are_zero():
    output, hidden, labels = build_case(0, 6, 1.0, True)
    hidden_states = hidden.clone().requires_grad_()
    loss = chunked_linear_cross_entropy(output, hidden_states, labels)
    loss.backward()
    assert loss.item() == 0.0
    assert not output.weight.grad.any() and not output.bias.grad.any() and hidden_states.grad.shape == (0, 8)


def test_gradients_do_not_depend_on_uninitialized_memory(monkeypatch):
    output, hidden, labels = build_case(2 * CHUNK_SIZE + 3, 40, 1.0, True)
    empty_like = torch.empty_like
    results = []
    for fill_value in (0.0, torch.nan):
        monkeypatch.setattr(torch, "empty_like", lambda x, value=fill_value: empty_like(x).fill_(value))
        hidden_states = hidden.clone().requires_grad_()
        output.zero_grad()
        chunked_linear_cross_entropy(output, hidden_states, labels).backward()
        results.append([hidden_states.grad, output.weight.grad, output.bias.grad])
    assert all(torch.equal(with_zeros, with_nan) for with_zeros, with_nan in zip(*results, strict=True))
