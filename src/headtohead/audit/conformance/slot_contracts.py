"""The contract of each model slot, checked by calling the methods of a single part."""

import itertools
import math
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headtohead.audit.conformance.assertions import CheckFailedError, assert_close, assert_tensor
from headtohead.audit.conformance.fixtures import VOCAB_SIZE, PartFixture
from headtohead.config.base import ComponentConfig
from headtohead.nn.parts.attention import Attention
from headtohead.nn.parts.base import Component, Part
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.embedding import Embedding, EmbeddingStep
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.init import Init, LayerRole
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.output import Output, OutputStep
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection, ProjectionStep
from headtohead.nn.parts.stack import Stack

BATCH_SIZE = 3
INPUT_LENGTH = 7
NUM_KEYS = 40


def check_slot_contract(fixture: PartFixture, part_class: type[Component]) -> str:
    """Check that a part fulfills the contract of its slot: every instance in the model, in float32 and float64."""
    base_classes, check = SLOT_CONTRACTS[part_class.slot]
    if not issubclass(part_class, base_classes):
        raise CheckFailedError(
            f"{part_class.__name__} is registered for slot {part_class.slot} but does not inherit "
            f"{' or '.join(base_class.__name__ for base_class in base_classes)}"
        )
    if check is None:
        return "this slot has no further contract"
    fixtures = [fixture]
    if issubclass(part_class, ProjectionStep):
        fixtures.append(_group_key_heads(fixture))
    observation = ""
    for dtype, part_fixture in itertools.product((torch.float32, torch.float64), fixtures):
        model = part_fixture.build_model(dtype=dtype)
        instances = [component for component in (*model.modules(), *model.inits) if isinstance(component, part_class)]
        assert instances, part_class
        shared: dict[str, Any] = {}
        with torch.no_grad():
            for instance in instances:
                observation = check(instance, dtype, shared)
    return observation


def _group_key_heads(fixture: PartFixture) -> PartFixture:
    """Return the fixture of a projection step with a projection whose keys and values have one head."""
    steps = fixture.config.projection[1:]  # type: ignore[index]
    projection = (ComponentConfig.model_validate({"kind": "linear", "key_heads": 1}), *steps)
    return replace(fixture, config=fixture.config.model_copy(update={"projection": projection}))


def _build_context(part: Part, shared: dict[str, Any], **settings: Any) -> ForwardContext:
    """Return the context with which a slot's contract calls a part: a pass over random token ids (batch, length).

    `shared` holds the values that layers share; they are checked in their order.
    """
    input_ids = torch.randint(VOCAB_SIZE, (BATCH_SIZE, INPUT_LENGTH), generator=torch.Generator().manual_seed(2))
    context = ForwardContext.create(input_ids, layer_index=part.sizes.layer_index or 0, **settings)
    context.shared = shared
    return context


def _draw_hidden_states(part: Part, dtype: torch.dtype) -> Tensor:
    """Return random hidden states of shape (batch, length, width)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH_SIZE, INPUT_LENGTH, part.sizes.width, generator=generator, dtype=torch.float64).to(dtype)


def _draw_head_states(part: Part, dtype: torch.dtype) -> Tensor:
    """Return random per-head states of shape (batch, heads, length, head_dim)."""
    sizes, generator = part.sizes, torch.Generator().manual_seed(1)
    shape = (BATCH_SIZE, sizes.heads, INPUT_LENGTH, sizes.head_dim)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def _check_position_contract(part: Position, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check the methods of a position part with and without a batch axis, and that a position embedding is declared."""
    hidden_states, queries = _draw_hidden_states(part, dtype), _draw_head_states(part, dtype)
    keys = queries.flip(1)
    positions = torch.arange(INPUT_LENGTH)
    context = _build_context(part, shared)
    batched_context = _build_context(part, shared, positions=positions.expand(BATCH_SIZE, INPUT_LENGTH))
    outputs, batched_outputs = (
        (part.add_positions(hidden_states, c), *part.rotate(queries, keys, c)) for c in (context, batched_context)
    )
    for name, method_input, output, batched_output in zip(
        ("add_positions", "rotate (queries)", "rotate (keys)"),
        (hidden_states, queries, keys),
        outputs,
        batched_outputs,
        strict=True,
    ):
        assert_tensor(output, tuple(method_input.shape), dtype, name)
        assert_close(f"{name}, positions with a batch axis", batched_output, output)
    bias = part.compute_bias(positions, positions, context)
    if bias is not None:
        _check_attention_bias(part, bias, positions, context)
    shift = INPUT_LENGTH if part.max_positions is None else min(INPUT_LENGTH, part.max_positions - INPUT_LENGTH)
    has_signal = shift > 0 and not torch.equal(
        part.add_positions(hidden_states, context),
        part.add_positions(hidden_states, _build_context(part, shared, positions=positions + shift)),
    )
    if has_signal and not part.is_absolute:
        raise CheckFailedError(
            "add_positions changes the input: declare is_absolute = True, since a model accepts only one such part"
        )
    return "add_positions, rotate and compute_bias have the expected shapes, with and without a batch axis"


def _check_attention_bias(part: Position, bias: Tensor, positions: Tensor, context: ForwardContext) -> None:
    """Check the contract of a position part's attention bias: its shape with and without leading batch axes."""
    batched_positions = positions.expand(BATCH_SIZE, INPUT_LENGTH)
    shape = (part.sizes.heads, INPUT_LENGTH, INPUT_LENGTH)
    if bias.dim() != 3 or bias.shape[0] not in (1, shape[0]) or tuple(bias.shape[1:]) != shape[1:]:
        raise CheckFailedError(f"compute_bias: shape {tuple(bias.shape)} instead of {shape} (heads, query, key)")
    for leading_axes in ((BATCH_SIZE,), (BATCH_SIZE, 1)):
        positions_with_axes = batched_positions.reshape(*leading_axes, INPUT_LENGTH)
        batched_bias = part.compute_bias(positions_with_axes, positions_with_axes, context)
        assert_tensor(
            batched_bias,
            (*leading_axes, *bias.shape),
            bias.dtype,
            f"compute_bias, positions with {len(leading_axes)} leading axes",
        )
        assert batched_bias is not None
        assert_close(
            f"compute_bias, positions with {len(leading_axes)} leading axes", batched_bias.flatten(0, -4)[1], bias
        )


def _check_pattern_contract(part: Pattern, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that the mask is boolean, works with leading axes, and allows nothing beyond the window."""
    query_positions, key_positions = torch.arange(5, 5 + INPUT_LENGTH), torch.arange(NUM_KEYS)
    context = _build_context(part, shared)
    mask = part.compute_mask(query_positions, key_positions, context)
    assert_tensor(mask, (INPUT_LENGTH, NUM_KEYS), torch.bool, "compute_mask")
    leading_axes = (BATCH_SIZE, 2)
    batched_mask = part.compute_mask(
        query_positions.expand(*leading_axes, INPUT_LENGTH), key_positions.expand(*leading_axes, NUM_KEYS), context
    )
    assert_tensor(
        batched_mask,
        (*leading_axes, INPUT_LENGTH, NUM_KEYS),
        torch.bool,
        "compute_mask, positions with leading axes",
    )
    if not torch.equal(batched_mask[1, 1], mask):
        raise CheckFailedError("compute_mask: the mask changes if positions have leading axes")
    distance = query_positions[:, None] - key_positions[None, :]
    for direction, limit, distances in zip(("behind", "ahead"), part.window_size, (distance, -distance), strict=True):
        if limit is not None and bool((mask & (distances > limit)).any()):
            farthest = int(distances[mask].max())
            raise CheckFailedError(
                f"window_size is {limit} {direction}, but compute_mask includes positions {farthest} {direction}: "
                "blocked attention would miss them"
            )
    return f"boolean mask within its window_size {part.window_size}"


def _check_projection_contract(part: Any, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check the shapes of queries, keys and values, and that key heads divide the query heads evenly."""
    sizes = part.sizes
    if part.is_step:
        return _check_projection_step_contract(part, dtype, shared)
    queries, keys, values = part(_draw_hidden_states(part, dtype), _build_context(part, shared))
    assert_tensor(queries, (BATCH_SIZE, sizes.heads, INPUT_LENGTH, sizes.head_dim), dtype, "queries")
    key_heads = keys.shape[1] if keys.dim() == 4 else 0
    if not key_heads or sizes.heads % key_heads:
        raise CheckFailedError(f"keys: {sizes.heads} query heads cannot share keys of shape {tuple(keys.shape)} evenly")
    if part.key_heads != key_heads:
        raise CheckFailedError(f"keys have {key_heads} heads; set self.key_heads = {key_heads} in the constructor")
    for label, tensor in (("keys", keys), ("values", values)):
        assert_tensor(tensor, (BATCH_SIZE, key_heads, INPUT_LENGTH, sizes.head_dim), dtype, label)
    return f"{sizes.heads} query heads, {key_heads} key and value heads"


def _check_projection_step_contract(part: ProjectionStep, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that queries, keys and values keep their shapes."""
    heads, x = _draw_head_states(part, dtype), _draw_hidden_states(part, dtype)
    key_heads = part.sizes.key_heads
    inputs = (heads, heads[:, :key_heads].flip(-1), heads[:, :key_heads].flip(2))
    outputs = part(*inputs, x, _build_context(part, shared))
    for label, tensor, output in zip(("queries", "keys", "values"), inputs, outputs, strict=True):
        assert_tensor(output, tuple(tensor.shape), dtype, f"{label}, {key_heads} key heads")
    return "queries, keys and values keep their shapes"


def _check_merge_contract(part: Merge, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that a merge preserves the shape of the heads, with and without a padding mask."""
    heads, x = _draw_head_states(part, dtype), _draw_hidden_states(part, dtype)
    for mask in (None, torch.ones(BATCH_SIZE, INPUT_LENGTH, dtype=torch.bool)):
        merged = part(heads, x, _build_context(part, shared, attention_mask=mask))
        assert_tensor(merged, tuple(heads.shape), dtype, "merge")
    return "the heads keep their shape"


def _check_feedforward_contract(part: FeedForward, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that a feed-forward part preserves the shape of the hidden states."""
    hidden_states = _draw_hidden_states(part, dtype)
    assert_tensor(part(hidden_states, _build_context(part, shared)), tuple(hidden_states.shape), dtype, "feed-forward")
    return "absent" if part.is_absent else "hidden states keep their shape"


def _check_norm_contract(part: Norm, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that a norm preserves the shape of the hidden states."""
    hidden_states = _draw_hidden_states(part, dtype)
    assert_tensor(part(hidden_states, _build_context(part, shared)), tuple(hidden_states.shape), dtype, "norm")
    return "hidden states keep their shape"


def _check_pool_contract(part: Pool, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that a pool returns one vector per sequence, which does not depend on the hidden states at padding."""
    hidden_states = _draw_hidden_states(part, dtype)
    mask = torch.ones(BATCH_SIZE, INPUT_LENGTH, dtype=torch.bool)
    mask[1, 4:], mask[2, :5] = False, False
    context = _build_context(part, shared, attention_mask=mask)
    pooled = part(hidden_states, context)
    assert_tensor(pooled, (BATCH_SIZE, part.sizes.width), dtype, "pool")
    assert_close(
        "pool, other hidden states at padding",
        part(torch.where(mask[..., None], hidden_states, hidden_states + 9), context),
        pooled,
    )
    return "one vector per row, independent of padding"


def _check_embedding_contract(part: Any, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that an embedding returns hidden states of shape (batch, length, width)."""
    context, x = _build_context(part, shared), _draw_hidden_states(part, dtype)
    embedded = part(x, context) if part.is_step else part(context.input_ids, context)
    assert_tensor(embedded, tuple(x.shape), dtype, "embedding")
    return "one vector per token"


def _check_output_contract(part: Any, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check the shape of the logits of an output part, and that those of a position do not depend on others."""
    x, context = _draw_hidden_states(part, dtype), _build_context(part, shared)
    logits = torch.randn(*x.shape[:2], part.sizes.vocab_size, dtype=dtype)
    all_logits, last_logits = (
        part(*((logits[selection], x[selection]) if part.is_step else (x[selection],)), context)
        for selection in ((slice(None),), (slice(None), -1))
    )
    assert_tensor(all_logits, tuple(logits.shape), dtype, "logits")
    assert_tensor(last_logits, (BATCH_SIZE, part.sizes.vocab_size), dtype, "logits of the last position")
    assert_close("output of the last position alone", last_logits, all_logits[:, -1])
    return "logits of each position, whichever positions are computed"


def _check_init_contract(part: Init, dtype: torch.dtype, shared: dict[str, Any]) -> str:
    """Check that an init part gives layers of every role finite values in place, and learning rates above 0."""
    for role in typing.get_args(LayerRole):
        weight, bias = torch.randn(part.sizes.width, part.sizes.width, dtype=dtype), torch.randn(part.sizes.width)
        part.init_layer(weight, bias, role)
        part.init_layer(weight, None, role)
        assert_tensor(weight, (part.sizes.width, part.sizes.width), dtype, f"weights of role {role}")
        if not 0 < (multiplier := part.get_lr_multiplier(role)) < math.inf:
            raise CheckFailedError(f"get_lr_multiplier({role!r}) returns {multiplier}")
    return "finite weights for every role"


class SlotContract(NamedTuple):
    """What a part must fulfill to be used in a slot."""

    base_classes: tuple[type[Component], ...]
    """the part inherits one of them"""
    check: Callable[[Any, torch.dtype, dict[str, Any]], str] | None
    """calls the methods of a part in this precision; the dictionary holds values that the layers share"""


SLOT_CONTRACTS: dict[str, SlotContract] = {
    "embedding": SlotContract((Embedding, EmbeddingStep), _check_embedding_contract),
    "position": SlotContract((Position,), _check_position_contract),
    "pattern": SlotContract((Pattern,), _check_pattern_contract),
    "projection": SlotContract((Projection, ProjectionStep), _check_projection_contract),
    "merge": SlotContract((Merge,), _check_merge_contract),
    "attention": SlotContract((Attention,), None),
    "feedforward": SlotContract((FeedForward,), _check_feedforward_contract),
    "norm": SlotContract((Norm,), _check_norm_contract),
    "block": SlotContract((Block,), None),
    "stack": SlotContract((Stack,), None),
    "output": SlotContract((Output, OutputStep), _check_output_contract),
    "pool": SlotContract((Pool,), _check_pool_contract),
    "init": SlotContract((Init,), _check_init_contract),
}
