"""Adam and AdamW equal torch.optim bit for bit, in parameters and state, with and without the fused kernel."""

import copy

import pytest
import torch
from torch import nn

from headtohead.config.tables import training as config_training
from headtohead.errors import RequestError
from headtohead.training.checkpoints import TrainingState, restore_checkpoint, save_checkpoint
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer, list_trainable_parameters
from headtohead.training.parts.optimizer import Adam, AdamW

KINDS = {"adam": (Adam, torch.optim.Adam), "adamw": (AdamW, torch.optim.AdamW)}


def build_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3))


def set_gradients(model, step, without=()):
    """Set gradients that depend only on the step."""
    generator = torch.Generator().manual_seed(step)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if name in without else gradient


def have_equal_weights(ours, theirs):
    pairs = zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True)
    return all(our_name == their_name and torch.equal(x, y) for (our_name, x), (their_name, y) in pairs)


def collect_state(optimizer):
    return {
        (index, name): value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def build_optimizer_pair(kind, **options):
    """Return a network with our optimizer and an equal network with the optimizer of torch."""
    create, torch_class = KINDS[kind]
    ours, theirs = build_network(), build_network()
    (optimizer,) = create(list_trainable_parameters(ours), **options).build()
    settings = {"betas": optimizer.betas, "eps": optimizer.eps, "fused": True}
    (their_groups,) = create(list_trainable_parameters(theirs), **options).build()
    return ours, optimizer, theirs, torch_class(their_groups.param_groups, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_parameters_and_state_equal_those_of_torch(kind, decay):
    ours, optimizer, theirs, torch_optimizer = build_optimizer_pair(
        kind, betas=(0.9, 0.95), eps=1e-6, weight_decay=decay
    )
    for step in range(6):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        for each in (optimizer, torch_optimizer):
            for group in each.param_groups:
                group["lr"] = 1e-2 / (step + 1)
            each.step()
            each.zero_grad()
        assert have_equal_weights(ours, theirs)
        assert all(p.grad is None for p in ours.parameters())
    actual, expected = collect_state(optimizer), collect_state(torch_optimizer)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[key], expected[key]) for key in expected)


def test_a_parameter_without_a_gradient_is_skipped_as_in_torch():
    ours, optimizer, theirs, torch_optimizer = build_optimizer_pair("adamw", weight_decay=0.1)
    for step, without in enumerate([("1.bias",), (), (), ("0.weight",), ("0.weight", "3.bias"), (), ()]):
        set_gradients(ours, step, without)
        set_gradients(theirs, step, without)
        for each in (optimizer, torch_optimizer):
            each.step()
    assert have_equal_weights(ours, theirs)
    actual, expected = collect_state(optimizer), collect_state(torch_optimizer)
    assert all(torch.equal(actual[key], expected[key]) for key in expected)
    assert {float(value) for (_, name), value in actual.items() if name == "step"} == {5.0, 6.0, 7.0}


@pytest.mark.parametrize("ours_first", [True, False])
def test_each_optimizer_resumes_from_the_state_of_the_other(ours_first):
    ours, optimizer, theirs, torch_optimizer = build_optimizer_pair("adam")
    first, second = (optimizer, torch_optimizer) if ours_first else (torch_optimizer, optimizer)
    before, after = (ours, theirs) if ours_first else (theirs, ours)
    for step in range(3):
        set_gradients(before, step)
        first.step()
    after.load_state_dict(before.state_dict())
    second.load_state_dict({**second.state_dict(), "state": copy.deepcopy(first.state_dict()["state"])})
    for step in range(3, 6):
        for model, each in ((ours, optimizer), (theirs, torch_optimizer)):
            set_gradients(model, step)
            each.step()
    assert have_equal_weights(ours, theirs)


def test_training_resumes_from_a_checkpoint_bit_for_bit(tmp_path):
    training = config_training.TrainingConfig.model_validate(
        {"budget": "8 steps", "optimizer": {"kind": "adamw"}, "schedule": "cosine"}
    )
    uninterrupted, resumed = build_network(), build_network()
    first, second = ScheduledOptimizer(uninterrupted, training, 8), ScheduledOptimizer(resumed, training, 8)
    for step in range(8):
        if step == 4:
            save_checkpoint(tmp_path, resumed, second.collect_state_tensors(), TrainingState(step=4))
            resumed = build_network()
            second = ScheduledOptimizer(resumed, training, 8)
            tensors, _ = restore_checkpoint(tmp_path / "checkpoint-000004", resumed)
            second.load_state_tensors(tensors)
        set_gradients(uninterrupted, step)
        set_gradients(resumed, step)
        first.step(step)
        second.step(step)
    assert have_equal_weights(uninterrupted, resumed)
    assert all(
        torch.equal(first.collect_state_tensors()[key], value) for key, value in second.collect_state_tensors().items()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_fused_kernel_torch_optim_trains_and_resumes(kind, monkeypatch, tmp_path):
    create, torch_class = KINDS[kind]
    training = config_training.TrainingConfig.model_validate({"budget": "6 steps", "optimizer": {"kind": kind}})
    fused_model, model = build_network(), build_network()
    fused = ScheduledOptimizer(fused_model, training, 6)
    monkeypatch.delattr(torch, f"_fused_{kind}_")
    fallback = ScheduledOptimizer(model, training, 6)
    assert type(fallback.optimizers[0]) is torch_class
    with pytest.raises(RequestError, match="lr must be 0 or more"):
        create(list_trainable_parameters(model), lr=-1.0).build()
    for step in range(6):
        if step == 3:
            save_checkpoint(tmp_path, model, fallback.collect_state_tensors(), TrainingState(step=3))
            model = build_network()
            fallback = ScheduledOptimizer(model, training, 6)
            fallback.load_state_tensors(restore_checkpoint(tmp_path / "checkpoint-000003", model)[0])
        set_gradients(fused_model, step)
        set_gradients(model, step)
        fused.step(step)
        fallback.step(step)
    for expected, actual in zip(fused_model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(expected, actual, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be 0 or more, got -1"),
        ({"eps": float("nan")}, "eps must be 0 or more, got nan"),
        (
            {"weight_decay": -0.1, "betas": (0.9, 1.0)},
            "weight_decay must be .*; betas must be in .0, 1., got 1",
        ),
    ],
)
def test_values_that_torch_rejects_are_rejected(options, message):
    with pytest.raises(RequestError, match=message):
        AdamW(list_trainable_parameters(build_network()), **options).build()
