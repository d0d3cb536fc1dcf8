"""The bench: small models with one part under examination, passes that can be repeated, and a measure of difference.

Every pass starts from the same random state. Randomness by itself then breaks one law only, `repeatable`, and all the
other checks can still be made of a part that draws at every pass.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtohead.config import model as config_model
from headtohead.nn.init import create
from headtohead.nn.parts.base import Law
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.protocol import Output
from headtohead.nn.torch_rng import drawing
from headtohead.nn.transformer import Transformer

VOCAB, CLASSES, ROWS, SHORT = 23, 3, 4, 8
SMALL: Mapping[str, Any] = {
    "width": 32,
    "heads": 4,
    "layers": 2,
    "context": 24,
    "position": "learned",
    "feedforward": {"kind": "mlp", "hidden": 24},
    "classifier_hidden": 12,
}
LONGEST = 400
"""a pattern that reaches further than a quarter of this is not examined on the banded road"""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

Ids = Int[Tensor, "batch length"]


@dataclass(frozen=True)
class Subject:
    """A small model under examination, as a decoder or as an encoder."""

    words: str
    """the part under examination"""
    setting: str
    model: config_model.Transformer
    encoder: bool = False
    short: bool = True
    """a short text is tried as well, if there is a long one"""

    @property
    def classes(self) -> int | None:
        return CLASSES if self.encoder else None

    def build(self, *, seed: int = 0, dtype: torch.dtype = torch.float64, awake: bool = True) -> Transformer:
        """The model, ready for passes. Awake: every parameter nudged, because what starts at 0 hides what it does."""
        made = create(self.model, VOCAB, self.classes, seed=seed)
        assert isinstance(made, Transformer)
        made = made.to(dtype).eval()
        if awake:
            with torch.no_grad(), drawing(seed, "exam", "awake"):
                for parameter in made.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
        return made

    @cached_property
    def plain(self) -> Transformer:
        """In double precision, where what should be equal is equal to the last digits."""
        return self.build()

    @cached_property
    def single(self) -> Transformer:
        """In the precision that models are trained in."""
        return self.build(dtype=torch.float32)

    @cached_property
    def trained(self) -> Transformer:
        """In training mode; a model of its own, because what it notes along the way must not change the others."""
        return self.build().train()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """A short text; and, if the model's patterns are of short reach, one at which the fast road cuts it into
        blocks."""
        reaches = [m.reach for m in self.plain.modules() if isinstance(m, Pattern)]
        ends = [end for reach in reaches if None not in reach for end in reach if end is not None]
        long = min(4 * max(16, *ends) + 7, LONGEST) if ends else SHORT
        return (SHORT, long) if ends and self.short else (long,)


def subject(
    words: str, setting: str, settings: Mapping[str, Any], *, encoder: bool = False, short: bool = True
) -> Subject:
    """A small model with these settings in place of the bench's own, and with room for a long text."""
    model = config_model.Transformer.model_validate({**SMALL, **settings})
    made = Subject(words, setting, model, encoder, short)
    room = max(made.lengths) + 8
    return made if model.context >= room else replace(made, model=model.model_copy(update={"context": room}))


def padded(length: int) -> Bool[Tensor, "batch length"]:
    """Four rows: whole, padded on the left, on the right, and in between; more than half of the longest."""
    valid = torch.ones(ROWS, length, dtype=torch.bool)
    valid[1, :3], valid[2, -(length // 2 + 1) :], valid[3, 2 : length // 2 + 3] = False, False, False
    return valid


def laws(model: Transformer) -> frozenset[Law]:
    """The laws that this model declares to break, and that can be broken at all in such a model and mode."""
    can: set[Law] = {"batch"}
    if not model.training:
        can.add("repeatable")  # dropout is allowed to be random
    if model.sizes.causal:
        can |= {"causal"} if model.training else {"causal", "cache"}
    return model.breaks & can


def tokens(rows: int, length: int, draw: int = 0) -> Ids:
    generator = torch.Generator().manual_seed(1000 * draw + length)
    return torch.randint(VOCAB, (rows, length), generator=generator)


def others(ids: Ids) -> Ids:
    """Another token in every place."""
    return (ids + 1 + tokens(ids.shape[0], ids.shape[1], draw=7) % (VOCAB - 1)) % VOCAB


def run(model: Transformer, ids: Ids, mask: Tensor | None = None, *, draw: int = 0, **how: Any) -> Output:
    """One pass, from a random state that depends on `draw` only."""
    with drawing("exam", "pass", draw):
        return model(ids, mask, **how)  # type: ignore[no-any-return]


def logits(model: Transformer, ids: Ids, mask: Tensor | None = None, *, draw: int = 0, **how: Any) -> Tensor:
    with torch.no_grad():
        return run(model, ids, mask, draw=draw, **how).logits


def weigh(out: Float[Tensor, "*shape"], keep: Bool[Tensor, "*kept"] | None = None) -> Tensor:
    """One number that every output has a different share in: what gradients are taken of."""
    share = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype).sin() + 0.3
    each = (out * share).sum(-1)
    place = torch.linspace(0.5, 1.5, each.shape[-1], dtype=out.dtype)
    each = each * place
    return (each if keep is None else each[keep]).sum()


def input_gradient(model: Transformer, ids: Ids, mask: Tensor | None, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """The logits, and how the kept ones move with the embedding of each token."""
    held: list[Tensor] = []
    hook = model.embedding.register_forward_hook(lambda _module, _given, out: held.append(out))
    try:
        out = run(model, ids, mask).logits
        (gradient,) = torch.autograd.grad(weigh(out, keep), held[0])
    finally:
        hook.remove()
    return out.detach(), gradient


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference in units of the largest value (1 if all are smaller). What is no number is far off."""
    assert one.shape == other.shape, (one.shape, other.shape)
    if one.numel() == 0:
        return 0.0
    scale = max(1.0, float(other.abs().max().nan_to_num(1.0, 1.0, 1.0)))
    return float((one - other).abs().nan_to_num(math.inf, math.inf, math.inf).max()) / scale


@dataclass(frozen=True)
class Evidence:
    """What was tried and how far apart two things were that should be equal."""

    tried: str
    worst: float
    where: str
    tolerance: float = TOLERANCE[torch.float64]

    @property
    def equal(self) -> bool:
        return self.worst <= self.tolerance

    def __str__(self) -> str:
        sign = "within" if self.equal else "more than"
        return f"largest difference {self.worst:.1e} ({self.where}), {sign} {self.tolerance:.0e}"


def worst(tried: str, measured: Iterable[tuple[float, str]], dtype: torch.dtype = torch.float64) -> Evidence:
    """The measurement that is furthest off speaks for all."""
    size, where = max(measured)
    return Evidence(tried, size, where, TOLERANCE[dtype])
