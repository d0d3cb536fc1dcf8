"""The duties of every part, which none may declare away: shapes, gradients, equal roads, padding, state, first values.

Each is tried on a small model that holds the part; `contracts` asks a part alone what its slot promises.
"""

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from headtohead.audit.conformance import harness
from headtohead.audit.conformance.harness import (
    DifferenceMeasurement,
    PartFixture,
    build_padding_mask,
    compute_input_gradient,
    compute_logits,
    compute_weighted_sum,
    draw_input_ids,
    max_relative_difference,
    replace_tokens,
    run_forward,
    select_worst,
)
from headtohead.nn.init import init_parameters
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.nn.transformer import Transformer

LabelledDifferences = Iterator[tuple[float, str]]


class CheckFailedError(Exception):
    """A part does not do its duty; the text says what was found."""


def check_shapes(fixture: PartFixture) -> str:
    """float32 and float64, several rows and one, several tokens and one, with and without maps."""
    for model, rows, length in ((fixture.single, harness.NUM_ROWS, harness.SHORT_LENGTH), (fixture.plain, 1, 1)):
        ids, dtype = draw_input_ids(rows, length), model.embedding.weight.dtype
        wanted = (rows, length, harness.VOCAB_SIZE) if fixture.classes is None else (rows, fixture.classes)
        for road in sorted(model.attn_implementations):
            with torch.no_grad():
                out = run_forward(model, ids, attn_implementation=road, output_attentions=road == "eager")
            _check_tensor(out.logits, wanted, dtype, f"logits on the {road} road")
            assert out.last_hidden_state is not None
            _check_tensor(
                out.last_hidden_state, (rows, length, model.sizes.width), dtype, f"the stream on the {road} road"
            )
            for layer_maps in out.attentions or ():
                _check_tensor(layer_maps, (rows, model.sizes.heads, length, length), dtype, "attention maps")
    return "logits, stream and maps as they should be, in float32 and float64"


def _check_tensor(actual: Tensor, shape: tuple[int, ...], dtype: torch.dtype, label: str) -> None:
    if tuple(actual.shape) != shape:
        raise CheckFailedError(f"{label} have the shape {tuple(actual.shape)}, not {shape}")
    if actual.dtype != dtype:
        raise CheckFailedError(f"{label} are {actual.dtype} in a model of {dtype}")
    if not actual.isfinite().all():
        raise CheckFailedError(
            f"{label} are not all finite: {int((~actual.isfinite()).sum())} of {actual.numel()} are not"
        )


def check_gradients(fixture: PartFixture) -> str:
    """Every parameter moves the output, by a finite amount. Training mode, because that is where it counts."""
    named = dict(fixture.trained.named_parameters())
    out = run_forward(fixture.trained, draw_input_ids(harness.NUM_ROWS, harness.SHORT_LENGTH)).logits
    gradient = _compute_gradients(compute_weighted_sum(out), named)
    without = [name for name in named if name not in gradient or not gradient[name].any()]
    broken = [name for name, g in gradient.items() if not g.isfinite().all()]
    if without or broken:
        said = [f"no gradient: {', '.join(without)}"] if without else []
        said += [f"not finite: {', '.join(broken)}"] if broken else []
        raise CheckFailedError("; ".join(said))
    return f"all {len(named)} parameters of the model have one, finite and not 0"


def check_attention_implementations(fixture: PartFixture) -> DifferenceMeasurement:
    """Outputs and the gradients of all parameters; short and long; whole and padded texts; both precisions."""
    tried = "fast road against the explicit one: outputs and gradients, float64 with padding and float32 without"
    model = fixture.plain
    if "eager" not in model.attn_implementations:
        raise CheckFailedError("the explicit road is closed: a fast road needs its slow twin to be held against")
    if "sdpa" not in model.attn_implementations:
        return select_worst(tried, [(0.0, "the part allows the explicit road only: nothing to compare")])
    double = select_worst(tried, _compare_implementations(fixture, model, with_padding=True))
    if not double.equal:
        return double
    return select_worst(tried, _compare_implementations(fixture, fixture.single, with_padding=False), torch.float32)


def _compare_implementations(fixture: PartFixture, model: Transformer, *, with_padding: bool) -> LabelledDifferences:
    for length in fixture.lengths:
        ids, mask = draw_input_ids(harness.NUM_ROWS, length), build_padding_mask(length) if with_padding else None
        place = f"length {length}, {'with' if with_padding else 'no'} padding"
        slow, slow_gradients = _compute_logits_and_gradients(model, ids, mask, "eager")
        fast, fast_gradients = _compute_logits_and_gradients(model, ids, mask, "sdpa")
        yield max_relative_difference(fast, slow), f"outputs, {place}"
        for name, gradient in slow_gradients.items():
            yield max_relative_difference(fast_gradients[name], gradient), f"gradient of {name}, {place}"


def _compute_logits_and_gradients(
    model: Transformer, input_ids: Tensor, attention_mask: Tensor | None, attn_implementation: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """What is said about the text and how it moves; what is said about padding does not count."""
    out = run_forward(model, input_ids, attention_mask, attn_implementation=attn_implementation).logits
    keep = attention_mask if model.classes is None else None
    return _select_positions(out, keep).detach(), _compute_gradients(
        compute_weighted_sum(out, keep), dict(model.named_parameters())
    )


def _compute_gradients(output: Tensor, named_parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """By name; a parameter that is not used has none."""
    found: tuple[Tensor | None, ...] = torch.autograd.grad(output, list(named_parameters.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(named_parameters, found, strict=True) if gradient is not None}


def check_padding(fixture: PartFixture) -> DifferenceMeasurement:
    """Padding is given no weight, and nothing depends on what it is or how much of it there is."""
    return select_worst(
        "other and more padding, none at all (left, right, in between); gradients by padding; weight on padding",
        _compare_padding(fixture, fixture.plain),
    )


def _compare_padding(fixture: PartFixture, model: Transformer) -> LabelledDifferences:
    for length in fixture.lengths:
        ids, valid = draw_input_ids(harness.NUM_ROWS, length), build_padding_mask(length)
        keep = valid if model.classes is None else None
        place = f"length {length}"
        base, gradient = compute_input_gradient(model, ids, valid, keep)
        wider, wider_valid = _pad_both_sides(torch.where(valid, ids, replace_tokens(ids))), _pad_both_sides(valid)
        other = compute_logits(model, wider, wider_valid)
        yield (
            max_relative_difference(
                _select_positions(other, None if keep is None else wider_valid), _select_positions(base, keep)
            ),
            f"other padding, {place}",
        )
        if "batch-independence" not in model.violates:
            for row in range(1, harness.NUM_ROWS):
                alone = compute_logits(model, ids[row : row + 1, valid[row]])[0]
                among = _select_positions(base[row], None if keep is None else valid[row])
                yield max_relative_difference(among, alone), f"padding against none, row {row}, {place}"
        by_padding = gradient[~valid]
        yield max_relative_difference(by_padding, torch.zeros_like(by_padding)), f"gradient by padding, {place}"
        yield _compute_max_weight_on_padding(model, ids, valid), f"weight on padding, {place}"


def _select_positions(out: Tensor, position_mask: Tensor | None) -> Tensor:
    return out if position_mask is None else out[position_mask]


def _pad_both_sides(x: Tensor) -> Tensor:
    """Four more places of padding (token or mark 0) on each side."""
    more = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    return torch.cat((more, x, more), dim=1)


def _compute_max_weight_on_padding(model: Transformer, ids: Tensor, attention_mask: Tensor) -> float:
    """The largest weight that a token of the text gives to padding."""
    with torch.no_grad():
        maps = run_forward(model, ids, attention_mask, output_attentions=True).attentions or ()
    unseen = attention_mask[:, None, :, None] & ~attention_mask[:, None, None, :]
    return max((float((m * unseen).abs().max()) for m in maps), default=0.0)


def check_state_dict(fixture: PartFixture) -> DifferenceMeasurement:
    """Saved as safetensors and loaded into a model that was made from another seed."""
    model, other = fixture.plain, fixture.build(seed=1)
    saved = save({name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()})
    other.load_state_dict(load(saved))
    ids = draw_input_ids(harness.NUM_ROWS, harness.SHORT_LENGTH)
    difference = max_relative_difference(compute_logits(other, ids), compute_logits(model, ids))
    return select_worst(
        "weights saved and loaded into a model of another seed",
        [(difference, "a tensor that is not in state_dict has to be a parameter or a buffer")],
    )


def check_initialization(fixture: PartFixture) -> str:
    """Drawn from (seed, name): whatever was drawn while building must be drawn anew by `reset_parameters`."""
    first, second = _build_after_random_draws(fixture, rng_seed=1), _build_after_random_draws(fixture, rng_seed=2)
    one, two = _initialize_and_copy_tensors(first, seed=0), _initialize_and_copy_tensors(second, seed=0)
    by_chance = [name for name in one if not torch.equal(one[name], two[name])]
    if by_chance:
        raise CheckFailedError(
            f"not drawn from (seed, name): {', '.join(by_chance)}; a module that holds a random tensor of its own "
            "draws it in reset_parameters(self)"
        )
    stuck = [name for name in _find_random_tensors(first) if name in one]
    for seed in range(1, 9):  # an order of two heads is the same for two seeds as often as not
        if stuck:
            other = _initialize_and_copy_tensors(second, seed=seed)
            stuck = [name for name in stuck if torch.equal(one[name], other[name])]
    if stuck:
        raise CheckFailedError(f"drawn, and yet the same for every seed: {', '.join(stuck)}")
    return f"all {len(one)} tensors are the same for the same seed, whatever else was drawn before"


def _build_after_random_draws(fixture: PartFixture, *, rng_seed: int) -> Transformer:
    """A model as it leaves its constructor, after other random numbers were drawn."""
    was_python, was_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (a part may use it)
    try:
        random.seed(rng_seed)
        np.random.seed(rng_seed)  # noqa: NPY002
        with fork_seeded_rng("exam", "chance", rng_seed):
            return Transformer(fixture.model, harness.VOCAB_SIZE, fixture.classes)
    finally:
        random.setstate(was_python)
        np.random.set_state(was_numpy)  # noqa: NPY002


def _initialize_and_copy_tensors(model: Transformer, *, seed: int) -> dict[str, Tensor]:
    """A copy of all tensors by name, those that are not saved as well, once the model is drawn from this seed."""
    init_parameters(model, seed)
    named = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def _find_random_tensors(model: Transformer) -> list[str]:
    """The tensors that change when their module is drawn anew, or would if it did not set the random state itself."""
    found = []
    with fork_seeded_rng("exam", "random"):
        for name, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                found += [f"{name}.{own}".lstrip(".") for own in _find_tensors_drawn_by_reset(module, reset)]
    return found


def _find_tensors_drawn_by_reset(module: nn.Module, reset: Callable[[], object]) -> list[str]:
    held = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    state_before = torch.get_rng_state()
    reset()
    used = not torch.equal(state_before, torch.get_rng_state())
    first = {name: tensor.detach().clone() for name, tensor in held.items()}
    reset()
    changed = [name for name, tensor in held.items() if not torch.equal(first[name], tensor)]
    if used and not changed and not list(module.children()):
        return [name for name, tensor in held.items() if tensor.numel() > 1]
    return changed


REQUIRED_CHECKS: dict[str, tuple[str, Callable[[PartFixture], str | DifferenceMeasurement]]] = {
    "shapes": ("a pass in both precisions, one row and several, one token and several", check_shapes),
    "gradients": ("one backward pass, every parameter of the model", check_gradients),
    "attention-implementations": ("", check_attention_implementations),
    "padding": ("", check_padding),
    "state-dict": ("", check_state_dict),
    "initialization": ("built twice after different random draws; built from two seeds", check_initialization),
}

__all__ = ["REQUIRED_CHECKS", "CheckFailedError"]
