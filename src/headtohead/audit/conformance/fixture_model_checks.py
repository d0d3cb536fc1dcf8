"""Checks of the small model that contains a part: shapes, saved weights, attention's use of its parts, and decoding.

They run whole passes, while `slot_contracts` calls the methods of the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from headtohead.audit.conformance.assertions import CheckFailedError, assert_tensor
from headtohead.audit.conformance.fixtures import NUM_CLASSES, VOCAB_SIZE, PartFixture
from headtohead.audit.tolerance import measure_tensor_difference
from headtohead.config.base import ComponentConfig
from headtohead.errors import ModelError
from headtohead.nn.parts.attention import Attention
from headtohead.nn.transformer import Transformer

BATCH_SIZE = 4
PROMPT_LENGTH = 5
INPUT_LENGTH = 8
ROW_SELECTIONS = ((3, 2, 1, 0), (2, 0, 0))
"""indices of the batch that decoding continues with, as beam search and the end of some sequences select them"""
ALTERNATIVE_PARTS: dict[str, dict[str, Any]] = {
    "pattern": {"kind": "window", "size": 2},
    "merge": {"kind": "shift", "by": 1},
    "position": {"kind": "alibi", "slope": 1.0},
    "position (rotation of queries and keys)": {"kind": "rope"},
}
"""parts that change the output of attention that uses their slot"""
DECODING_STATE_ADVICE = (
    "Decoding state outside the cache is not selected with the rows of the batch: keep it with context.set_state or "
    "context.append_state"
)


def check_output_shapes(fixture: PartFixture) -> str:
    """Check the shapes of logits, hidden states and attention weights for every attention implementation."""
    for dtype, batch_size, length in ((torch.float32, 4, 8), (torch.float64, 1, 1)):
        audited_model = fixture.build_audited_model(dtype=dtype)
        model, ids = audited_model.model, audited_model.input_ids[:batch_size, :length]
        assert isinstance(model, Transformer)
        if "eager" not in model.attn_implementations:
            raise CheckFailedError('attention implementation "eager", the reference for all others, is not supported')
        logits_shape = (batch_size, NUM_CLASSES) if fixture.is_encoder else (batch_size, length, VOCAB_SIZE)
        for implementation in sorted(model.attn_implementations):
            with torch.no_grad():
                output = audited_model.run_forward(
                    ids, attn_implementation=implementation, output_attentions=implementation == "eager"
                )
            assert_tensor(output.logits, logits_shape, dtype, f"logits ({implementation})")
            assert_tensor(
                output.last_hidden_state,
                (batch_size, length, model.sizes.width),
                dtype,
                f"hidden states ({implementation})",
            )
            for weights in output.attentions or ():
                assert_tensor(weights, (batch_size, model.sizes.heads, length, length), dtype, "attention weights")
    return "logits, hidden states and attention weights have the expected shapes in float32 and float64"


def check_saved_weights(fixture: PartFixture) -> str:
    """Check that a model built with a different seed gives the same logits after loading the saved weights."""
    audited_model = fixture.build_audited_model()
    loaded_model = fixture.build_audited_model(seed=1).copy_without_buffer_restore()
    state = {name: tensor.clone().contiguous() for name, tensor in audited_model.model.state_dict().items()}
    loaded_model.model.load_state_dict(load(save(state)))
    expected = audited_model.compute_logits(audited_model.input_ids)
    logits = loaded_model.compute_logits(audited_model.input_ids)
    difference = measure_tensor_difference(
        logits, expected, "after loading the saved weights", audited_model.exact_tolerance
    )
    if not difference.is_within_tolerance:
        raise CheckFailedError(
            f"{difference}; register tensors that are missing in state_dict as parameters or buffers"
        )
    return str(difference)


def check_attention_uses_its_parts(fixture: PartFixture) -> str:
    """Check that attention uses the pattern, merge and positions that it is given: alternatives change its output."""
    model = fixture.build_model()
    attention_parts = [module for module in model.modules() if isinstance(module, Attention)]
    unused_slots = frozenset().union(*(part.unused_slots for part in attention_parts))
    default_settings = {"position": (ComponentConfig(kind="none"),)}
    expected = _compute_logits_with_settings(fixture, default_settings)
    used_labels = []
    for label, alternative in ALTERNATIVE_PARTS.items():
        slot = label.split()[0]
        if slot in unused_slots:
            continue
        try:
            settings = {**default_settings, slot: (ComponentConfig.model_validate(alternative),)}
            logits = _compute_logits_with_settings(fixture, settings)
        except ModelError:  # a part may refuse what it cannot use
            continue
        if torch.allclose(logits, expected, rtol=0, atol=1e-9):
            raise CheckFailedError(
                f"attention ignores its {label}: {slot} {alternative['kind']!r} gives the same output as the default; "
                f"use it, or declare unused_slots = frozenset({{{slot!r}}})"
            )
        used_labels.append(label)
    return f"the output depends on: {', '.join(used_labels) or 'none of the parts'}"


@torch.no_grad()
def _compute_logits_with_settings(fixture: PartFixture, settings: dict[str, Any]) -> Tensor:
    """Return the logits of the fixture's model with some of its parts replaced."""
    config = fixture.config.model_copy(update=settings)
    model = PartFixture(config, fixture.is_encoder).build_model()
    return _compute_logits(model, _draw_input_ids())


def _draw_input_ids(batch_size: int = BATCH_SIZE) -> Tensor:
    """Return random token ids, shape (batch, length)."""
    return torch.randint(VOCAB_SIZE, (batch_size, INPUT_LENGTH), generator=torch.Generator().manual_seed(4))


def _compute_logits(model: Transformer, input_ids: Tensor, **forward_arguments: Any) -> Tensor:
    """Return the logits of one pass over a fixture's model."""
    logits: Tensor = model(input_ids, **forward_arguments).logits
    return logits


@torch.no_grad()
def check_row_selection(fixture: PartFixture) -> str:
    """Check that decoding continues correctly after rows of the batch were reordered, repeated or removed."""
    model, input_ids = fixture.build_model(), _draw_input_ids()
    expected = _compute_logits(model, input_ids)
    if fixture.is_encoder or model.create_cache() is None:
        return ""  # nothing is decoded
    if not _decodes_as_expected(model, input_ids, range(BATCH_SIZE), expected):
        return ""  # the check of the KV cache reports it
    for rows in ROW_SELECTIONS:
        try:
            is_as_expected = _decodes_as_expected(model, input_ids, rows, expected)
        except Exception as error:
            raise CheckFailedError(
                f"{type(error).__name__} after selecting rows {list(rows)}: {error}. {DECODING_STATE_ADVICE}"
            ) from error
        if not is_as_expected:
            raise CheckFailedError(f"the logits are wrong after selecting rows {list(rows)}. {DECODING_STATE_ADVICE}")
    return f"decoding continues after selecting rows {' and '.join(str(list(rows)) for rows in ROW_SELECTIONS)}"


def _decodes_as_expected(model: Transformer, input_ids: Tensor, rows: Sequence[int], expected: Tensor) -> bool:
    """Return whether a fixture's model decodes correctly after rows of the batch were selected in the middle."""
    cache, row_indices = model.create_cache(), torch.tensor(list(rows))
    assert cache is not None
    _compute_logits(model, input_ids[:, :PROMPT_LENGTH], cache=cache)
    cache.select_rows(row_indices)
    step_logits = [
        _compute_logits(model, input_ids[row_indices, position : position + 1], cache=cache)
        for position in range(PROMPT_LENGTH, INPUT_LENGTH)
    ]
    difference = measure_tensor_difference(
        torch.cat(step_logits, dim=1), expected[row_indices, PROMPT_LENGTH:], "after selecting rows", 1e-9
    )
    return difference.is_within_tolerance


def check_auxiliary_losses(fixture: PartFixture) -> str:
    """Check that auxiliary losses of the part are scalars with gradients, and added in training only."""
    model, input_ids = fixture.build_model(), _draw_input_ids()
    if names := list(model(input_ids).losses):
        raise CheckFailedError(
            f"auxiliary losses in evaluation: {', '.join(names)}; add them with context.add_loss, which has no effect "
            "outside training"
        )
    losses = model.train()(input_ids).losses
    for name, loss in losses.items():
        assert_tensor(loss, (), torch.float64, f"auxiliary loss {name!r}")
        if not loss.requires_grad:
            raise CheckFailedError(f"auxiliary loss {name!r} has no gradient: it does not change training")
    return f"auxiliary losses, in training only: {', '.join(losses)}" if losses else ""


def find_unchosen_experts(fixture: PartFixture) -> str:
    """Return which stacked expert weights (experts, ...) of the fixture's model have no gradient for some expert.

    Return an empty string if all have one.
    """
    audited_model = fixture.build_audited_model()
    gradients = audited_model.compute_weight_gradients(
        audited_model.run_forward(_draw_input_ids(64), training=True).logits
    )
    for name, gradient in gradients.items():
        if gradient.dim() <= 2:
            continue
        num_unchosen = sum(not bool(expert_gradient.any()) for expert_gradient in gradient)
        if 0 < num_unchosen < len(gradient):
            return (
                f"no gradient: {num_unchosen} of {len(gradient)} slices of {name}; if these are experts, no token "
                "chose them: change the router or its initial values"
            )
    return ""
