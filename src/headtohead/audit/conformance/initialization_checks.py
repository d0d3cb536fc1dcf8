"""Check that a part's initial values are determined by (seed, name), and that those of a constructor stay."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from headtohead.audit.conformance.assertions import CheckFailedError
from headtohead.audit.conformance.fixtures import VOCAB_SIZE, PartFixture
from headtohead.model_factory import build_model
from headtohead.nn.parts.base import Part
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.seeded_init import WriteRecorder
from headtohead.nn.transformer import Transformer

MIN_VALUES_FOR_SPREAD = 64
"""number of values from which their standard deviation is compared"""


def check_initialization(fixture: PartFixture) -> str:
    """Check that the initial tensors of a model with the part depend only on (seed, name)."""
    tensors, repeated_tensors = (_initialize_after_random_draws(fixture, rng_seed=rng_seed) for rng_seed in (1, 2))
    if unseeded_names := [name for name in tensors if not torch.equal(tensors[name], repeated_tensors[name])]:
        raise CheckFailedError(
            f"not drawn from (seed, name): {', '.join(unseeded_names)}; draw random values with torch, in the "
            "constructor or in reset_parameters(self)"
        )
    model = build_model(fixture.config, VOCAB_SIZE, fixture.num_classes)
    if fixed_names := _find_tensors_with_ignored_seed(model):
        raise CheckFailedError(f"random, but the same for every seed: {', '.join(fixed_names)}")
    if overwritten_names := _find_overwritten_constructor_values(fixture):
        raise CheckFailedError(
            f"initial values that a constructor sets are overwritten: {', '.join(overwritten_names[:3])}; the module's "
            "own reset_parameters runs later. Set them in reset_parameters(self) of the part, with torch"
        )
    return f"all {len(tensors)} tensors are determined by the seed, whatever was drawn before"


def _initialize_after_random_draws(fixture: PartFixture, *, rng_seed: int) -> dict[str, Tensor]:
    """Return copies of the initial parameters and buffers of a fixture's model, built after seeding Python and numpy.

    A part that draws from the global random states of these instead of torch's would differ.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (parts may use it)
    try:
        random.seed(rng_seed)
        np.random.seed(rng_seed)  # noqa: NPY002
        model = build_model(fixture.config, VOCAB_SIZE, fixture.num_classes)
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _find_overwritten_constructor_values(fixture: PartFixture) -> list[str]:
    """Return the tensors inside parts whose initialization overwrites the values that a constructor of the part set.

    They differ in kind: constants that changed, or values with a different spread.
    """
    if any(init.kind != "torch" for init in fixture.config.init):
        return []  # init parts change layers
    with fork_seeded_rng(0, "initial"), WriteRecorder() as construction:
        model = Transformer(fixture.config, VOCAB_SIZE, fixture.num_classes)
    constructed_tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.init_weights(0, construction)
    part_names = [name for name, module in model.named_modules() if isinstance(module, Part)]
    overwritten_names = []
    for name, parameter in model.named_parameters():
        module_name = name.rpartition(".")[0]
        is_inside_part = module_name not in part_names and any(
            module_name.startswith(f"{part_name}.") for part_name in part_names
        )
        if is_inside_part and _differs_in_kind(constructed_tensors[name], parameter.detach()):
            overwritten_names.append(name)
    return overwritten_names


def _differs_in_kind(constructed: Tensor, initial: Tensor) -> bool:
    """Return whether initialization changed the constants, or the spread, of the values that a constructor set."""
    if constructed.numel() < 2 or not bool(constructed.isfinite().all()):
        return False
    if bool((constructed == constructed.flatten()[0]).all()):
        return not torch.equal(constructed, initial)
    ratio = float(initial.std() / constructed.std())
    return constructed.numel() >= MIN_VALUES_FOR_SPREAD and not 0.5 < ratio < 2


def _find_tensors_with_ignored_seed(model: nn.Module) -> list[str]:
    """Return the names of tensors whose initialization is random, but the same for every seed.

    Their module's `reset_parameters` uses the random generator of torch, but always draws the same values.
    """
    ignored_names = []
    with fork_seeded_rng("conformance", "random tensors"):
        for prefix, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and not list(module.children()):
                tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
                # few draws often repeat a permutation
                draws = [_draw_initial_values(reset, tensors) for _ in range(9)]
                uses_generator = any(uses for uses, _ in draws)
                first_values = draws[0][1]
                is_fixed = all(torch.equal(first_values[name], values[name]) for _, values in draws for name in tensors)
                if uses_generator and is_fixed:
                    ignored_names += [f"{prefix}.{name}" for name, tensor in tensors.items() if tensor.numel() > 1]
    return ignored_names


def _draw_initial_values(reset: Callable[[], object], tensors: dict[str, Tensor]) -> tuple[bool, dict[str, Tensor]]:
    """Initialize a module by `reset_parameters`; return whether it drew random numbers, and copies of its tensors."""
    state_before = torch.get_rng_state()
    reset()
    uses_generator = not torch.equal(state_before, torch.get_rng_state())
    return uses_generator, {name: tensor.detach().clone() for name, tensor in tensors.items()}
