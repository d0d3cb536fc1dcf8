"""Checks for parts only: tensor shapes, saved state and initialization of a small model that contains the part."""

import random
from collections.abc import Callable

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from headtohead.audit.conformance.fixtures import NUM_CLASSES, VOCAB_SIZE, PartFixture
from headtohead.audit.tolerance import measure_difference
from headtohead.nn.init import init_parameters
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.nn.transformer import Transformer


class CheckFailedError(Exception):
    """Raised if a part fails a check. The message describes what was observed."""


def check_tensor(actual: object, shape: tuple[int, ...], dtype: torch.dtype, label: str) -> None:
    """Raise CheckFailedError unless the value is a tensor with the given shape and dtype and finite values."""
    if not isinstance(actual, Tensor):
        raise CheckFailedError(f"{label}: {type(actual).__name__} instead of a tensor")
    if tuple(actual.shape) != shape:
        raise CheckFailedError(f"{label}: shape {tuple(actual.shape)} instead of {shape}")
    if actual.dtype != dtype:
        raise CheckFailedError(f"{label}: {actual.dtype} instead of {dtype}")
    if not actual.isfinite().all():
        raise CheckFailedError(f"{label}: {int((~actual.isfinite()).sum())} of {actual.numel()} values are not finite")


def check_shapes(fixture: PartFixture) -> str:
    """Check the logits, hidden states and attention weights for every attention implementation."""
    for dtype, num_rows, length in ((torch.float32, 4, 8), (torch.float64, 1, 1)):
        probe = fixture.build_probe(dtype=dtype)
        model, ids = probe.model, probe.input_ids[:num_rows, :length]
        assert isinstance(model, Transformer)
        if "eager" not in model.attn_implementations:
            raise CheckFailedError('attention implementation "eager", the reference for all others, is not supported')
        logits_shape = (num_rows, NUM_CLASSES) if fixture.is_encoder else (num_rows, length, VOCAB_SIZE)
        for name in sorted(model.attn_implementations):
            with torch.no_grad():
                output = probe.run_forward(ids, attn_implementation=name, output_attentions=name == "eager")
            check_tensor(output.logits, logits_shape, dtype, f"logits ({name})")
            check_tensor(
                output.last_hidden_state, (num_rows, length, model.sizes.width), dtype, f"hidden states ({name})"
            )
            for weights in output.attentions or ():
                check_tensor(weights, (num_rows, model.sizes.heads, length, length), dtype, "attention weights")
    return "logits, hidden states and attention weights have the expected shapes in float32 and float64"


def check_state_dict(fixture: PartFixture) -> str:
    """Check that a model built with a different seed gives the same logits after loading the saved weights."""
    probe, other_probe = fixture.build_probe(), fixture.build_probe(seed=1).copy_without_buffer_restore()
    state = {name: tensor.clone().contiguous() for name, tensor in probe.model.state_dict().items()}
    other_probe.model.load_state_dict(load(save(state)))
    expected, logits = probe.compute_logits(probe.input_ids), other_probe.compute_logits(probe.input_ids)
    difference = measure_difference(logits, expected, "after loading the saved weights", probe.exact_tolerance)
    if not difference.is_within_tolerance:
        raise CheckFailedError(
            f"{difference}; register tensors that are missing in state_dict as parameters or buffers"
        )
    return str(difference)


def check_initialization(fixture: PartFixture) -> str:
    """Check that the initial tensors depend only on (seed, name).

    `reset_parameters` must reinitialise everything that a constructor initialises.
    """
    models = [_build_after_random_draws(fixture, rng_seed=rng_seed) for rng_seed in (1, 2)]
    tensors, other_tensors = (_initialize_and_copy_tensors(model, seed=0) for model in models)
    if unseeded_names := [name for name in tensors if not torch.equal(tensors[name], other_tensors[name])]:
        raise CheckFailedError(
            f"not drawn from (seed, name): {', '.join(unseeded_names)}; a module with random tensors must draw them in "
            "reset_parameters(self)"
        )
    constant_names = [name for name in _find_random_tensors(models[0]) if name in tensors]
    for seed in range(1, 9):  # two seeds often produce the same permutation of two heads
        if constant_names:
            other_tensors = _initialize_and_copy_tensors(models[1], seed=seed)
            constant_names = [name for name in constant_names if torch.equal(tensors[name], other_tensors[name])]
    if constant_names:
        raise CheckFailedError(f"random, but the same for every seed: {', '.join(constant_names)}")
    return f"all {len(tensors)} tensors are determined by the seed, whatever was drawn before"


def _build_after_random_draws(fixture: PartFixture, *, rng_seed: int) -> Transformer:
    """Return a model as its constructor leaves it, built with these global RNG states."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (parts may use it)
    try:
        random.seed(rng_seed)
        np.random.seed(rng_seed)  # noqa: NPY002
        with fork_seeded_rng("conformance", "construction", rng_seed):
            return Transformer(fixture.config, VOCAB_SIZE, fixture.num_classes)
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _initialize_and_copy_tensors(model: Transformer, *, seed: int) -> dict[str, Tensor]:
    """Initialize the model from this seed and return copies of all parameters and buffers by name."""
    init_parameters(model, seed)
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _find_random_tensors(model: Transformer) -> list[str]:
    """Return the names of the tensors that `reset_parameters` initializes randomly."""
    names = []
    with fork_seeded_rng("conformance", "random tensors"):
        for prefix, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                names += [f"{prefix}.{name}".lstrip(".") for name in _find_tensors_drawn_by_reset(module, reset)]
    return names


def _find_tensors_drawn_by_reset(module: nn.Module, reset: Callable[[], object]) -> list[str]:
    """Return the tensors that change between calls, or all of them if the module seeds the generator itself."""
    tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    state_before = torch.get_rng_state()
    reset()
    uses_generator = not torch.equal(state_before, torch.get_rng_state())
    first_draw = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    reset()
    changed = [name for name, tensor in tensors.items() if not torch.equal(first_draw[name], tensor)]
    if uses_generator and not changed and not list(module.children()):
        return [name for name, tensor in tensors.items() if tensor.numel() > 1]
    return changed


PART_CHECKS: dict[str, tuple[str, Callable[[PartFixture], str]]] = {
    "shapes": ("passes in both precisions, with one and several rows and tokens", check_shapes),
    "state-dict": ("weights saved and loaded into a model with another seed", check_state_dict),
    "initialization": ("built after different random draws, initialized from several seeds", check_initialization),
}
"""procedure and function for each check"""
