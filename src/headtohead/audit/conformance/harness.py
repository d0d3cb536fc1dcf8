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
from headtohead.model_factory import build_model
from headtohead.nn.parts.base import Invariant
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.nn.transformer import Transformer

VOCAB_SIZE, NUM_CLASSES, NUM_ROWS, SHORT_LENGTH = 23, 3, 4, 8
SMALL_MODEL_SETTINGS: Mapping[str, Any] = {
    "width": 32,
    "heads": 4,
    "layers": 2,
    "context": 24,
    "position": "learned",
    "feedforward": {"kind": "mlp", "hidden": 24},
    "classifier_hidden": 12,
}
MAX_LENGTH = 400
"""a pattern that reaches further than a quarter of this is not examined on the banded road"""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

InputIds = Int[Tensor, "batch length"]


@dataclass(frozen=True)
class PartFixture:
    """A small model under examination, as a decoder or as an encoder."""

    words: str
    """the part under examination"""
    setting: str
    model: config_model.TransformerConfig
    encoder: bool = False
    short: bool = True
    """a short text is tried as well, if there is a long one"""

    @property
    def classes(self) -> int | None:
        return NUM_CLASSES if self.encoder else None

    def build(self, *, seed: int = 0, dtype: torch.dtype = torch.float64, perturb_weights: bool = True) -> Transformer:
        """The model, ready for passes. Awake: every parameter nudged, because what starts at 0 hides what it does."""
        made = build_model(self.model, VOCAB_SIZE, self.classes, seed=seed)
        assert isinstance(made, Transformer)
        made = made.to(dtype).eval()
        if perturb_weights:
            with torch.no_grad(), fork_seeded_rng(seed, "exam", "awake"):
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
        reaches = [m.window_size for m in self.plain.modules() if isinstance(m, Pattern)]
        ends = [end for reach in reaches if None not in reach for end in reach if end is not None]
        long = min(4 * max(16, *ends) + 7, MAX_LENGTH) if ends else SHORT_LENGTH
        return (SHORT_LENGTH, long) if ends and self.short else (long,)


def build_fixture(
    part_label: str,
    setup_label: str,
    model_settings: Mapping[str, Any],
    *,
    is_encoder: bool = False,
    include_short_length: bool = True,
) -> PartFixture:
    """A small model with these settings in place of the bench's own, and with room for a long text."""
    model = config_model.TransformerConfig.model_validate({**SMALL_MODEL_SETTINGS, **model_settings})
    made = PartFixture(part_label, setup_label, model, is_encoder, include_short_length)
    room = max(made.lengths) + 8
    return made if model.context >= room else replace(made, model=model.model_copy(update={"context": room}))


def build_padding_mask(length: int) -> Bool[Tensor, "batch length"]:
    """Four rows: whole, padded on the left, on the right, and in between; more than half of the longest."""
    valid = torch.ones(NUM_ROWS, length, dtype=torch.bool)
    valid[1, :3], valid[2, -(length // 2 + 1) :], valid[3, 2 : length // 2 + 3] = False, False, False
    return valid


def find_declared_violations(model: Transformer) -> frozenset[Invariant]:
    """The laws that this model declares to break, and that can be broken at all in such a model and mode."""
    can: set[Invariant] = {"batch-independence"}
    if not model.training:
        can.add("determinism")  # dropout is allowed to be random
    if model.sizes.is_causal:
        can |= {"causality"} if model.training else {"causality", "kv-cache"}
    return model.violates & can


def draw_input_ids(num_rows: int, length: int, draw_index: int = 0) -> InputIds:
    generator = torch.Generator().manual_seed(1000 * draw_index + length)
    return torch.randint(VOCAB_SIZE, (num_rows, length), generator=generator)


def replace_tokens(input_ids: InputIds) -> InputIds:
    """Another token in every place."""
    return (
        input_ids + 1 + draw_input_ids(input_ids.shape[0], input_ids.shape[1], draw_index=7) % (VOCAB_SIZE - 1)
    ) % VOCAB_SIZE


def run_forward(
    model: Transformer, input_ids: InputIds, attention_mask: Tensor | None = None, *, draw_index: int = 0, **how: Any
) -> ModelOutput:
    """One pass, from a random state that depends on `draw` only."""
    with fork_seeded_rng("exam", "pass", draw_index):
        return model(input_ids, attention_mask, **how)  # type: ignore[no-any-return]


def compute_logits(
    model: Transformer, input_ids: InputIds, attention_mask: Tensor | None = None, *, draw_index: int = 0, **how: Any
) -> Tensor:
    with torch.no_grad():
        return run_forward(model, input_ids, attention_mask, draw_index=draw_index, **how).logits


def compute_weighted_sum(
    outputs: Float[Tensor, "*shape"], position_mask: Bool[Tensor, "*kept"] | None = None
) -> Tensor:
    """One number that every output has a different share in: what gradients are taken of."""
    share = torch.linspace(-1, 1, outputs.shape[-1], dtype=outputs.dtype).sin() + 0.3
    each = (outputs * share).sum(-1)
    place = torch.linspace(0.5, 1.5, each.shape[-1], dtype=outputs.dtype)
    each = each * place
    return (each if position_mask is None else each[position_mask]).sum()


def compute_input_gradient(
    model: Transformer, input_ids: InputIds, attention_mask: Tensor | None, position_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The logits, and how the kept ones move with the embedding of each token."""
    held: list[Tensor] = []
    hook = model.embedding.register_forward_hook(lambda _module, _given, out: held.append(out))
    try:
        out = run_forward(model, input_ids, attention_mask).logits
        (gradient,) = torch.autograd.grad(compute_weighted_sum(out, position_mask), held[0])
    finally:
        hook.remove()
    return out.detach(), gradient


def max_relative_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference in units of the largest value (1 if all are smaller). What is no number is far off."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if actual.numel() == 0:
        return 0.0
    scale = max(1.0, float(expected.abs().max().nan_to_num(1.0, 1.0, 1.0)))
    return float((actual - expected).abs().nan_to_num(math.inf, math.inf, math.inf).max()) / scale


@dataclass(frozen=True)
class DifferenceMeasurement:
    """What was tried and how far apart two things were that should be equal."""

    tried: str
    max_difference: float
    where: str
    tolerance: float = TOLERANCE[torch.float64]

    @property
    def equal(self) -> bool:
        return self.max_difference <= self.tolerance

    def __str__(self) -> str:
        sign = "within" if self.equal else "more than"
        return f"largest difference {self.max_difference:.1e} ({self.where}), {sign} {self.tolerance:.0e}"


def select_worst(
    procedure: str, differences: Iterable[tuple[float, str]], dtype: torch.dtype = torch.float64
) -> DifferenceMeasurement:
    """The measurement that is furthest off speaks for all."""
    size, where = max(differences)
    return DifferenceMeasurement(procedure, size, where, TOLERANCE[dtype])
