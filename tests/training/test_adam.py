"""Adam and AdamW are torch's, bit for bit, and leave the state that torch would."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from headtohead.config import training as config_training
from headtohead.errors import RequestError
from headtohead.training.checkpoints import TrainingState, restore, save
from headtohead.training.optimizers import ScheduledOptimizer, adam, adamw

KINDS = {"adam": (adam, torch.optim.Adam), "adamw": (adamw, torch.optim.AdamW)}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3))


def give_gradients(model, step, but=()):
    """The same for every model, different at every step."""
    generator = torch.Generator().manual_seed(step)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if name in but else drawn


def same_bits(ours, theirs):
    pairs = zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def states(optimizer):
    return {
        (index, name): value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def twins(kind, **options):
    """Our optimizer of one network, and torch's of another that is the same."""
    make, theirs_of = KINDS[kind]
    ours, theirs = network(), network()
    (optimizer,) = make(ours.named_parameters(), **options)
    settings = {"betas": optimizer.betas, "eps": optimizer.eps, "fused": True}
    (like,) = make(theirs.named_parameters(), **options)
    return ours, optimizer, theirs, theirs_of(like.param_groups, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_and_state_are_those_of_torch(kind, decay):
    ours, optimizer, theirs, twin = twins(kind, betas=(0.9, 0.95), eps=1e-6, weight_decay=decay)
    for step in range(6):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for one in (optimizer, twin):
            for group in one.param_groups:
                group["lr"] = 1e-2 / (step + 1)
            one.step()
            one.zero_grad()
        assert same_bits(ours, theirs)
        assert all(p.grad is None for p in ours.parameters())
    found, wanted = states(optimizer), states(twin)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[place], wanted[place]) for place in wanted)


def test_a_tensor_without_a_gradient_stays_behind_as_in_torch():
    ours, optimizer, theirs, twin = twins("adamw", weight_decay=0.1)
    for step, but in enumerate([("1.bias",), (), (), ("0.weight",), ("0.weight", "3.bias"), (), ()]):
        give_gradients(ours, step, but)
        give_gradients(theirs, step, but)
        for one in (optimizer, twin):
            one.step()
    assert same_bits(ours, theirs)
    found, wanted = states(optimizer), states(twin)
    assert all(torch.equal(found[place], wanted[place]) for place in wanted)
    assert {float(value) for (_, name), value in found.items() if name == "step"} == {5.0, 6.0, 7.0}


@pytest.mark.parametrize("ours_first", [True, False])
def test_one_goes_on_from_the_state_of_the_other(ours_first):
    ours, optimizer, theirs, twin = twins("adam")
    first, second = (optimizer, twin) if ours_first else (twin, optimizer)
    before, after = (ours, theirs) if ours_first else (theirs, ours)
    for step in range(3):
        give_gradients(before, step)
        first.step()
    after.load_state_dict(before.state_dict())
    second.load_state_dict({**second.state_dict(), "state": copy.deepcopy(first.state_dict()["state"])})
    for step in range(3, 6):
        for model, one in ((ours, optimizer), (theirs, twin)):
            give_gradients(model, step)
            one.step()
    assert same_bits(ours, theirs)


def test_a_descent_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    training = config_training.TrainingConfig.model_validate(
        {"steps": 8, "optimizer": {"kind": "adamw"}, "schedule": "cosine"}
    )
    whole, broken = network(), network()
    one, other = ScheduledOptimizer(whole, training, 8), ScheduledOptimizer(broken, training, 8)
    for step in range(8):
        if step == 4:
            save(tmp_path, broken, other.tensors(), TrainingState(step=4))
            broken = network()
            other = ScheduledOptimizer(broken, training, 8)
            tensors, _ = restore(tmp_path / "checkpoint-000004", broken)
            other.load_state_tensors(tensors)
        give_gradients(whole, step)
        give_gradients(broken, step)
        one.step(step)
        other.step(step)
    assert same_bits(whole, broken)
    assert all(torch.equal(one.tensors()[place], value) for place, value in other.tensors().items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": -1.0}, "lr must be 0 or more, not -1"),
        ({"eps": float("nan")}, "eps must be 0 or more, not nan"),
        (
            {"weight_decay": -0.1, "betas": (0.9, 1.0)},
            "weight_decay must be .*; betas must lie from 0 to below 1, not 1",
        ),
    ],
)
def test_what_torch_refuses_is_refused(options, said):
    with pytest.raises(RequestError, match=said):
        adamw(network().named_parameters(), **options)


def test_the_compiler_of_torch_is_not_imported():
    """It takes longer than many steps; torch.optim imports it."""
    code = (
        "import sys, torch; from headtohead.training.optimizers import adamw; "
        "layer = torch.nn.Linear(2, 2); (one,) = adamw(layer.named_parameters()); "
        "layer(torch.ones(2)).sum().backward(); one.step(); one.zero_grad(); "
        "print('torch._dynamo' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
