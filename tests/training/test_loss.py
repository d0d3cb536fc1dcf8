"""The loss that never makes the whole logits is the same mathematics as cross_entropy."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from headtohead.training import cross_entropy as roads
from headtohead.training.cross_entropy import CHUNK_SIZE, chunked_linear_cross_entropy, score_predictions


def _case(predictions: int, vocab: int, scale: float, bias: bool, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    output = nn.Linear(8, vocab, bias=bias)
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    hidden = torch.randn(predictions, 8, generator=generator)
    return output, hidden, torch.randint(vocab, (predictions,), generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 5, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE + 3]),
    st.integers(2, 50),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.booleans(),
)
def test_loss_and_gradients_equal_cross_entropy(predictions, vocab, scale, bias):
    output, hidden, labels = _case(predictions, vocab, scale, bias)
    found = []
    for loss_of in (
        lambda rows: chunked_linear_cross_entropy(output, rows, labels),
        lambda rows: F.cross_entropy(output(rows), labels),
    ):
        rows = hidden.clone().requires_grad_()
        output.zero_grad()
        loss = loss_of(rows)
        (3 * loss).backward()  # a factor, so that backward must scale
        found.append([loss.detach(), rows.grad, *(p.grad.clone() for p in output.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_share_too_small_for_a_float_is_no_infinite_loss():
    output = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.tensor([[0.0], [500.0]]))
    loss = chunked_linear_cross_entropy(output, torch.ones(1, 1), torch.tensor([0]))
    assert loss.item() == 500.0


def test_scores_are_those_of_the_whole_logits():
    output, hidden, labels = _case(2 * CHUNK_SIZE + 7, 20, 1.0, True)
    losses, right = score_predictions(output, hidden, labels)
    logits = output(hidden)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(right, logits.argmax(-1) == labels) and 0 < right.sum() < len(right)


def test_what_needs_no_gradient_gets_none():
    output, hidden, labels = _case(10, 6, 1.0, True)
    output.requires_grad_(False)
    rows = hidden.clone().requires_grad_()
    chunked_linear_cross_entropy(output, rows, labels).backward()
    assert rows.grad is not None and output.weight.grad is None


def test_both_roads_are_taken_and_give_the_same(monkeypatch):
    """Mild logits are exponentiated as they are; the road for any logits gives the same losses and gradients."""
    output, hidden, labels = _case(2 * CHUNK_SIZE + 3, 40, 1.0, True)
    assert roads._has_bounded_logits(hidden, output.weight, output.bias)
    found = []
    for mild in (True, False):
        monkeypatch.setattr(roads, "_has_bounded_logits", lambda *_, answer=mild: answer)
        rows = hidden.clone().requires_grad_()
        output.zero_grad()
        value = chunked_linear_cross_entropy(output, rows, labels)
        value.backward()
        scores, right = score_predictions(output, hidden, labels)
        found.append([value.detach(), rows.grad, *(p.grad.clone() for p in output.parameters()), scores, right])
    for quick, safe in zip(*found, strict=True):
        torch.testing.assert_close(quick, safe, rtol=1e-5, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 3.0), st.floats(0.0, 25.0), st.integers(0, 5))
def test_no_logit_of_a_mild_layer_is_out_of_range(scale, offset, seed):
    output, hidden, _ = _case(20, 30, scale, True, seed)
    with torch.no_grad():
        output.bias += offset
    if roads._has_bounded_logits(hidden, output.weight, output.bias):
        assert output(hidden).abs().max() < roads.MAX_SAFE_LOGIT


def test_large_logits_and_those_that_are_no_numbers_are_not_mild():
    output, hidden, _ = _case(20, 30, 30.0, False)
    assert not roads._has_bounded_logits(hidden, output.weight, None)
    output, hidden, labels = _case(20, 30, 1.0, False)
    hidden[3, 2] = torch.nan
    assert not roads._has_bounded_logits(hidden, output.weight, None)
    assert chunked_linear_cross_entropy(output, hidden, labels).isnan()


def test_no_predictions_are_no_loss_and_no_slope():
    output, hidden, labels = _case(0, 6, 1.0, True)
    rows = hidden.clone().requires_grad_()
    loss = chunked_linear_cross_entropy(output, rows, labels)
    loss.backward()
    assert loss.item() == 0.0
    assert not output.weight.grad.any() and not output.bias.grad.any() and rows.grad.shape == (0, 8)


def test_gradients_do_not_depend_on_what_memory_held_before(monkeypatch):
    """They are written into memory that nobody has cleared."""
    output, hidden, labels = _case(2 * CHUNK_SIZE + 3, 40, 1.0, True)
    plain = torch.empty_like
    found = []
    for rubbish in (0.0, torch.nan):
        monkeypatch.setattr(torch, "empty_like", lambda one, fill=rubbish: plain(one).fill_(fill))
        rows = hidden.clone().requires_grad_()
        output.zero_grad()
        chunked_linear_cross_entropy(output, rows, labels).backward()
        found.append([rows.grad, output.weight.grad, output.bias.grad])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*found, strict=True))
