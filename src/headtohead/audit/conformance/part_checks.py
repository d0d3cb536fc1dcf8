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
    Evidence,
    Subject,
    apart,
    input_gradient,
    logits,
    others,
    padded,
    run,
    tokens,
    weigh,
    worst,
)
from headtohead.nn.init import initialise
from headtohead.nn.torch_rng import drawing
from headtohead.nn.transformer import Transformer

Measured = Iterator[tuple[float, str]]


class Fell(Exception):  # noqa: N818  (not an error of the program: the part fell through a check)
    """A part does not do its duty; the text says what was found."""


def shapes(subject: Subject) -> str:
    """float32 and float64, several rows and one, several tokens and one, with and without maps."""
    for model, rows, length in ((subject.single, harness.ROWS, harness.SHORT), (subject.plain, 1, 1)):
        ids, dtype = tokens(rows, length), model.embedding.weight.dtype
        wanted = (rows, length, harness.VOCAB) if subject.classes is None else (rows, subject.classes)
        for road in sorted(model.roads):
            with torch.no_grad():
                out = run(model, ids, road=road, maps=road == "explicit")
            _expect(out.logits, wanted, dtype, f"logits on the {road} road")
            assert out.hidden is not None
            _expect(out.hidden, (rows, length, model.sizes.width), dtype, f"the stream on the {road} road")
            for layer_maps in out.maps or ():
                _expect(layer_maps, (rows, model.sizes.heads, length, length), dtype, "attention maps")
    return "logits, stream and maps as they should be, in float32 and float64"


def _expect(found: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    if tuple(found.shape) != shape:
        raise Fell(f"{what} have the shape {tuple(found.shape)}, not {shape}")
    if found.dtype != dtype:
        raise Fell(f"{what} are {found.dtype} in a model of {dtype}")
    if not found.isfinite().all():
        raise Fell(f"{what} are not all finite: {int((~found.isfinite()).sum())} of {found.numel()} are not")


def gradients(subject: Subject) -> str:
    """Every parameter moves the output, by a finite amount. Training mode, because that is where it counts."""
    named = dict(subject.trained.named_parameters())
    out = run(subject.trained, tokens(harness.ROWS, harness.SHORT)).logits
    gradient = _gradients(weigh(out), named)
    without = [name for name in named if name not in gradient or not gradient[name].any()]
    broken = [name for name, g in gradient.items() if not g.isfinite().all()]
    if without or broken:
        said = [f"no gradient: {', '.join(without)}"] if without else []
        said += [f"not finite: {', '.join(broken)}"] if broken else []
        raise Fell("; ".join(said))
    return f"all {len(named)} parameters of the model have one, finite and not 0"


def roads(subject: Subject) -> Evidence:
    """Outputs and the gradients of all parameters; short and long; whole and padded texts; both precisions."""
    tried = "fast road against the explicit one: outputs and gradients, float64 with padding and float32 without"
    model = subject.plain
    if "explicit" not in model.roads:
        raise Fell("the explicit road is closed: a fast road needs its slow twin to be held against")
    if "fused" not in model.roads:
        return worst(tried, [(0.0, "the part allows the explicit road only: nothing to compare")])
    double = worst(tried, _roads(subject, model, with_padding=True))
    if not double.equal:
        return double
    return worst(tried, _roads(subject, subject.single, with_padding=False), torch.float32)


def _roads(subject: Subject, model: Transformer, *, with_padding: bool) -> Measured:
    for length in subject.lengths:
        ids, mask = tokens(harness.ROWS, length), padded(length) if with_padding else None
        place = f"length {length}, {'with' if with_padding else 'no'} padding"
        slow, slow_gradients = _with_gradients(model, ids, mask, "explicit")
        fast, fast_gradients = _with_gradients(model, ids, mask, "fused")
        yield apart(fast, slow), f"outputs, {place}"
        for name, gradient in slow_gradients.items():
            yield apart(fast_gradients[name], gradient), f"gradient of {name}, {place}"


def _with_gradients(
    model: Transformer, ids: Tensor, mask: Tensor | None, road: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """What is said about the text and how it moves; what is said about padding does not count."""
    out = run(model, ids, mask, road=road).logits
    keep = mask if model.classes is None else None
    return _kept(out, keep).detach(), _gradients(weigh(out, keep), dict(model.named_parameters()))


def _gradients(of: Tensor, named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """By name; a parameter that is not used has none."""
    found: tuple[Tensor | None, ...] = torch.autograd.grad(of, list(named.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


def padding(subject: Subject) -> Evidence:
    """Padding is given no weight, and nothing depends on what it is or how much of it there is."""
    return worst(
        "other and more padding, none at all (left, right, in between); gradients by padding; weight on padding",
        _padding(subject, subject.plain),
    )


def _padding(subject: Subject, model: Transformer) -> Measured:
    for length in subject.lengths:
        ids, valid = tokens(harness.ROWS, length), padded(length)
        keep = valid if model.classes is None else None
        place = f"length {length}"
        base, gradient = input_gradient(model, ids, valid, keep)
        wider, wider_valid = _wider(torch.where(valid, ids, others(ids))), _wider(valid)
        other = logits(model, wider, wider_valid)
        yield apart(_kept(other, None if keep is None else wider_valid), _kept(base, keep)), f"other padding, {place}"
        if "batch" not in model.breaks:
            for row in range(1, harness.ROWS):
                alone = logits(model, ids[row : row + 1, valid[row]])[0]
                among = _kept(base[row], None if keep is None else valid[row])
                yield apart(among, alone), f"padding against none, row {row}, {place}"
        by_padding = gradient[~valid]
        yield apart(by_padding, torch.zeros_like(by_padding)), f"gradient by padding, {place}"
        yield _weight(model, ids, valid), f"weight on padding, {place}"


def _kept(out: Tensor, keep: Tensor | None) -> Tensor:
    return out if keep is None else out[keep]


def _wider(x: Tensor) -> Tensor:
    """Four more places of padding (token or mark 0) on each side."""
    more = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    return torch.cat((more, x, more), dim=1)


def _weight(model: Transformer, ids: Tensor, valid: Tensor) -> float:
    """The largest weight that a token of the text gives to padding."""
    with torch.no_grad():
        maps = run(model, ids, valid, maps=True).maps or ()
    unseen = valid[:, None, :, None] & ~valid[:, None, None, :]
    return max((float((m * unseen).abs().max()) for m in maps), default=0.0)


def state(subject: Subject) -> Evidence:
    """Saved as safetensors and loaded into a model that was made from another seed."""
    model, other = subject.plain, subject.build(seed=1)
    saved = save({name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()})
    other.load_state_dict(load(saved))
    ids = tokens(harness.ROWS, harness.SHORT)
    difference = apart(logits(other, ids), logits(model, ids))
    return worst(
        "weights saved and loaded into a model of another seed",
        [(difference, "a tensor that is not in state_dict has to be a parameter or a buffer")],
    )


def initial(subject: Subject) -> str:
    """Drawn from (seed, name): whatever was drawn while building must be drawn anew by `reset_parameters`."""
    first, second = _built(subject, chance=1), _built(subject, chance=2)
    one, two = _drawn_from(first, seed=0), _drawn_from(second, seed=0)
    by_chance = [name for name in one if not torch.equal(one[name], two[name])]
    if by_chance:
        raise Fell(
            f"not drawn from (seed, name): {', '.join(by_chance)}; a module that holds a random tensor of its own "
            "draws it in reset_parameters(self)"
        )
    stuck = [name for name in _random(first) if name in one]
    for seed in range(1, 9):  # an order of two heads is the same for two seeds as often as not
        if stuck:
            other = _drawn_from(second, seed=seed)
            stuck = [name for name in stuck if torch.equal(one[name], other[name])]
    if stuck:
        raise Fell(f"drawn, and yet the same for every seed: {', '.join(stuck)}")
    return f"all {len(one)} tensors are the same for the same seed, whatever else was drawn before"


def _built(subject: Subject, *, chance: int) -> Transformer:
    """A model as it leaves its constructor, after other random numbers were drawn."""
    was_python, was_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (a part may use it)
    try:
        random.seed(chance)
        np.random.seed(chance)  # noqa: NPY002
        with drawing("exam", "chance", chance):
            return Transformer(subject.model, harness.VOCAB, subject.classes)
    finally:
        random.setstate(was_python)
        np.random.set_state(was_numpy)  # noqa: NPY002


def _drawn_from(model: Transformer, *, seed: int) -> dict[str, Tensor]:
    """A copy of all tensors by name, those that are not saved as well, once the model is drawn from this seed."""
    initialise(model, seed)
    named = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def _random(model: Transformer) -> list[str]:
    """The tensors that change when their module is drawn anew, or would if it did not set the random state itself."""
    found = []
    with drawing("exam", "random"):
        for name, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                found += [f"{name}.{own}".lstrip(".") for own in _drawn_by(module, reset)]
    return found


def _drawn_by(module: nn.Module, reset: Callable[[], object]) -> list[str]:
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


DUTIES: dict[str, tuple[str, Callable[[Subject], str | Evidence]]] = {
    "shapes": ("a pass in both precisions, one row and several, one token and several", shapes),
    "gradients": ("one backward pass, every parameter of the model", gradients),
    "roads": ("", roads),
    "padding": ("", padding),
    "state": ("", state),
    "initial": ("built twice after different random draws; built from two seeds", initial),
}

__all__ = ["DUTIES", "Fell"]
